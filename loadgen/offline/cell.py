"""A cell of an experiment: one policy, one load, one seed, simulated and reduced to the figures that tables need.

Cells run in worker processes, so a job is plain data and a result is small.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

import msgspec

from loadgen.offline.run import simulate
from loadgen.recorder import Recorder
from loadgen.recording.window import rated_s, window_as_run
from loadgen.trace.schema import TraceMetadata
from loadgen.workload.replay import MOONCAKE_BLOCK_TOKENS, ReplayRows, TraceWorkload
from loadgen.workload.share import WHOLE, Share
from loadgen.workload.source import Source, Workload
from scheduler.auto_rule import AutoRule, control_of
from scheduler.cost import CostModel
from scheduler.dispatcher import Dispatcher
from scheduler.dispatcher_config import DispatcherConfig
from scheduler.routing import Routing
from scheduler.server_model.spec import ServerModelSpec
from scheduler.slots import Slots
from tenants.measures.attainment import attainment, goodput
from tenants.measures.columns import Columns
from tenants.measures.fairness import jain_by_window
from tenants.measures.percentile import PercentileValue, metric_percentile
from tenants.measures.prefix_cache import cache_hits
from tenants.slo import Metric
from tenants.tenant import Identity, Tenant
from tenants.traffic import Traffic

_GOLDEN = 0.6180339887498949


class Recipe(Protocol):
    """Makes the same source again for any seed and growth, in any process."""

    @property
    def tenants(self) -> tuple[Tenant, ...]: ...

    @property
    def num_prompts(self) -> int | None:
        """At most so many requests are made."""

    @property
    def notes(self) -> tuple[str, ...]:
        """What was done to make it that a reader of results should know, sentences."""

    @property
    def one_realisation(self) -> bool:
        """Every seed makes the same source."""

    def source(self, seed: int, growth: Mapping[str, float], share: Share = WHOLE) -> Source:
        """``share``: what of it one worker makes."""


@dataclass(frozen=True, slots=True)
class DrawnRecipe:
    """Traffic drawn from distributions; ``growth`` multiplies a tenant's rate, ``seed`` changes every draw."""

    traffics: tuple[tuple[Tenant, Traffic], ...]
    duration_s: float | None
    num_prompts: int | None = None
    notes: tuple[str, ...] = ()

    @property
    def tenants(self) -> tuple[Tenant, ...]:
        return tuple(tenant for tenant, _ in self.traffics)

    @property
    def one_realisation(self) -> bool:
        return False

    def source(self, seed: int, growth: Mapping[str, float], share: Share = WHOLE) -> Source:
        return Workload(
            self.traffics,
            duration_s=self.duration_s,
            seed=seed,
            num_prompts=self.num_prompts,
            growth=growth,
            share=share,
        )


@dataclass(frozen=True, slots=True)
class ReplayRecipe:
    """Rows of a trace; ``growth`` divides a tenant's gaps and cycles its rows.

    Without a duration the whole slice is played, the same for every seed: a trace has one realisation. With one, the growth
    that all tenants share compresses time, and each seed plays another part of the trace of that length. ``block_tokens``:
    of the rows' prefix blocks.
    """

    rows: ReplayRows
    tenants: tuple[Tenant, ...]
    speed: float = 1.0
    start_ns: int | None = None
    end_ns: int | None = None
    recorded: bool = False
    num_prompts: int | None = None
    duration_ns: int | None = None
    block_tokens: int = MOONCAKE_BLOCK_TOKENS
    notes: tuple[str, ...] = ()

    @property
    def one_realisation(self) -> bool:
        return self.duration_ns is None

    def source(self, seed: int, growth: Mapping[str, float], share: Share = WHOLE) -> Source:
        speed, factors = self.speed, dict(growth)
        start_ns, end_ns = self.start_ns, self.end_ns
        if self.duration_ns is not None:
            common = min(factors.get(tenant.name, 1.0) for tenant in self.tenants)
            factors = {tenant.name: factors.get(tenant.name, 1.0) / common for tenant in self.tenants}
            speed *= common
            start_ns, end_ns = self._slice(seed, round(self.duration_ns * speed))
        return TraceWorkload(
            self.rows,
            self.tenants,
            speed=speed,
            start_ns=start_ns,
            end_ns=end_ns,
            growth=factors,
            recorded=self.recorded,
            num_prompts=self.num_prompts,
            share=share,
            block_tokens=self.block_tokens,
        )

    def _slice(self, seed: int, length_ns: int) -> tuple[int, int]:
        """A part of the trace of that length, another for every seed (spread by the golden ratio)."""
        first, last = int(self.rows.arrival_ns.min()), int(self.rows.arrival_ns.max())
        start = first + round(max(0, last - first - length_ns) * (seed * _GOLDEN % 1.0))
        return start, start + length_ns


