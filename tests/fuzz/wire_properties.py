"""What must hold for any bytes that a server sends: nothing is raised, and how they were cut into segments means nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import pairwise

from backends.wire.answer import OpenAiAnswer
from backends.wire.options import WireOptions
from backends.wire.response import Response

OPTIONS = WireOptions()
HEADS = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n",
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n",
    b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n",
    b"HTTP/1.1 503 No\r\ncontent-type: application/json\r\nretry-after: 1\r\n\r\n",
    b"",
)
"""What the fuzzed bytes follow, chosen by the first of them."""

SEEDS = (
    b'data: {"choices":[{"index":0,"delta":{"content":"a"}}]}\n\n',
    b'data: {"choices":[{"index":0,"delta":{"content":"a"}}]}\n\ndata: [DONE]\n\n',
    b'data: {"choices":[{"index":0,"delta":{"role":"assistant","content":""}}]}\r\n\r\n: ping\r\n\r\n',
    b'data: {"choices":[{"index":0,"delta":{"content":" b c"}}]}\n\n',
    b'data: {"choices":[{"index":0,"delta":{"content":" b","token_ids":[5]}}]}\n\n',
    b'data: {"choices":[{"index":0,"text":"a","token_ids":[7]}]}\n\n',
    b'data: {"choices":[{"index":0,"text":"\\n","token_ids":[31]}]}\n\n',
    b'data:{"choices":[{"index":0,"text":"","token_ids":[1,2]}],"usage":{"completion_tokens":2}}\n\n',
    b'event: error\ndata: {"error":{"message":"x","code":500}}\n\n',
    b'data: {"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":1}}\n\ndata: [DONE]\n\n',
)


class RaisedError(AssertionError):
    """The decoder raised what only a bug of ours can raise."""


class _Link:
    """What a request went over: the response may have it deliver past the parsers."""

    def __init__(self, response: Response) -> None:
        self.deliver = response.feed
        response.sent(self)


def outcome(segments: Sequence[bytes], loop: asyncio.AbstractEventLoop) -> tuple[object, ...]:
    """What a response fed with ``segments`` and then cut came to, its times left out."""
    answer = OpenAiAnswer(lambda _now, _count: None)
    response = Response(answer, OPTIONS, loop)
    link = _Link(response)
    for number, segment in enumerate(segments):
        if segment and not response.done.done():
            link.deliver(segment, number)
    if not response.done.done():
        response.eof(len(segments))
    if not response.done.done():
        raise RaisedError("an ended response is not done")
    error = response.done.exception()
    if error is not None:
        raise RaisedError(f"{type(error).__name__}: {error}") from error
    fault = response.fault or answer.fault
    counts = answer.counts()
    found = (
        response.status,
        None if fault is None else fault.error_class,
        len(answer.chunk_ns),
        answer.finish_reason,
        answer.whole,
        counts.output_tokens,
        counts.prompt_tokens,
        bytes(response.text),
    )
    response.release()
    return found


def check(head: int, body: bytes, places: Sequence[int], loop: asyncio.AbstractEventLoop) -> None:
    """``body`` after a head, whole, cut at ``places``, at its own chunks and byte by byte: all come to the same."""
    kind = head % (len(HEADS) + 1)
    if kind == len(HEADS):
        # Every event in a chunk of the transfer coding, as servers send them.
        events = [piece + b"\n\n" for piece in body.split(b"\n\n")]
        pieces = [HEADS[0], *(_chunk(event) for event in events), b"0\r\n\r\n"]
    elif kind == 0:
        # In one chunk, so that the events are reached however they look.
        pieces = [HEADS[0], *([_chunk(body)] if body else []), b"0\r\n\r\n"]
    else:
        pieces = [HEADS[kind], body]
    stream = b"".join(pieces)
    edges = [0, *sorted(place % (len(stream) + 1) for place in places), len(stream)]
    whole = outcome([stream], loop)
    for segments in (
        pieces,
        [stream[a:b] for a, b in pairwise(edges)],
        [stream[i : i + 1] for i in range(len(stream))],
    ):
        parts = outcome(segments, loop)
        if parts != whole:
            raise AssertionError(f"cut differently it came to {parts}, whole to {whole}")


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)
