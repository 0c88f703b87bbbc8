"""First token, gaps and counts, on a real socket: what public tools got wrong about them."""

from __future__ import annotations

import json

import pytest
from scripted_server import DONE, HEAD, MS, answering, call, delta, event, text, usage

from scheduler.request import Status, TokensSource

ROLE = event(delta(role="assistant"))
EMPTY = event(delta(content=""))


def timed(*pairs):
    """A script that sends each body at its time (ms), and the end with the last."""

    async def script(peer):
        await peer.request()
        await peer.send(HEAD, at_ms=1)
        for at_ms, body in pairs:
            await peer.chunked(body, at_ms)
        await peer.send(b"0\r\n\r\n")
        await peer.gone()

    return script


def ms(result):
    return [ns / MS for ns in result.chunk_ns]


@pytest.mark.parametrize(
    "first",
    [
        event(delta(content="Hi")),
        event(delta(reasoning_content="hm")),
        event(delta(reasoning="hm")),
        event(delta(tool_calls=[{"index": 0, "function": {"name": "f", "arguments": ""}}])),
        event(delta(function_call={"name": "f"})),
        event(delta(refusal="no")),
        event(delta(content=[{"type": "text", "text": "x"}])),
        event({"choices": [{"index": 0, "text": "Hi", "finish_reason": None}]}),
        event({"choices": [{"index": 0, "delta": {"content": ""}, "token_ids": [7]}]}),
        event({"choices": [{"index": 0, "text": "", "token_ids": [7]}]}),
    ],
    ids=["text", "reasoning_content", "reasoning", "tool", "function", "refusal", "parts", "completion", "ids", "ids2"],
)
async def test_the_first_token_is_the_first_chunk_with_generated_output(bench, first):
    """A role, an empty delta, no choice or only usage is no token; text, reasoning, tool calls and token ids
    are."""
    trailer = event({"choices": [], "usage": usage(2)})
    running = event({"choices": [], "usage": usage(0)})
    null = event({"choices": [{"index": 0, "delta": {"role": "assistant", "content": None, "tool_calls": []}}]})
    result = await bench.answer(
        timed(
            (12, ROLE),
            (13, EMPTY),
            (14, null),
            (15, running),
            (50, first),
            (60, text("x", "stop")),
            (61, trailer + DONE),
        )
    )
    assert result.status is Status.OK, result.detail
    assert ms(result) == [50, 60]
    assert [now for now, _ in bench.seen] == list(result.chunk_ns)
    assert result.finished_ns == 61 * MS


async def test_stamps_are_those_of_the_segment(bench):
    """Several events in one segment share one stamp; an event over many segments has the stamp of its last byte."""
    whole = text("b")
    result = await bench.answer(
        timed((10, text("a") + whole + text("c")), (20, whole[:9]), (30, whole[9:30]), (40, whole[30:]), (50, DONE))
    )
    assert ms(result) == [10, 10, 10, 40]
    assert result.finished_ns == 50 * MS


async def test_a_split_inside_utf8_is_not_an_error(bench):
    """A segment may end inside a character."""
    body = b"data: " + json.dumps(delta(content="größe 😀"), ensure_ascii=False).encode() + b"\n\n"
    middle = body.index("😀".encode()) + 2
    result = await bench.answer(timed((10, body[:middle]), (20, body[middle:]), (30, DONE)))
    assert (result.status, ms(result)) == (Status.OK, [20])


async def test_dialects_of_sse(bench):
    """CRLF, CR, `data:` without the space, comments, keep-alives, `event:` and `id:` lines, no last empty line."""
    payload = json.dumps(delta(content="a")).encode()
    result = await bench.answer(
        timed(
            (10, b": keep-alive\n\n"),
            (20, b"data:" + payload + b"\n\n"),
            (30, b"event: token\r\nid: 1\r\ndata: " + payload + b"\r\n\r"),
            (40, b"\n: ping\r\n\r\ndata: " + payload + b"\r\r"),
            (50, b"data: " + payload + b"\n\n:\n\n"),
            (60, b"data: [DONE]"),
        )
    )
    assert (result.status, ms(result)) == (Status.OK, [20, 30, 40, 50])


