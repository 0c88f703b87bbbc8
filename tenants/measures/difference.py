"""How far two sets of runs differ, with the interval of the *difference*.

Two intervals that overlap say little: runs of one seed share their arrivals, so most of what moves one moves the other, and
their difference is known far better than either figure. Therefore

* with at least five runs on each side: a t interval over the differences of pairs that share a seed (on logarithms for a
  ratio), or Welch's where the seeds differ;
* else a moving-block bootstrap (:mod:`tenants.measures.bootstrap`) of both sides: the same blocks of time on both where
  they share their seeds, blocks of their own where they do not;
* else, of runs shorter than four blocks, none.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
from numpy.typing import NDArray

from tenants.measures.attainment import meets
from tenants.measures.bootstrap import Floats, TimeBlocks
from tenants.measures.columns import Columns, Int64s
from tenants.measures.evidence import concatenate
from tenants.measures.intervals import LEVEL, MIN_SEEDS, Interval, geometric_interval, t_interval
from tenants.measures.laws import t_quantile
from tenants.measures.percentile import metric_values
from tenants.slo import Metric, Slo


@dataclass(frozen=True, slots=True)
class Laid:
    """The judged rows of one side's runs, laid end to end. ``met``: which meet their tenant's limits."""

    rows: Columns
    met: NDArray[np.bool_]
    cells: Int64s
    blocks: TimeBlocks

    @classmethod
    def of(cls, runs: Sequence[Columns], slos: Mapping[str, Slo], *, seed: int = 0) -> Self | None:
        """None when the runs together are shorter than four blocks."""
        judged = [run.judged() for run in runs]
        placed, clock = [], 0
        for run in judged:
            start = int(run.arrival_ns.min()) if len(run) else 0
            placed.append(run.arrival_ns - start + clock)
            clock += int(np.ptp(run.arrival_ns)) if len(run) else 0
        blocks = TimeBlocks.over(0, clock, seed=seed)
        if blocks is None:
            return None
        rows = concatenate(_of_one_order(judged))
        met = np.zeros(len(rows), dtype=np.bool_)
        for index, name in enumerate(rows.tenants):
            mine = rows.tenant == index
            met[mine] = meets(rows.select(mine), slos.get(name, Slo()))
        return cls(rows, met, blocks.cells(np.concatenate(placed)), blocks)

    def on(self, blocks: TimeBlocks) -> Self:
        """The same rows under another side's resamples; a cell is a part of the run, so a slightly longer run fits."""
        return replace(self, blocks=blocks, cells=self.cells * blocks.n_cells // self.blocks.n_cells)

    def of_tenant(self, name: str | None) -> NDArray[np.bool_]:
        """Which rows are the tenant's; None: everybody's."""
        if name is None:
            return np.ones(len(self.rows), dtype=np.bool_)
        if name not in self.rows.tenants:
            return np.zeros(len(self.rows), dtype=np.bool_)
        mine: NDArray[np.bool_] = self.rows.tenant == self.rows.tenants.index(name)
        return mine

    def percentiles(self, tenant: str | None, metric: Metric, p: float) -> Floats:
        mine = self.of_tenant(tenant)
        return self.blocks.percentiles(metric_values(self.rows, metric)[mine], self.cells[mine], p)

    def shares(self, tenant: str | None) -> Floats:
        mine = self.of_tenant(tenant)
        return self.blocks.shares(self.met[mine], self.cells[mine])

    def sums(self, tenant: str | None, *, tokens: bool) -> Floats:
        """Of each resample, per second: how many requests met their limits, or how many tokens were generated."""
        mine = self.of_tenant(tenant)
        weight = np.maximum(self.rows.output_tokens, 0) if tokens else self.met.astype(np.int64)
        per_cell = np.bincount(self.cells[mine], weights=weight[mine], minlength=self.blocks.n_cells)
        found: Floats = (self.blocks.weights @ per_cell) / (self.blocks.end_ns - self.blocks.start_ns) * 1e9
        return found


def _of_one_order(runs: Sequence[Columns]) -> list[Columns]:
    """The same rows with one numbering of the tenants."""
    names = tuple(sorted({name for run in runs for name in run.tenants}))
    found = []
    for run in runs:
        numbers = np.array([names.index(name) for name in run.tenants] or [0], dtype=np.int32)
        found.append(replace(run, tenants=names, tenant=numbers[run.tenant]))
    return found


@dataclass(frozen=True, slots=True)
class Sides:
    """Both sides under resamples that belong together."""

    before: Laid
    after: Laid

    @classmethod
    def of(
        cls,
        before: Sequence[Columns],
        after: Sequence[Columns],
        slos_before: Mapping[str, Slo],
        slos_after: Mapping[str, Slo],
        *,
        paired: bool,
    ) -> Self | None:
        """``paired``: the runs share their seeds, in order. None when a side is too short."""
        first, second = Laid.of(before, slos_before), Laid.of(after, slos_after, seed=0 if paired else 1)
        if first is None or second is None:
            return None
        return cls(first, second.on(first.blocks) if paired else second)

    def percentile_ratio(self, tenant: str | None, metric: Metric, p: float, value: float) -> Interval | None:
        """Of P(after) / P(before) - 1; ``value`` is the figure itself."""
        before, after = self.before.percentiles(tenant, metric, p), self.after.percentiles(tenant, metric, p)
        return self._ratio(before, after, value)

    def share_difference(self, tenant: str | None, value: float) -> Interval | None:
        """Of the share of requests that met their limits, after less before."""
        return self._interval(value, self.after.shares(tenant) - self.before.shares(tenant))

    def rate_ratio(self, tenant: str | None, value: float, *, tokens: bool) -> Interval | None:
        """Of the requests that met their limits per second (or the tokens), after / before - 1."""
        return self._ratio(self.before.sums(tenant, tokens=tokens), self.after.sums(tenant, tokens=tokens), value)

    def _ratio(self, before: Floats, after: Floats, value: float) -> Interval | None:
        # A resample whose base is 0 or was never reached has no ratio: left out, as NaN.
        known = np.isfinite(before) & (before > 0)
        ratio = np.full(len(before), np.nan)
        ratio[known] = after[known] / before[known]
        return self._interval(value, ratio - 1.0)

    def _interval(self, value: float, resampled: Floats) -> Interval | None:
        blocks = min(self.before.blocks, self.after.blocks, key=lambda each: each.n_blocks)
        found = blocks.interval(value, resampled)
        return None if found is None or math.isnan(found.low) or math.isinf(found.low) else found


def over_seeds(
    before: Sequence[float], after: Sequence[float], *, paired: bool, relative: bool, level: float = LEVEL
) -> Interval | None:
    """The interval of ``after / before - 1`` (``relative``, of geometric means) or of ``after - before``, over runs as
    replicates; None with fewer than five on a side, or where a figure is not finite (or, for a ratio, not above 0).
    """
    if min(len(before), len(after)) < MIN_SEEDS or not all(math.isfinite(v) for v in (*before, *after)):
        return None
    if relative and not all(v > 0 for v in (*before, *after)):
        return None
    if paired and relative:
        found = geometric_interval([b / a for a, b in zip(before, after, strict=True)], level)
    elif paired:
        found = t_interval([b - a for a, b in zip(before, after, strict=True)], level)
    elif relative:
        logs = _welch([math.log(v) for v in before], [math.log(v) for v in after], level)
        found = replace(logs, value=math.exp(logs.value), low=math.exp(logs.low), high=math.exp(logs.high))
    else:
        found = _welch(before, after, level)
    if found is None or not relative:
        return found
    return replace(found, value=found.value - 1, low=found.low - 1, high=found.high - 1)


def _welch(before: Sequence[float], after: Sequence[float], level: float) -> Interval:
    """Of the difference of two means whose samples have nothing in common (Welch 1947)."""
    parts = [float(np.var(side, ddof=1)) / len(side) for side in (before, after)]
    error = math.sqrt(sum(parts))
    value = float(np.mean(after) - np.mean(before))
    half = 0.0
    if error > 0:
        free = sum(parts) ** 2 / sum(p**2 / (len(s) - 1) for p, s in zip(parts, (before, after), strict=True))
        half = t_quantile((1 + level) / 2, free) * error
    replicates = min(len(before), len(after))
    return Interval(value, value - half, value + half, "Welch's t over seeds", replicates, level)
