"""Deadlines of single requests, least first, with lazy deletion: those of the dispatcher's time-outs."""

from __future__ import annotations

import heapq
from enum import IntEnum


class Timer(IntEnum):
    TTL = 0
    FIRST_TOKEN = 1
    TOTAL = 2


class Timers:
    """``pending``: the deadlines that were neither reached nor cleared, by (request id, timer)."""

    __slots__ = ("_heap", "pending")

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Timer]] = []
        self.pending: dict[tuple[int, Timer], int] = {}

    def set(self, request_id: int, timer: Timer, at_ns: int) -> None:
        self.pending[request_id, timer] = at_ns
        heapq.heappush(self._heap, (at_ns, request_id, timer))

    def clear_all(self, request_id: int) -> None:
        for timer in Timer:
            self.clear(request_id, timer)

    def clear(self, request_id: int, timer: Timer) -> None:
        if self.pending.pop((request_id, timer), None) is None:
            return
        if len(self._heap) > 2 * len(self.pending) + 64:
            self._heap = [(at_ns, *key) for key, at_ns in self.pending.items()]
            heapq.heapify(self._heap)

    def next_ns(self) -> int | None:
        heap, pending = self._heap, self.pending
        while heap and pending.get((heap[0][1], heap[0][2])) != heap[0][0]:
            heapq.heappop(heap)
        return heap[0][0] if heap else None

    def pop_due(self, now_ns: int) -> tuple[int, Timer] | None:
        """The next timer that is due, removed; None when none is."""
        at_ns = self.next_ns()
        if at_ns is None or at_ns > now_ns:
            return None
        _, request_id, timer = heapq.heappop(self._heap)
        del self.pending[request_id, timer]
        return request_id, timer
