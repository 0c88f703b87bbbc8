"""How sure a figure is, as an interval, and the closed forms that give one.

* over independent replicates (seeds): Student's t for a mean, and on logarithms for a ratio or geometric mean;
* for a share k/n: Clopper and Pearson (1934), exact, never of width 0;
* for a percentile: the binomial interval on its rank (Conover, *Practical Nonparametric Statistics*, 3.2), free of any
  assumption on the distribution. Where the upper rank exceeds the sample, the interval has no upper end (inf): below
  368 independent requests a P99 has none at 95%.

The last two take an *effective* number of requests, since latencies of neighbours in time move together.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from tenants.measures.laws import beta_quantile, binomial_quantile, t_quantile

MIN_SEEDS = 5
LEVEL = 0.95


@dataclass(frozen=True, slots=True)
class Interval:
    """``value`` with its interval [``low``, ``high``] at confidence ``level``; ``high`` may be inf (no upper end was
    found). ``replicates``: how many seeds or resamples it rests on (0: none, a closed form).
    """

    value: float
    low: float
    high: float
    method: str
    replicates: int
    level: float = LEVEL

    @property
    def width(self) -> float:
        return self.high - self.low

    def clipped(self, low: float, high: float) -> Interval:
        """The same, cut to the values that are possible at all."""
        return replace(self, low=min(max(self.low, low), high), high=min(max(self.high, low), high))


def wider(first: Interval, other: Interval) -> Interval:
    """The hull of two intervals for the same figure; value and replicates are the first's, the method names both."""
    if first.low <= other.low and first.high >= other.high:
        return first
    method = f"{first.method}, widened to {other.method}"
    return replace(first, low=min(first.low, other.low), high=max(first.high, other.high), method=method)


def t_interval(values: Sequence[float], level: float = LEVEL) -> Interval | None:
    """For the mean of independent replicates; None with fewer than five, or when one is not finite."""
    n = len(values)
    if n < MIN_SEEDS or not all(math.isfinite(v) for v in values):
        return None
    mean = float(np.mean(values))
    half = t_quantile((1 + level) / 2, n - 1) * float(np.std(values, ddof=1)) / math.sqrt(n)
    return Interval(mean, mean - half, mean + half, f"t over {n} seeds", n, level)


def geometric_interval(values: Sequence[float], level: float = LEVEL) -> Interval | None:
    """For the geometric mean of positive replicates, such as ratios of latencies; None as in :func:`t_interval`, or
    when one is not above 0.
    """
    if any(not v > 0 for v in values):
        return None
    logs = t_interval([math.log(v) for v in values], level)
    if logs is None:
        return None
    return Interval(
        math.exp(logs.value),
        math.exp(logs.low),
        math.exp(logs.high),
        f"{logs.method}, on logarithms",
        len(values),
        level,
    )


def clopper_pearson(successes: float, n: float, level: float = LEVEL) -> Interval:
    """For a share of ``successes`` in ``n`` > 0 trials, either of which may be effective (not whole) numbers."""
    tail = (1 - level) / 2
    failures = n - successes
    low = 0.0 if successes <= 0 else beta_quantile(tail, successes, failures + 1)
    high = 1.0 if failures <= 0 else beta_quantile(1 - tail, successes + 1, failures)
    return Interval(successes / n, low, high, "Clopper-Pearson", 0, level)


def percentile_ranks(percentile: float, n: int, effective: float, level: float = LEVEL) -> tuple[int, int | None]:
    """The ranks whose values enclose the percentile's true value, from the binomial law of how many of ``effective``
    independent requests lie below it; the upper is None, the lower 0, where the sample has no such rank.
    """
    trials = max(1, math.floor(min(effective, n)))
    tail, share = (1 - level) / 2, percentile / 100
    lower = binomial_quantile(tail, trials, share)
    upper = binomial_quantile(1 - tail, trials, share) + 1
    low = math.floor(lower * n / trials)
    return low, None if upper > trials else min(n, math.ceil(upper * n / trials))
