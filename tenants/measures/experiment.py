"""Decay and rho of an experiment (a baseline and a raised load), each with its interval.

The figure is the mean over the tenants asked for. Replicates are pairs of runs with the same seed when there are at
least five; else the pairs are laid end to end and resampled in blocks of time, the same blocks in both loads, since
the two share their victims' arrivals. Else there is no interval.

Over seeds, a percentile that was never reached enters as its bound (:mod:`tenants.measures.interference` flags it).
Over blocks, a resample whose baseline was never reached has no ratio; when a tenth are such, there is no interval.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence

import numpy as np

from tenants.measures.bootstrap import Floats, TimeBlocks
from tenants.measures.columns import Columns
from tenants.measures.evidence import Evidence
from tenants.measures.interference import P99, Growth, growth_by_tenant
from tenants.measures.intervals import LEVEL, MIN_SEEDS, Interval, t_interval
from tenants.measures.percentile import metric_values
from tenants.slo import Metric


def decay_interval(
    baseline: Sequence[Columns],
    raised: Sequence[Columns],
    tenants: Collection[str],
    metric: Metric = Metric.TTFT,
    *,
    p: float = P99,
    seed: int = 0,
    level: float = LEVEL,
) -> Interval | None:
    """The mean of ``P(raised) / P(baseline)`` over ``tenants``. Pair k of the runs shares its seed."""
    return _mean_interval(
        baseline,
        raised,
        tenants,
        metric,
        p=p,
        seed=seed,
        level=level,
        of_growth=lambda growth: growth.decay,
        of_arrays=lambda before, after: after / before,
    )


def rho_interval(
    baseline: Sequence[Columns],
    raised: Sequence[Columns],
    tenants: Collection[str],
    metric: Metric = Metric.TTFT,
    *,
    p: float = P99,
    seed: int = 0,
    level: float = LEVEL,
) -> Interval | None:
    """The mean of the signed ``1 - P(baseline) / P(raised)`` over ``tenants`` (all but the raised one)."""
    return _mean_interval(
        baseline,
        raised,
        tenants,
        metric,
        p=p,
        seed=seed,
        level=level,
        of_growth=lambda growth: growth.rho,
        of_arrays=lambda before, after: 1.0 - before / after,
    )


def _mean_interval(
    baseline: Sequence[Columns],
    raised: Sequence[Columns],
    tenants: Collection[str],
    metric: Metric,
    *,
    p: float,
    seed: int,
    level: float,
    of_growth: Callable[[Growth], float | None],
    of_arrays: Callable[[Floats, Floats], Floats],
) -> Interval | None:
    if len(baseline) != len(raised) or not baseline or not tenants:
        raise ValueError(
            f"runs come in pairs of the same seed and at least one tenant is judged; "
            f"got {len(baseline)} at the baseline, {len(raised)} raised, {len(tenants)} tenants"
        )
    by_pair = []
    for before, after in zip(baseline, raised, strict=True):
        growth = growth_by_tenant(before, after, metric, p)
        figures = [of_growth(growth[name]) for name in tenants]
        known = [figure for figure in figures if figure is not None]
        if len(known) == len(figures):
            by_pair.append(sum(known) / len(known))
    if len(baseline) >= MIN_SEEDS:
        return t_interval(by_pair, level)
    if not by_pair:
        return None
    before_of = {name: Evidence.of(name, baseline, seed=seed, level=level) for name in tenants}
    after_of = {name: Evidence.of(name, raised, seed=seed, level=level) for name in tenants}
    blocks = next(iter(before_of.values())).blocks
    if blocks is None:
        return None
    resampled = np.zeros(blocks.replicates)
    for name in tenants:
        before_p = _resampled(before_of[name], blocks, metric, p)
        after_p = _resampled(after_of[name], blocks, metric, p)
        # An unreached baseline leaves the ratio unknown: NaN, so that the resample is left out.
        before_p = np.where(np.isinf(before_p) | (before_p == 0), np.nan, before_p)
        with np.errstate(divide="ignore"):
            resampled += of_arrays(before_p, after_p)
    value = sum(by_pair) / len(by_pair)
    found = blocks.interval(value, resampled / len(tenants), level)
    return None if found is None or math.isnan(found.low) else found


def _resampled(evidence: Evidence, blocks: TimeBlocks, metric: Metric, p: float) -> Floats:
    # One set of blocks for both loads; cells are parts of the run, so a slightly longer run fits too.
    share = evidence.cells
    if evidence.blocks is not None and evidence.blocks.n_cells != blocks.n_cells:
        share = share * blocks.n_cells // evidence.blocks.n_cells
    return blocks.percentiles(metric_values(evidence.rows, metric), share, p)
