"""Bytes of a stream go on untouched; only the usage chunk that the gateway itself asked for is taken out."""

from array import array
from itertools import pairwise

from gateway_upstream import DONE, text, usage
from hypothesis import given
from hypothesis import strategies as st

from backends.gateway.passing import EventReader, Passing, Unread, UsageStrip
from backends.wire.answer import OpenAiAnswer

LIMIT = 1 << 20
PIECES = st.sampled_from(
    [
        text("a"),
        text('say "choices":[] and \\"usage\\"'),
        text("\u4e16\U0001f600"),
        text("x", usage=None),
        text("crlf").replace(b"\n\n", b"\r\n\r\n"),
        text("lone cr").replace(b"\n\n", b"\r\r"),
        b": keep-alive\n\n",
        b"event: ping\ndata: {}\n\n",
        b'data: {"choices":[],"prompt_filter_results":[]}\n\n',
    ]
)


def cut(data: bytes, at: list[int]) -> list[bytes]:
    marks = sorted({0, len(data), *(position % (len(data) + 1) for position in at)})
    return [data[a:b] for a, b in pairwise(marks)]


@given(st.lists(PIECES, max_size=6), st.lists(st.integers(0, 5_000), max_size=12), st.booleans())
def test_all_bytes_but_the_usage_event_s_go_on_in_any_segmentation(pieces, at, crlf):
    """The output is the input without the one event that has usage and no choices."""
    trailer = usage(3, 2).replace(b"\n\n", b"\r\n\r\n") if crlf else usage(3, 2)
    before = b"".join(pieces)
    strip = UsageStrip(LIMIT)
    out = b"".join(strip.feed(segment) for segment in cut(before + trailer + DONE, at)) + strip.close()
    assert out == before + DONE


@given(st.lists(PIECES, max_size=6), st.lists(st.integers(0, 5_000), max_size=12))
def test_usage_that_comes_with_a_choice_is_the_client_s(pieces, at):
    """Only a chunk without choices is ours; a server that puts usage into the last text chunk is passed on whole."""
    whole = b"".join(pieces) + text("end", "stop", usage={"completion_tokens": 2}) + DONE
    strip = UsageStrip(LIMIT)
    assert b"".join(strip.feed(segment) for segment in cut(whole, at)) + strip.close() == whole


def test_whole_events_are_never_held_back():
    """A segment that ends an event goes on at once, the very same object: no copy, no delay."""
    strip = UsageStrip(LIMIT)
    segment = text("a") + text("b")
    assert strip.feed(segment) is segment


def test_an_endless_event_is_passed_on_rather_than_held():
    """What is held is bounded."""
    strip = UsageStrip(100)
    assert strip.feed(b"data: " + b"x" * 200) == b"data: " + b"x" * 200


@given(st.lists(st.integers(0, 2_000), max_size=12))
def test_the_answer_is_read_on_the_way(at):
    """Stamps and counts do not depend on the segmentation; the role chunk is no token."""
    seen: list[int] = []
    answer = OpenAiAnswer(lambda now_ns, _: seen.append(now_ns))
    out: list[bytes] = []
    passing = Passing(EventReader(answer, LIMIT), UsageStrip(LIMIT), out.append)
    role = text("")
    for number, segment in enumerate(cut(role + text("a") + text("b", "stop") + usage(7, 2) + DONE, at)):
        passing.take(segment, number)
    passing.close(99)
    assert b"".join(out) == role + text("a") + text("b", "stop") + DONE
    assert len(seen) == 2
    assert answer.chunk_ns == array("q", seen)
    assert answer.whole
    assert (answer.counts().prompt_tokens, answer.counts().output_tokens) == (7, 2)


@given(st.lists(PIECES, min_size=1, max_size=4), st.lists(st.integers(0, 5_000), max_size=12), st.data())
def test_where_one_more_event_may_follow(pieces, at, data):
    """After whole events, whatever their line ends and however they were segmented; inside one it would be part of it."""
    whole = b"".join(pieces)
    ends = [len(b"".join(pieces[:count])) for count in range(len(pieces) + 1)]
    upto = data.draw(st.sampled_from(ends) | st.integers(0, len(whole)))
    passing = Passing(Unread(lambda _: None), None, lambda _: None)
    for segment in cut(whole[:upto], at):
        passing.take(segment, 1)
    assert passing.at_boundary is (upto in ends)
