"""Releases arrivals at their deadlines: absolute, in order, never re-anchored.

A deadline is the request's ``arrival_ns`` on the run's clock. When the loop was busy past it, the request is released
as soon as the loop comes round, together with all others that are due by then, and the lag is recorded; the deadlines
that follow stay where they are. So a stall shows as lag, and never as a schedule that slipped (k6's arrival-rate
executors keep the same rule).

An event loop's own timers are too coarse above about 1,000 requests/s (uvloop rounds them to 1 ms), so the loop is
woken by an absolute alarm of the system (:mod:`backends.wakeup`).
"""

from __future__ import annotations

import asyncio
import time
from array import array
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from heapq import heappop, heappush

import numpy as np

from backends.protocol import Clock
from backends.wakeup import Wakeup, new_wakeup
from scheduler.request import Request
from tenants.measures.histogram import Histogram

WakeupFactory = Callable[[asyncio.AbstractEventLoop, Callable[[], None]], Wakeup]

_BATCH_MOST = 1024
_LAGS_KEPT = 1024


class Pacer:
    """Merges a schedule with the requests that are pushed while it runs (closed loop, sessions, retries).

    ``clock``: ns since the run's start. ``most``: so many requests are released and no more. ``wakeup`` and ``monotonic``:
    the alarm and the clock it is set by; a test gives those of its virtual loop. ``released`` counts requests; the pacer
    keeps none of them.
    """

    def __init__(
        self,
        clock: Clock,
        loop: asyncio.AbstractEventLoop | None = None,
        *,
        most: int | None = None,
        wakeup: WakeupFactory = new_wakeup,
        monotonic: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self.released = 0
        self.most = most
        self._clock = clock
        self._loop = loop
        self._new_wakeup = wakeup
        self._monotonic = monotonic
        self._pushed: list[tuple[int, int, Request]] = []
        self._ahead: Request | None = None
        self._more = False
        self._pacing = False
        self._stopped = False
        self._waiting: asyncio.Future[None] | None = None
        self._lag = Histogram()
        self._lags_ns = array("q")

    @property
    def lag(self) -> Histogram:
        """Release minus deadline of every request so far."""
        self._flush()
        return self._lag

    @property
    def spent(self) -> bool:
        """All that may be released has been."""
        return self.most is not None and self.released >= self.most

    def push(self, request: Request) -> None:
        """Add an arrival to a running schedule; one that is due already is released at once. Its deadline may lie
        before those of the schedule.
        """
        heappush(self._pushed, (request.arrival_ns, request.id, request))
        self._wake()

    def admit(self, request: Request) -> bool:
        """Release one arrival here and now, counted like any other: if it is due and nothing that is due before it waits
        for its turn. When False, push it.
        """
        now_ns = self._clock()
        order = (request.arrival_ns, request.id)
        if not self._pacing or self._stopped or self.spent or request.arrival_ns > now_ns:
            return False
        if self._pushed and self._pushed[0][:2] < order:
            return False
        if self._ahead is not None and (self._ahead.arrival_ns, self._ahead.id) < order:
            return False
        self._record((request,), now_ns)
        return True

    def close(self) -> None:
        """Nothing will be pushed any more: ``pace`` ends with what it has."""
        self._more = False
        self._wake()

    def stop(self) -> None:
        """``pace`` ends now; what is not released yet never will be."""
        self._stopped = True
        self._wake()

    async def pace(self, arrivals: Iterable[Request], *, more: bool = False) -> AsyncIterator[list[Request]]:
        """Lists of due requests, ascending by (arrival_ns, id) within the schedule and what was pushed in time; it ends
        when ``most`` are released.

        ``arrivals``: the schedule, ascending; it is read one request ahead. ``more``: go on when it is exhausted, until
        :meth:`close`. May be used once, in one task.
        """
        self._more = more
        schedule = iter(arrivals)
        self._ahead = next(schedule, None)
        self._pacing = True
        alarm = self._new_wakeup(self._loop or asyncio.get_running_loop(), self._wake)
        try:
            while not (self._stopped or self.spent):
                now_ns = self._clock()
                due: list[Request] = []
                room = _BATCH_MOST if self.most is None else min(_BATCH_MOST, self.most - self.released)
                while len(due) < room:
                    ahead = self._ahead
                    if self._pushed and (ahead is None or self._pushed[0][:2] < (ahead.arrival_ns, ahead.id)):
                        if self._pushed[0][0] > now_ns:
                            break
                        due.append(heappop(self._pushed)[2])
                    elif ahead is not None and ahead.arrival_ns <= now_ns:
                        due.append(ahead)
                        self._ahead = next(schedule, None)
                    else:
                        break
                if due:
                    self._record(due, now_ns)
                    yield due
                    # A pacer that is always late would else never let the sockets have their turn.
                    await asyncio.sleep(0)
                elif self._ahead is None and not self._pushed and not self._more:
                    return
                else:
                    await self._wait(alarm, self._next_deadline())
        finally:
            self._pacing = False
            alarm.close()

    def _next_deadline(self) -> int | None:
        deadlines = [] if self._ahead is None else [self._ahead.arrival_ns]
        deadlines += [entry[0] for entry in self._pushed[:1]]
        return min(deadlines, default=None)

    async def _wait(self, alarm: Wakeup, deadline_ns: int | None) -> None:
        """Until the deadline, a push, ``close`` or ``stop``; may end early, never late by its own doing."""
        if deadline_ns is None:
            alarm.disarm()
        else:
            alarm.arm(self._monotonic() + deadline_ns - self._clock())
        self._waiting = asyncio.get_running_loop().create_future()
        try:
            await self._waiting
        finally:
            self._waiting = None

    def _wake(self) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)

    def _record(self, due: Sequence[Request], now_ns: int) -> None:
        self.released += len(due)
        self._lags_ns.extend([now_ns - request.arrival_ns for request in due])
        if len(self._lags_ns) >= _LAGS_KEPT:
            self._flush()

    def _flush(self) -> None:
        if self._lags_ns:
            self._lag.record_many(np.array(self._lags_ns, dtype=np.int64))
            self._lags_ns = array("q")
