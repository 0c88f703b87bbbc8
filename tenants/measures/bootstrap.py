"""Intervals from one run: the moving-block bootstrap over time.

Latencies of requests close in time depend on each other (a burst slows all of them), so resampling single requests
gives intervals that are far too narrow. Here *stretches of time* are resampled: blocks of at least 30 s, starting
anywhere, laid end to end until they fill the run (Kuensch 1989; circular, so that the run's ends weigh as much as its
middle: Politis and Romano 1992). The run is divided into cells, six to a block; one resample is then a whole number
for each cell: how often its requests count. All statistics of a run, and of a second run with the same arrivals, can
share the resamples.

With few blocks the plain percentile interval is too narrow; it is expanded as by Hesterberg (2015, "What teachers
should know about the bootstrap", 3.2): the tail is ``Phi(-sqrt(b / (b - 1)) * t(b - 1))`` for b blocks. A run shorter
than four blocks gets no interval at all.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from tenants.measures.columns import NEVER, UNDEFINED, Columns, Int64s
from tenants.measures.intervals import LEVEL, Interval
from tenants.measures.laws import normal_probability, t_quantile
from tenants.measures.percentile import nearest_ranks

MIN_BLOCKS = 4
MAX_BLOCKS = 200
CELLS_PER_BLOCK = 6
MIN_BLOCK_S = 30.0

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class TimeBlocks:
    """Resamples of the time from ``start_ns`` to ``end_ns``. ``weights[r, c]``: how often cell c counts in resample r;
    every row sums to the number of cells, so a resample is as long as the run.
    """

    start_ns: int
    end_ns: int
    weights: Int64s
    n_blocks: float

    @classmethod
    def over(
        cls, start_ns: int, end_ns: int, *, block_s: float = MIN_BLOCK_S, replicates: int = 1000, seed: int = 0
    ) -> Self | None:
        """None when the time is shorter than four blocks. Of a long run the blocks grow: at most 200 fill it."""
        span = end_ns - start_ns
        if block_s < MIN_BLOCK_S:
            raise ValueError(
                f"blocks must last at least {MIN_BLOCK_S:g} s, since latencies depend on each other: {block_s}"
            )
        block_ns = max(block_s * 1e9, span / MAX_BLOCKS)
        if span < MIN_BLOCKS * block_ns:
            return None
        # Rounded down, so that a cell is never shorter than a sixth of a block.
        n_cells = math.floor(span / block_ns * CELLS_PER_BLOCK)
        n_draws = -(-n_cells // CELLS_PER_BLOCK)
        starts = np.random.default_rng(seed).integers(0, n_cells, size=(replicates, n_draws))
        covered = (starts[:, :, None] + np.arange(CELLS_PER_BLOCK)) % n_cells
        covered = covered.reshape(replicates, -1)[:, :n_cells]
        flat = covered + np.arange(replicates)[:, None] * n_cells
        weights = np.bincount(flat.ravel(), minlength=replicates * n_cells).reshape(replicates, n_cells)
        return cls(start_ns, end_ns, weights.astype(np.int64), n_cells / CELLS_PER_BLOCK)

    @property
    def replicates(self) -> int:
        return len(self.weights)

    @property
    def n_cells(self) -> int:
        return int(self.weights.shape[1])

    def cells(self, arrival_ns: Int64s) -> Int64s:
        """The cell of each arrival; one outside the time belongs to the nearest."""
        place = (arrival_ns - self.start_ns) / (self.end_ns - self.start_ns)
        found: Int64s = np.clip((place * self.n_cells).astype(np.int64), 0, self.n_cells - 1)
        return found

    def shares(self, hits: NDArray[np.bool_], cells: NDArray[np.integer[Any]]) -> Floats:
        """The share of ``hits`` in each resample; NaN in one that has no request."""
        total = self.weights @ np.bincount(cells, minlength=self.n_cells)
        hit = self.weights @ np.bincount(cells[hits], minlength=self.n_cells)
        return np.where(total > 0, hit / np.maximum(total, 1), np.nan)

    def percentiles(self, values: Int64s, cells: NDArray[np.integer[Any]], p: float) -> Floats:
        """The nearest-rank percentile of each resample, in ns; inf where it is NEVER, NaN where there is no value.

        The values are sorted once and split into about sqrt(n) groups; a product of two matrices counts every group in
        every resample, and only the group that holds the rank is looked into.
        """
        defined = values != UNDEFINED
        if not defined.all():
            values, cells = values[defined], cells[defined]
        if len(values) == 0:
            return np.full(self.replicates, np.nan)
        order = np.argsort(values, kind="stable")
        ranked, cell = values[order], cells[order]
        del order, defined
        size = max(1, math.isqrt(len(ranked)))
        n_groups = -(-len(ranked) // size)
        place = np.arange(len(ranked))
        place //= size
        place += cell * n_groups
        in_group = np.bincount(place, minlength=self.n_cells * n_groups)
        del place
        # In floats, which go through BLAS; the counts are far below 2^53.
        per_group = self.weights.astype(np.float64) @ in_group.reshape(self.n_cells, n_groups).astype(np.float64)
        up_to = np.cumsum(per_group, axis=1).astype(np.int64)
        rank = nearest_ranks(p, up_to[:, -1])
        holds = (up_to >= rank[:, None]).argmax(axis=1)
        row = np.arange(len(up_to))
        before = np.where(holds > 0, up_to[row, holds - 1], 0)
        member = np.minimum(holds[:, None] * size + np.arange(size), len(ranked) - 1)
        inside = np.cumsum(self.weights[row[:, None], cell[member]], axis=1) + before[:, None]
        found = ranked[member[row, (inside >= rank[:, None]).argmax(axis=1)]]
        reached = np.where(found == NEVER, np.inf, found.astype(np.float64))
        return np.where(up_to[:, -1] > 0, reached, np.nan)

    def interval(self, value: float, resampled: Floats, level: float = LEVEL) -> Interval | None:
        """The expanded percentile interval of a statistic from its resampled values; None when a tenth of the resamples
        had no value, NaN (then the others are no fair sample).
        """
        resampled = resampled[~np.isnan(resampled)]
        if len(resampled) < 0.9 * self.replicates:
            return None
        b = self.n_blocks
        tail = normal_probability(-math.sqrt(b / (b - 1)) * t_quantile((1 + level) / 2, b - 1))
        ranked = np.sort(resampled)
        low = ranked[math.floor(tail * (len(ranked) - 1))]
        high = ranked[math.ceil((1 - tail) * (len(ranked) - 1))]
        return Interval(
            value, float(min(low, value)), float(max(high, value)), "moving-block bootstrap", self.replicates, level
        )

    def variance(self, resampled: Floats) -> float:
        """The variance of a statistic, corrected for the number of blocks."""
        return float(np.nanvar(resampled)) * self.n_blocks / (self.n_blocks - 1)


def take(columns: Columns, rows: NDArray[np.integer[Any]]) -> Columns:
    """The rows with these positions, as often as they are named."""
    names = [f.name for f in fields(columns) if f.name != "tenants"]
    return Columns(columns.tenants, **{name: getattr(columns, name)[rows] for name in names})


def block_bootstrap(
    columns: Columns,
    statistic: Callable[[Columns], float | None],
    *,
    block_s: float = MIN_BLOCK_S,
    replicates: int = 500,
    seed: int = 0,
    start_ns: int | None = None,
    end_ns: int | None = None,
    level: float = LEVEL,
) -> Interval | None:
    """The interval of any statistic of the judged rows (all tenants of a stretch of time move together). The window is
    that of the arrivals unless given. None when the run is too short or the statistic has no value. For shares and
    percentiles :class:`TimeBlocks` is far cheaper.
    """
    judged = columns.judged()
    value = statistic(judged) if len(judged) else None
    if value is None:
        return None
    start = int(judged.arrival_ns.min()) if start_ns is None else start_ns
    end = int(judged.arrival_ns.max()) if end_ns is None else end_ns
    blocks = TimeBlocks.over(start, end, block_s=block_s, replicates=replicates, seed=seed)
    if blocks is None:
        return None
    cells, rows = blocks.cells(judged.arrival_ns), np.arange(len(judged))
    resampled = [statistic(take(judged, np.repeat(rows, weight[cells]))) for weight in blocks.weights]
    return blocks.interval(value, np.array([v for v in resampled if v is not None], dtype=np.float64), level)
