"""The truth file holds what really happened: planned times are the model's, sends are never early, and a client sees no
token before it was sent."""

import asyncio
import itertools
import json
import time
from dataclasses import replace

import aiohttp
import pytest

from backends.emulator.config import EmulatorConfig
from backends.emulator.server import EmulatorServer
from backends.emulator.truth import read_truth

EXACT = {"ignore_eos": True, "stream": True}


@pytest.fixture
def config(config, tmp_path) -> EmulatorConfig:
    return replace(config, truth_path=tmp_path / "truth.jsonl")


async def received_times(http, name, prompt_tokens, max_tokens):
    """The client's own stamp of each data event, on the same monotonic clock."""
    body = {"prompt": "w " * prompt_tokens, "max_tokens": max_tokens, **EXACT}
    stamps = []
    headers = {"X-Request-Id": name, "x-lmperf-tenant": f"tenant-{name}"}
    async with http.post("/v1/completions", json=body, headers=headers) as response:
        async for data, _ in response.content.iter_chunks():
            if data and data != b"data: [DONE]\n\n":
                stamps.append(time.monotonic_ns())
    return stamps


async def test_each_request_is_recorded_with_every_token(config):
    """Names and counts as the client knows them; planned <= sent <= seen by the client, token by token."""
    sizes = {"a": (10, 8), "b": (300, 5), "c": (1, 1)}
    async with EmulatorServer(config) as server, aiohttp.ClientSession(server.url) as http:
        seen = dict(
            zip(
                sizes,
                await asyncio.gather(*(received_times(http, name, *size) for name, size in sizes.items())),
                strict=True,
            )
        )
    records = {record.client_id: record for record in read_truth(config.truth_path)}
    assert records.keys() == sizes.keys()
    for name, (prompt_tokens, output_tokens) in sizes.items():
        record = records[name]
        assert (record.prompt_tokens, record.output_tokens, record.finished) == (prompt_tokens, output_tokens, True)
        assert (record.tenant, record.response_id) == (f"tenant-{name}", f"cmpl-{name}")
        assert len(record.token_ns) == len(record.planned_ns) == len(seen[name]) == output_tokens
        assert (record.first_token_ns, record.last_token_ns) == (record.token_ns[0], record.token_ns[-1])
        assert all(p <= t <= s for p, t, s in zip(record.planned_ns, record.token_ns, seen[name], strict=True))
        assert all(p <= t for p, t in zip(record.planned_ns, record.token_ns, strict=True))
        assert record.received_ns < record.planned_ns[0]


@pytest.mark.parametrize("time_scale", [1.0, 2.5])
async def test_a_lone_request_is_planned_by_the_step_law_times_the_time_scale(config, time_scale):
    """offset + a + b*prompt to the first token, then a + c + d*context a token: to the ns, on any host."""
    config = replace(config, time_scale=time_scale)
    law = config.server_model.law
    async with EmulatorServer(config) as server, aiohttp.ClientSession(server.url) as http:
        await received_times(http, "lone", 20, 4)
    (record,) = read_truth(config.truth_path)
    expected_us = [law.offset_us + law.a_us + law.b_us * 20]
    expected_us += [law.a_us + law.c_us + law.d_us * (20 + k) for k in (1, 2, 3)]
    moments = [record.received_ns, *record.planned_ns]
    gaps_ns = [later - earlier for earlier, later in itertools.pairwise(moments)]
    assert gaps_ns == pytest.approx([time_scale * 1000 * us for us in expected_us], abs=1)


async def test_a_client_that_left_is_recorded_as_unfinished(config):
    """With the tokens that had been sent until then."""
    async with EmulatorServer(config) as server, aiohttp.ClientSession(server.url) as http:
        body = {"prompt": "x", "max_tokens": 4000, **EXACT}
        response = await http.post("/v1/completions", json=body)
        await response.content.readuntil(b"\n\n")
        response.close()
        async with asyncio.timeout(20):
            while not config.truth_path.read_bytes():
                async with http.get("/lmperf/stats") as told:
                    await told.read()
    (record,) = read_truth(config.truth_path)
    assert not record.finished
    assert 1 <= record.output_tokens == len(record.token_ns) < 4000


async def test_no_answer_to_a_request_that_was_not_streamed_precedes_its_last_token(config):
    """The whole answer comes when the model has made its last token, not before."""
    async with EmulatorServer(config) as server, aiohttp.ClientSession(server.url) as http:
        body = {"prompt": "x", "max_tokens": 6, "ignore_eos": True}
        async with http.post("/v1/completions", json=body) as response:
            answered_ns = time.monotonic_ns()
            assert json.loads(await response.read())["usage"]["completion_tokens"] == 6
    (record,) = read_truth(config.truth_path)
    assert record.planned_ns[-1] <= answered_ns
    assert len(record.planned_ns) == 6
