"""A real engine's APIs through the gateway: the answers are the engine's, and the counts those that it told the client."""

from __future__ import annotations

import json

import aiohttp
import pytest

from backends.gateway.config import GatewayConfig, Upstream
from backends.gateway.server import GatewayServer
from scheduler.request import Status
from scheduler.slots import Slots
from tenants.tenant import Tenant
from tests.engines.support.server import SERVED_NAME

# The first run on a machine installs 3.5 GB before the first test starts.
pytestmark = [pytest.mark.engine, pytest.mark.timeout(3600)]

TEXT, MOST = "once upon a time " * 8, 12
RESPONSES = {"model": SERVED_NAME, "input": TEXT, "max_output_tokens": MOST}
MESSAGES = {"model": SERVED_NAME, "messages": [{"role": "user", "content": TEXT}], "max_tokens": MOST}
CHAT = {"model": SERVED_NAME, "messages": MESSAGES["messages"], "max_tokens": MOST}
COUNTED = [("/v1/responses", RESPONSES), ("/v1/messages", MESSAGES), ("/invocations", CHAT)]


def events(body: bytes) -> list[dict[str, object]]:
    data = (line.removeprefix(b"data: ") for line in body.splitlines() if line.startswith(b"data: "))
    return [json.loads(value) for value in data if value != b"[DONE]"]


def told(value: dict[str, object]) -> dict[str, int] | None:
    """The usage of a whole answer, or of the last event that has one."""
    for holder in (value, value.get("response"), value.get("message")):
        if isinstance(holder, dict) and holder.get("usage"):
            return holder["usage"]
    return None


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("path", "body"), COUNTED)
async def test_counts_are_those_that_the_engine_told_the_client(engine, path, body, stream):
    outcomes = []
    config = GatewayConfig(
        tenants=(Tenant(name="chat"),),
        upstreams=(Upstream(name="vllm", url=f"http://{engine.address}", slots=Slots(sequences=1)),),
        default_tenant="chat",
    )
    asked = {**body, "stream": stream}
    if stream and path == "/invocations":
        asked["stream_options"] = {"include_usage": True}
    async with GatewayServer(config, on_outcome=outcomes.append) as gateway, aiohttp.ClientSession(gateway.url) as http:
        async with http.post(path, json=asked) as answer:
            got = await answer.read()
            assert answer.status == 200, got
        async with http.post("/tokenize", json={"model": SERVED_NAME, "prompt": TEXT}) as answer:
            assert answer.status == 200
    usages = [usage for value in (events(got) if stream else [json.loads(got)]) if (usage := told(value)) is not None]
    usage = {name: count for values in usages for name, count in values.items() if isinstance(count, int)}
    assert len(outcomes) == 1, "tokenizing takes no slot"
    outcome = outcomes[0]
    assert outcome.status is Status.OK
    assert outcome.output_tokens == usage.get("output_tokens", usage.get("completion_tokens")) == MOST
    assert outcome.prompt_tokens == usage.get("input_tokens", usage.get("prompt_tokens"))
    assert outcome.first_token_ns <= outcome.last_token_ns <= outcome.finished_ns
    if stream:
        assert len(outcome.chunk_offsets_us) > 1
