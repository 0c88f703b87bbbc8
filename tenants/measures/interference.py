"""How much one tenant's load moves another tenant's tail latency.

* *Decay* of a tenant: ``P99(raised load) / P99(baseline)``; 1 = unmoved.
* *rho by excess*: ``rho_ij = 1 - P99_i(baseline) / P99_i(tenant j raised)``; 0 = unmoved, towards 1 = ruined. Signed:
  clipping at 0 biases a mean (10% of noise alone would give 0.05); the clipped value stands beside it.
* *rho by presence*: ``1 - P99_i(j removed) / P99_i(all)``. In a work-conserving system it cannot be 0: a removed
  neighbour frees capacity.
* *Correlation* of the tenants' P99s over windows of 60 s: whether they suffer together, whatever the cause.

A percentile that falls among requests which never reached the event has only a lower bound. It is used, and the
figure is flagged ``censored``: a censored raised P99 makes decay and rho lower bounds, a censored baseline makes them
upper bounds. A raised P99 that was never reached is taken as no better than the baseline's, whatever its bound:
shedding early must not look like an improvement.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tenants.measures.columns import Columns
from tenants.measures.percentile import PercentileValue, metric_ages, metric_percentile, metric_values, percentile
from tenants.slo import Metric

P99 = 99.0


@dataclass(frozen=True, slots=True)
class Growth:
    """One tenant's percentile at two loads. None where a tenant has no requests at one of them."""

    baseline: PercentileValue
    raised: PercentileValue

    @property
    def censored(self) -> bool:
        """True when one of the two percentiles is only a bound."""
        return self.baseline.never or self.raised.never

    @property
    def decay(self) -> float | None:
        """Raised / baseline; None when either has nothing to rank or the baseline is 0."""
        before, after = self._pair()
        return None if before is None or after is None or before == 0 else after / before

    @property
    def rho(self) -> float | None:
        """1 - baseline / raised, signed; None when either has nothing to rank or the raised one is 0."""
        before, after = self._pair()
        return None if before is None or after is None or after == 0 else 1.0 - before / after

    @property
    def rho_clipped(self) -> float | None:
        """max(0, rho)."""
        return None if self.rho is None else max(0.0, self.rho)

    def _pair(self) -> tuple[int | None, int | None]:
        before, after = self.baseline.at_least_ns, self.raised.at_least_ns
        if before is not None and after is not None and self.raised.never:
            after = max(after, before)
        return before, after


def growth_by_tenant(
    baseline: Columns, raised: Columns, metric: Metric = Metric.TTFT, p: float = P99
) -> dict[str, Growth]:
    """Each tenant's percentile in the two runs. Raises ValueError when the runs have different tenants."""
    if set(baseline.tenants) != set(raised.tenants):
        raise ValueError(
            f"the two runs have different tenants: {', '.join(baseline.tenants)}; {', '.join(raised.tenants)}"
        )
    return {
        name: Growth(metric_percentile(baseline.of(name), metric, p), metric_percentile(raised.of(name), metric, p))
        for name in baseline.tenants
    }


@dataclass(frozen=True, slots=True)
class Matrix:
    """``values[i, j]``: what tenant j does to tenant i; NaN where there is no figure, and on the diagonal.
    ``censored[i, j]``: the figure is only a bound.
    """

    tenants: tuple[str, ...]
    values: NDArray[np.float64]
    censored: NDArray[np.bool_]

    def of(self, victim: str, cause: str) -> float:
        return float(self.values[self.tenants.index(victim), self.tenants.index(cause)])

    def clipped(self) -> NDArray[np.float64]:
        """The values clipped at 0; NaN stays."""
        return np.maximum(self.values, 0.0)


def _matrix(tenants: tuple[str, ...], growths: Mapping[str, Mapping[str, Growth]]) -> Matrix:
    values = np.full((len(tenants), len(tenants)), np.nan)
    censored = np.zeros_like(values, dtype=np.bool_)
    for cause, growth in growths.items():
        if cause not in tenants:
            raise KeyError(f"unknown tenant {cause!r}; known: {', '.join(tenants)}")
        for victim, figure in growth.items():
            if victim != cause and figure.rho is not None:
                at = tenants.index(victim), tenants.index(cause)
                values[at], censored[at] = figure.rho, figure.censored
    return Matrix(tenants, values, censored)


def rho_by_excess(
    baseline: Columns, raised: Mapping[str, Columns], metric: Metric = Metric.TTFT, p: float = P99
) -> Matrix:
    """``raised[j]``: the run in which tenant j alone was raised; the victims' arrivals and lengths are the
    baseline's.
    """
    return _matrix(baseline.tenants, {j: growth_by_tenant(baseline, run, metric, p) for j, run in raised.items()})


def rho_by_presence(
    everyone: Columns, without: Mapping[str, Columns], metric: Metric = Metric.TTFT, p: float = P99
) -> Matrix:
    """``without[j]``: the same run with tenant j removed (its name may be among the tenants, or not)."""
    growths = {}
    for j, run in without.items():
        others = [name for name in everyone.tenants if name != j]
        missing = [name for name in others if name not in run.tenants]
        if missing:
            raise ValueError(f"the run without {j!r} lacks other tenants too: {', '.join(missing)}")
        growths[j] = {
            i: Growth(metric_percentile(run.of(i), metric, p), metric_percentile(everyone.of(i), metric, p))
            for i in others
        }
    return _matrix(everyone.tenants, growths)


def windowed_correlation(
    columns: Columns, metric: Metric = Metric.TTFT, p: float = P99, window_s: float = 60.0
) -> Matrix:
    """Pearson correlation of the tenants' percentiles over consecutive windows of arrivals. NaN with fewer than three
    windows in which both have requests, and where one does not vary. A censored percentile enters as its bound.
    """
    judged = columns.judged()
    n = len(columns.tenants)
    values = np.full((n, n), np.nan)
    censored = np.zeros((n, n), dtype=np.bool_)
    if len(judged) == 0:
        return Matrix(columns.tenants, values, censored)
    window = ((judged.arrival_ns - judged.arrival_ns.min()) // round(window_s * 1e9)).astype(np.int64)
    series = np.full((n, int(window.max()) + 1), np.nan)
    bounds = np.zeros_like(series, dtype=np.bool_)
    latencies, ages = metric_values(judged, metric), metric_ages(judged, metric)
    for i in range(n):
        for k in np.unique(window[judged.tenant == i]):
            rows = (judged.tenant == i) & (window == k)
            found = percentile(latencies[rows], p, ages[rows])
            if found.at_least_ns is not None:
                series[i, k], bounds[i, k] = found.at_least_ns, found.never
    for i in range(n):
        for j in range(n):
            both = ~np.isnan(series[i]) & ~np.isnan(series[j])
            x, y = series[i, both], series[j, both]
            if i != j and len(x) >= 3 and np.ptp(x) > 0 and np.ptp(y) > 0:
                values[i, j] = np.corrcoef(x, y)[0, 1]
                censored[i, j] = bool((bounds[i] | bounds[j])[both].any())
    return Matrix(columns.tenants, values, censored)
