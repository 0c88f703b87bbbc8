"""A stream that passes through: what of it goes on to the client, and what is read from it on the way.

Bytes go on untouched, as they come, with one exception: where the gateway asked for ``usage`` that the client did not ask
for, the event that carries only usage is taken out. For that, an event that is not complete yet is held back until it is;
every other byte is the upstream's. (A server that then writes ``"usage": null`` into its other chunks is passed on so.)
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Protocol

import msgspec

from backends.wire.answer import Answer
from backends.wire.chunk import decode_chunk
from backends.wire.sse import SseDecoder, SseOverflowError

_NO_CHOICES = re.compile(rb'"choices"\s*:\s*\[\s*\]')
_ENDS = (b"\n\n", b"\r\n\r\n", b"\r\r")
_BOUNDARY = re.compile(rb"\r\n\r\n|\n\n|\r\r")


class Reader(Protocol):
    """What reads a body on its way: ``read`` every piece as it came, ``close`` once at the end."""

    def read(self, body: bytes, now_ns: int) -> None: ...

    def close(self, now_ns: int) -> None: ...


class EventReader:
    """Reads a stream's events into an answer: stamps, counts, faults. Reads on until the closing mark, at which it calls
    ``on_whole``, or a fault. ``keep`` collects the events' data.
    """

    __slots__ = ("_feed", "_keep", "_on_whole", "_sse", "answer", "over", "unreadable")

    def __init__(
        self,
        answer: Answer,
        max_event_bytes: int,
        keep: list[bytes] | None = None,
        on_whole: Callable[[], object] | None = None,
    ) -> None:
        self.answer = answer
        self._keep = keep
        self._on_whole = on_whole
        self.over = False
        self.unreadable: str | None = None
        self._sse = SseDecoder(max_event_bytes)
        self._feed = self._sse.feed

    def read(self, body: bytes, now_ns: int) -> None:
        if self.over:
            return
        try:
            for payload in self._feed(body):
                if self._keep is not None:
                    self._keep.append(payload)
                if self.answer.read(payload, now_ns):
                    self.over = True
                    if self._on_whole is not None and self.answer.whole and self.answer.fault is None:
                        self._on_whole()
                    return
        except SseOverflowError as error:
            self.unreadable = str(error)
            self.over = True
        except RecursionError:
            self.unreadable = "an event is nested too deeply"
            self.over = True

    def close(self, now_ns: int) -> None:
        """The stream ended: an event without its closing empty line counts."""
        if not self.over:
            for payload in self._sse.close():
                if self._keep is not None:
                    self._keep.append(payload)
                self.answer.read(payload, now_ns)
            self.over = True


class Unread:
    """In place of a reader of what cannot be read (sound, a compressed stream): tells that its first bytes came."""

    __slots__ = ("_begun", "_on_first")

    def __init__(self, on_first: Callable[[int], object]) -> None:
        self._on_first = on_first
        self._begun = False

    def read(self, body: bytes, now_ns: int) -> None:  # noqa: ARG002 (a reader's signature)
        if not self._begun:
            self._begun = True
            self._on_first(now_ns)

    def close(self, now_ns: int) -> None:
        """Nothing is held."""


class UsageStrip:
    """Takes the usage-only event out of a stream. Holds less than one event, at most ``max_event_bytes``."""

    __slots__ = ("_held", "_limit")

    def __init__(self, max_event_bytes: int) -> None:
        self._held = b""
        self._limit = max_event_bytes

    def feed(self, segment: bytes) -> bytes:
        """What goes on now; may be empty."""
        if not self._held and segment.endswith(b"\n\n") and _NO_CHOICES.search(segment) is None:
            return segment
        segment = self._held + segment
        end = max(segment.rfind(mark) + len(mark) if mark in segment else 0 for mark in _ENDS)
        if end == 0 and len(segment) > self._limit:
            end = len(segment)
        self._held = segment[end:]
        whole = segment[:end]
        return whole if _NO_CHOICES.search(whole) is None else self._without_usage(whole)

    def close(self) -> bytes:
        """What was held when the stream ended."""
        held, self._held = self._held, b""
        return b"" if _is_usage_only(held) else held

    @staticmethod
    def _without_usage(whole: bytes) -> bytes:
        kept: list[bytes] = []
        start = 0
        for boundary in _BOUNDARY.finditer(whole):
            event = whole[start : boundary.end()]
            start = boundary.end()
            if not _is_usage_only(event):
                kept.append(event)
        kept.append(whole[start:])
        return b"".join(kept)


def _is_usage_only(event: bytes) -> bool:
    if _NO_CHOICES.search(event) is None:
        return False
    sse = SseDecoder()
    payloads = [*sse.feed(event), *sse.close()]
    try:
        chunks = [decode_chunk(payload) for payload in payloads]
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    return len(chunks) == 1 and chunks[0].choices == [] and chunks[0].usage is not None


class Passing:
    """Hands a stream's body on to ``write`` and then reads it: the client's byte never waits for our reading."""

    __slots__ = ("_read", "_reader", "_strip", "_tail", "_write")

    def __init__(self, reader: Reader, strip: UsageStrip | None, write: Callable[[bytes], None]) -> None:
        self._reader = reader
        self._read = reader.read
        self._strip = strip
        self._write = write
        self._tail = b""

    @property
    def at_boundary(self) -> bool:
        """True when the client has only whole events, so that one more can follow."""
        return not self._tail or self._tail.endswith(_ENDS)

    def take(self, body: bytes, now_ns: int) -> None:
        passed = body if self._strip is None else self._strip.feed(body)
        if passed:
            self._write(passed)
            self._tail = passed[-4:] if len(passed) >= 4 else (self._tail + passed)[-4:]
        self._read(body, now_ns)

    def close(self, now_ns: int) -> None:
        """The upstream's message ended."""
        if self._strip is not None:
            held = self._strip.close()
            if held:
                self._write(held)
        self._reader.close(now_ns)
