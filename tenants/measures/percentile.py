"""Exact percentiles of rows, in which what never happened ranks above everything that did.

The percentile is the *nearest rank*: of n values in ascending order the one at rank ``ceil(p / 100 * n)`` (at least
1), a value that was really seen. Rows marked NEVER take part and rank last, so shedding or starving can never lower a
percentile; rows marked UNDEFINED are left out.

Where the rank falls among the NEVER rows no value exists, only a bound: the event took longer than the longest such
request was watched. Since those rows rank above every measured value, the bound is at least the largest measured one
too: a request shed at once has an age of 0, and a bound of 0 would be an improvement.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

import numpy as np

from tenants.measures.columns import NEVER, UNDEFINED, Columns, Int64s
from tenants.slo import Metric


@dataclass(frozen=True, slots=True)
class PercentileValue:
    """A percentile in ns: ``value_ns`` when it was measured; else ``beyond_ns``, which it exceeds; neither when there
    was nothing to rank.
    """

    value_ns: int | None
    beyond_ns: int | None = None

    @property
    def never(self) -> bool:
        """True when the percentile falls where the event was not reached."""
        return self.beyond_ns is not None

    @property
    def at_least_ns(self) -> int | None:
        """The value, or the bound it exceeds; None when there was nothing to rank."""
        return self.value_ns if self.beyond_ns is None else self.beyond_ns

    def format_ms(self, digits: int = 1) -> str:
        """``312.4 ms``, ``> 30000.0 ms``, or ``-`` when there was nothing to rank."""
        bound = self.at_least_ns
        if bound is None:
            return "-"
        return f"{'> ' if self.never else ''}{bound / 1e6:.{digits}f} ms"

    def __str__(self) -> str:
        return self.format_ms()


@lru_cache(maxsize=1024)
def _as_fraction(percentile: float) -> Fraction:
    if not 0 < percentile <= 100:
        raise ValueError(f"a percentile lies above 0 and is at most 100, got {percentile}")
    # The decimal number that was meant, not its binary neighbour: 100 * 0.57 must rank as 57.
    return Fraction(str(round(percentile, 9))) / 100


@lru_cache(maxsize=4096)
def nearest_rank(percentile: float, n: int) -> int:
    """The rank (1 to n) of a percentile (0 < p <= 100) among ``n`` > 0 ascending values, in exact arithmetic. Raises
    ValueError for a percentile out of range.
    """
    share = _as_fraction(percentile)
    return max(1, -(-share.numerator * n // share.denominator))


def nearest_ranks(percentile: float, n: Int64s) -> Int64s:
    """:func:`nearest_rank` for many sample sizes at once (each below 10^7)."""
    share = _as_fraction(percentile)
    ranks: Int64s = np.maximum(1, -(-share.numerator * n // share.denominator))
    return ranks


def percentile(values: Int64s, p: float, ages: Int64s | None = None) -> PercentileValue:
    """The percentile of ``values`` (ns, with NEVER and UNDEFINED). ``ages``: for each row how long it was watched, in
    ns; read where the value is NEVER.
    """
    return percentiles(values, [p], ages)[0]


def percentiles(values: Int64s, ps: Sequence[float], ages: Int64s | None = None) -> list[PercentileValue]:
    """Several percentiles of the same values, sorted once."""
    ranked = np.sort(values[values != UNDEFINED])
    n = len(ranked)
    if n == 0:
        return [PercentileValue(None) for _ in ps]
    n_measured = int(np.searchsorted(ranked, NEVER))
    bound = int(ranked[n_measured - 1]) if n_measured else 0
    if ages is not None and n_measured < n:
        bound = max(bound, int(ages[values == NEVER].max()))
    found = []
    for p in ps:
        rank = nearest_rank(p, n)
        if rank > n_measured:
            found.append(PercentileValue(None, bound))
        else:
            found.append(PercentileValue(int(ranked[rank - 1])))
    return found


def percentile_successes(values: Int64s, p: float) -> PercentileValue:
    """The percentile of the measured values alone; to stand beside :func:`percentile`, never in its place."""
    return percentile(values[values != NEVER], p)


def mean_successes_ns(values: Int64s) -> float | None:
    """The mean of the measured values in ns; None when there are none."""
    measured = values[(values != NEVER) & (values != UNDEFINED)]
    return float(measured.mean()) if len(measured) else None


_COLUMN = {
    Metric.TTFT: "ttft_ns",
    Metric.BACKEND_TTFT: "backend_ttft_ns",
    Metric.TPOT: "tpot_ns",
    Metric.MAX_ITL: "max_itl_ns",
    Metric.E2E: "e2e_ns",
    Metric.QUEUE: "queue_ns",
}


def has_column(metric: Metric) -> bool:
    """True when the metric has one value a request; ITL, inter-chunk latency and own lateness live in histograms."""
    return metric in _COLUMN


def metric_values(columns: Columns, metric: Metric) -> Int64s:
    """The column of a metric, one value a request. Raises ValueError for a metric that has none."""
    if metric not in _COLUMN:
        known = ", ".join(m.value for m in _COLUMN)
        raise ValueError(f"{metric.value} has no single value a request, so no column; those with one: {known}")
    values: Int64s = getattr(columns, _COLUMN[metric])
    return values


def metric_ages(columns: Columns, metric: Metric) -> Int64s:
    """How long each request was watched for the metric's event, in ns: since the arrival, or since the dispatch for
    ``backend_ttft``. For gaps between tokens it is 0: an age is no bound for a mean gap.
    """
    age: Int64s = columns.end_ns - columns.arrival_ns
    if metric in {Metric.TTFT, Metric.E2E, Metric.QUEUE}:
        return age
    if metric is Metric.BACKEND_TTFT:
        return np.where(columns.queue_ns == NEVER, 0, np.maximum(age - columns.queue_ns, 0))
    return np.zeros_like(age)


def metric_percentile(columns: Columns, metric: Metric, p: float) -> PercentileValue:
    """The percentile of a metric over the judged requests of ``columns``."""
    judged = columns.judged()
    return percentile(metric_values(judged, metric), p, metric_ages(judged, metric))
