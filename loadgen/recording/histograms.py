"""One histogram for every tenant and metric, with the successes told apart.

Two are kept for each pair: one of the requests that ended OK, and one of the rest (what a failed request reached before
it failed, and what it never reached). All that was due is their sum, so the two never disagree; a total over tenants is
the sum of the tenants' counts, never an average of their percentiles.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tenants.measures.columns import Int64s
from tenants.measures.histogram import Histogram
from tenants.slo import Metric

METRICS = tuple(Metric)


class HistogramSet:
    """Histograms by (tenant code, metric). Rows outside the window must not be fed."""

    def __init__(self) -> None:
        self._ok: dict[tuple[int, Metric], Histogram] = {}
        self._rest: dict[tuple[int, Metric], Histogram] = {}

    def _of(self, tenant: int, metric: Metric, *, ok: bool) -> Histogram:
        table = self._ok if ok else self._rest
        histogram = table.get((tenant, metric))
        if histogram is None:
            histogram = table[tenant, metric] = Histogram()
        return histogram

    def record_column(
        self, metric: Metric, tenants: NDArray[np.int32], ok: NDArray[np.bool_], values: Int64s, ages: Int64s
    ) -> None:
        """One value a request, with the sentinels of :mod:`tenants.measures.columns`."""
        for tenant in np.unique(tenants):
            mine = tenants == tenant
            for success in (True, False):
                rows = mine & (ok == success)
                if rows.any():
                    self._of(int(tenant), metric, ok=success).record_column(values[rows], ages[rows])

    def record_gaps(
        self,
        metric: Metric,
        tenants: NDArray[np.int32],
        ok: NDArray[np.bool_],
        gaps_ns: Int64s,
        counts: Int64s | None = None,
    ) -> None:
        """Gaps between tokens or chunks; ``tenants`` and ``ok`` per gap."""
        for tenant in np.unique(tenants):
            mine = tenants == tenant
            for success in (True, False):
                rows = mine & (ok == success)
                if rows.any():
                    weights = None if counts is None else counts[rows]
                    self._of(int(tenant), metric, ok=success).record_many(np.maximum(gaps_ns[rows], 0), weights)

    def record_open_gap(self, metric: Metric, tenant: int, age_ns: int) -> None:
        """A gap that was due and never ended: the stream stalled until it was given up."""
        self._of(tenant, metric, ok=False).record_never(max(age_ns, 0))

    def add(self, other: HistogramSet, codes: Sequence[int]) -> None:
        """Add the counts of another worker's, whose tenant ``i`` is ``codes[i]`` here."""
        for mine, theirs in ((self._ok, other._ok), (self._rest, other._rest)):
            for (tenant, metric), histogram in theirs.items():
                mine.setdefault((codes[tenant], metric), Histogram()).add(histogram)

    def all(self, metric: Metric, tenant: int | None = None) -> Histogram:
        """All that was due, of one tenant or (None) of all."""
        return _sum([self._ok, self._rest], metric, tenant)

    def successes(self, metric: Metric, tenant: int | None = None) -> Histogram:
        """The requests that ended OK, of one tenant or (None) of all."""
        return _sum([self._ok], metric, tenant)


def _sum(tables: list[dict[tuple[int, Metric], Histogram]], metric: Metric, tenant: int | None) -> Histogram:
    total = Histogram()
    for table in tables:
        for (owner, name), histogram in table.items():
            if name is metric and tenant in (None, owner):
                total.add(histogram)
    return total
