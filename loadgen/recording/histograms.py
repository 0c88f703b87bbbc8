"""One histogram for every tenant and metric, with the successes told apart.

Two are kept for each pair: one of the requests that ended OK, and one of the rest (what a failed request reached before
it failed, and what it never reached). All that was due is their sum, so the two never disagree; a total over tenants is
the sum of the tenants' counts, never an average of their percentiles.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from tenants.measures.columns import Int64s
from tenants.measures.histogram import Histogram
from tenants.slo import Metric


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

    def record_columns(
        self, tenants: NDArray[np.int32], ok: NDArray[np.bool_], columns: Mapping[Metric, tuple[Int64s, Int64s]]
    ) -> None:
        """One value a request for each metric, with the sentinels of :mod:`tenants.measures.columns`, and its ages."""
        for tenant, success, rows in _groups(tenants, ok):
            for metric, (values, ages) in columns.items():
                self._of(tenant, metric, ok=success).record_column(values[rows], ages[rows])

    def record_gaps(
        self,
        metric: Metric,
        tenants: NDArray[np.int32],
        ok: NDArray[np.bool_],
        gaps_ns: Int64s,
        counts: Int64s | None = None,
    ) -> None:
        """Gaps between tokens or chunks; ``tenants`` and ``ok`` per gap."""
        for tenant, success, rows in _groups(tenants, ok):
            weights = None if counts is None else counts[rows]
            self._of(tenant, metric, ok=success).record_many(np.maximum(gaps_ns[rows], 0), weights)

    def record_gaps_of(self, tenant: int, metric: Metric, gaps_ns: Int64s, counts: Int64s) -> None:
        """Gaps, each >= 0, of one tenant's requests that did not fail."""
        self._of(tenant, metric, ok=True).record_many(gaps_ns, counts)

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


def _groups(tenants: NDArray[np.int32], ok: NDArray[np.bool_]) -> Iterator[tuple[int, bool, NDArray[np.intp]]]:
    """(tenant, success, the rows of both), for those that have rows."""
    group = tenants * 2 + ok
    for number in np.flatnonzero(np.bincount(group)).tolist():
        yield number >> 1, bool(number & 1), np.flatnonzero(group == number)


def _sum(tables: list[dict[tuple[int, Metric], Histogram]], metric: Metric, tenant: int | None) -> Histogram:
    total = Histogram()
    for table in tables:
        for (owner, name), histogram in table.items():
            if name is metric and tenant in (None, owner):
                total.add(histogram)
    return total
