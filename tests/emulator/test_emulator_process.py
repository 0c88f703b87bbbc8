"""The embedded server as a process: it starts, says where it is, ends when told, and never outlives its parent."""

import argparse
import asyncio
import os
import signal
import socket
import sys
from pathlib import Path

import openai
import pytest

from backends.emulator import cli
from backends.emulator.config import EmulatorConfig
from backends.emulator.process import EmulatorProcess, EmulatorProcessError
from scheduler.server_model.spec import PRESETS, ServerLimits, encode_server_model

ROOT = Path(__file__).resolve().parents[2]


def parse(*argv):
    parser = argparse.ArgumentParser()
    cli.add_arguments(parser)
    return parser.parse_args(argv)


async def test_a_process_serves_what_its_configuration_says_and_ends_when_told(config, tmp_path, monkeypatch):
    """From any working directory; limits, names, scale and key reach the child; SIGTERM is a clean end."""
    monkeypatch.chdir(tmp_path)
    config = EmulatorConfig(
        server_model=config.server_model,
        time_scale=0.5,
        model_name="own name",
        api_key="secret",
        truth_path=tmp_path / "t.jsonl",
    )
    async with EmulatorProcess(config) as process:
        async with openai.AsyncOpenAI(base_url=f"{process.url}/v1", api_key="secret", max_retries=0) as client:
            answer = await client.completions.create(
                model="own name", prompt="x", max_tokens=5, extra_body={"ignore_eos": True}
            )
        stats = await process.stats()
        assert "secret" not in " ".join(process._arguments())
        assert process.returncode is None
    assert answer.usage.completion_tokens == 5
    assert (stats.model, stats.time_scale, stats.generation_tokens) == ("own name", 0.5, 5)
    assert stats.server_model.limits == config.server_model.limits
    assert stats.server_model.law == config.server_model.law.scaled(0.5)
    assert process.returncode == 0
    assert process.stderr == ""
    assert (tmp_path / "t.jsonl").read_bytes().count(b"\n") == 1


async def test_a_port_that_is_taken_is_an_error_that_says_so(config):
    """With the child's exit code and its own words."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        process = EmulatorProcess(EmulatorConfig(server_model=config.server_model, port=port))
        with pytest.raises(
            EmulatorProcessError, match=f"(?s)ended with code 106.*cannot serve on 127.0.0.1:{port}"
        ) as error:
            await process.start()
    assert process.returncode == 106
    assert "Traceback" not in str(error.value)


async def test_the_server_ends_when_its_parent_is_killed():
    """SIGKILL leaves the parent no chance to clean up; the server's sockets close all the same."""
    script = (
        "import asyncio\n"
        "from backends.emulator.process import EmulatorProcess\n"
        "async def main():\n"
        "    async with EmulatorProcess() as process:\n"
        "        print(process.url, flush=True)\n"
        "        await asyncio.Event().wait()\n"
        "asyncio.run(main())\n"
    )
    parent = await asyncio.create_subprocess_exec(
        sys.executable, "-c", script, stdout=asyncio.subprocess.PIPE, env={**os.environ, "PYTHONPATH": str(ROOT)}
    )
    url = (await parent.stdout.readline()).decode().strip()
    reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2]))
    parent.send_signal(signal.SIGKILL)
    await parent.wait()
    assert await asyncio.wait_for(reader.read(), 20) == b""
    writer.close()
    await writer.wait_closed()


def test_options_override_the_server_models_limits(tmp_path):
    """A file or a preset gives the law; what is not overridden stays."""
    path = tmp_path / "model.json"
    path.write_bytes(encode_server_model(PRESETS["h200-llama-8b"]))
    config = cli.config_from_args(parse("--server-model", str(path), "--max-num-seqs=7", "--kv-tokens=9000"))
    assert config.server_model.limits == ServerLimits(max_num_seqs=7, max_num_batched_tokens=8192, kv_tokens=9000)
    assert config.server_model.law == PRESETS["h200-llama-8b"].law
    assert config.context_tokens == 9000
    assert config.served_name == "h200-llama-8b"


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["--server-model", "no-such"], "no such file and no such preset"),
        (["--time-scale", "0"], "time scale must be > 0"),
        (["--max-num-seqs", "0"], "max_num_seqs must be >= 1"),
        (["--max-num-batched-tokens", "8"], "must be at least max_num_seqs"),
        (["--max-model-len", "1"], "max model length must be >= 2"),
        (["--output-mean", "0"], "mean must be >= 1"),
        (["--api-key-env", "LMPERF_TEST_NO_SUCH_VARIABLE"], "LMPERF_TEST_NO_SUCH_VARIABLE: this environment variable"),
    ],
)
def test_a_bad_option_ends_with_code_104_and_says_what_would_be_right(argv, says, capsys):
    """On stderr, without a traceback."""
    assert cli.main(argv) == 104
    captured = capsys.readouterr()
    assert says in captured.err
    assert captured.err.startswith("lmperf emulate: ")
    assert captured.out == ""


def test_the_key_is_read_from_the_environment_variable(monkeypatch):
    """Never from the command line, where every user of the host could read it."""
    monkeypatch.setenv("LMPERF_TEST_KEY", "k")
    assert cli.config_from_args(parse("--api-key-env", "LMPERF_TEST_KEY")).api_key == "k"
