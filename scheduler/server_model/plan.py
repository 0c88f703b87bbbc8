"""A run of equal steps that is in flight: when each of them ends."""

from __future__ import annotations

from math import isqrt


class Plan:
    """A run of ``steps`` equal-composition steps in flight, from ``start_ps``: step j (from 0) takes
    ``first_ps + j * growth_ps``. ``decoders``: sequences that decode in each of them."""

    __slots__ = ("decoders", "first_ps", "growth_ps", "start_ps", "steps")

    def __init__(self, start_ps: int, first_ps: int, growth_ps: int, steps: int, decoders: int = 0) -> None:
        self.start_ps = start_ps
        self.first_ps = first_ps
        self.growth_ps = growth_ps
        self.steps = steps
        self.decoders = decoders

    def end_ps(self, k: int) -> int:
        """End of the k-th step (k >= 1), exact."""
        return self.start_ps + k * self.first_ps + self.growth_ps * (k * (k - 1) // 2)

    def end_ns(self, k: int) -> int:
        """End of the k-th step on the ns clock (the last whole ns)."""
        return (self.start_ps + k * self.first_ps + self.growth_ps * (k * (k - 1) // 2)) // 1000

    @property
    def first_step_end_ns(self) -> int:
        return self.end_ns(1)

    def steps_until(self, now_ns: int) -> int:
        """The least k >= 1 with ``end_ns(k) >= now_ns``, at most ``steps``: where a run is cut when something arrives."""
        first, growth, wanted = self.first_ps, self.growth_ps, now_ns * 1000 - self.start_ps
        if self.steps == 1 or wanted <= first:
            return 1
        if not growth:
            return min(-(-wanted // first), self.steps)
        # The end of step k is a square in k: from the whole part of its root (or one less, isqrt rounds down) upward.
        linear = 2 * first - growth
        k = max(1, (isqrt(linear * linear + 8 * growth * wanted) - linear) // (2 * growth))
        while k * first + growth * (k * (k - 1) // 2) < wanted:
            k += 1
        return min(k, self.steps)
