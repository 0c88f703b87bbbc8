"""How sure a planned run will be: the expected width of its intervals, and how long it must last for a verdict.

Normal approximations of the laws in :mod:`tenants.measures.intervals`, with n requests worth ``n / deff`` independent
ones and z the normal quantile of the level (1.96 at 95%):

* share a: half width ``z * sqrt(a (1 - a) / n)``;
* percentile p (as a share): the interval spans the ranks ``p +- z * sqrt(p (1 - p) / n)`` of the sample (order
  statistics, David and Nagaraja 2003, 7.1). What that is in ms depends on the distribution; as a factor it is
  ``exp(sigma * (Phi^-1(p +- ...) - Phi^-1(p)))`` for a lognormal one of log-standard deviation sigma;
* requests for a verdict: the least n at which the exact interval (Clopper-Pearson) of n requests with true share a has
  left the target t behind. By the normal law that is about ``z^2 a (1 - a) / (a - t)^2``; with few misses it is more,
  and with none at all ``ln(tail) / ln(t)`` (368 requests for 99%, 3,688 for 99.9%), so the exact law is solved.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import dataclass

from tenants.measures.bootstrap import MIN_BLOCK_S, MIN_BLOCKS
from tenants.measures.intervals import LEVEL, clopper_pearson
from tenants.measures.laws import normal_quantile


@dataclass(frozen=True, slots=True)
class ExpectedWidth:
    """What ``requests`` will tell about a percentile. The interval will reach from percentile ``low`` to ``high`` of
    the sample (None: it will have no upper end), which is ``low_factor`` to ``high_factor`` times the value.
    """

    percentile: float
    requests: int
    low: float
    high: float | None
    low_factor: float
    high_factor: float | None

    def __str__(self) -> str:
        upper = "no upper end" if self.high_factor is None else f"+{100 * (self.high_factor - 1):.0f}%"
        return f"P{self.percentile:g} of {self.requests:,} requests: -{100 * (1 - self.low_factor):.0f}% to {upper}"


def _z(level: float) -> float:
    return normal_quantile((1 + level) / 2)


def expected_width(
    requests: int, percentile: float = 99.0, *, log_sigma: float = 0.5, deff: float = 1.0, level: float = LEVEL
) -> ExpectedWidth:
    """For ``requests`` >= 1 planned. ``log_sigma``: the spread of the logarithm of the latency (0.5: a P99 about 3.2
    times the median); ``deff`` >= 1: the design effect of dependence in time.
    """
    if requests < 1:
        raise ValueError(f"a width needs at least one request, got {requests}")
    p = percentile / 100
    half = _z(level) * math.sqrt(p * (1 - p) * deff / requests)
    low, high = max(p - half, 0.5 / requests), p + half
    centre = normal_quantile(p)
    low_factor = float(math.exp(log_sigma * (normal_quantile(low) - centre)))
    # The last rank of a sample of n stands for the share n / (n + 1): above it there is nothing to read.
    if high >= 1 - deff / (requests + deff):
        return ExpectedWidth(percentile, requests, 100 * low, None, low_factor, None)
    high_factor = float(math.exp(log_sigma * (normal_quantile(high) - centre)))
    return ExpectedWidth(percentile, requests, 100 * low, 100 * high, low_factor, high_factor)


def requests_for_verdict(target: float, share: float | None = None, *, deff: float = 1.0, level: float = LEVEL) -> int:
    """Requests after which a tenant whose true attainment is ``share`` gets a verdict on ``target`` (0 < target < 1):
    kept when above, broken when below. Default share: half of the error budget is spent. Raises ValueError when the
    two are equal: no number of requests tells them apart.
    """
    if not 0 < target < 1:
        raise ValueError(f"an attainment target lies between 0 and 1, got {target}")
    a = 1 - (1 - target) / 2 if share is None else share
    if a == target:
        raise ValueError(f"an attainment of exactly the target {target:g} cannot be told from it by any run")
    most = 1
    while not _decided(most, a, target, level):
        most *= 2
    least = bisect_left(range(most + 1), 1, lo=1, key=lambda n: _decided(n, a, target, level))
    return math.ceil(least * deff)


def _decided(n: int, share: float, target: float, level: float) -> bool:
    interval = clopper_pearson(share * n, n, level)
    return interval.low >= target if share > target else interval.high < target


def duration_for_verdict_s(
    requests_per_s: float,
    target: float,
    share: float | None = None,
    *,
    deff: float = 1.0,
    block_s: float = MIN_BLOCK_S,
    level: float = LEVEL,
) -> float:
    """Seconds of measured window that a verdict needs at this rate: enough requests, and at least four blocks of time
    (no shorter run has an interval unless five seeds are run).
    """
    if not requests_per_s > 0:
        raise ValueError(f"a duration needs a rate above 0 requests/s, got {requests_per_s}")
    return max(MIN_BLOCKS * block_s, requests_for_verdict(target, share, deff=deff, level=level) / requests_per_s)
