"""Keys that lie in files: read at the start and at every reload, so that they can be replaced without a restart."""

import asyncio
import os
import signal
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from gateway_upstream import DEADLINE_S, DONE, chat_body, text, usage

from backends.gateway.cli import READY_PREFIX
from backends.gateway.config import ConfigError
from backends.reference import resolve_references
from tenants.tenant import Identity, Tenant

CHAT = "/v1/chat/completions"
ROOT = Path(__file__).resolve().parents[2]


async def good(request, peer):
    await peer.stream(text("hi"), text("!", "stop"), usage(3, 2), DONE)


async def ask(http, key: str) -> int:
    async with http.post(CHAT, data=chat_body(), headers={"Authorization": f"Bearer {key}"}) as response:
        await response.read()
        return response.status


async def test_keys_of_tenants_upstreams_and_administration_are_replaced_by_a_reload(bench, tmp_path, caplog):
    """The old ones hold until then; a file that is gone meanwhile changes nothing."""
    caplog.set_level("INFO")
    files = {name: tmp_path / name for name in ("chat", "upstream", "admin")}
    for name, file in files.items():
        file.write_text(f"{name}-0ld\n")
    refs = {name: f"${{file:{file}}}" for name, file in files.items()}
    upstream = await bench.upstream(good)
    gateway = await bench.gateway(
        upstream.url,
        tenants=(Tenant(name="chat", identity=Identity(api_key=refs["chat"])),),
        key=refs["upstream"],
        admin_key=refs["admin"],
        resolve=resolve_references,
        reload=lambda: gateway.gate.config,
    )
    http = await bench.http(gateway.url)

    async def reload(key: str) -> int:
        async with http.post("/admin/reload", headers={"Authorization": f"Bearer {key}"}) as response:
            told = await response.text()
            assert "0ld" not in told
            assert "n3w" not in told
            return response.status

    for name, file in files.items():
        file.write_text(f"{name}-n3w")
    assert await ask(http, "chat-0ld") == 200
    assert upstream.requests[-1].headers["authorization"] == "Bearer upstream-0ld"
    files["upstream"].rename(tmp_path / "away")
    assert await reload("admin-0ld") == 400
    assert await ask(http, "chat-0ld") == 200, "nothing was changed, not even the keys that were there"
    (tmp_path / "away").rename(files["upstream"])
    assert await reload("admin-0ld") == 200
    assert [await ask(http, "chat-0ld"), await ask(http, "chat-n3w")] == [401, 200]
    assert upstream.requests[-1].headers["authorization"] == "Bearer upstream-n3w"
    assert [await reload("admin-0ld"), await reload("admin-n3w")] == [401, 200]
    assert not any(word in line for line in caplog.text.splitlines() for word in ("0ld", "n3w"))


async def test_an_upstream_whose_key_file_is_missing_stops_the_start(bench, tmp_path):
    with pytest.raises(ValueError, match=r"no\.key does not exist"):
        await bench.gateway("http://127.0.0.1:1", key=f"${{file:{tmp_path}/no.key}}", resolve=resolve_references)


async def test_a_key_that_is_written_out_is_told_both_ways_to_keep_it(bench):
    upstream = await bench.upstream(good)
    gateway = await bench.gateway(upstream.url)
    with pytest.raises(ConfigError, match=r"give \$\{env:NAME\} or \$\{file:PATH\}"):
        replace(gateway.config, admin_key="open sesame")


SCENARIO = """\
version: 1
name: keys
backend: {{kind: openai, url: "{url}"}}
policy: fifo
tenants:
  chat: {{api_key: "${{file:chat.key}}"}}
"""


async def test_a_scenario_that_is_reloaded_brings_its_own_references(bench, tmp_path):
    """Files beside the scenario; one that is missing at a reload is named on stderr and the gateway serves on."""
    upstream = await bench.upstream(good)
    scenario = tmp_path / "s.yaml"
    scenario.write_text(SCENARIO.format(url=upstream.url))
    (tmp_path / "chat.key").write_text("k1\n")
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "lmperf", "gateway", "--scenario", str(scenario)),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )

    async def stderr_until(word: bytes) -> bytes:
        while word not in (line := await process.stderr.readline()):
            assert line, f"ended before it said {word!r}"
        return line

    try:
        async with asyncio.timeout(2 * DEADLINE_S):
            ready = (await process.stdout.readline()).decode()
            assert ready.startswith(READY_PREFIX), ready
            http = await bench.http(ready.split()[-1])
            assert [await ask(http, "k1"), await ask(http, "k2")] == [200, 401]
            (tmp_path / "chat.key").write_text("k2\n")
            scenario.write_text(SCENARIO.format(url=upstream.url) + '  new: {api_key: "${file:new.key}"}\n')
            process.send_signal(signal.SIGHUP)
            line = await stderr_until(b"nothing was changed")
            assert f"s.yaml:7: tenants.new.api_key: the file {tmp_path}/new.key does not exist".encode() in line
            assert await ask(http, "k1") == 200
            (tmp_path / "new.key").write_text("k3\n")
            process.send_signal(signal.SIGHUP)
            await stderr_until(b'"reloaded"')
            assert [await ask(http, key) for key in ("k1", "k2", "k3")] == [401, 200, 200]
            process.terminate()
            await process.communicate()
            assert process.returncode == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
