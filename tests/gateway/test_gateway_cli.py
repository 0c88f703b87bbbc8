"""The command line, and the gateway as a process of its own with its signals."""

import argparse
import asyncio
import os
import re
import signal
import sys
from pathlib import Path

import aiohttp
import pytest
from gateway_upstream import DONE, ScriptedUpstream, chat_body, text, usage

from backends.gateway.cli import READY_PREFIX, add_arguments, config_from_args
from backends.gateway.config import GatewayConfig, Upstream
from scheduler.slots import Slots
from tenants.tenant import Identity, Tenant

ROOT = Path(__file__).resolve().parents[2]


def parsed(*argv: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return parser.parse_args(argv)


def test_flags_alone_make_a_configuration():
    config = config_from_args(
        parsed(
            *(
                "--upstream",
                "a=localhost:8000",
                "--upstream",
                "http://localhost:8001",
                "--tenant",
                "chat=2",
                "--tenant",
                "b",
            ),
            *("--tenant-key", "b=${env:B}", "--policy", "slo_aware", "--policy-option", "window_s=30"),
            *("--slots", "8", "--prefill-tokens", "2048", "--default-tenant", "chat", "--timeout-s", "5", "--no-fold"),
        )
    )
    assert config.tenants == (Tenant(name="chat", weight=2.0), Tenant(name="b", identity=Identity(api_key="${env:B}")))
    slots = Slots(sequences=8, prefill_tokens=2048)
    assert config.upstreams == (
        Upstream(name="a", url="localhost:8000", slots=slots),
        Upstream(name="upstream-2", url="http://localhost:8001", slots=slots),
    )
    assert (config.policy, dict(config.options), config.limits.total_timeout_s) == ("slo_aware", {"window_s": 30}, 5.0)
    assert not config.fold


def test_flags_override_a_base_and_leave_the_rest():
    base = GatewayConfig(
        tenants=(Tenant(name="chat", weight=3.0, priority=1), Tenant(name="b")),
        upstreams=(Upstream(name="u", url="localhost:1", slots=Slots(sequences=4)),),
        policy="wfq",
        port=9,
    )
    config = config_from_args(parsed("--tenant", "chat=5", "--slots", "6"), base)
    assert config.tenants == (Tenant(name="chat", weight=5.0, priority=1), Tenant(name="b"))
    assert config.upstreams[0].slots == Slots(sequences=6)
    assert (config.policy, config.port) == ("wfq", 9)


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (("--tenant", "a"), "--upstream"),
        (("--upstream", "x:1"), "--tenant"),
        (("--upstream", "x:1", "--tenant", "a=b"), "must be a number"),
        (("--upstream", "x:1", "--tenant", "a", "--tenant-key", "a=literal"), "can be seen by others"),
        (
            ("--upstream", "x:1", "--tenant", "a", "--upstream-key", "sk-1"),
            "key of upstream 'upstream-1' is written out",
        ),
        (("--upstream", "x:1", "--tenant", "a", "--upstream-key", "sk-${env:A}"), "written out"),
        (("--upstream", "x:1", "--tenant", "a", "--admin-key", "open"), "the admin key is written out"),
        (("--upstream", "x", "--tenant", "a"), "'x' is neither a URL nor HOST:PORT; right would be x:8000 or http://x"),
        (("--upstream", "b=x", "--tenant", "a"), "upstream 'b': 'x' is neither a URL nor HOST:PORT"),
        (("--upstream", "ftp://x", "--tenant", "a"), "not http or https"),
        (("--upstream", "x:1", "--tenant", "a", "--policy-option", "x"), "NAME=VALUE"),
        (("--upstream", "x:1", "--tenant", "a", "--slots", "0"), ">= 1"),
        (("--upstream", "x:1", "--tenant", "a", "--timeout-s", "inf"), "total_timeout_s must be > 0 and at most"),
        (("--upstream", "x:1", "--tenant", "a", "--queue-timeout-s", "nan"), "queue_timeout_s must be > 0 and at most"),
        (("--upstream", "x:1", "--tenant", "a", "--drain-s", "1e300"), "drain_s must be > 0 and at most"),
        (("--upstream", "x:1", "--tenant", "a=inf"), "weight"),
        (("--upstream", "x:1", "--tenant", "a=nan"), "weight"),
    ],
)
def test_a_wrong_flag_is_named(argv, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        config_from_args(parsed(*argv))


async def test_the_process_serves_reloads_on_sighup_and_drains_on_sigterm():
    """Ready line on stdout, JSON lines on stderr; SIGHUP reloads; SIGTERM lets the running answer end, then exit 0."""
    began, go_on = asyncio.Event(), asyncio.Event()

    async def script(request, peer):
        began.set()
        await go_on.wait()
        await peer.stream(text("hi"), text("!", "stop"), usage(3, 2), DONE)

    upstream = ScriptedUpstream(script)
    await upstream.start()
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "backends.gateway", "--upstream", upstream.url, "--tenant", "chat", "--policy", "wfq"),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    try:
        async with asyncio.timeout(30):
            ready = (await process.stdout.readline()).decode()
            assert ready.startswith(f"{READY_PREFIX}wfq at http://127.0.0.1:")
            url = ready.split()[-1]
            process.send_signal(signal.SIGHUP)
            lines = [await process.stderr.readline() for _ in range(2)]
            assert b'"reloaded"' in lines[-1]
            async with aiohttp.ClientSession(url) as http:
                headers = {"x-lmperf-tenant": "chat"}
                asked = asyncio.create_task(http.post("/v1/chat/completions", data=chat_body(), headers=headers))
                await began.wait()
                process.send_signal(signal.SIGTERM)
                assert b'"draining"' in await process.stderr.readline()
                go_on.set()
                async with await asked as response:
                    assert (response.status, await response.read()) == (200, text("hi") + text("!", "stop") + DONE)
            rest, log = await process.communicate()
            assert (process.returncode, rest) == (0, b"")
            assert b'"stopped"' in log.splitlines()[-1]
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
        await upstream.stop()


@pytest.mark.parametrize(
    ("argv", "code", "said"),
    [
        (("--tenant", "a"), 104, b"--upstream"),
        (
            ("--upstream", "127.0.0.1:1", "--tenant", "a", "--admin-key", "${env:GATEWAY_NOT_SET}"),
            104,
            b"GATEWAY_NOT_SET",
        ),
        (("--upstream", "127.0.0.1:1", "--tenant", "a", "--host", "203.0.113.1", "--port", "9"), 106, b"cannot serve"),
    ],
)
async def test_a_start_that_fails_says_why_with_the_documented_exit_code(argv, code, said):
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "backends.gateway", *argv),
        stderr=asyncio.subprocess.PIPE,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    async with asyncio.timeout(30):
        _, error = await process.communicate()
    assert process.returncode == code
    assert said in error