async def test_sent_is_after_connect_and_before_the_answer(bench):
    """sent_ns: the last byte is handed over; connect_ns is a duration and 0 on a kept socket."""

    async def script(peer):
        for base in (10, 20):
            await peer.request()
            await peer.send(HEAD, at_ms=base)
            await peer.chunked(text("a", "stop") + DONE, base + 5)
            await peer.send(b"0\r\n\r\n", base + 6)
        await peer.gone()

    server = await bench.server(script)
    client = bench.client(server.url)
    bench.clock.now_ns = 3 * MS
    first = await bench.ask(client)
    bench.clock.now_ns = 18 * MS
    second = await bench.ask(client)
    assert (first.connect_ns, first.sent_ns, ms(first)) == (0, 3 * MS, [15])
    assert (second.connect_ns, second.sent_ns, ms(second)) == (0, 18 * MS, [25])
    assert (client.stats.opened, client.stats.reused) == (1, 1)


async def test_sent_waits_for_a_large_body_to_leave(bench):
    """A body larger than the socket takes at once counts as sent when its last byte is handed over, not before."""

    async def script(peer):
        await peer.reader.readexactly(1)
        bench.clock.now_ns = 500 * MS  # the client wrote what it could at 0; only now is the rest read
        await peer.request()
        await peer.send(HEAD)
        await peer.chunked(text("a", "stop") + DONE)
        await peer.end()

    server = await bench.server(script)
    result = await bench.ask(bench.client(server.url), call(body=b"x" * (24 << 20)))
    assert (result.status, result.sent_ns) == (Status.OK, 500 * MS)


def with_ids(content, *ids):
    return event({"choices": [{"index": 0, "delta": {"content": content}, "token_ids": list(ids)}]})


def with_usage(content, total, finish=None):
    return event({**delta(finish, content=content), "usage": usage(total)})


async def test_k_from_token_ids(bench):
    """Token ids tell how many tokens a chunk holds, and their sum is the output where usage is missing."""
    result = await bench.answer(answering(with_ids("a", 1), with_ids("bc", 2, 3), with_ids("", 4), DONE))
    assert (list(result.chunk_tokens), result.tokens_known) == ([1, 2, 1], True)
    assert (result.output_tokens, result.tokens_source) == (4, TokensSource.TOKEN_IDS)
    assert [k for _, k in bench.seen] == [1, 2, 1]


async def test_k_from_usage_on_every_chunk(bench):
    """A running usage tells k by its increase, also across a chunk without output; the last usage is the total."""
    held_back = with_usage("", 4)
    result = await bench.answer(
        answering(with_usage("a", 1), with_usage("bcd", 3), held_back, with_usage("e", 5, "length"), DONE)
    )
    assert list(result.chunk_tokens) == [1, 2, 2]
    assert (result.output_tokens, result.tokens_source, result.tokens_known) == (5, TokensSource.USAGE, True)
    assert [k for _, k in bench.seen] == [1, 2, 2]


async def test_k_is_one_when_chunks_equal_usage(bench):
    """As many chunks as tokens: one each. Known at the end only, so on_tokens says None."""
    trailer = event({"choices": [], "usage": usage(2, prompt_tokens_details={"cached_tokens": 5})})
    result = await bench.answer(answering(text("a"), text("b", "stop"), trailer, DONE))
    assert (list(result.chunk_tokens), result.tokens_known) == ([1, 1], True)
    assert (result.prompt_tokens, result.cached_prompt_tokens, result.output_tokens) == (7, 5, 2)
    assert [k for _, k in bench.seen] == [None, None]


async def test_coalesced_chunks_are_not_counted_as_tokens(bench):
    """Speculative decoding: fewer chunks than tokens and nothing to tell them apart. The total is known, k is not."""
    result = await bench.answer(
        answering(text("a b"), text("c", "stop"), event({"choices": [], "usage": usage(5)}), DONE)
    )
    assert (result.chunk_tokens, result.tokens_known, result.output_tokens) == (None, False, 5)


async def test_missing_usage_is_unknown_not_zero(bench):
    """Without usage and ids nothing tells the count: null, never 0 and never the number of chunks."""
    result = await bench.answer(answering(text("a"), text("b", "stop"), DONE))
    assert (result.status, result.output_tokens, result.prompt_tokens) == (Status.OK, None, None)
    assert (result.tokens_source, result.tokens_known) == (TokensSource.UNKNOWN, False)


