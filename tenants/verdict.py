"""Whether a tenant's promises were kept, and how sure that is.

A bar is *kept* when the worse end of the figure's interval meets it, *broken* when even the better end misses it, and
*undecided* in between. A run too short for an interval is never kept; it is broken when the conservative end of
:mod:`tenants.measures.short_run` already misses the bar, else undecided. A tenant is broken when one promise is, kept when
all are.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from tenants.measures.bootstrap import MIN_BLOCK_S, MIN_BLOCKS
from tenants.measures.columns import Columns
from tenants.measures.evidence import Evidence
from tenants.measures.histogram import Histogram
from tenants.measures.intervals import LEVEL, MIN_SEEDS, Interval
from tenants.measures.percentile import PercentileValue, has_column
from tenants.measures.precision import (
    ExpectedWidth,
    duration_for_verdict_s,
    expected_width,
    requests_for_verdict,
)
from tenants.measures.shares import percent, promised
from tenants.slo import Metric, Objective, Slo
from tenants.tenant import Tenant

__all__ = [
    "ExpectedWidth",
    "Promise",
    "TenantVerdict",
    "Verdict",
    "duration_for_verdict_s",
    "expected_width",
    "judge",
    "limits_text",
    "overall",
    "requests_for_verdict",
]


class Verdict(StrEnum):
    KEPT = "kept"
    BROKEN = "broken"
    UNDECIDED = "undecided"
    NO_SLO = "no_slo"


def overall(verdicts: Iterable[Verdict]) -> Verdict:
    """Of several promises, or of several tenants: broken if one is, else undecided if one is, else kept; NO_SLO only
    when nothing was promised.
    """
    seen = set(verdicts)
    for verdict in (Verdict.BROKEN, Verdict.UNDECIDED, Verdict.KEPT):
        if verdict in seen:
            return verdict
    return Verdict.NO_SLO


@dataclass(frozen=True, slots=True, kw_only=True)
class Promise:
    """One promise and what became of it. ``objective`` is None for the attainment target. ``value``, ``limit`` and
    ``interval`` are shares for the attainment target, else ns (inf: the event was not reached); ``value`` is None
    without requests. ``why`` says what an undecided one lacks. ``sentence`` is for people.
    """

    objective: Objective | None
    value: float | None
    limit: float
    interval: Interval | None
    verdict: Verdict
    why: str
    sentence: str


@dataclass(frozen=True, slots=True)
class TenantVerdict:
    tenant: str
    verdict: Verdict
    promises: tuple[Promise, ...]

    @property
    def sentences(self) -> tuple[str, ...]:
        """One for each promise; one that says so when there is none."""
        return tuple(p.sentence for p in self.promises) or (f"{self.tenant}: nothing was promised",)


def judge(
    tenant: Tenant,
    columns: Columns | Sequence[Columns],
    *,
    pooled: Mapping[Metric, Histogram] | None = None,
    block_s: float = MIN_BLOCK_S,
    replicates: int = 1000,
    seed: int = 0,
    level: float = LEVEL,
) -> TenantVerdict:
    """Judges every promise of ``tenant`` by one run, or by several of the same plan (five or more serve as replicates).
    ``columns`` holds all tenants: the window is that of everybody's arrivals. ``pooled``: the histograms, over all
    runs, of metrics with many values a request (ITL, inter-chunk latency) that an objective names. Raises KeyError
    for a tenant without columns, ValueError for an objective on a metric that has neither column nor histogram.
    """
    slo = tenant.slo
    if not slo.objectives and not (slo.has_limits and slo.attainment is not None):
        return TenantVerdict(tenant.name, Verdict.NO_SLO, ())
    runs = [columns] if isinstance(columns, Columns) else list(columns)
    evidence = Evidence.of(tenant.name, runs, block_s=block_s, replicates=replicates, seed=seed, level=level)
    promises = []
    if slo.has_limits and slo.attainment is not None:
        promises.append(_judge_attainment(tenant.name, slo, slo.attainment, evidence))
    promises += [_judge_objective(tenant.name, o, evidence, pooled or {}) for o in slo.objectives]
    return TenantVerdict(tenant.name, overall(p.verdict for p in promises), tuple(promises))


def _lack(evidence: Evidence, n: int, interval: Interval | None) -> str:
    if n == 0:
        return "it had no request in the window"
    if interval is None and not evidence.has_replicates:
        return f"too short for a verdict: it takes {MIN_BLOCKS} blocks of >= {MIN_BLOCK_S:g} s, or {MIN_SEEDS} seeds"
    if interval is None:
        return f"too few of the {evidence.replicate_name} hold a request of it"
    if math.isinf(interval.high):
        return "too few requests, or too many unfinished, for an upper end of the interval"
    return "the interval spans the bar"


def _judge_attainment(name: str, slo: Slo, target: float, evidence: Evidence) -> Promise:
    share, interval = evidence.attainment(slo)
    early = evidence.share_at_most(slo)
    if early is not None and early.high < target:
        interval = early
    verdict = Verdict.UNDECIDED
    if interval is not None and interval.low >= target:
        verdict = Verdict.KEPT
    elif interval is not None and interval.high < target:
        verdict = Verdict.BROKEN
    why = _lack(evidence, len(evidence.rows), interval) if verdict is Verdict.UNDECIDED else ""
    if share is None:
        said = f"{name}: no requests to meet {limits_text(slo)}"
    else:
        digits = 1 if share < 0.985 else 2
        ends = _ends(interval, lambda end: percent(end, digits))
        said = f"{name}: {percent(share, digits)}%{ends} of requests met {limits_text(slo)}"
    return Promise(
        objective=None,
        value=share,
        limit=target,
        interval=interval,
        verdict=verdict,
        why=why,
        sentence=_sentence(f"{said}; promised {promised(target)}%", verdict, why),
    )


def _judge_objective(
    name: str, objective: Objective, evidence: Evidence, pooled: Mapping[Metric, Histogram]
) -> Promise:
    metric, p = objective.metric, objective.percentile
    found: PercentileValue
    if has_column(metric):
        found, interval = evidence.percentile(metric, p)
        early = evidence.percentile_at_least(metric, p)
        if early is not None and early.low > objective.limit_ns:
            interval = early
    elif metric in pooled:
        found, interval = evidence.pooled_percentile(pooled[metric], p)
    else:
        raise ValueError(f"{name}: the objective on {metric.value} needs its histogram (pooled), which was not given")
    verdict = Verdict.UNDECIDED
    if interval is not None and interval.high <= objective.limit_ns:
        verdict = Verdict.KEPT
    elif interval is not None and interval.low > objective.limit_ns:
        verdict = Verdict.BROKEN
    n = 0 if found.at_least_ns is None else len(evidence.rows)
    why = _lack(evidence, n, interval) if verdict is Verdict.UNDECIDED else ""
    value = math.inf if found.never else None if found.value_ns is None else float(found.value_ns)
    said = f"{name}: P{_plain(p)} {metric.value} {found}{_ends(interval, _ms)}"
    return Promise(
        objective=objective,
        value=value,
        limit=objective.limit_ns,
        interval=interval,
        verdict=verdict,
        why=why,
        sentence=_sentence(f"{said}; promised <= {_plain(objective.limit_ns / 1e6)} ms", verdict, why),
    )


def limits_text(slo: Slo) -> str:
    """The per-request limits as people read them: ``ttft <= 500 ms, tpot <= 20 ms``."""
    limits = (("ttft", slo.ttft_ns), ("tpot", slo.tpot_ns), ("e2e", slo.e2e_ns), ("max_itl", slo.max_itl_ns))
    return ", ".join(f"{name} <= {_plain(ns / 1e6)} ms" for name, ns in limits if ns is not None)


def _sentence(said: str, verdict: Verdict, why: str) -> str:
    return f"{said}: {verdict.value.upper()}" + (f" ({why})" if why else "")


def _plain(number: float) -> str:
    return f"{number:.6f}".rstrip("0").rstrip(".")


def _ms(ns: float) -> str:
    return "never" if math.isinf(ns) else f"{ns / 1e6:.1f}"


def _ends(interval: Interval | None, text: Callable[[float], str]) -> str:
    if interval is None:
        return ""
    return f" [{text(interval.low)}, {text(interval.high)}]"
