"""Where an engine's tokens go: straight onto a stream's socket, or nowhere until the answer is whole.

A stream's token is written to the transport directly, already in HTTP chunked framing: a web framework's write per
token costs several times the token. The transport buffers for a client that reads slowly; what it can hold is bounded
by the answer's length, as in the servers that this one stands for.
"""

from __future__ import annotations

import asyncio

from backends.emulator.answers import Answer
from backends.emulator.chunks import StreamChunks


class StreamSink:
    """Writes what a step gave as one chunk, as it comes."""

    __slots__ = ("_chunks", "_cycle", "_encoded", "_last", "_offset", "_plain", "_prefix", "_suffix", "_transport")

    def __init__(self, transport: asyncio.Transport, chunks: StreamChunks, answer: Answer) -> None:
        self._transport = transport
        self._chunks = chunks
        self._plain = chunks.plain
        self._prefix = chunks.prefix
        self._suffix = chunks.suffix
        self._encoded = answer.words.encoded
        self._cycle = len(self._encoded)
        self._offset = answer.offset
        self._last = answer.tokens - 1

    def tokens(self, start: int, count: int) -> None:
        transport = self._transport
        if transport.is_closing():
            return  # the handler learns of it as a cancellation and aborts the sequence
        if count == 1 and self._plain and 0 < start < self._last:
            word = self._encoded[(self._offset + start) % self._cycle]
            transport.write(b"".join((self._prefix, word, self._suffix)))
        else:
            transport.write(self._chunks.tokens(start, count))


class WholeSink:
    """For an answer that is sent when it is complete: the engine's count is all that is needed."""

    __slots__ = ()

    def tokens(self, start: int, count: int) -> None:
        """Nothing leaves before the end."""
