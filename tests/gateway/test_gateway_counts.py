"""A count that no answer can have is not told: whatever the API, the request is served, and nothing of its answer changed."""

import json
import re

import pytest
from gateway_upstream import chat_body, text
from test_gateway_dialects import (
    MESSAGES_BODY,
    MESSAGES_STREAM,
    RESPONSES_BODY,
    RESPONSES_STREAM,
    message,
    post,
    response,
)

from backends.gateway.dialects.other import OTHER
from scheduler.request import Status, TokensSource

NO_COUNTS = [str(1 << 70), str((1 << 32) + 5), "-4", "1.5", '"5"', "true"]
USAGE = {"prompt_tokens": 9, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 4}}
CHAT_WHOLE = {"choices": [{"index": 0, "message": {"content": "hi!"}, "finish_reason": "stop"}], "usage": USAGE}
CHAT_STREAM = [
    text("hi!", finish="stop"),
    b"data: " + json.dumps({"choices": [], "usage": USAGE}).encode() + b"\n\n",
    b"data: [DONE]\n\n",
]
APIS = {
    "chat": ("/v1/chat/completions", json.loads(chat_body(stream=False)), CHAT_STREAM, CHAT_WHOLE),
    "responses": ("/v1/responses", RESPONSES_BODY, RESPONSES_STREAM, response()),
    "messages": ("/v1/messages", MESSAGES_BODY, MESSAGES_STREAM, message()),
    "other": ("/generate", {"text": "hello"}, [text("hi!")], {"usage": {"prompt_tokens": 9, "completion_tokens": 2}}),
}


def telling(count: str, body: bytes) -> bytes:
    """``body`` with ``count`` for each of its counts."""
    return re.sub(rb'("\w+_tokens": ?)\d+', rb"\g<1>" + count.encode(), body)


@pytest.mark.parametrize("count", NO_COUNTS)
@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize("streams", [True, False], ids=["stream", "whole"])
async def test_a_count_that_cannot_be_is_not_told(bench, api, streams, count):
    """The prompt keeps its estimate, and the estimate learns nothing; the output is unknown."""
    path, body, events, whole = APIS[api]
    events, answer = [telling(count, event) for event in events], telling(count, json.dumps(whole).encode())

    async def script(request, peer):
        if streams:
            await peer.stream(*events)
        else:
            await peer.answer(answer)

    gateway = await bench.gateway((await bench.upstream(script)).url)
    asked = {**body, "stream": True, "stream_options": {"include_usage": True}} if streams else body
    status, got = await post(await bench.http(gateway.url), path, asked)
    assert (status, got) == (200, b"".join(events) if streams else answer)
    outcome = await bench.outcome()
    assert outcome.status is Status.OK
    assert (outcome.prompt_tokens, outcome.cached_prompt_tokens) == (outcome.request.prompt_tokens, None)
    assert (outcome.output_tokens, outcome.tokens_source) == (None, TokensSource.UNKNOWN)


async def test_a_folded_stream_with_such_a_count_is_its_answer(bench):
    """The client gets the server's word, the gateway does not count by it."""
    events = [telling(str(1 << 70), event) for event in CHAT_STREAM]

    async def script(request, peer):
        await peer.stream(*events)

    gateway = await bench.gateway((await bench.upstream(script)).url)
    status, got = await post(await bench.http(gateway.url), "/v1/chat/completions", chat_body(stream=False))
    assert (status, json.loads(got)["usage"]["completion_tokens"]) == (200, 1 << 70)
    outcome = await bench.outcome()
    assert (outcome.status, outcome.output_tokens) == (Status.OK, None)


@pytest.mark.parametrize(
    ("usage", "prompt", "cached"),
    [
        ({"input_tokens": 5, "cache_read_input_tokens": 1 << 31, "output_tokens": 2}, None, None),
        ({"input_tokens": (1 << 31) - 1, "cache_read_input_tokens": 4, "output_tokens": 2}, None, 4),
        ({"input_tokens": (1 << 31) - 5, "cache_read_input_tokens": 4, "output_tokens": 2}, (1 << 31) - 1, 4),
    ],
    ids=["a part", "the sum", "the most"],
)
async def test_a_prompt_told_in_parts_is_told_by_all_of_them(bench, usage, prompt, cached):
    """A part that cannot be, or a sum that cannot be, leaves it unknown."""

    async def script(request, peer):
        await peer.answer(json.dumps(message(usage=usage)).encode())

    gateway = await bench.gateway((await bench.upstream(script)).url)
    await post(await bench.http(gateway.url), "/v1/messages", MESSAGES_BODY)
    outcome = await bench.outcome()
    assert outcome.prompt_tokens == (outcome.request.prompt_tokens if prompt is None else prompt)
    assert (outcome.cached_prompt_tokens, outcome.output_tokens) == (cached, 2)


def test_an_output_that_cannot_be_is_not_one_of_nothing():
    """Of an unknown API a usage without a word of output means that there is none; one with a word that is nonsense does
    not."""
    told = OTHER.whole(b'{"usage": {"prompt_tokens": 7, "completion_tokens": -1, "total_tokens": 7}}')
    assert (told.prompt_tokens, told.output_tokens) == (7, None)
    told = OTHER.whole(b'{"usage": {"completion_tokens": -1, "total_tokens": 7}}')
    assert told is None
