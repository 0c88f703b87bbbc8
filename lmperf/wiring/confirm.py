"""A predicted attainment against a live run of the same thing: same load, seed, duration, policy and slots.

The simulation is made anew for the live run's own (short) duration and seed, so that both see the same arrivals and
lengths. They agree on a tenant when both put it on the same side of its target, or when the counts of requests that met
the limits do not tell them apart at 5% (Fisher's exact test): a short run tells no more.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from lmperf.flag_defaults import READY_TIMEOUT_S
from lmperf.scenario.load import Scenario
from lmperf.scenario.plan import Plan
from lmperf.wiring.dispatching import auto_of, slots_of
from lmperf.wiring.live import LiveOptions
from lmperf.wiring.results import RunResult
from lmperf.wiring.servers import server_model_of
from lmperf.wiring.sources import SourceError, arrivals_end_ns, growth_of, recipe_of, source_of
from lmperf.wiring.variants import resolved, scaled, shortened
from loadgen.offline.cell import CellJob
from loadgen.offline.replicas import ReplicatedJob, promises_of_run
from tenants.measures.attainment import Attainment
from tenants.measures.intervals import Interval, clopper_pearson

_TOLD_APART = 0.05

RunLive = Callable[[Scenario, Plan, LiveOptions], RunResult]
"""One live run to its end."""


@dataclass(frozen=True, slots=True)
class TenantCheck:
    """How many of the tenant's requests met its limits, live and simulated."""

    tenant: str
    target: float
    measured: Attainment
    predicted: Attainment

    @property
    def live(self) -> float | None:
        """Attainment; None without requests."""
        return self.measured.share

    @property
    def simulated(self) -> float | None:
        return self.predicted.share

    @property
    def interval(self) -> Interval | None:
        """Of the live attainment, as if requests were independent."""
        return clopper_pearson(self.measured.met, self.measured.total) if self.measured.total else None

    @property
    def agrees(self) -> bool:
        if self.live is None or self.simulated is None:
            return self.live is self.simulated
        if (self.live >= self.target) == (self.simulated >= self.target):
            return True
        counts = [[each.met, each.misses] for each in (self.measured, self.predicted)]
        from scipy import stats  # noqa: PLC0415 (half a second to import, and only a confirmation needs it)

        return bool(stats.fisher_exact(counts).pvalue >= _TOLD_APART)


@dataclass(frozen=True, slots=True)
class LiveCheck:
    """One live run beside its simulation, at ``load`` (a factor on the scenario's loads)."""

    load: float
    tenants: tuple[TenantCheck, ...]
    result: RunResult

    @property
    def agrees(self) -> bool:
        return self.valid and all(tenant.agrees for tenant in self.tenants)

    @property
    def valid(self) -> bool:
        """False when the generator (or the embedded server) fell behind, or the server died: then the run says nothing of
        the server's latencies."""
        return self.result.summary.validity.valid and self.result.target_failed is None

    @property
    def kept_live(self) -> bool:
        return all(t.live is None or t.live >= t.target for t in self.tenants)

    @property
    def kept_simulated(self) -> bool:
        return all(t.simulated is None or t.simulated >= t.target for t in self.tenants)


@dataclass(slots=True)
class Confirmation:
    """The loads to run live, and the runs that came to their end, in that order. ``interrupted``: the next was cut, so what
    it saw is of another run than the one that was simulated, and is not among them."""

    loads: tuple[float, ...] = ()
    checks: list[LiveCheck] = field(default_factory=list)
    interrupted: bool = False

    @property
    def complete(self) -> bool:
        """Every run came to its end; also where none was asked for."""
        return len(self.checks) == len(self.loads)

    def shows_no_limit(self, capacity: float) -> bool:
        """True when live runs came to their end above ``capacity``, and none there, or below, missed a target."""
        above = any(check.load > capacity for check in self.checks)
        return above and all(check.valid and check.kept_live for check in self.checks)


def confirm(
    scenario: Scenario,
    loads: Sequence[float],
    *,
    duration_s: float,
    directory: Path,
    percentiles: tuple[float, ...],
    ready_timeout_s: float = READY_TIMEOUT_S,
    run: RunLive,
    on_load: Callable[[float, int, int], None] = lambda _load, _number, _total: None,
    on_check: Callable[[Confirmation], None] = lambda _: None,
) -> Confirmation:
    """A live run at each load, in turn, each into a folder of its own, until one is interrupted or its server fails;
    ``on_check`` sees every new state."""
    found = Confirmation(tuple(loads))
    # Before the first: what a run that dies leaves behind says what it was about to do.
    on_check(found)
    try:
        for number, load in enumerate(loads, start=1):
            on_load(load, number, len(loads))
            variant = shortened(scaled(scenario, load), duration_s)
            plan = resolved(variant)
            options = LiveOptions(
                directory=directory / f"live-{load:.3g}", percentiles=percentiles, ready_timeout_s=ready_timeout_s
            )
            result = run(variant, plan, options)
            if result.interrupted:
                raise KeyboardInterrupt
            found.checks.append(LiveCheck(load, _checks(plan, result), result))
            on_check(found)
            if result.target_failed is not None:
                break
    except KeyboardInterrupt:
        found.interrupted = True
        on_check(found)
    return found


def _checks(plan: Plan, result: RunResult) -> tuple[TenantCheck, ...]:
    simulated = promises_of_run(ReplicatedJob(cell=cell_of_plan(plan)))
    found = []
    for planned in plan.tenants:
        tenant = planned.tenant
        target = tenant.slo.attainment
        if target is None or not tenant.slo.has_limits:
            continue
        seen = result.summary.tenant(tenant.name).attainment
        run = simulated[tenant.name]
        found.append(
            TenantCheck(
                tenant=tenant.name,
                target=target,
                measured=Attainment(0, 0) if seen is None else Attainment(seen.met, seen.total),
                predicted=Attainment(run.met, run.total),
            )
        )
    return tuple(found)


def cell_of_plan(plan: Plan) -> CellJob:
    """The run of a plan as a simulation. Raises SourceError without a server model or an end."""
    server = server_model_of(plan.backend)
    if server is None:
        raise SourceError("a prediction needs a server model: name one with --server-model FILE")
    recipe = recipe_of(plan)
    until_ns = arrivals_end_ns(plan, source_of(recipe, plan.seed, growth_of(plan.tenants)))
    if until_ns is None:
        raise SourceError("a simulated run needs a duration: set duration_s")
    window = plan.judged.window(until_ns)
    return CellJob(
        policy=plan.policy.name if plan.policy.queues else "fifo",
        options=dict(plan.policy.options) if plan.policy.queues else {},
        policy_label=plan.policy.name,
        load=plan.at.value,
        seed=plan.seed,
        auto=auto_of(plan),
        backends=plan.slots.own,
        routing=plan.backend.routing,
        growth=growth_of(plan.tenants),
        recipe=recipe,
        server=server,
        slots=slots_of(plan),
        cost=plan.cost,
        window_ns=(window.start_ns, window.end_ns),
    )


def job_of_plan(plan: Plan, *, label: str, load: str, seed: int) -> ReplicatedJob:
    """The same, named for a comparison and with a seed of its own."""
    return ReplicatedJob(cell=replace(cell_of_plan(plan), policy_label=label, load=load, seed=seed))
