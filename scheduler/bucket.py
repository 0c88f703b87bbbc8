"""A token bucket that may go into debt: the measure of a contract and of a rate limit.

The bucket fills at ``rate`` up to ``burst`` and starts full. A contract's bucket is charged at arrival with the estimated
cost and corrected at the finish, so it may become negative: while it is, the tenant is out of contract.
"""

from __future__ import annotations


class TokenBucket:
    """``rate`` units/s (> 0), ``burst`` units (> 0); times in ns and never going back."""

    __slots__ = ("_at_ns", "_level", "burst", "rate")

    def __init__(self, rate: float, burst: float, now_ns: int = 0) -> None:
        if rate <= 0 or burst <= 0:
            raise ValueError(f"a token bucket needs rate > 0 and burst > 0, got {rate} and {burst}")
        self.rate = rate
        self.burst = burst
        self._level = burst
        self._at_ns = now_ns

    def level(self, now_ns: int) -> float:
        """Units in the bucket; negative while in debt."""
        if now_ns > self._at_ns:
            self._level = min(self.burst, self._level + self.rate * (now_ns - self._at_ns) / 1e9)
            self._at_ns = now_ns
        return self._level

    def charge(self, units: float, now_ns: int) -> None:
        """Take ``units`` out (put back when negative), whatever the level."""
        self._level = min(self.burst, self.level(now_ns) - units)

    def take(self, units: float, now_ns: int) -> bool:
        """Take ``units`` if they are there (at most ``burst`` is ever asked); False and no change otherwise."""
        if self.level(now_ns) < min(units, self.burst):
            return False
        self._level -= units
        return True

    def wait_ns(self, units: float, now_ns: int) -> int:
        """How long until ``take(units)`` would succeed."""
        missing = min(units, self.burst) - self.level(now_ns)
        return max(0, round(missing / self.rate * 1e9))
