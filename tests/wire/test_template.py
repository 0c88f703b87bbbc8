"""Chunks that go past the parsers: only what they would have read as one new token, and with the same result."""

from __future__ import annotations

import json
from itertools import pairwise
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backends.wire import template
from backends.wire.answer import OpenAiAnswer
from backends.wire.chunk import template_of
from backends.wire.options import WireOptions
from backends.wire.response import Response
from backends.wire.template import TEXT_BYTES, payload_of, taker, whole_event
from scheduler.request import ErrorClass

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
LONG_ID = "chatcmpl-0123456789abcdef"


class Future:
    """Enough of one: these tests await nothing."""

    def __init__(self):
        self.over = False

    def done(self):
        return self.over

    def set_result(self, _):
        self.over = True

    def set_exception(self, error):
        raise error


LOOP = SimpleNamespace(create_future=Future, call_later=lambda *_: SimpleNamespace(cancel=lambda: None))


def framed(payload, form="%x"):
    event = b"data: " + payload + b"\n\n"
    return (form % len(event)).encode() + b"\r\n" + event + b"\r\n"


def chat(text, *, finish=None, spaced=False, **more):
    value = {
        "id": LONG_ID,
        "created": 1754000000,
        "choices": [{"index": 0, "delta": {"content": text}, "logprobs": None, "finish_reason": finish, **more}],
    }
    separators = (", ", ": ") if spaced else (",", ":")
    return json.dumps(value, separators=separators, ensure_ascii=False).encode()


def completion(text, **more):
    choice = {"index": 0, "text": text, "logprobs": None, "finish_reason": None, **more}
    return json.dumps({"id": LONG_ID, "choices": [choice]}, separators=(",", ":"), ensure_ascii=False).encode()


class Listener:
    """A response and all that was told of it. ``short``: segments may go past the parsers; ``past``: those that did."""

    def __init__(self, *, short, each=True):
        self.told = []
        self.parsed = 0
        self.answer = OpenAiAnswer(lambda now_ns, count: self.told.append((now_ns, count)))
        self.response = Response(self.answer, WireOptions(), LOOP, each=each)
        self.link = SimpleNamespace(deliver=self.response.feed)
        if short:
            self.response.sent(self.link)
        parse = self.response._parse

        def counted(data):
            self.parsed += 1
            parse(data)

        self.response._parse = counted

    def feed(self, segments):
        for now_ns, data in enumerate(segments, 1):
            self.link.deliver(data, now_ns)
        return self

    def sums(self):
        """The first and the last of what was told, and the tokens of all."""
        told = self.told or [(None, 0)]
        return told[0], told[-1][0], sum(1 if count is None else count for _, count in told)

    def came_to(self, *, each=True):
        counts = self.answer.counts()
        tokens = None if counts.chunk_tokens is None else counts.chunk_tokens.tolist()
        return (
            self.told if each else self.sums(),
            self.answer.chunk_ns.tolist(),
            tokens,
            counts.output_tokens,
            counts.source,
            self.answer.whole,
            self.answer.finish_reason,
            self.response.done.done(),
            self.response.finished_ns,
        )


def both(segments):
    """The listener that may take short cuts, after it was seen to come to what one without them comes to."""
    short, long = Listener(short=True).feed(segments), Listener(short=False).feed(segments)
    assert short.came_to() == long.came_to()
    later = Listener(short=True, each=False).feed(segments)
    assert later.told[:1] == short.told[:1]
    later.response.release()
    assert later.came_to(each=False) == long.came_to(each=False)
    return short


END = [framed(chat("", finish="length")), framed(b"[DONE]") + b"0\r\n\r\n"]


@pytest.mark.parametrize(
    "payload",
    [
        chat,
        lambda text: chat(text, spaced=True),
        completion,
        lambda text: chat(text, token_ids=[len(text) * 1000]),
        lambda text: completion(text, stop_reason=None, token_ids=[7]),
    ],
    ids=["chat", "chat with spaces", "completion", "chat with a token id", "completion with a token id"],
)
def test_tokens_go_past_the_parsers_once_one_was_read(payload):
    texts = [" a", " token", "x" * 300, "{[,:]}", " and", " <|im"]
    listener = both([HEAD, *(framed(payload(text)) for text in texts), *END])
    assert listener.parsed == 1 + 1 + len(END)
    assert len(listener.told) == len(texts)


@pytest.mark.parametrize(
    "odd",
    [
        chat("a\nb"),
        chat('say "x"'),
        chat("back\\slash"),
        chat("größer"),
        chat(""),
        chat("end", finish="stop"),
        chat("two", token_ids=[1, 2]),
        chat("a", extra='"content":"b"'),
        completion("other"),
        b'{"error":{"message":"no"}}',
        b'{"choices":[],"usage":{"prompt_tokens":1,"completion_tokens":4}}',
        chat("a").replace(LONG_ID.encode(), b"another"),
        chat("a").replace(b'"index":0', b'"index":1'),
    ],
)
def test_what_is_more_than_a_token_is_read(odd):
    """One odd chunk among tokens is parsed, and those after it are taken as before."""
    listener = both(
        [HEAD, framed(chat("a")), framed(chat("b")), framed(odd), framed(chat("c")), framed(chat("d")), *END]
    )
    assert listener.parsed >= 3


def test_who_does_not_count_tokens_is_told_of_the_first_and_of_the_rest_at_the_end():
    tokens = [framed(chat(text, token_ids=[5])) for text in ("a", "b", "c", "d")]
    listener = Listener(short=True, each=False).feed([HEAD, *tokens])
    assert listener.told == [(2, 1)]
    listener.response.release()
    assert listener.told == [(2, 1), (5, 3)]


