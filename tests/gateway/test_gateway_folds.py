"""Who does not stream frees the prefill slot at the first token all the same, in every API, and gets the same answer."""

from __future__ import annotations

import asyncio
import json
from itertools import pairwise

import pytest
from gateway_upstream import DONE, SSE_HEAD, event, text, usage
from hypothesis import given
from hypothesis import strategies as st
from test_gateway_dialects import MESSAGES_STREAM, RESPONSES_STREAM, delta, message, post, response, typed

from backends.gateway.dialects.messages import MESSAGES
from backends.gateway.dialects.openai import CHAT as CHAT_API
from backends.gateway.dialects.openai import COMPLETIONS as COMPLETIONS_API
from backends.gateway.dialects.responses import RESPONSES
from backends.gateway.fold import FoldError
from scheduler.request import ErrorClass, Status, TokensSource
from scheduler.slots import Slots

CHAT = ("/v1/chat/completions", {"model": "m", "messages": []}, [text("hi"), text("!", "stop"), usage(3, 2), DONE])
COMPLETIONS = (
    "/v1/completions",
    {"model": "m", "prompt": "hello"},
    [event({"choices": [{"index": 0, "text": "hi", "finish_reason": "stop"}]}), usage(3, 1), DONE],
)
ANSWERS = {
    "chat": CHAT,
    "completions": COMPLETIONS,
    "responses": ("/v1/responses", {"model": "m", "input": "hello"}, RESPONSES_STREAM),
    "messages": ("/v1/messages", {"model": "m", "messages": [], "max_tokens": 9}, MESSAGES_STREAM),
}


def data_of(*events: bytes) -> list[bytes]:
    return [line.removeprefix(b"data: ") for line in b"".join(events).split(b"\n") if line.startswith(b"data: ")]


@pytest.mark.parametrize("api", ANSWERS)
async def test_the_prefill_slot_is_free_at_the_first_token(bench, api):
    """The next request is at the upstream before the answer of the first, which does not stream, is at its end."""
    path, body, events = ANSWERS[api]
    seen = []
    second = asyncio.Event()

    async def script(request, peer):
        seen.append(request)
        if len(seen) == 2:
            second.set()
        if not request.json.get("stream"):  # a server that was not asked to stream has nothing to say before its end
            await second.wait()
            await peer.answer(b"{}")
            return
        await peer.send(SSE_HEAD)
        for one in events[:-2]:
            await peer.chunk(one)
        await second.wait()
        for one in events[-2:]:
            await peer.chunk(one)
        await peer.end()

    gateway = await bench.gateway((await bench.upstream(script)).url, slots=Slots(sequences=9, prefill_tokens=1))
    http = await bench.http(gateway.url)
    async with asyncio.timeout(10):
        answers = await asyncio.gather(*(post(http, path, body) for _ in range(2)))
    assert [status for status, _ in answers] == [200, 200]
    assert all(json.loads(told)["usage"] for _, told in answers)
    assert gateway.metrics.modes == {"fold": 2}


@pytest.mark.parametrize("api", ["responses", "messages"])
async def test_the_answer_is_that_of_a_server_that_was_not_asked_to_stream(bench, api):
    """And it is counted: its tokens, its first one, its end."""
    path, body, events = ANSWERS[api]

    async def script(request, peer):
        assert request.json == {**body, "stream": True}
        await peer.stream(*events)

    gateway = await bench.gateway((await bench.upstream(script)).url)
    status, told = await post(await bench.http(gateway.url), path, body)
    whole = {
        "responses": response(),
        "messages": message(
            stop_reason="max_tokens",
            content=[{"type": "thinking", "thinking": "h", "signature": "c2ln"}, {"type": "text", "text": "hi!"}],
        ),
    }[api]
    assert (status, json.loads(told)) == (200, whole)
    outcome = await bench.outcome()
    assert (outcome.status, outcome.prompt_tokens, outcome.output_tokens) == (Status.OK, 9, 2)
    assert (outcome.tokens_source, outcome.cached_prompt_tokens) == (TokensSource.USAGE, 4)
    assert len(outcome.chunk_offsets_us) == 2


@pytest.mark.parametrize(
    "more", [{"tools": [{"name": "f"}]}, {"something_new": 1}, {"stream": False, "tool_choice": "auto"}]
)
@pytest.mark.parametrize("api", ANSWERS)
async def test_what_may_not_fold_goes_as_it_came(bench, api, more):
    """Tools, and what nobody knows here, in every API alike."""
    path, body, _ = ANSWERS[api]
    asked = []

    async def script(request, peer):
        asked.append(request.json)
        await peer.answer(b'{ "odd":  1}')

    gateway = await bench.gateway((await bench.upstream(script)).url)
    assert await post(await bench.http(gateway.url), path, {**body, **more}) == (200, b'{ "odd":  1}')
    assert asked == [{**body, **more}]


@pytest.mark.parametrize("api", ["responses", "messages"])
async def test_a_stream_that_fails_is_no_answer(bench, api):
    """Its client did not ask to stream and gets an error, not half of it."""
    path, body, events = ANSWERS[api]

    async def script(request, peer):
        await peer.stream(*events[:-2])

    gateway = await bench.gateway((await bench.upstream(script)).url)
    status, told = await post(await bench.http(gateway.url), path, body)
    assert (status, json.loads(told)["error"]["code"]) == (502, "upstream_failed")
    assert (await bench.outcome()).status is Status.FAILED


