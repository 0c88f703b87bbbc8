"""The requests of one tenant that still wait for their first token, oldest first: queued and dispatched ones alike."""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterator


class Awaiting:
    """A sorted list of (arrival_ns, id) with lazy deletion: arrivals come nearly in order and leave nearly in order."""

    __slots__ = ("_entries", "_gone", "_live")

    def __init__(self) -> None:
        self._entries: list[tuple[int, int]] = []
        self._live: set[int] = set()
        self._gone = 0

    def __len__(self) -> int:
        return len(self._live)

    def add(self, arrival_ns: int, request_id: int) -> None:
        if request_id in self._live:
            return
        entry = (arrival_ns, request_id)
        self._live.add(request_id)
        if not self._entries or entry > self._entries[-1]:
            self._entries.append(entry)
        else:
            insort(self._entries, entry)

    def discard(self, request_id: int) -> None:
        live = self._live
        if request_id in live:
            live.remove(request_id)
            self._gone += 1
            if self._gone > len(live) + 16:
                self._entries = [e for e in self._entries if e[1] in live]
                self._gone = 0

    def ages_ns(self, now_ns: int) -> Iterator[int]:
        """Ages in descending order, lazily."""
        live = self._live
        for arrival_ns, request_id in self._entries:
            if request_id in live:
                yield now_ns - arrival_ns
