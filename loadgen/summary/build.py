"""From a recorder to a summary."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from loadgen.recorder import Recorder
from loadgen.summary import environment
from loadgen.summary.figures import metric_summary, ms, prefix_cache, rates, series_summary, statuses, waiting
from loadgen.summary.schema import (
    SUMMARY_VERSION,
    TOTAL,
    AttainmentSummary,
    Fairness,
    Goodput,
    IntervalSummary,
    LatenessSummary,
    Load,
    PromiseSummary,
    Summary,
    TenantSummary,
    Validity,
)
from loadgen.summary.slots import slots_over_time
from tenants.measures.attainment import Attainment, attainment, goodput, goodput_total
from tenants.measures.columns import Columns, StatusCode
from tenants.measures.fairness import jain_by_window
from tenants.measures.histogram import Histogram
from tenants.measures.intervals import Interval
from tenants.slo import Metric, Slo
from tenants.tenant import Tenant
from tenants.verdict import Promise, TenantVerdict, judge, overall

DEFAULT_PERCENTILES = (50.0, 90.0, 95.0, 99.0, 99.9)
_JAIN_WINDOW_S = 60.0
_NS_PER_S = 1_000_000_000


def summarise(
    recorder: Recorder,
    *,
    plan: Mapping[str, Any] | None = None,
    percentiles: Sequence[float] = DEFAULT_PERCENTILES,
    offered_per_s: Mapping[str, float] | None = None,
    planned: Mapping[str, int] | None = None,
    server: Mapping[str, Any] | None = None,
    warnings: Sequence[str] = (),
    checkout: Path | None = None,
) -> Summary:
    """The summary of what ``recorder`` holds.

    ``plan``: the resolved plan, references in place of secrets. ``offered_per_s``: configured rates, ``planned``:
    arrivals the schedule holds in the window, both by tenant. ``server``: what the backend said of itself.
    ``warnings``: added to those found here. ``checkout``: where the git commit is looked up (default: the current
    folder).
    """
    columns = recorder.columns()
    metadata = recorder.metadata
    known = {tenant.name: tenant for tenant in recorder.tenants}
    tenants = [known.get(name, Tenant(name=name)) for name in recorder.names]
    ps = sorted(set(percentiles))
    # One tenant after another, so that the figures of one at most are in memory at a time.
    judged: dict[str, TenantVerdict] = {}
    summaries = []
    for tenant in tenants:
        verdict = judged[tenant.name] = _judge(recorder, tenant, columns)
        offered, due = (offered_per_s or {}).get(tenant.name), (planned or {}).get(tenant.name)
        mine = columns.of(tenant.name)
        summaries.append(_tenant(recorder, tenant, mine, ps=ps, verdict=verdict, offered_per_s=offered, planned=due))
    reasons = recorder.invalid_reasons()
    lateness = recorder.lateness()
    start, end = recorder.window_ns
    end_ns = metadata.end_ns or int(columns.end_ns.max(initial=0))
    return Summary(
        schema=SUMMARY_VERSION,
        kind=metadata.kind,
        created_utc=datetime.now(UTC).isoformat(timespec="seconds"),
        versions=environment.versions(),
        host=environment.host(),
        git=environment.git_of(checkout or Path.cwd()),
        seed=metadata.seed,
        plan=None if plan is None else dict(plan),
        load_mode=metadata.load_mode,
        queueing=metadata.queueing,
        policy=metadata.policy,
        policy_options=metadata.policy_options,
        slots=metadata.slots,
        server=None if server is None else dict(server),
        start_utc=metadata.start_utc,
        duration_s=end_ns / _NS_PER_S,
        window_s=(start / _NS_PER_S, end / _NS_PER_S),
        percentiles=ps,
        verdict=overall(verdict.verdict for verdict in judged.values()).value,
        validity=Validity(valid=not reasons, reasons=reasons),
        warnings=[*warnings, *_warnings(recorder, summaries)],
        lateness=LatenessSummary(
            p50_ms=ms(lateness.p50.value_ns),
            p99_ms=ms(lateness.p99.value_ns),
            max_ms=ms(lateness.max_ns),
            bound_ms=lateness.bound_ns / 1e6,
        ),
        fairness=_fairness(recorder, tenants, columns),
        tenants=summaries,
        total=_total(recorder, tenants, columns, ps=ps, verdicts=judged, summaries=summaries),
        series=[series_summary(recorder.series(name)) for name in (*recorder.names, None)],
        slots_over_time=slots_over_time(metadata.slot_moves, end_ns),
    )


def _judge(recorder: Recorder, tenant: Tenant, columns: Columns) -> TenantVerdict:
    pooled: dict[Metric, Histogram] = {
        objective.metric: recorder.histogram(objective.metric, tenant.name)
        for objective in tenant.slo.objectives
        if objective.metric in {Metric.ITL, Metric.INTER_CHUNK, Metric.OWN_LATENESS}
    }
    return judge(tenant, columns, pooled=pooled, seed=recorder.metadata.seed or 0)


def _tenant(
    recorder: Recorder,
    tenant: Tenant,
    mine: Columns,
    *,
    ps: Sequence[float],
    verdict: TenantVerdict,
    offered_per_s: float | None,
    planned: int | None,
) -> TenantSummary:
    seconds = _window_s(recorder)
    arrived = int(mine.in_window.sum())
    judged = mine.judged()
    good = goodput(judged, tenant.slo, seconds)
    return TenantSummary(
        tenant=tenant.name,
        weight=tenant.weight,
        error_classes=recorder.error_classes(tenant.name),
        load=Load(
            offered_per_s=offered_per_s,
            planned=planned,
            arrived=arrived,
            arrived_per_s=arrived / seconds,
            sent=recorder.sent(tenant.name),
        ),
        goodput=Goodput(requests_per_s=good.requests_per_s, output_tokens_per_s=good.tokens_per_s),
        attainment=_attainment(tenant.slo, attainment(judged, tenant.slo), verdict),
        verdict=verdict.verdict.value,
        promises=[_promise(promise) for promise in verdict.promises],
        metrics=[
            metric_summary(m, recorder.histogram(m, tenant.name), recorder.successes(m, tenant.name), ps)
            for m in Metric
        ],
        **_common(recorder, mine, judged),
    )


def _total(
    recorder: Recorder,
    tenants: Sequence[Tenant],
    columns: Columns,
    *,
    ps: Sequence[float],
    verdicts: Mapping[str, TenantVerdict],
    summaries: Sequence[TenantSummary],
) -> TenantSummary:
    slos = {tenant.name: tenant.slo for tenant in tenants}
    judged = columns.judged()
    good = goodput_total(judged, slos, _window_s(recorder))
    with_limits = [s.attainment for s in summaries if s.attainment is not None]
    attained = None
    if with_limits:
        all_ = Attainment(sum(a.met for a in with_limits), sum(a.total for a in with_limits))
        attained = AttainmentSummary(
            met=all_.met, total=all_.total, share=all_.share, target=None, interval=None, budget_spent=None
        )
    offered = [s.load.offered_per_s for s in summaries]
    planned = [s.load.planned for s in summaries]
    return TenantSummary(
        tenant=TOTAL,
        weight=None,
        error_classes=recorder.error_classes(),
        load=Load(
            offered_per_s=sum(o for o in offered if o is not None) if None not in offered and offered else None,
            planned=sum(p for p in planned if p is not None) if None not in planned and planned else None,
            arrived=sum(s.load.arrived for s in summaries),
            arrived_per_s=sum(s.load.arrived_per_s for s in summaries),
            sent=sum(s.load.sent for s in summaries),
        ),
        goodput=Goodput(requests_per_s=good.requests_per_s, output_tokens_per_s=good.tokens_per_s),
        attainment=attained,
        verdict=overall(verdict.verdict for verdict in verdicts.values()).value,
        promises=[],
        metrics=[metric_summary(m, recorder.histogram(m), recorder.successes(m), ps) for m in Metric],
        **_common(recorder, columns, judged),
    )


def _common(recorder: Recorder, rows: Columns, judged: Columns) -> dict[str, Any]:
    return {
        "requests": len(judged),
        "statuses": statuses(judged),
        "planned_cancels": int((rows.in_window & (rows.status == StatusCode.CANCEL_PLANNED)).sum()),
        "outside_window": int((~rows.in_window).sum()),
        "prompt_tokens": int(np.maximum(judged.prompt_tokens, 0).sum()),
        "output_tokens": int(np.maximum(judged.output_tokens, 0).sum()),
        "throughput": rates(rows, recorder.window_ns),
        "waiting": waiting(judged),
        "prefix_cache": prefix_cache(judged),
    }


def _attainment(slo: Slo, found: Attainment, verdict: TenantVerdict) -> AttainmentSummary | None:
    if not slo.has_limits:
        return None
    interval = next((p.interval for p in verdict.promises if p.objective is None), None)
    target = slo.attainment
    allowed = None if target is None else (1 - target) * found.total
    return AttainmentSummary(
        met=found.met,
        total=found.total,
        share=found.share,
        target=target,
        interval=_interval(interval, 1.0),
        budget_spent=found.misses / allowed if allowed else None,
    )


def _interval(interval: Interval | None, divide: float) -> IntervalSummary | None:
    if interval is None:
        return None
    return IntervalSummary(
        low=interval.low / divide,
        high=None if math.isinf(interval.high) else interval.high / divide,
        level=interval.level,
        method=interval.method,
        replicates=interval.replicates,
    )


def _promise(promise: Promise) -> PromiseSummary:
    objective = promise.objective
    divide = 1.0 if objective is None else 1e6
    value = promise.value
    return PromiseSummary(
        promise="attainment" if objective is None else f"{objective.metric.value}_p{objective.percentile:g}",
        value=None if value is None or math.isinf(value) else value / divide,
        limit=promise.limit / divide,
        interval=_interval(promise.interval, divide),
        verdict=promise.verdict.value,
        why=promise.why,
        sentence=promise.sentence,
    )


def _fairness(recorder: Recorder, tenants: Sequence[Tenant], columns: Columns) -> Fairness:
    window_s = max(min(_JAIN_WINDOW_S, _window_s(recorder)), 1e-3)
    judged = columns.judged()
    found: list[float] = []
    if len(np.unique(judged.tenant)) >= 2:
        weights = [tenant.weight for tenant in tenants]
        indices = jain_by_window(judged, weights, window_s=window_s)
        found = [index for index in indices if index is not None]
    return Fairness(
        jain_mean=sum(found) / len(found) if found else None, jain_min=min(found, default=None), window_s=window_s
    )


def _warnings(recorder: Recorder, summaries: Sequence[TenantSummary]) -> list[str]:
    found = []
    for summary in summaries:
        planned, arrived = summary.load.planned, summary.load.arrived
        if planned is not None and arrived < planned:
            found.append(
                f"{summary.tenant}: {planned - arrived} of {planned} planned arrivals in the window never entered"
            )
        if summary.requests == 0:
            found.append(f"{summary.tenant}: no request arrived in the window")
    if recorder.disordered:
        found.append(f"{recorder.disordered} requests have stamps out of order (marked valid: false in the trace)")
    return found


def _window_s(recorder: Recorder) -> float:
    return (recorder.window_ns[1] - recorder.window_ns[0]) / _NS_PER_S
