"""The requests of one tenant that still wait for their first token, oldest first: queued and dispatched ones alike."""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Iterator


class Awaiting:
    """(arrival_ns, id) in order, with lazy deletion: arrivals come nearly in order and leave nearly in order. The oldest
    entry is always a live one."""

    __slots__ = ("_entries", "_live")

    def __init__(self) -> None:
        self._entries: deque[tuple[int, int]] = deque()
        self._live: set[int] = set()

    def __len__(self) -> int:
        return len(self._live)

    def add(self, arrival_ns: int, request_id: int) -> None:
        live, entries = self._live, self._entries
        if request_id in live:
            return
        entry = (arrival_ns, request_id)
        live.add(request_id)
        if not entries or entry > entries[-1]:
            entries.append(entry)
        elif entries[at := bisect_left(entries, entry)] != entry:
            entries.insert(at, entry)

    def discard(self, request_id: int) -> None:
        live, entries = self._live, self._entries
        if request_id not in live:
            return
        live.remove(request_id)
        while entries and entries[0][1] not in live:
            entries.popleft()
        if len(entries) > 2 * len(live) + 16:
            self._entries = deque(e for e in entries if e[1] in live)

    def ages_ns(self, now_ns: int) -> Iterator[int]:
        """Ages in descending order, lazily."""
        live = self._live
        for arrival_ns, request_id in self._entries:
            if request_id in live:
                yield now_ns - arrival_ns