@pytest.mark.parametrize(
    ("details", "cached"),
    [({}, None), ({"prompt_tokens_details": None}, None), ({"prompt_tokens_details": {"audio_tokens": 0}}, None)]
    + [({"prompt_tokens_details": {"cached_tokens": n}}, n) for n in (0, 6)],
    ids=["nothing", "null", "others", "none found", "6"],
)
async def test_cached_tokens_are_those_that_the_server_states(bench, details, cached):
    """A server that says nothing of its cache says nothing: None; its 0 is 0."""
    trailer = event({"choices": [], "usage": usage(1, **details)})
    result = await bench.answer(answering(text("a", "stop"), trailer, DONE))
    assert (result.output_tokens, result.cached_prompt_tokens) == (1, cached)


NO_COUNTS = [
    str(1 << 70),
    str((1 << 32) + 5),
    str(1 << 31),
    "9" * 5000,
    "1e400",
    "-4",
    "1.5",
    "5.0",
    '"5"',
    "true",
    "[5]",
    "{}",
]


@pytest.mark.parametrize("told", NO_COUNTS, ids=[told[:24] for told in NO_COUNTS])
async def test_a_count_that_cannot_be_is_not_told(bench, told):
    """Too large for a column, below 0, or no whole number: the answer is what it is without that count."""
    counts = f'{{"prompt_tokens":{told},"completion_tokens":{told},"prompt_tokens_details":{{"cached_tokens":{told}}}}}'
    trailer = b'data: {"choices":[],"usage":%s}\n\n' % counts.encode()
    result = await bench.answer(answering(text("a"), text("b", "stop"), trailer, DONE))
    assert (result.status, len(result.chunk_ns)) == (Status.OK, 2)
    assert (result.prompt_tokens, result.cached_prompt_tokens, result.output_tokens) == (None, None, None)
    assert (result.tokens_source, result.tokens_known) == (TokensSource.UNKNOWN, False)


async def test_the_largest_count_that_a_column_holds_is_believed(bench):
    """31 bits of tokens."""
    trailer = event({"choices": [], "usage": usage((1 << 31) - 1)})
    result = await bench.answer(answering(text("a", "stop"), trailer, DONE))
    assert (result.output_tokens, result.tokens_source) == ((1 << 31) - 1, TokensSource.USAGE)


async def test_a_running_usage_that_cannot_be_proves_nothing(bench):
    """One chunk's count is nonsense: what each chunk held is unknown, and token ids still tell."""
    script = answering(with_usage("a", 1), with_usage("b", 1 << 40), with_usage("c", 3, "length"), DONE)
    result = await bench.answer(script)
    assert (result.output_tokens, list(result.chunk_tokens)) == (3, [1, 1, 1]), "as many chunks as tokens"
    bench.seen.clear()
    with_both = event({**delta("stop", content="a"), "token_ids": [1], "usage": usage(1 << 70)})
    result = await bench.answer(answering(with_both, DONE))
    assert [k for _, k in bench.seen] == [None]


async def test_usage_in_the_last_chunk_with_output(bench):
    """usage may come in the chunk that carries the last token."""
    result = await bench.answer(answering(text("a"), with_usage("b", 2, "stop"), DONE))
    assert (result.output_tokens, list(result.chunk_tokens)) == (2, [1, 1])


async def test_a_missing_done_is_a_success_after_a_finish_reason(bench):
    """A finish reason makes an answer whole; its end is the end of the message."""
    result = await bench.answer(timed((10, text("a")), (20, text("b", "length"))))
    assert (result.status, result.finish_reason, ms(result)) == (Status.OK, "length", [10, 20])
    assert result.finished_ns is not None


async def test_done_without_a_finish_reason_is_a_success(bench):
    """[DONE] makes an answer whole."""
    result = await bench.answer(answering(text("a"), DONE))
    assert (result.status, result.finish_reason) == (Status.OK, None)


async def test_several_choices_are_whole_when_each_has_finished(bench):
    """With n > 1 the answer is cut unless every choice gave its finish reason."""
    one = event({"choices": [{"index": 1, "delta": {"content": "b"}}]})
    first_ends = text("a", "stop")
    second_ends = event({"choices": [{"index": 1, "delta": {}, "finish_reason": "stop"}]})
    assert (await bench.answer(answering(one, first_ends))).status is Status.FAILED
    assert (await bench.answer(answering(one, first_ends, second_ends))).status is Status.OK
