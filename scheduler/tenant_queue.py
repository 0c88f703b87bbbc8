"""One tenant's queue: first come, first served by (arrival, id), with O(1) cancel; and behind it the late ones.

Requests come nearly in order of arrival, so they are kept in a deque; those that do not (requeued, retried) go to a heap
beside it, and return to their place by arrival whatever the order in which they come back. Both delete lazily. The head is
kept, since it is asked for far more often than it changes.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterator

from scheduler.request import Request


class ArrivalQueue:
    """Requests by (arrival_ns, id); ``head``: the first, to be read only."""

    __slots__ = ("_last", "_live", "_ordered", "_strays", "head")

    def __init__(self) -> None:
        self._live: dict[int, Request] = {}
        self._ordered: deque[Request] = deque()
        self._strays: list[tuple[int, int, Request]] = []
        self._last = (-1, -1)
        self.head: Request | None = None

    def __len__(self) -> int:
        return len(self._live)

    def __iter__(self) -> Iterator[Request]:
        return iter(self._live.values())

    def push(self, request: Request) -> None:
        self._live[request.id] = request
        place = (request.arrival_ns, request.id)
        if place > self._last:
            self._ordered.append(request)
            self._last = place
        else:
            heapq.heappush(self._strays, (*place, request))
        head = self.head
        if head is None or place < (head.arrival_ns, head.id):
            self.head = request

    def remove(self, request_id: int) -> Request | None:
        request = self._live.pop(request_id, None)
        if request is None:
            return None
        if request is self.head:
            self.head = self._find_head()
        if len(self._ordered) + len(self._strays) > 2 * len(self._live) + 16:
            self._forget_removed()
        return request

    def _find_head(self) -> Request | None:
        live, ordered, strays = self._live, self._ordered, self._strays
        while ordered and live.get(ordered[0].id) is not ordered[0]:
            ordered.popleft()
        if not ordered:
            self._last = (-1, -1)
        if strays:
            while strays and live.get(strays[0][1]) is not strays[0][2]:
                heapq.heappop(strays)
            if strays and (not ordered or strays[0][:2] < (ordered[0].arrival_ns, ordered[0].id)):
                return strays[0][2]
        return ordered[0] if ordered else None

    def _forget_removed(self) -> None:
        live = self._live
        self._ordered = deque(request for request in self._ordered if live.get(request.id) is request)
        self._strays = [entry for entry in self._strays if live.get(entry[1]) is entry[2]]
        heapq.heapify(self._strays)


class TenantQueue:
    """``on_time`` is served before ``late``; both in order of arrival. ``head``: who is next, to be read only."""

    __slots__ = ("head", "late", "on_time")

    def __init__(self) -> None:
        self.on_time = ArrivalQueue()
        self.late = ArrivalQueue()
        self.head: Request | None = None

    def __len__(self) -> int:
        return len(self.on_time) + len(self.late)

    def __iter__(self) -> Iterator[Request]:
        yield from self.on_time
        yield from self.late

    def __bool__(self) -> bool:
        return self.head is not None

    def push(self, request: Request) -> None:
        """A request that is not late."""
        self.on_time.push(request)
        self.head = self.on_time.head

    def remove(self, request_id: int) -> Request | None:
        request = self.on_time.remove(request_id) or self.late.remove(request_id)
        self.head = self.on_time.head or self.late.head
        return request

    def demote(self, request: Request) -> None:
        """Move an on-time request to the late ones."""
        self.on_time.remove(request.id)
        self.late.push(request)
        self.head = self.on_time.head or self.late.head
