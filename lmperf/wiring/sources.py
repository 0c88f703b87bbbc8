"""Where a plan's requests come from: drawn traffic, or the rows of a trace with tenants dealt by the scenario's rule."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import msgspec
import numpy as np

from lmperf.scenario.plan import Plan, PlannedTenant, RowRule, RuleKind, TraceSpec
from loadgen.offline.cell import DrawnRecipe, Recipe, ReplayRecipe
from loadgen.recording.window import is_burst
from loadgen.trace.lengths import left_out_notes, with_likely_lengths
from loadgen.trace.read import OWN_FORMAT, read_any
from loadgen.trace.rows import TraceRows
from loadgen.workload.replay import MOONCAKE_BLOCK_TOKENS, ReplayRows, TraceWorkload
from loadgen.workload.share import WHOLE, Share
from loadgen.workload.source import Source
from scheduler.cost import CostModel
from scheduler.request import Request
from tenants.tenant import Tenant

NO_RATE = "all its requests arrive within less than a second, which makes no rate"
"""Why a trace that is a burst offers no load."""


class SourceError(ValueError):
    """A trace and a scenario that do not fit; the message says what would."""


def recipe_of(plan: Plan) -> Recipe:
    """The source of the plan, reproducible in any process. Raises TraceError or SourceError."""
    tenants = tuple(planned.tenant for planned in plan.tenants)
    if plan.trace is not None:
        return replace(
            replay_recipe(trace_rows(plan.trace, tenants), tenants, plan.trace.speed, plan.duration_ns),
            num_prompts=plan.num_prompts,
        )
    drawn = tuple((planned.tenant, planned.traffic) for planned in plan.tenants if planned.traffic is not None)
    if len(drawn) < len(plan.tenants):
        missing = ", ".join(p.tenant.name for p in plan.tenants if p.traffic is None)
        raise SourceError(f"tenants without traffic: {missing}; give them a rate, a load, users, or a trace")
    return DrawnRecipe(drawn, None if plan.duration_ns is None else plan.duration_ns / 1e9, plan.num_prompts)


ONE_REALISATION = (
    "the trace has no duration_s, so it has one realisation: it is simulated once, and nothing has an interval"
)


def seeds_of(recipe: Recipe, first: int, count: int) -> range:
    """``count`` seeds, or one where they would all come to the same."""
    return range(first, first + (1 if recipe.one_realisation else count))


def source_of(recipe: Recipe, seed: int, growth: Mapping[str, float], share: Share = WHOLE) -> Source:
    """The recipe's source. Raises SourceError where a trace and what is asked of it do not fit."""
    try:
        return recipe.source(seed, growth, share)
    except ValueError as error:
        raise SourceError(str(error)) from error


def timed(plan: Plan) -> Callable[[Request], Request]:
    """Gives a request the time-outs that the plan gives its tenant."""
    limits = {
        planned.tenant.name: {
            "first_token_timeout_ns": planned.timeouts.first_token_ns,
            "timeout_ns": planned.timeouts.total_ns,
        }
        for planned in plan.tenants
        if planned.timeouts.first_token_ns is not None or planned.timeouts.total_ns is not None
    }

    def of(request: Request) -> Request:
        own = limits.get(request.tenant)
        return request if own is None else msgspec.structs.replace(request, **own)

    return of


def arrivals_end_ns(plan: Plan, source: Source) -> int | None:
    """When the last request may arrive: the plan's duration, else the span of its trace; None: not before the run."""
    if plan.duration_ns is None and isinstance(source, TraceWorkload):
        return source.span_ns
    return plan.duration_ns


def growth_of(planned: Sequence[PlannedTenant]) -> dict[str, float]:
    """What a trace's rows of each tenant are multiplied by; drawn traffic has it in its rates already."""
    return {p.tenant.name: p.growth for p in planned if p.growth != 1.0}


