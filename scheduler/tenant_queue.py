"""One tenant's queue: first come, first served by (arrival, id), with O(1) cancel; and behind it the late ones.

A heap with lazy deletion rather than a deque: a requeued or retried request returns to its place by arrival, whatever the
order in which it comes back.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator

from scheduler.request import Request


class ArrivalQueue:
    """Requests by (arrival_ns, id)."""

    __slots__ = ("_heap", "_live")

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Request]] = []
        self._live: dict[int, Request] = {}

    def __len__(self) -> int:
        return len(self._live)

    def __iter__(self) -> Iterator[Request]:
        return iter(self._live.values())

    def push(self, request: Request) -> None:
        self._live[request.id] = request
        heapq.heappush(self._heap, (request.arrival_ns, request.id, request))

    def head(self) -> Request | None:
        heap, live = self._heap, self._live
        while heap:
            request = heap[0][2]
            if live.get(request.id) is request:
                return request
            heapq.heappop(heap)
        return None

    def remove(self, request_id: int) -> Request | None:
        request = self._live.pop(request_id, None)
        if request is not None and len(self._heap) > 2 * len(self._live) + 16:
            self._heap = [(r.arrival_ns, r.id, r) for r in self._live.values()]
            heapq.heapify(self._heap)
        return request


class TenantQueue:
    """``on_time`` is served before ``late``; both in order of arrival."""

    __slots__ = ("late", "on_time")

    def __init__(self) -> None:
        self.on_time = ArrivalQueue()
        self.late = ArrivalQueue()

    def __len__(self) -> int:
        return len(self.on_time) + len(self.late)

    def __iter__(self) -> Iterator[Request]:
        yield from self.on_time
        yield from self.late

    def head(self) -> Request | None:
        return self.on_time.head() or self.late.head()

    def remove(self, request_id: int) -> Request | None:
        return self.on_time.remove(request_id) or self.late.remove(request_id)

    def demote(self, request: Request) -> None:
        """Move an on-time request to the late ones."""
        self.on_time.remove(request.id)
        self.late.push(request)
