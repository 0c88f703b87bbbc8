"""Any client can use it: the openai package against the embedded server, through the gateway and directly."""

import asyncio

import openai
import pytest

from scheduler.request import Status, TokensSource
from scheduler.slots import Slots
from tenants.tenant import Tenant

MESSAGES = [{"role": "user", "content": "hello there gateway"}]
SAME = {"model": "fast-model", "max_tokens": 5, "seed": 7}


def said(answer) -> object:
    """An answer without what differs between two calls, and without fields that say nothing."""
    return without_nulls({**answer.model_dump(), "id": None, "created": None})


def without_nulls(value: object) -> object:
    if isinstance(value, dict):
        return {name: without_nulls(inner) for name, inner in value.items() if inner is not None}
    return [without_nulls(inner) for inner in value] if isinstance(value, list) else value


async def test_an_answer_that_was_not_streamed_is_what_the_server_itself_says(bench):
    """Folded chat and completion answers equal the unfolded ones of the same server, field by field."""
    server = await bench.emulator()
    gateway = await bench.gateway(server.url)
    through = await bench.openai(gateway)
    async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="unused", max_retries=0) as direct:
        for client_call in (
            lambda client: client.chat.completions.create(messages=MESSAGES, **SAME),
            lambda client: client.completions.create(prompt="hello there", **SAME),
        ):
            assert said(await client_call(through)) == said(await client_call(direct))
    assert gateway.metrics.modes == {"fold": 2}


async def test_a_folded_request_frees_its_prefill_slot_at_the_first_token(bench):
    """The upstream is asked to stream, so the outcome has a first token that lies before the end."""
    server = await bench.emulator()
    gateway = await bench.gateway(server.url)
    await (await bench.openai(gateway)).chat.completions.create(messages=MESSAGES, **SAME)
    outcome = await bench.outcome()
    assert outcome.status is Status.OK
    stamps = [
        outcome.enqueued_ns,
        outcome.dispatched_ns,
        outcome.sent_ns,
        outcome.first_token_ns,
        outcome.last_token_ns,
    ]
    assert stamps == sorted(stamps)
    assert outcome.first_token_ns < outcome.last_token_ns <= outcome.finished_ns <= outcome.ended_ns
    assert (outcome.output_tokens, outcome.tokens_source) == (5, TokensSource.USAGE)
    assert (outcome.request.tenant, outcome.backend) == ("chat", "u1")


async def test_a_stream_carries_usage_only_for_a_client_that_asked(bench):
    """The gateway counts tokens either way; only who asked for usage sees the chunk that brings it."""
    gateway = await bench.gateway((await bench.emulator()).url)
    client = await bench.openai(gateway)
    for options, expected in (({}, 0), ({"stream_options": {"include_usage": True}}, 1)):
        stream = await client.chat.completions.create(messages=MESSAGES, stream=True, **SAME, **options)
        chunks = [chunk async for chunk in stream]
        assert sum(not chunk.choices for chunk in chunks) == expected
        assert len([c for c in chunks if c.choices and c.choices[0].delta.content]) == 5
        assert chunks[-1 - expected].choices[0].finish_reason == "length"
    for number in (1, 2):
        outcome = await bench.outcome(number)
        assert outcome.output_tokens == 5
        assert len(outcome.chunk_offsets_us) == 5


async def test_a_client_that_leaves_takes_its_request_along(bench):
    """Closing the stream cancels it upstream: the server's batch is empty again, and the outcome says cancelled."""
    server = await bench.emulator()
    gateway = await bench.gateway(server.url)
    client = await bench.openai(gateway)
    stream = await client.chat.completions.create(messages=MESSAGES, stream=True, model="fast-model", max_tokens=2_000)
    await anext(aiter(stream))
    await stream.close()
    outcome = await bench.outcome()
    assert outcome.status is Status.CANCELLED
    http = await bench.http(server.url)
    async with asyncio.timeout(10):
        while True:
            async with http.get("/lmperf/stats") as response:
                stats = await response.json()
            if stats["requests_running"] == 0:
                break
    assert gateway.gate.outstanding() == {"u1": 0}


async def test_errors_keep_their_openai_meaning(bench):
    """The upstream's 404 arrives as NotFoundError, a refused tenant as BadRequestError; each with its words."""
    gateway = await bench.gateway((await bench.emulator()).url)
    client = await bench.openai(gateway)
    with pytest.raises(openai.NotFoundError, match="does not exist"):
        await client.chat.completions.create(model="no-such-model", messages=MESSAGES)
    nobody = await bench.openai(gateway, tenant="nobody")
    with pytest.raises(openai.BadRequestError) as refused:
        await nobody.chat.completions.create(messages=MESSAGES, **SAME)
    assert (refused.value.code, refused.value.type) == ("unknown_tenant", "invalid_request_error")


async def test_everything_else_is_proxied_as_it_is(bench):
    """Models, tokenizer and version answer through the gateway as they do directly."""
    server = await bench.emulator()
    gateway = await bench.gateway(server.url)
    client = await bench.openai(gateway)
    assert [model.id async for model in client.models.list()] == ["fast-model"]
    answers = []
    for url in (server.url, gateway.url):
        http = await bench.http(url)
        async with http.post("/tokenize", json={"prompt": "a b"}) as tokens, http.get("/version") as version:
            answers.append((await tokens.json(), await version.json(), tokens.status))
    assert answers[0] == answers[1]


async def test_every_request_of_a_burst_is_served_once_within_the_slots(bench):
    """40 requests of two tenants through 3 slots: 40 answers, 40 outcomes with ids of their own, never over the limit."""
    server = await bench.emulator()
    gateway = await bench.gateway(server.url, policy="wfq", slots=Slots(sequences=3, prefill_tokens=64))
    clients = [await bench.openai(gateway, tenant=name) for name in ("chat", "batch")]

    async def one(number: int) -> int:
        answer = await clients[number % 2].chat.completions.create(messages=MESSAGES, model="fast-model", max_tokens=3)
        return answer.usage.completion_tokens

    assert await asyncio.gather(*(one(number) for number in range(40))) == [3] * 40
    await bench.outcome(40)
    assert len({outcome.request.id for outcome in bench.outcomes}) == 40
    edges = sorted(edge for outcome in bench.outcomes for edge in ((outcome.dispatched_ns, 1), (outcome.ended_ns, -1)))
    running = most = 0
    for _, step in edges:
        running += step
        most = max(most, running)
    assert most <= 3


async def test_an_unlimited_prompt_length_is_corrected_from_usage(bench):
    """The second request of the same text is estimated closer to the truth than the first."""
    gateway = await bench.gateway((await bench.emulator()).url, tenants=(Tenant(name="chat"),))
    client = await bench.openai(gateway)
    long = [{"role": "user", "content": "word " * 300}]
    for _ in range(2):
        await client.chat.completions.create(model="fast-model", messages=long, max_tokens=1)
    first, second = await bench.outcome(1), await bench.outcome(2)
    assert first.prompt_tokens == second.prompt_tokens
    off = [abs(outcome.request.prompt_tokens - outcome.prompt_tokens) for outcome in (first, second)]
    assert off[1] < off[0]
