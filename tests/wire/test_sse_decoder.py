from __future__ import annotations

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends.wire.sse import SseDecoder, SseOverflowError


def oracle(stream: str) -> list[str]:
    """The WHATWG algorithm, read literally over the whole text; an event open at the end is given out."""
    lines = stream.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n").split("\n")
    events, data = [], []
    for line in [*lines, ""]:
        if line == "":
            if data:
                events.append("\n".join(data))
            data = []
        elif line.split(":", 1)[0] == "data":
            value = line[5:]
            data.append(value.removeprefix(" "))
    return events


def decode(segments: list[bytes]) -> list[str]:
    decoder = SseDecoder()
    events = [payload for segment in segments for payload in decoder.feed(segment)]
    return [payload.decode() for payload in events + decoder.close()]


def cut(stream: bytes, places: list[int]) -> list[bytes]:
    edges = [0, *sorted(place % (len(stream) + 1) for place in places), len(stream)]
    return [stream[a:b] for a, b in pairwise(edges)]


LINES = st.one_of(
    st.sampled_from(["data: x", "data:x", "data:  two", "data", "data:", ": keep-alive", ":", "event: token", "id: 3"]),
    st.sampled_from(["retry: 10", "database: no", "data : no", "", "", ""]),
    st.text(st.characters(blacklist_characters="\r\n", blacklist_categories=["Cs"]), max_size=8).map("data: {}".format),
)
STREAMS = st.lists(st.tuples(LINES, st.sampled_from(["\n", "\r\n", "\r"]))).map(
    lambda pairs: "".join(line + end for line, end in pairs)
)


@given(STREAMS, st.lists(st.integers(0, 500), max_size=12))
def test_any_split_gives_the_events_of_the_standard(stream, places):
    """Events do not depend on how the bytes were segmented, and are those of the WHATWG algorithm."""
    assert decode(cut(stream.encode(), places)) == oracle(stream)


@given(st.lists(st.text(max_size=20), min_size=1, max_size=5), st.sampled_from(["\n", "\r\n", "\r"]))
def test_every_single_split_of_a_real_stream(texts, newline):
    """JSON events survive a split at every byte: inside UTF-8, between CR and LF, inside the field's name."""
    payloads = [json.dumps({"t": text}, ensure_ascii=False) for text in texts]
    stream = "".join(f"data: {payload}{newline}{newline}" for payload in payloads).encode()
    for place in range(len(stream) + 1):
        assert decode([stream[:place], stream[place:]]) == payloads
    assert decode([bytes([byte]) for byte in stream]) == payloads


def test_an_event_is_out_with_its_last_byte():
    """An event is given out by the segment that completes it, also where a CR could still be followed by an LF."""
    for newline in (b"\n", b"\r\n", b"\r"):
        decoder = SseDecoder()
        for _ in range(3):
            assert decoder.feed(b"data: x" + newline) == []
            assert decoder.feed(newline) == [b"x"]


def test_a_byte_order_mark_opens_a_stream_only():
    """A BOM before the first line is dropped, whole or split; later it is part of a line."""
    assert decode([b"\xef", b"\xbb\xbfdata: x\n\n", b"\xef\xbb\xbfdata: y\n\n"]) == ["x"]


@pytest.mark.parametrize("piece", [b"data: " + b"x" * 1000, b"x" * 1000, b"data:\n", b"data: " + b"y" * 200 + b"\n"])
def test_one_event_cannot_hold_more_than_its_bound(piece):
    """An event that never ends is refused once it is past the bound, whatever it is made of."""
    decoder = SseDecoder(max_event_bytes=100_000)

    def feed_for_ever():
        for _ in range(100_000):
            decoder.feed(piece)

    with pytest.raises(SseOverflowError):
        feed_for_ever()


def test_a_long_stream_of_small_events_is_not_bounded():
    """The bound is on one event: events, comments and fields before it do not count."""
    decoder = SseDecoder(max_event_bytes=1000)
    decoder.feed(b"\n")
    for segment in (b"data: 0123456789\n\n", b": comment\n", b"event: e\r\n", b"data: 01234", b"56789\n\n") * 1000:
        decoder.feed(segment)
    assert decoder.close() == []


def test_the_bound_counts_an_event_once():
    """An event just under the bound passes, in one segment or in many."""
    payload = b"z" * 60_000
    for size in (100_000, 1000):
        decoder = SseDecoder(max_event_bytes=130_000)
        stream = b"data: " + payload + b"\n\n"
        got = [e for i in range(0, len(stream), size) for e in decoder.feed(stream[i : i + size])]
        assert got == [payload]