def trace_rows(spec: TraceSpec, tenants: Sequence[Tenant]) -> TraceRows:
    """The slice of the trace, its rows dealt to the scenario's tenants; arrivals from the start of the slice. Rows without a
    length are left out, of a run of ours given a likely one (a request that failed has none, and was load all the same)."""
    whole = read_any(spec.path, None if spec.format == "auto" else spec.format)
    inside = whole.arrival_ns >= spec.start_ns
    if spec.length_ns is not None:
        inside &= whole.arrival_ns < spec.start_ns + spec.length_ns
    rows = whole.take(np.flatnonzero(inside))
    if rows.source == OWN_FORMAT:
        rows = with_likely_lengths(rows)
    numbers = np.flatnonzero((rows.prompt_tokens > 0) & (rows.output_tokens > 0))
    if not len(numbers):
        raise SourceError(
            f"{spec.path}: nothing to replay: of {len(whole):,} rows, {len(rows):,} arrive in the slice, and none of "
            "those has both a prompt's and an output's length; take a longer slice, or a trace with lengths"
        )
    reached = len(rows)
    if spec.rows is not None and spec.rows < len(numbers):
        numbers = numbers[: spec.rows]
        reached = int(numbers[-1]) + 1
    left_out = left_out_notes(rows.prompt_tokens[:reached], rows.output_tokens[:reached])
    kept = replace(rows.take(numbers), notes=(*rows.notes, *left_out))
    return _dealt(kept, spec.rule, [tenant.name for tenant in tenants], spec)


def _dealt(rows: TraceRows, rule: RowRule, names: list[str], spec: TraceSpec) -> TraceRows:
    match rule.kind:
        case RuleKind.INDEX:
            code = np.arange(len(rows)) % len(rule.order)
            owners = [rule.order[i] for i in code]
        case RuleKind.PROMPT_TOKENS:
            code = np.searchsorted(np.array(rule.thresholds), rows.prompt_tokens, side="right")
            owners = [rule.order[i] for i in code]
        case RuleKind.COLUMN:
            values = _column(rows, rule.column or "", spec)
            owners = [rule.map.get(value, "") if rule.map is not None else value for value in values]
        case RuleKind.OWN:
            owners = [rows.tenants[i] for i in rows.tenant]
            if len(names) == 1:
                owners = names * len(rows)
    codes = np.array([names.index(owner) if owner in names else -1 for owner in owners], dtype=np.int32)
    kept = np.flatnonzero(codes >= 0)
    if not len(kept):
        seen = ", ".join(sorted(set(owners))[:10])
        raise SourceError(
            f"{spec.path}: no row belongs to a tenant of the scenario ({', '.join(names)}); rows are of {seen}"
        )
    return rows.take(kept).with_tenants(names, codes[kept])


def _column(rows: TraceRows, column: str, spec: TraceSpec) -> tuple[str, ...]:
    try:
        return rows.column(column)
    except KeyError as error:
        raise SourceError(f"{spec.path}: {error.args[0]}") from error


def replay_recipe(
    rows: TraceRows, tenants: tuple[Tenant, ...], speed: float, duration_ns: int | None = None
) -> ReplayRecipe:
    """Rows of a trace as a recipe; ``rows.tenants`` are the names of ``tenants``, in order."""
    offsets, ids = None, None
    if rows.prefix_blocks:
        offsets = np.concatenate([[0], np.cumsum([len(blocks) for blocks in rows.prefix_blocks])]).astype(np.int64)
        ids = np.array([block for blocks in rows.prefix_blocks for block in blocks], dtype=np.int64)
    return ReplayRecipe(
        ReplayRows(
            arrival_ns=rows.arrival_ns,
            prompt_tokens=rows.prompt_tokens,
            output_tokens=rows.output_tokens,
            tenant=rows.tenant,
            block_offsets=offsets,
            block_ids=ids,
        ),
        tenants,
        speed=speed,
        duration_ns=duration_ns,
        block_tokens=rows.prefix_block_tokens or MOONCAKE_BLOCK_TOKENS,
        notes=rows.notes,
    )


def traced_loads(rows: TraceRows, tenants: Sequence[Tenant], cost: CostModel, speed: float) -> dict[str, float]:
    """Cost units/s that each tenant's rows offer, with ``speed`` applied; the span is that of all rows. Raises SourceError
    where it makes no rate."""
    if is_burst(rows.arrival_ns, speed):
        raise SourceError(
            f"the loads of the trace cannot be scaled: {NO_RATE}; replay it as it is (load: {{at: none}})"
        )
    span_s = float(rows.arrival_ns.max() - rows.arrival_ns.min()) / 1e9 / speed
    costs = cost.prompt_weight * rows.prompt_tokens + cost.output_weight * rows.output_tokens
    sums = np.bincount(rows.tenant, costs, minlength=len(tenants))
    return {tenant.name: float(sums[i]) / span_s for i, tenant in enumerate(tenants)}
