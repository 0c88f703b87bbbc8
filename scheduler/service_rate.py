"""How fast the server works, in cost units/s, learnt from what was dispatched while the queue was never empty.

After any window of at least 2 s in which something was always queued: ``C += 0.2 * (cost dispatched / window - C)``. Start it
low: a rate that is too high promises more than there is (twice the truth is dangerous; half is mild).
"""

from __future__ import annotations

WINDOW_NS = 2_000_000_000
GAIN = 0.2


class ServiceRate:
    """``due_ns``: while something is queued, nothing happens before then; 0 while nothing was."""

    __slots__ = ("_cost", "_since_ns", "due_ns", "value")

    def __init__(self, start: float) -> None:
        if start <= 0:
            raise ValueError(f"a service rate starts above 0 cost units/s, got {start}")
        self.value = start
        self._since_ns: int | None = None
        self._cost = 0.0
        self.due_ns = 0

    def observe(self, now_ns: int, *, backlogged: bool) -> bool:
        """Tell whether something is queued now; True when the value was updated."""
        if not backlogged:
            self._since_ns = None
            self.due_ns = 0
            return False
        if self._since_ns is None:
            self._since_ns = now_ns
            self.due_ns = now_ns + WINDOW_NS
            self._cost = 0.0
            return False
        window_ns = now_ns - self._since_ns
        if window_ns < WINDOW_NS:
            return False
        self.value += GAIN * (self._cost * 1e9 / window_ns - self.value)
        self._since_ns = now_ns
        self.due_ns = now_ns + WINDOW_NS
        self._cost = 0.0
        return True

    def dispatched(self, cost: float) -> None:
        """Count ``cost`` units as dispatched (negative: a dispatch undone)."""
        if self._since_ns is not None:
            self._cost += cost
