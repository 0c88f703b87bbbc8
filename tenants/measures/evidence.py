"""What one or more runs say about a tenant, with the interval that goes with it.

Replicates are the seeds when there are at least five runs; else the runs are laid end to end and resampled in blocks of
time (:mod:`tenants.measures.bootstrap`); else there is no interval, and ``share_at_most`` and ``percentile_at_least`` give
the one end that may break a promise (:mod:`tenants.measures.short_run`).

Why a second interval beside that one: replicates without a single miss have no spread, so an interval read from them
would have width 0 and claim certainty after ten requests. Each figure is therefore also given its exact binomial
interval (Clopper-Pearson for a share, the ranks for a percentile), and the wider ends count. The binomial law wants
independent requests; n dependent ones are worth ``n / deff``, with the design effect (Kish 1965)

    deff = max(1, variance of a share over the replicates / (share * (1 - share) / n)).

It is measured on two shares and the larger counts: that of the misses, and that of the slowest 5% of the requests,
which shows how slow requests clump even when none of them is a miss.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
from numpy.typing import NDArray

from tenants.measures.attainment import meets, severity
from tenants.measures.bootstrap import MIN_BLOCK_S, Floats, TimeBlocks
from tenants.measures.columns import NEVER, UNDEFINED, Columns, Int64s
from tenants.measures.histogram import Histogram
from tenants.measures.intervals import (
    LEVEL,
    MIN_SEEDS,
    Interval,
    clopper_pearson,
    percentile_ranks,
    t_interval,
    wider,
)
from tenants.measures.percentile import PercentileValue, metric_ages, metric_values, percentile
from tenants.measures.short_run import effective_requests, most, pieces_of
from tenants.slo import Metric, Slo

_UPPER_ONLY = "upper end of a short run"
_LOWER_ONLY = "lower end of a short run"
SLOWEST = 0.05


def concatenate(runs: Sequence[Columns]) -> Columns:
    """The rows of several runs of the same tenants, as one. Raises ValueError when the tenants differ or there are
    none.
    """
    if not runs:
        raise ValueError("no run was given")
    for run in runs:
        if run.tenants != runs[0].tenants:
            raise ValueError(
                f"runs of different tenants: {', '.join(run.tenants)} and {', '.join(runs[0].tenants)}, in this order"
            )
    if len(runs) == 1:
        return runs[0]
    names = [name for name in Columns.__slots__ if name != "tenants"]
    return Columns(runs[0].tenants, **{name: np.concatenate([getattr(run, name) for run in runs]) for name in names})


@dataclass(frozen=True, slots=True)
class Evidence:
    """The judged requests of one tenant. ``run``: which run each row is of. ``blocks``, ``cells``: the resamples of
    time, when there are fewer than five runs and enough time. ``pieces``: of a shorter one.
    """

    rows: Columns
    run: Int64s
    n_runs: int
    blocks: TimeBlocks | None
    cells: Int64s
    pieces: Int64s
    level: float = LEVEL

    @classmethod
    def of(
        cls,
        tenant: str,
        runs: Sequence[Columns],
        *,
        block_s: float = MIN_BLOCK_S,
        replicates: int = 1000,
        seed: int = 0,
        level: float = LEVEL,
    ) -> Self:
        """``runs``: the columns of all tenants, since the window is that of everybody's arrivals. Raises KeyError for
        an unknown tenant.
        """
        mine, placed, clock = [], [], 0
        for run in runs:
            counted = run.counted()
            arrivals = run.arrival_ns[counted]
            start = int(arrivals.min()) if len(arrivals) else 0
            mine.append(run.select(counted).of(tenant))
            placed.append(mine[-1].arrival_ns - start + clock)
            clock += int(np.ptp(arrivals)) if len(arrivals) else 0
        rows = concatenate(mine)
        place = np.concatenate(placed)
        number = np.repeat(np.arange(len(mine)), [len(run) for run in mine])
        blocks = None
        if len(runs) < MIN_SEEDS:
            blocks = TimeBlocks.over(0, clock, block_s=block_s, replicates=replicates, seed=seed)
        cells = np.zeros(len(rows), dtype=np.int64) if blocks is None else blocks.cells(place)
        return cls(rows, number, len(runs), blocks, cells, pieces_of(place, 0, clock), level)

    @property
    def has_replicates(self) -> bool:
        """False when the runs are too short, or too few, for any interval."""
        return self.n_runs >= MIN_SEEDS or self.blocks is not None

    @property
    def replicate_name(self) -> str:
        return f"{self.n_runs} seeds" if self.n_runs >= MIN_SEEDS else "blocks of time"

    def share_at_most(self, slo: Slo) -> Interval | None:
        """The attainment of a run without replicates, with an upper end only; None: nothing is proven."""
        if self.has_replicates or len(self.rows) == 0:
            return None
        met = meets(self.rows, slo)
        effective = self._effective_of_short(~met, severity(self.rows, slo))
        if effective is None:
            return None
        return Interval(float(met.mean()), 0.0, most(met, effective, self.level), _UPPER_ONLY, 0, self.level)

    def percentile_at_least(self, metric: Metric, p: float) -> Interval | None:
        """The percentile of a metric of a run without replicates, in ns, with a lower end only; None: nothing is proven."""
        values = metric_values(self.rows, metric)
        found = percentile(values, p, metric_ages(self.rows, metric))
        defined = values != UNDEFINED
        if self.has_replicates or found.at_least_ns is None:
            return None
        value = math.inf if found.value_ns is None else float(found.value_ns)
        badness = np.where(defined, values.astype(np.float64), -np.inf)
        effective = self._effective_of_short(
            values > (NEVER - 1 if found.value_ns is None else found.value_ns), badness
        )
        if effective is None:
            return None
        ranked = np.sort(values[defined])
        low, _ = percentile_ranks(p, len(ranked), min(effective, len(ranked)), self.level)
        end = 0 if low == 0 else ranked[low - 1]
        lower = math.inf if end == NEVER else float(end)
        return Interval(value, min(lower, value), math.inf, _LOWER_ONLY, 0, self.level)

    def _effective_of_short(self, hits: NDArray[np.bool_], badness: Floats) -> float | None:
        found = [effective_requests(flags, self.pieces) for flags in (hits, _slowest(badness))]
        known = [effective for effective in found if effective is not None]
        return min(known, default=None)

    def _run_shares(self, hits: NDArray[np.bool_]) -> Floats:
        total = np.bincount(self.run, minlength=self.n_runs)
        hit = np.bincount(self.run[hits], minlength=self.n_runs)
        return hit[total > 0] / total[total > 0]

    def _share_interval(self, hits: NDArray[np.bool_]) -> Interval | None:
        """Of the pooled share, from its spread over the replicates alone."""
        share = float(hits.mean())
        if self.blocks is not None:
            return self.blocks.interval(share, self.blocks.shares(hits, self.cells), self.level)
        over_seeds = t_interval([float(s) for s in self._run_shares(hits)], self.level)
        return None if over_seeds is None else replace(over_seeds.clipped(0.0, 1.0), value=share)

    def _design_effect(self, hits: NDArray[np.bool_]) -> float:
        share = float(hits.mean())
        if not 0 < share < 1:
            return 1.0
        if self.blocks is not None:
            variance = self.blocks.variance(self.blocks.shares(hits, self.cells))
        else:
            shares = self._run_shares(hits)
            variance = float(np.var(shares, ddof=1)) / len(shares) if len(shares) > 1 else 0.0
        return max(1.0, variance / (share * (1 - share) / len(hits)))

    def _effective(self, hits: NDArray[np.bool_], badness: Floats) -> float:
        return len(hits) / max(self._design_effect(hits), self._design_effect(_slowest(badness)))

    def attainment(self, slo: Slo) -> tuple[float | None, Interval | None]:
        """The share of requests that meet ``slo`` (None without requests), and its interval (None: cannot be told)."""
        if len(self.rows) == 0:
            return None, None
        met = meets(self.rows, slo)
        share = float(met.mean())
        interval = self._share_interval(met) if self.has_replicates else None
        if interval is None:
            return share, None
        effective = self._effective(met, severity(self.rows, slo))
        return share, wider(interval, clopper_pearson(share * effective, effective, self.level))

    def percentile(self, metric: Metric, p: float) -> tuple[PercentileValue, Interval | None]:
        """The percentile of a metric, and its interval in ns. Ends are inf where the event was not reached."""
        values = metric_values(self.rows, metric)
        found = percentile(values, p, metric_ages(self.rows, metric))
        defined = values != UNDEFINED
        if found.at_least_ns is None or not self.has_replicates:
            return found, None
        value = math.inf if found.value_ns is None else float(found.value_ns)
        interval = self._percentile_over_replicates(values, p, value)
        if interval is None:
            return found, None
        ranked = np.sort(values[defined])
        slower = values > (NEVER - 1 if found.value_ns is None else found.value_ns)
        # A percentile's own exceedances may be few; the slowest 5% tell of the clumping too.
        badness = np.where(defined, values.astype(np.float64), -np.inf)
        effective = min(self._effective(slower, badness), len(ranked))
        low, high = percentile_ranks(p, len(ranked), effective, self.level)
        ends = [0 if low == 0 else ranked[low - 1], NEVER if high is None else ranked[high - 1]]
        lower, upper = (math.inf if v == NEVER else float(v) for v in ends)
        return found, wider(interval, Interval(value, lower, upper, "binomial ranks", 0, self.level))

    def _percentile_over_replicates(self, values: Int64s, p: float, value: float) -> Interval | None:
        if self.blocks is not None:
            return self.blocks.interval(value, self.blocks.percentiles(values, self.cells, p), self.level)
        by_run = [percentile(values[self.run == k], p) for k in range(self.n_runs)]
        reached = [float(v.value_ns) for v in by_run if v.value_ns is not None]
        n_never = sum(v.never for v in by_run)
        if len(reached) + n_never < MIN_SEEDS:
            return None
        if n_never:
            # No mean exists over runs of which one is infinite; their range has no upper end.
            low = min([*reached, value])
            return Interval(value, low, math.inf, f"range over {self.n_runs} seeds", self.n_runs, self.level)
        over_seeds = t_interval(reached, self.level)
        return None if over_seeds is None else replace(over_seeds, value=value, low=max(0.0, over_seeds.low))

    def pooled_percentile(self, histogram: Histogram, p: float) -> tuple[PercentileValue, Interval | None]:
        """A percentile of values of which one request has many (gaps between tokens), from their histogram over all
        runs. The gaps of one request depend on each other, so it counts as one independent value: the interval is
        that of the ranks with as many trials as there are requests.
        """
        found = histogram.percentile(p)
        n = histogram.count
        if found.at_least_ns is None or not self.has_replicates:
            return found, None
        effective = min(n, len(self.rows))
        low, high = percentile_ranks(p, n, effective, self.level)
        ends = [math.inf if rank is None else _at_rank(histogram, rank, n) for rank in (low, high)]
        value = math.inf if found.value_ns is None else float(found.value_ns)
        method = "binomial ranks, one trial a request"
        return found, Interval(value, min(ends[0], value), max(ends[1], value), method, 0, self.level)


def _slowest(badness: Floats) -> NDArray[np.bool_]:
    """The worst 5%, or all that are as bad as the worst."""
    edge = np.sort(badness)[max(0, math.ceil((1 - SLOWEST) * len(badness)) - 1)]
    slow: NDArray[np.bool_] = badness > edge
    return slow if slow.any() else badness >= edge


def _at_rank(histogram: Histogram, rank: int, n: int) -> float:
    if rank == 0:
        return 0.0
    # The middle of the rank's step, where no rounding can move it to a neighbour.
    found = histogram.percentile(100 * (rank - 0.5) / n)
    return math.inf if found.value_ns is None else float(found.value_ns)