def test_sizes_in_capitals():
    tokens = [framed(chat("x" * n), "%X") for n in range(1, 40)]
    listener = both([HEAD, *tokens, *END])
    assert listener.parsed <= 5


def test_an_answer_whose_chunks_are_never_alike_is_not_tried_for_ever(monkeypatch):
    tried = []
    monkeypatch.setattr(OpenAiAnswer, "template", lambda _self, payload: tried.append(payload) or template_of(payload))
    changing = [framed(chat("a").replace(b"1754000000", b"%d" % number)) for number in range(1, 60)]
    both([HEAD, *changing, *END])
    assert len(tried) == 8 * 2  # by each of the two listeners that try


def test_no_token_counts_after_the_end():
    """A time-out between two tokens: what comes until the connection is let go is not the answer's."""
    for short in (True, False):
        listener = Listener(short=short).feed([HEAD, framed(chat("a")), framed(chat("b"))])
        listener.response.fail(ErrorClass.TOKEN_TIMEOUT, "no token")
        listener.feed([framed(chat("c")), framed(chat("d"))])
        assert len(listener.told) == len(listener.answer.chunk_ns) == 2


def test_a_token_id_that_json_does_not_know_is_left_to_the_parsers():
    bad = framed(chat("b", token_ids=[7]).replace(b"[7]", b"[07]"))
    listener = Listener(short=True).feed([HEAD, framed(chat("a", token_ids=[1])), bad])
    assert listener.parsed == 3
    assert listener.answer.fault is not None


TEXTS = st.one_of(
    st.text(st.characters(codec="utf-8"), max_size=12),
    st.text(st.sampled_from(TEXT_BYTES.decode()), min_size=1, max_size=12),
)
PAYLOADS = st.one_of(
    TEXTS.map(chat),
    st.tuples(TEXTS, st.lists(st.integers(0, 99999), max_size=2)).map(lambda x: chat(x[0], token_ids=x[1])),
    TEXTS.map(completion),
)


@settings(max_examples=300)
@given(payloads=st.lists(PAYLOADS, max_size=12), cuts=st.lists(st.integers(0, 5000), max_size=4), glued=st.booleans())
def test_short_cuts_change_nothing(payloads, cuts, glued):
    """Any tokens, whole chunks or cut and glued anywhere: what is told, stamped and counted is what the parsers say."""
    segments = [framed(payload) for payload in payloads]
    if glued:
        stream = b"".join(segments)
        edges = sorted({0, len(stream), *(cut % (len(stream) + 1) for cut in cuts)})
        segments = [stream[a:b] for a, b in pairwise(edges)]
    both([HEAD, *segments, *END])


@settings(max_examples=500)
@given(payload=PAYLOADS, data=st.data())
def test_only_one_whole_plain_chunk_is_taken(payload, data):
    """A chunk with any bytes replaced: it is taken only if, read by itself, it is one token."""
    template = template_of(payload)
    if template is None:
        return
    segment = bytearray(framed(payload))
    for _ in range(data.draw(st.integers(0, 3))):
        at = data.draw(st.integers(0, len(segment) - 1))
        piece = data.draw(st.one_of(st.binary(max_size=3), st.text(max_size=2).map(str.encode)))
        segment[at : at + data.draw(st.integers(0, 2))] = piece
    stamps, counts, told, left = [], [], [], []
    take = taker(
        template,
        upper=False,
        stamp=stamps.append,
        count=counts.append,
        on_tokens=lambda now_ns, count: told.append((now_ns, count)),
        otherwise=lambda data, now_ns: left.append((data, now_ns)),
        raised=pytest.fail,
    )
    take(bytes(segment), 5)
    if left:
        assert left == [(bytes(segment), 5)]
        assert not stamps
        assert not counts
        assert not told
        return
    assert stamps == [5]
    assert told == [(5, counts[0] if counts else None)]
    alone = Listener(short=False)
    alone.link.deliver(HEAD, 1)
    alone.link.deliver(bytes(segment), 5)
    assert alone.told == told
    assert alone.response._sse.between_events
    event = whole_event(bytes(segment))
    assert event is not None
    assert template.fits(payload_of(event))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\r\n",
        b"5\r\ndata:\r\n",
        framed(b"x")[:-1],
        framed(b"x") + b"\r\n",
        b"0" + framed(b"x"),
        framed(b"x").replace(b"\r\n", b";ext\r\n", 1),
        framed(b"a\n\ndata: b"),
        framed(b"a\nb"),
        framed(b"a\rb"),
        b"3\r\nx\n\n\r\n",
    ],
)
def test_what_is_not_one_whole_chunk_with_one_event(data):
    assert whole_event(data) is None


def test_one_whole_chunk_with_one_event():
    assert payload_of(whole_event(framed(b"x"))) == b"x"
    assert whole_event(framed(b"y" * 300, "%X")) == b"data: " + b"y" * 300 + b"\n\n"


def test_what_was_proven_does_not_grow_with_the_texts():
    """Nor does forgetting change what a stream comes to."""
    template._PROVEN.clear()
    segments = [framed(chat(f"word {number}")) for number in range(template._PIECES_KEPT + 100)]
    listener = Listener(short=True).feed([HEAD, *segments, *END])
    assert len(listener.answer.chunk_ns) == len(segments)
    assert listener.parsed < 10
    assert all(len(pieces) <= template._PIECES_KEPT for pieces in template._PROVEN.values())
    long_text = framed(chat("x" * 1000))
    Listener(short=True).feed([HEAD, long_text, long_text, *END])
    assert max(len(piece) for pieces in template._PROVEN.values() for piece in pieces) <= template._PIECE_KEPT
    for number in range(template._FORMS_KEPT + 5):
        template._proven(b"form %d" % number)
    assert len(template._PROVEN) <= template._FORMS_KEPT
