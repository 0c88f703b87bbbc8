"""The engine's time as policies count it: ns since the scheduler was made, monotonic.

vLLM stamps a request's arrival in its API server with the wall clock. Here it becomes an age, and arrivals never go back
behind one another: requests keep the order in which the engine got them, which is the order of its own queue, whatever
the wall clock does.
"""

from __future__ import annotations

import time
from collections.abc import Callable


class EngineClock:
    """``monotonic_ns`` and ``wall_s`` are the two clocks to read."""

    def __init__(
        self, *, monotonic_ns: Callable[[], int] = time.monotonic_ns, wall_s: Callable[[], float] = time.time
    ) -> None:
        self._monotonic_ns = monotonic_ns
        self._wall_s = wall_s
        self._start_ns = monotonic_ns()
        self._last_arrival_ns = 0

    def now_ns(self) -> int:
        return self._monotonic_ns() - self._start_ns

    def arrival_ns(self, arrival_s: float) -> int:
        """``arrival_s`` on the wall clock; never before an arrival already given, nor after now."""
        now_ns = self.now_ns()
        age_ns = max(0, round((self._wall_s() - arrival_s) * 1e9))
        self._last_arrival_ns = max(self._last_arrival_ns, now_ns - age_ns)
        return self._last_arrival_ns
