"""Percentile curves of a run: latency by percentile, from the median far into the tail, small enough to be kept.

The axis is HdrHistogram's: the *level* 1 / (1 - p), on a logarithmic scale, so that every further nine of a percentile
takes the same room. A curve of n requests ends at level 2n (the middle of its last rank), where the value is the
maximum: beyond that, nothing was measured. Percentiles are over all that was due, so where requests never reached the
event the curve ends at level n / never, and goes on as a bound only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from loadgen.recorder import Recorder
from tenants.measures.histogram import Histogram
from tenants.slo import Metric, Slo
from tenants.tenant import Tenant

CURVE_METRICS = (Metric.TTFT, Metric.ITL, Metric.INTER_CHUNK, Metric.E2E)

_STEPS_A_DECADE = 24
_NAMED_PERCENTILES = (50.0, 75.0, 90.0, 95.0, 99.0, 99.9, 99.99)


class Mark(msgspec.Struct, frozen=True, kw_only=True):
    """A promise on a curve: at ``level`` the latency must be at most ``limit_ms``."""

    level: float
    limit_ms: float


class Curve(msgspec.Struct, frozen=True, kw_only=True):
    """One tenant's percentiles of one metric: ``values_ms[k]`` at ``levels[k]`` = 1 / (1 - p), both ascending.

    ``count``: all that was due, of which ``unmeasured`` never reached the event or took above 1 h. ``beyond_ms``: what
    the percentiles after the last level exceed, up to ``end_level``; None when all were measured.
    """

    tenant: str
    metric: str
    count: int
    unmeasured: int
    levels: list[float]
    values_ms: list[float]
    end_level: float
    beyond_ms: float | None = None
    marks: list[Mark] = []


def curves_of(recorder: Recorder) -> list[Curve]:
    """The curves of every tenant and metric that has values, with the tenants' promises marked."""
    histograms = {
        (name, metric): recorder.histogram(metric, name) for name in recorder.names for metric in CURVE_METRICS
    }
    return curves_of_histograms(histograms, recorder.tenants)


def curves_of_histograms(
    histograms: Mapping[tuple[str, Metric], Histogram], tenants: Sequence[Tenant] = ()
) -> list[Curve]:
    """The same from histograms of all that was due, by (tenant name, metric); ``tenants`` are looked up for their
    promises. Empty histograms give no curve.
    """
    slos = {tenant.name: tenant.slo for tenant in tenants}
    return [
        _curve(name, metric, histogram, slos.get(name, Slo()))
        for (name, metric), histogram in histograms.items()
        if histogram.count
    ]


def level_of(percentile: float) -> float:
    """``1 / (1 - p)`` of a percentile below 100."""
    return 100.0 / (100.0 - percentile)


def _curve(name: str, metric: Metric, histogram: Histogram, slo: Slo) -> Curve:
    n = histogram.count
    unmeasured = histogram.count_never + histogram.out_of_range
    measured_until = 2.0 * n if unmeasured == 0 else n / unmeasured
    grid = [level for level in _levels(2.0 * n) if level < measured_until]
    found = histogram.percentiles([_percentile(level) for level in grid])
    points = [(level, v.value_ns) for level, v in zip(grid, found, strict=True) if v.value_ns is not None]
    last_ns = points[-1][1] if points else 0
    if unmeasured < n:
        # The longest measured value ends the curve; above 1 h it lies beyond what the histogram tells apart.
        longest = last_ns if histogram.out_of_range else histogram.max_ns or 0
        points.append((measured_until, max(longest, last_ns)))
    return Curve(
        tenant=name,
        metric=metric.value,
        count=n,
        unmeasured=unmeasured,
        levels=[round(level, 4) for level, _ in points],
        values_ms=[value / 1e6 for _, value in points],
        end_level=2.0 * n,
        beyond_ms=None if unmeasured == 0 else (histogram.percentile(100.0).at_least_ns or 0) / 1e6,
        marks=_marks(slo, metric),
    )


def _levels(end: float) -> list[float]:
    steps = []
    k = 0
    while (level := 10.0 ** (k / _STEPS_A_DECADE)) < end:
        steps.append(level)
        k += 1
    named = [level for level in map(level_of, _NAMED_PERCENTILES) if level < end]
    return sorted({*steps, *named})


def _percentile(level: float) -> float:
    # A percentile lies above 0; the least one that a histogram takes is its first rank.
    return max(100.0 * (1.0 - 1.0 / level), 1e-6)


def _marks(slo: Slo, metric: Metric) -> list[Mark]:
    marks = [
        Mark(level=level_of(o.percentile), limit_ms=o.limit_ns / 1e6) for o in slo.objectives if o.metric is metric
    ]
    limit_ns = {Metric.TTFT: slo.ttft_ns, Metric.E2E: slo.e2e_ns}.get(metric)
    if limit_ns is not None and slo.attainment is not None:
        marks.append(Mark(level=level_of(100.0 * slo.attainment), limit_ms=limit_ns / 1e6))
    return marks