@dataclass(frozen=True, slots=True, kw_only=True)
class CellJob:
    """``load`` is a label ("baseline", "raised", "as captured"); ``policy_label`` tells variants of a policy apart;
    ``auto``: what moves the slots. ``backends``: slots by name where several servers, all alike, stand behind the queue
    (none: one with ``slots``), between which ``routing`` decides. ``scratch``: a folder whose disk holds the rows of a long
    run until it has been judged; None: memory does."""

    policy: str
    options: Mapping[str, object] = field(default_factory=dict)
    policy_label: str
    load: str
    seed: int
    auto: AutoRule | None = None
    backends: Mapping[str, Slots] = field(default_factory=dict)
    routing: Routing = field(default_factory=Routing)
    growth: Mapping[str, float] = field(default_factory=dict)
    recipe: Recipe
    server: ServerModelSpec
    slots: Slots
    cost: CostModel
    window_ns: tuple[int, int]
    scratch: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantFigures:
    """One tenant in one cell; ``attainment`` None without limits or requests; goodput in 1/s; ``hit_share``: of its prompt
    tokens in the prefix cache, None where that is not stated."""

    requests: int
    ttft_p50: PercentileValue
    ttft_p99: PercentileValue
    e2e_p50: PercentileValue
    e2e_p99: PercentileValue
    tpot_p99: PercentileValue
    attainment: float | None
    goodput: float
    hit_share: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CellResult:
    """``throughput``: output tokens/s of requests in the window, until the last of them ended; ``jain``: Jain's index over
    service / max-min entitlement, mean over windows (None when no window had a backlog)."""

    policy_label: str
    load: str
    seed: int
    tenants: Mapping[str, TenantFigures]
    throughput: float
    jain: float | None


def anonymous(tenants: tuple[Tenant, ...]) -> tuple[Tenant, ...]:
    """The tenants without their identity on the wire: all that a scheduling core, or its log, may see."""
    return tuple(replace(tenant, identity=Identity()) for tenant in tenants)


def run_cell(job: CellJob) -> CellResult:
    """Simulate one cell."""
    recorder = record_cell(job)
    return figures(job, recorder.columns())


def record_cell(job: CellJob) -> Recorder:
    """Simulate one cell and keep all of it."""
    tenants = anonymous(job.recipe.tenants)
    slots = dict(job.backends) or {"server": job.slots}
    control = None if job.auto is None else control_of(job.auto, tenants, slots)
    config = DispatcherConfig(
        tenants=tenants,
        policy=job.policy,
        options=dict(job.options),
        cost=job.cost,
        prefill_rate=min(job.server.law.prefill_rate, 1e9),
        backends=slots if control is None else dict(control.slots),
        routing=job.routing,
    )
    recorder = Recorder(tenants, job.window_ns, metadata=metadata_of(job), batch_rows=4096, scratch=job.scratch)
    source = job.recipe.source(job.seed, job.growth)
    simulate(source, Dispatcher(config), dict.fromkeys(slots, job.server), recorder, control=control)
    return recorder


def slots_data(
    slots: Slots, auto: AutoRule | None, backends: Mapping[str, Slots], routing: Routing | None = None
) -> dict[str, object]:
    """What the header of a run keeps of its slots; ``backends``: those of several servers, ``routing``: between them."""
    data: dict[str, object] = msgspec.to_builtins(slots)
    if auto is not None:
        data["auto"] = msgspec.to_builtins(auto)
    if backends:
        data["backends"] = msgspec.to_builtins(backends)
        if routing is not None:
            data["routing"] = msgspec.to_builtins(routing)
    return data


def metadata_of(job: CellJob) -> TraceMetadata:
    """The header of a simulated run."""
    return TraceMetadata(
        kind="simulated",
        server_model=msgspec.to_builtins(job.server),
        slots=slots_data(job.slots, job.auto, job.backends, job.routing),
        policy=job.policy,
        policy_options=dict(job.options),
        window_ns=job.window_ns,
        seed=job.seed,
    )


def figures(job: CellJob, columns: Columns) -> CellResult:
    """What tables need of a cell's rows."""
    judged = columns.judged()
    tenants = job.recipe.tenants
    window, most = job.window_ns, job.recipe.num_prompts
    if most is not None and len(columns) >= most:
        window = window_as_run(window, cut_ns=None, ended_ns=int(columns.end_ns.max()), spent=True)
    duration_s = rated_s(window, judged)
    rows = {tenant.name: judged.of(tenant.name) for tenant in tenants}
    return CellResult(
        policy_label=job.policy_label,
        load=job.load,
        seed=job.seed,
        tenants={tenant.name: tenant_figures(rows[tenant.name], tenant, duration_s) for tenant in tenants},
        throughput=throughput(judged),
        jain=mean_jain(judged, tenants, job.cost),
    )


def throughput(judged: Columns) -> float:
    """Output tokens/s of the judged requests, from the first arrival to the last end; 0 without any."""
    if not len(judged):
        return 0.0
    span_ns = int(judged.end_ns.max() - judged.arrival_ns.min())
    return float(judged.output_tokens.clip(min=0).sum()) * 1e9 / span_ns if span_ns else 0.0


def tenant_figures(rows: Columns, tenant: Tenant, duration_s: float) -> TenantFigures:
    """One tenant's figures from its judged rows."""
    return TenantFigures(
        requests=len(rows),
        ttft_p50=metric_percentile(rows, Metric.TTFT, 50.0),
        ttft_p99=metric_percentile(rows, Metric.TTFT, 99.0),
        e2e_p50=metric_percentile(rows, Metric.E2E, 50.0),
        e2e_p99=metric_percentile(rows, Metric.E2E, 99.0),
        tpot_p99=metric_percentile(rows, Metric.TPOT, 99.0),
        attainment=attainment(rows, tenant.slo).share if tenant.slo.has_limits else None,
        goodput=goodput(rows, tenant.slo, duration_s).requests_per_s,
        hit_share=cache_hits(rows).share,
    )


def mean_jain(judged: Columns, tenants: tuple[Tenant, ...], cost: CostModel) -> float | None:
    """Mean over windows of Jain's index of service / max-min entitlement."""
    if not len(judged):
        return None
    weights = [tenant.weight for tenant in tenants]
    by_window = jain_by_window(judged, weights, w_p=cost.prompt_weight, w_q=cost.output_weight)
    windows = [value for value in by_window if value is not None]
    return sum(windows) / len(windows) if windows else None
