"""A heap of names with changeable keys: least key first, O(log n) amortised for each change.

Stale entries stay in the heap and are skipped when they surface; when they outnumber the live ones the heap is rebuilt. What
changes most is the least, which was just served: it is replaced in its place.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator

Key = tuple[float | int, ...]


class KeyedHeap:
    """Keys are tuples of one length that end in something unique, so that two live names never tie."""

    __slots__ = ("_entries", "_heap")

    def __init__(self) -> None:
        # An entry is its key and its name in one flat tuple, which compares in half the time of a nested one.
        self._heap: list[tuple[float | int | str, ...]] = []
        self._entries: dict[str, tuple[float | int | str, ...]] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def set(self, name: str, key: Key) -> None:
        """Insert ``name`` or change its key."""
        heap, entries = self._heap, self._entries
        entry = key + (name,)  # noqa: RUF005 (half as dear)
        old = entries.get(name)
        if old == entry:
            return
        entries[name] = entry
        if heap and heap[0] is old:
            heapq.heapreplace(heap, entry)
            return
        heapq.heappush(heap, entry)
        if len(heap) > 2 * len(entries) + 16:
            self._heap = list(entries.values())
            heapq.heapify(self._heap)

    def discard(self, name: str) -> None:
        """Remove ``name`` if it is there."""
        self._entries.pop(name, None)

    def least(self) -> str | None:
        """The name with the least key; None when empty."""
        heap, entries = self._heap, self._entries
        while heap:
            entry = heap[0]
            name: str = entry[-1]  # type: ignore[assignment]  # every entry ends in its name
            if entries.get(name) is entry:
                return name
            heapq.heappop(heap)
        return None

    def due(self, limit: float) -> str | None:
        """The least name, if the first element of its key is at most ``limit``."""
        name = self.least()
        return name if name is not None and self._heap[0][0] <= limit else None  # type: ignore[operator]  # of the key

    def least_value(self) -> float | int | None:
        """The first element of the least key; None when empty."""
        return None if self.least() is None else self._heap[0][0]  # type: ignore[return-value]  # of the key
