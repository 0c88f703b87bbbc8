"""Virtual time in whole ns: simpy's clock and queue of events, with *calls* beside the events.

A simpy event is an object with a list of callbacks, and a process waits for it; a simulation would make some of both for
every request. A call is an entry of the same queue, in the same order (by time, then as asked for), without either.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any, TypeVar

import simpy
from simpy.events import NORMAL

A = TypeVar("A")

_LAST = NORMAL + 1
"""The priority of what happens after all else of its instant; simpy has urgent (0) and normal (1)."""

_CALL = 5
"""simpy's entries are (time, priority, number, event), those of calls (time, priority, number, function, argument)."""


class VirtualTime(simpy.Environment):
    """``now_ns``: the time. Every delay is a whole number of ns, so it is one."""

    def __init__(self) -> None:
        super().__init__()
        self.now_ns = 0

    def call_at(self, at_ns: int, function: Callable[[A], object], argument: A) -> None:
        """``function(argument)`` at ``at_ns``, which must not lie in the past."""
        entry: Any = (at_ns, NORMAL, next(self._eid), function, argument)
        heappush(self._queue, entry)

    def call_last_at(self, at_ns: int, function: Callable[[A], object], argument: A) -> None:
        """The same, after all else that is known to happen at that instant."""
        entry: Any = (at_ns, _LAST, next(self._eid), function, argument)
        heappush(self._queue, entry)

    def step(self) -> None:
        """All calls before the next event, and that. Raises EmptySchedule when no event is left."""
        queue: list[Any] = self._queue
        while queue and len(queue[0]) == _CALL:
            at_ns, _, _, function, argument = heappop(queue)
            self._now = self.now_ns = at_ns
            function(argument)
        if queue:
            self.now_ns = queue[0][0]
        super().step()
