"""Batches of measured requests on their way into histograms.

Feeding a histogram costs a few microseconds a call however few the values, so batches wait here until there are some
thousands of values, or until somebody asks. What waits is bounded, and small enough that an event loop that feeds them
does not stand still for longer than a few milliseconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields

import numpy as np
from numpy.typing import NDArray

from loadgen.recording.histograms import HistogramSet
from loadgen.recording.stamps import Gaps
from tenants.measures.columns import Columns, Int64s, StatusCode
from tenants.measures.percentile import metric_ages, metric_values
from tenants.slo import Metric

COLUMN_METRICS = (Metric.TTFT, Metric.BACKEND_TTFT, Metric.TPOT, Metric.MAX_ITL, Metric.E2E, Metric.QUEUE)

_ROWS_AT_ONCE = 1024
_GAPS_AT_ONCE = 8192


class HistogramFeed:
    """``add`` rows that count (in the window, no planned cancel); ``sync`` before the histograms are read."""

    def __init__(self, histograms: HistogramSet) -> None:
        self._histograms = histograms
        self._rows: list[Columns] = []
        self._lateness: list[Int64s] = []
        self._n_rows = 0
        self._gaps: list[tuple[NDArray[np.int32], NDArray[np.bool_], Int64s, Int64s]] = []
        self._n_gaps = 0

    def add(self, columns: Columns, lateness_ns: Int64s) -> None:
        if not len(columns):
            return
        self._rows.append(columns)
        self._lateness.append(lateness_ns)
        self._n_rows += len(columns)
        if self._n_rows >= _ROWS_AT_ONCE:
            self._sync_rows()

    def add_gaps(
        self, gaps: Gaps, tenants: NDArray[np.int32], ok: NDArray[np.bool_], counted: NDArray[np.bool_]
    ) -> None:
        """``tenants``, ``ok`` and ``counted`` by row; gaps of rows that do not count are left out."""
        keep = counted[gaps.owner]
        owner = gaps.owner[keep]
        if not len(owner):
            return
        self._gaps.append((tenants[owner], ok[owner], gaps.gap_ns[keep], gaps.tokens[keep]))
        self._n_gaps += len(owner)
        if self._n_gaps >= _GAPS_AT_ONCE:
            self._sync_gaps()

    def sync(self) -> None:
        """Everything added so far is in the histograms."""
        self._sync_rows()
        self._sync_gaps()

    def _sync_rows(self) -> None:
        if not self._rows:
            return
        columns = _joined(self._rows)
        late = np.concatenate(self._lateness)
        self._rows, self._lateness, self._n_rows = [], [], 0
        ok = columns.status == StatusCode.OK
        taken = {metric: (metric_values(columns, metric), metric_ages(columns, metric)) for metric in COLUMN_METRICS}
        taken[Metric.OWN_LATENESS] = (late, np.zeros_like(late))
        self._histograms.record_columns(columns.tenant, ok, taken)

    def _sync_gaps(self) -> None:
        if not self._gaps:
            return
        tenants, ok, gap_ns, tokens = (np.concatenate(part) for part in zip(*self._gaps, strict=True))
        self._gaps, self._n_gaps = [], 0
        self._histograms.record_gaps(Metric.INTER_CHUNK, tenants, ok, gap_ns)
        known, itl_ns, counts = Gaps(tenants, gap_ns, tokens).itl()
        self._histograms.record_gaps(Metric.ITL, tenants[known], ok[known], itl_ns, counts)


def _joined(parts: Sequence[Columns]) -> Columns:
    names = [field.name for field in fields(Columns) if field.name != "tenants"]
    return Columns(parts[-1].tenants, **{name: np.concatenate([getattr(p, name) for p in parts]) for name in names})
