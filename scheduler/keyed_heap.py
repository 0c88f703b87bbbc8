"""A heap of names with changeable keys: least key first, O(log n) amortised for each change.

Stale entries stay in the heap and are skipped when they surface; when they outnumber the live ones the heap is rebuilt.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from typing import Generic, TypeVar

K = TypeVar("K", bound=tuple[float | int, ...])


class KeyedHeap(Generic[K]):
    """Keys are tuples that end in something unique, so that two live names never tie."""

    __slots__ = ("_heap", "_keys")

    def __init__(self) -> None:
        self._heap: list[tuple[K, str]] = []
        self._keys: dict[str, K] = {}

    def __len__(self) -> int:
        return len(self._keys)

    def __iter__(self) -> Iterator[str]:
        return iter(self._keys)

    def set(self, name: str, key: K) -> None:
        """Insert ``name`` or change its key."""
        if self._keys.get(name) == key:
            return
        self._keys[name] = key
        heapq.heappush(self._heap, (key, name))
        if len(self._heap) > 2 * len(self._keys) + 16:
            self._heap = [(k, n) for n, k in self._keys.items()]
            heapq.heapify(self._heap)

    def discard(self, name: str) -> None:
        """Remove ``name`` if it is there."""
        self._keys.pop(name, None)

    def least(self) -> tuple[K, str] | None:
        """The least key and its name; None when empty."""
        heap, keys = self._heap, self._keys
        while heap:
            key, name = heap[0]
            if keys.get(name) == key:
                return heap[0]
            heapq.heappop(heap)
        return None
