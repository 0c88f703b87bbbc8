"""What is read, while it passes through, of an answer in an API that is not known here: output as it comes, its counts."""

from __future__ import annotations

from typing import Protocol

from backends.gateway.dialects.dialect import Whole
from backends.gateway.dialects.other import OTHER
from backends.gateway.passing import EventReader, Reader
from backends.gateway.relay import Relay
from backends.wire.answer import Answer

_LINES = ("ndjson", "jsonl", "json-seq", "stream+json")


class AsIsReader(Reader, Protocol):
    """A reader that knows what a whole answer told, once it is closed."""

    @property
    def whole(self) -> Whole | None: ...


class _Events:
    """Server-sent events; ones that cannot be read cost their counts, nothing else."""

    whole: Whole | None = None

    def __init__(self, answer: Answer, most_bytes: int) -> None:
        reader = EventReader(answer, most_bytes)
        self.read = reader.read
        self.close = reader.close


class _Lines:
    """A JSON value a line. Holds less than one line, at most ``most_bytes``; what follows a longer one is not read."""

    whole: Whole | None = None

    def __init__(self, answer: Answer, most_bytes: int) -> None:
        self._answer = answer
        self._most_bytes = most_bytes
        self._held = b""
        self._over = False

    def read(self, body: bytes, now_ns: int) -> None:
        if self._over:
            return
        *lines, self._held = (self._held + body).split(b"\n")
        for line in lines:
            self._answer.read(line, now_ns)
        if len(self._held) > self._most_bytes:
            self._held, self._over = b"", True

    def close(self, now_ns: int) -> None:
        if self._held:
            self._answer.read(self._held, now_ns)
            self._held = b""


class _Json:
    """One JSON value; nothing is known of one that is larger than ``most_bytes``."""

    def __init__(self, most_bytes: int) -> None:
        self.whole: Whole | None = None
        self._most_bytes = most_bytes
        self._parts: list[bytes] = []
        self._size = 0

    def read(self, body: bytes, now_ns: int) -> None:  # noqa: ARG002 (a reader's signature)
        self._size += len(body)
        if self._size <= self._most_bytes:
            self._parts.append(body)
        else:
            self._parts.clear()

    def close(self, now_ns: int) -> None:  # noqa: ARG002 (a reader's signature)
        self.whole = OTHER.whole(b"".join(self._parts))
        self._parts.clear()


def reader_of(relay: Relay, answer: Answer, most_bytes: int) -> AsIsReader | None:
    """What reads the body of ``relay``; None for one that tells nothing (sound, a compressed one)."""
    kind = (relay.header(b"content-type") or "").lower()
    if relay.is_encoded:
        return None
    if "event-stream" in kind:
        return _Events(answer, most_bytes)
    if any(mark in kind for mark in _LINES):
        return _Lines(answer, most_bytes)
    return _Json(most_bytes) if "json" in kind else None
