"""Wrong flags are exit code 104 with one message, whichever the command; keys are never given where others read them."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys

import pytest
from cli_support import environment, invoke, lmperf

from lmperf.cli.parser import build_parser


def commands(parser: argparse.ArgumentParser, before: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    """Every command and action that can be typed."""
    found = []
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, sub in action.choices.items():
                found += commands(sub, (*before, name)) or [(*before, name)]
    return found


ALL = commands(build_parser())


def test_all_commands_are_looked_at():
    assert {("run",), ("emulate",), ("gateway",), ("trace", "slice")} <= set(ALL)
    assert len(ALL) >= 19


@pytest.mark.parametrize("command", ALL, ids=" ".join)
def test_an_unknown_flag_is_104_and_named(command, tmp_path):
    """Also where an abbreviation could be guessed."""
    for flag in ("--no-such-flag", "--hel"):
        done = invoke(*command, flag, cwd=tmp_path)
        assert done.returncode == 104, done
        assert done.stdout == ""
        assert "Traceback" not in done.stderr
        assert done.stderr.splitlines()[-1].startswith("lmperf")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "args", [(), ("runn",), ("trace",), ("trace", "sliced")], ids=["nothing", "runn", "trace", "sliced"]
)
def test_no_command_or_no_such_command_is_104(args, tmp_path):
    assert invoke(*args, cwd=tmp_path).returncode == 104


@pytest.mark.parametrize("module", ["backends.emulator", "backends.gateway"])
def test_the_servers_as_modules_say_the_same(module, tmp_path):
    done = lmperf("--port", "seven", module=module, cwd=tmp_path)
    assert done.returncode == 104, done
    assert "--port" in done.stderr


def test_a_gateway_refuses_a_key_that_its_scenario_writes_out(tmp_path):
    """At its line, without quoting it; a reference is fine."""
    scenario = """\
version: 1
backend: {kind: openai, url: "http://127.0.0.1:9", api_key: sk-very-secret}
tenants:
  chat: {}
"""
    (tmp_path / "s.yaml").write_text(scenario)
    done = invoke("gateway", "--scenario", "s.yaml", cwd=tmp_path)
    assert done.returncode == 104, done
    assert "s.yaml:2: backend.api_key: a secret is written out; use `${env:NAME}`" in done.stderr
    assert "sk-very-secret" not in done.stderr


def test_a_run_against_what_is_no_server_is_104_at_once(tmp_path):
    """A model's name where a server belongs is not waited for."""
    done = invoke("run", "--model", "meta-llama/Llama-3.1-8B", "--num-prompts", "1", cwd=tmp_path)
    assert done.returncode == 104, done
    assert "is neither a URL nor HOST:PORT" in done.stderr


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (("--num-prompts", "0"), "--num-prompts: num_prompts: must be >= 1, got 0"),
        (("--concurrency", "-1"), "--concurrency: tenants.default.users: must be >= 1, got -1"),
        (("--request-rate", "0"), "--request-rate: tenants.default.rate: must be > 0, got 0"),
        (("--random-output-len", "0"), "--random-output-len: tenants.default.output: must be >= 1, got 0"),
        (("--duration", "1e12"), "--duration: duration_s: must be <= 2,592,000, got 1e+12"),
        (("--ready-timeout", "-1"), "--ready-timeout: -1 is no time to wait: 0 or more seconds"),
        (("--num-prompts", "1", "--output-dir", ""), "--output-dir is empty"),
    ],
)
def test_a_wrong_value_names_the_flag_that_was_typed(flags, says, tmp_path):
    done = invoke("run", "--model", "127.0.0.1:9", *flags, cwd=tmp_path)
    assert done.returncode == 104, done
    assert says in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_scenario_that_cannot_be_simulated_leaves_nothing_behind(tmp_path):
    done = invoke("simulate", "quickstart", cwd=tmp_path)
    assert done.returncode == 104, done
    assert "no server model" in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("args", [("scenarios",), ("schema",)])
def test_a_reader_that_has_read_enough_is_no_fault(args, tmp_path):
    """The pipe is closed before a line is read: 141, as of any command, and not a word on stderr."""
    read_end, write_end = os.pipe()
    os.close(read_end)
    with os.fdopen(write_end, "wb") as pipe:
        done = subprocess.run(
            [sys.executable, "-m", "lmperf", *args],
            cwd=tmp_path,
            env=environment(),
            stdout=pipe,
            stderr=subprocess.PIPE,
            timeout=60,
            check=False,
        )
    assert (done.returncode, done.stderr) == (141, b"")