def test_a_response_whose_last_event_has_no_output_is_made_of_its_items():
    """Some servers send them one by one only."""
    items = [{"type": "reasoning", "id": "a"}, {"type": "message", "id": "b"}]
    done = [
        typed({"type": "response.output_item.done", "output_index": at, "item": item}) for at, item in enumerate(items)
    ]
    last = typed({"type": "response.incomplete", "response": response(output=[], status="incomplete")})
    folded = RESPONSES.folding.body(data_of(*done, last))
    assert json.loads(folded) == response(output=items, status="incomplete")
    whole = typed({"type": "response.completed", "response": response()})
    assert json.loads(RESPONSES.folding.body(data_of(*done, whole))) == response()


@given(
    st.lists(st.tuples(st.sampled_from(["text", "thinking", "tool_use"]), st.text()), max_size=5),
    st.lists(st.integers(0, 60), max_size=8),
)
def test_blocks_fold_however_they_were_cut(blocks, at):
    """A text, a thought and a tool's input are what they were before they were sent in pieces."""
    content, sent = [], []
    for index, (kind, said) in enumerate(blocks):
        of, value = {"text": ("text", said), "thinking": ("thinking", said), "tool_use": ("input", {"said": said})}[
            kind
        ]
        content.append({"type": kind, of: value})
        written = json.dumps(value) if kind == "tool_use" else said
        empty = {"type": kind, of: {} if kind == "tool_use" else ""}
        sent.append(typed({"type": "content_block_start", "index": index, "content_block": empty}))
        marks = sorted({0, len(written), *(mark % (len(written) + 1) for mark in at)})
        name = "partial_json" if kind == "tool_use" else of
        sent += [delta(f"{of}_delta", at=index, **{name: written[a:b]}) for a, b in pairwise(marks)]
        sent.append(typed({"type": "content_block_stop", "index": index}))
    start = typed(
        {"type": "message_start", "message": message(content=[], stop_reason=None, usage={"input_tokens": 5})}
    )
    end = typed(
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 2, "x": None}}
    )
    folded = MESSAGES.folding.body(data_of(start, typed({"type": "ping"}), *sent, end, typed({"type": "message_stop"})))
    assert json.loads(folded) == message(content=content, usage={"input_tokens": 5, "output_tokens": 2})


def test_citations_are_listed():
    start = typed({"type": "message_start", "message": {}})
    block = typed(
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": "", "citations": None}}
    )
    cited = [delta("citations_delta", citation={"cited_text": word}) for word in "ab"]
    folded = json.loads(MESSAGES.folding.body(data_of(start, block, *cited)))
    assert folded["content"][0]["citations"] == [{"cited_text": "a"}, {"cited_text": "b"}]


@pytest.mark.parametrize(
    "events",
    [
        [],
        [{"type": "message_delta", "delta": {}}],
        [{"type": "message_start"}],
        [{"type": "message_start", "message": {}}, {"type": "content_block_delta", "index": 0, "delta": {"text": "a"}}],
        [{"type": "message_start", "message": {}}, {"type": "content_block_start", "content_block": {}}],
        [
            {"type": "message_start", "message": {}},
            {"type": "content_block_start", "index": 0, "content_block": {}},
            {"type": "content_block_delta", "index": 0, "delta": {"partial_json": "{"}},
        ],
    ],
)
def test_events_that_make_no_message(events):
    with pytest.raises(FoldError):
        MESSAGES.folding.body([json.dumps(one).encode() for one in events])


@pytest.mark.parametrize("events", [[], [b"[DONE]"], [b"nonsense"], [b"[1]"], [b'{"type": "response.completed"}']])
def test_events_that_make_no_response(events):
    with pytest.raises(FoldError):
        RESPONSES.folding.body(events)


_NAMES = [
    "type",
    "index",
    "delta",
    "text",
    "content",
    "choices",
    "tool_calls",
    "message",
    "usage",
    "response",
    "item",
    "content_block",
]
_KINDS = ["message_start", "content_block_start", "content_block_delta", "message_delta", "response.completed"]
_ANY = st.recursive(
    st.none() | st.integers(0, 1) | st.sampled_from([*_KINDS, "", "x"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(_NAMES), inner, max_size=4),
    max_leaves=12,
)


@pytest.mark.parametrize("dialect", [CHAT_API, COMPLETIONS_API, RESPONSES, MESSAGES], ids=lambda dialect: dialect.name)
@given(st.lists(_ANY, max_size=5))
def test_any_events_make_an_answer_or_an_upstream_s_fault(dialect, events):
    """Never one of ours."""
    try:
        folded = dialect.folding.body([json.dumps(one).encode() for one in events])
    except FoldError:
        return
    assert isinstance(json.loads(folded), dict)


async def test_chunks_of_another_api_are_the_upstream_s_fault(bench):
    """Those of a chat for completions: 502 and a bad stream, not an error of the gateway."""

    async def script(request, peer):
        await peer.stream(text("hi", "stop"), DONE)

    gateway = await bench.gateway((await bench.upstream(script)).url)
    path, body, _ = COMPLETIONS
    status, told = await post(await bench.http(gateway.url), path, body)
    assert (status, json.loads(told)["error"]["code"]) == (502, "upstream_failed")
    assert (await bench.outcome()).error_class is ErrorClass.BAD_STREAM
