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
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from tenants.measures.attainment import meets
from tenants.measures.bootstrap import Floats, TimeBlocks
from tenants.measures.columns import Columns, Int64s
from tenants.measures.intervals import LEVEL, MIN_SEEDS, Interval, geometric_interval, t_interval
from tenants.measures.laws import t_quantile
from tenants.measures.percentile import metric_values
from tenants.slo import Metric, Slo

RATIOS = (Metric.TTFT, Metric.TPOT, Metric.E2E)
"""The metrics whose percentiles have an interval of their ratio."""

Parts = Iterable[Columns]
"""The rows of a run, some at a time: the parts may number their tenants apart."""


@dataclass(frozen=True, slots=True)
class Laid:
    """The judged rows of one side's runs, laid end to end: of each its tenant (an index into ``tenants``), the metrics of
    ``RATIOS``, its output tokens (0: unknown) and whether it met its tenant's limits (``met``). Some 40 B a request."""

    tenants: tuple[str, ...]
    tenant: NDArray[np.int32]
    values: Mapping[Metric, Int64s]
    output_tokens: NDArray[np.int32]
    met: NDArray[np.bool_]
    cells: NDArray[np.int32]
    blocks: TimeBlocks

    @classmethod
    def of(cls, runs: Sequence[Parts], slos: Mapping[str, Slo], *, seed: int = 0) -> Self | None:
        """None when the runs together are shorter than four blocks."""
        codes: dict[str, int] = {}
        taken: dict[str, list[NDArray[Any]]] = {}
        placed, clock = [], 0
        for run in runs:
            arrivals = []
            for part in run:
                judged = part.judged()
                arrivals.append(judged.arrival_ns)
                for name, column in _laid(judged, slos, codes).items():
                    taken.setdefault(name, []).append(column)
            arrival = np.concatenate(arrivals or [np.empty(0, dtype=np.int64)])
            if len(arrival):
                arrival += clock - arrival.min()
                clock = int(arrival.max())
            placed.append(arrival)
        blocks = TimeBlocks.over(0, clock, seed=seed)
        if blocks is None:
            return None
        # One column at a time, so that only one is held twice.
        whole = {name: np.concatenate(taken.pop(name)) for name in tuple(taken)}
        return cls(
            tenants=tuple(codes),
            tenant=whole["tenant"],
            values={metric: whole[metric.value] for metric in RATIOS},
            output_tokens=whole["output_tokens"],
            met=whole["met"],
            cells=blocks.cells(np.concatenate(placed)).astype(np.int32),
            blocks=blocks,
        )

    def __len__(self) -> int:
        return len(self.tenant)

    def on(self, blocks: TimeBlocks) -> Self:
        """The same rows under another side's resamples; a cell is a part of the run, so a slightly longer run fits."""
        cells = self.cells.astype(np.int64) * blocks.n_cells // self.blocks.n_cells
        return replace(self, blocks=blocks, cells=cells.astype(np.int32))

    def of_tenant(self, name: str | None) -> NDArray[np.bool_] | slice:
        """Which rows are the tenant's; None: everybody's."""
        if name is None:
            return slice(None)
        if name not in self.tenants:
            return np.zeros(len(self), dtype=np.bool_)
        mine: NDArray[np.bool_] = self.tenant == self.tenants.index(name)
        return mine

    def percentiles(self, tenant: str | None, metric: Metric, p: float) -> Floats:
        mine = self.of_tenant(tenant)
        return self.blocks.percentiles(self.values[metric][mine], self.cells[mine], p)

    def shares(self, tenant: str | None) -> Floats:
        mine = self.of_tenant(tenant)
        return self.blocks.shares(self.met[mine], self.cells[mine])

    def sums(self, tenant: str | None, *, tokens: bool) -> Floats:
        """Of each resample, per second: how many requests met their limits, or how many tokens were generated."""
        mine = self.of_tenant(tenant)
        weight = self.output_tokens if tokens else self.met
        per_cell = np.bincount(self.cells[mine], weights=weight[mine], minlength=self.blocks.n_cells)
        found: Floats = (self.blocks.weights @ per_cell) / (self.blocks.end_ns - self.blocks.start_ns) * 1e9
        return found


def _laid(judged: Columns, slos: Mapping[str, Slo], codes: dict[str, int]) -> dict[str, NDArray[Any]]:
    """The columns of :class:`Laid` by their names; ``codes`` numbers the tenants and grows."""
    met = np.zeros(len(judged), dtype=np.bool_)
    for index, name in enumerate(judged.tenants):
        mine = judged.tenant == index
        met[mine] = meets(judged.select(mine), slos.get(name, Slo()))
    numbers = np.array([codes.setdefault(name, len(codes)) for name in judged.tenants] or [0], dtype=np.int32)
    return {
        "tenant": numbers[judged.tenant],
        "output_tokens": np.maximum(judged.output_tokens, 0).astype(np.int32),
        "met": met,
        **{metric.value: metric_values(judged, metric) for metric in RATIOS},
    }


@dataclass(frozen=True, slots=True)
class Sides:
    """Both sides under resamples that belong together."""

    before: Laid
    after: Laid

    @classmethod
    def of(
        cls,
        before: Sequence[Parts],
        after: Sequence[Parts],
        slos_before: Mapping[str, Slo],
        slos_after: Mapping[str, Slo],
        *,
        paired: bool,
    ) -> Self | None:
        """The parts of each run are read once. ``paired``: the runs share their seeds, in order. None when a side is too
        short."""
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
