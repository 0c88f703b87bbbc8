"""How much load a server takes before the first tenant's attainment falls below its target, and how many replicas more
takes: a scenario, its loads multiplied, simulated over seeds.

The search itself is :mod:`loadgen.offline.search`; here a load becomes simulated runs. Every load uses the same seeds. The
factor multiplies every tenant's load; contracts, weights, slots and lengths stay as they are.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from lmperf.scenario.load import Scenario
from lmperf.scenario.model import At
from lmperf.scenario.plan import Plan
from lmperf.scenario.server_model import AutoSlots
from lmperf.scenario.server_specs import DEFAULT_PREFILL_TOKENS, DEFAULT_SEQUENCES
from lmperf.wiring.dispatching import slots_of
from lmperf.wiring.saturation import resolve_with_saturation, saturation_of
from lmperf.wiring.servers import server_model_of
from lmperf.wiring.sources import SourceError, arrivals_end_ns, growth_of, recipe_of, source_of
from loadgen.offline.cell import CellJob, DrawnRecipe, Recipe, ReplayRecipe
from loadgen.offline.experiment import OnProgress, PolicyChoice
from loadgen.offline.replicas import ReplicatedJob, promises_of_run
from loadgen.offline.search import Capacity, Fleet, LoadSearch, Point, TenantRun, attained, fewest_replicas
from loadgen.offline.workers import Workers
from loadgen.workload.arrivals import expected_arrivals
from scheduler.server_model.spec import ServerModelSpec
from scheduler.slots import Slots
from tenants.tenant import Contract, Tenant

_START_OF_SATURATION = 0.9
_MOST_REPLICAS = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """What is searched. ``growth``: the recipe's own factors at load 1. ``rates``, ``costs``: requests/s and cost units/s
    of each tenant at load 1 (a closed loop has none). ``default_contracts``: tenants whose contract is a part of
    saturation, and so grows with the replicas. ``saturation``: of one replica."""

    scenario: Scenario
    plan: Plan
    server: ServerModelSpec
    recipe: Recipe
    growth: Mapping[str, float]
    window_ns: tuple[int, int]
    seeds: tuple[int, ...]
    one_realisation: bool
    saturation: float
    rates: Mapping[str, float]
    costs: Mapping[str, float]
    default_contracts: frozenset[str]
    warnings: tuple[str, ...] = ()

    @property
    def total_rate(self) -> float | None:
        """Requests/s at load 1; None when a closed loop makes it the server's."""
        names = [planned.tenant.name for planned in self.plan.tenants]
        return sum(self.rates.values()) if all(name in self.rates for name in names) else None

    @property
    def total_cost(self) -> float | None:
        """Cost units/s at load 1."""
        return None if self.total_rate is None else sum(self.costs.values())

    @property
    def targets(self) -> dict[str, float]:
        """The attainment that each tenant was promised."""
        return _targets([planned.tenant for planned in self.plan.tenants])


def study_of(scenario: Scenario, *, seeds: int, at: At | None = None) -> Study:
    """Raises SourceError when there is nothing to search for, or nothing to search with."""
    plan = resolve_with_saturation(scenario, at=at)
    server = server_model_of(plan.backend)
    if server is None:
        raise SourceError(
            "this scenario names a real server and no server model: calibrate one (lmperf calibrate) and name it with "
            "--server-model FILE"
        )
    if not _targets([planned.tenant for planned in plan.tenants]):
        raise SourceError(
            "no tenant of this scenario has per-request limits with an attainment target, so no load breaks anything: "
            "give one slo: {ttft_ms: 500, attainment: 0.99}"
        )
    recipe = recipe_of(plan)
    growth = growth_of(plan.tenants)
    until_ns = arrivals_end_ns(plan, source_of(recipe, plan.seed, growth))
    if until_ns is None or plan.num_prompts is not None:
        raise SourceError(
            "a number of prompts lasts shorter at a higher load, so loads could not be compared: set duration_s and leave "
            "num_prompts out"
        )
    window = plan.judged.window(until_ns)
    single = isinstance(recipe, ReplayRecipe) and recipe.duration_ns is None
    rates, costs = _offered(plan, recipe, growth, until_ns / 1e9)
    return Study(
        scenario=scenario,
        plan=plan,
        server=server,
        recipe=recipe,
        growth=growth,
        window_ns=(window.start_ns, window.end_ns),
        seeds=(plan.seed,) if single else tuple(range(plan.seed, plan.seed + seeds)),
        one_realisation=single,
        saturation=plan.saturation or saturation_of(plan, server),
        rates=rates,
        costs=costs,
        default_contracts=frozenset(
            p.tenant.name
            for p in plan.tenants
            if (stated := scenario.model.tenants[p.group].contract) is None or stated.rate is None
        ),
        warnings=_warnings(plan, single=single, seeds=seeds),
    )


def _targets(tenants: Sequence[Tenant]) -> dict[str, float]:
    return {t.name: t.slo.attainment for t in tenants if t.slo.has_limits and t.slo.attainment is not None}


def _warnings(plan: Plan, *, single: bool, seeds: int) -> tuple[str, ...]:
    found = []
    tenants = [planned.tenant for planned in plan.tenants]
    aside = [t.name for t in tenants if t.slo.objectives]
    if aside:
        found.append(f"percentile objectives ({', '.join(aside)}) do not enter: capacity is about attainment")
    if single:
        found.append("the trace has no duration_s, so it has one realisation: intervals come from blocks of its time")
    elif seeds < 5:
        found.append(f"{seeds} seeds give no interval; at least 5 do")
    return tuple(found)


def _offered(
    plan: Plan, recipe: Recipe, growth: Mapping[str, float], duration_s: float
) -> tuple[dict[str, float], dict[str, float]]:
    """(requests/s, cost units/s) by tenant, where the load does not depend on the server."""
    rates: dict[str, float] = {}
    costs: dict[str, float] = {}
    if isinstance(recipe, DrawnRecipe):
        for planned in plan.tenants:
            if planned.traffic is not None and planned.offered is not None:
                name = planned.tenant.name
                rates[name] = expected_arrivals(planned.traffic.arrivals, duration_s) / duration_s
                costs[name] = planned.offered
        return rates, costs
    rates = {planned.tenant.name: 0.0 for planned in plan.tenants}
    costs = dict(rates)
    for request in recipe.source(plan.seed, growth).absolute():
        rates[request.tenant] += 1 / duration_s
        costs[request.tenant] += plan.cost.of(request.prompt_tokens, request.target_output_tokens or 0) / duration_s
    return rates, costs


def own_choice(study: Study) -> PolicyChoice:
    """The scenario's own policy and slots."""
    plan = study.plan
    if not plan.policy.queues:
        return PolicyChoice(label="none", policy="fifo", slots=slots_of(plan))
    return PolicyChoice(label=plan.policy.name, policy=plan.policy.name, options=dict(plan.policy.options))


def queued_choices(study: Study, choices: Sequence[PolicyChoice]) -> list[PolicyChoice]:
    """The choices with slots, where the scenario has no queue of its own and so states none."""
    if study.plan.policy.queues:
        return list(choices)
    slots = Slots(sequences=DEFAULT_SEQUENCES, prefill_tokens=DEFAULT_PREFILL_TOKENS)
    return [replace(choice, slots=choice.slots or slots) for choice in choices]


# -- points ----------------------------------------------------------------------------------------------------------


def jobs_at(study: Study, choice: PolicyChoice, factor: float, replicas: int = 1) -> list[ReplicatedJob]:
    """One run a seed with every tenant's load times ``factor``."""
    tenants = study.recipe.tenants
    growth = {t.name: study.growth.get(t.name, 1.0) * factor for t in tenants}
    recipe = study.recipe if replicas == 1 else _entitled(study, replicas)
    auto = choice.auto
    slots = study.plan.slots
    if auto is None and choice.slots is None and slots.auto is AutoSlots.TPOT:
        auto = (slots.least, slots.most)
    return [
        ReplicatedJob(
            cell=CellJob(
                policy=choice.policy,
                options=choice.options,
                policy_label=choice.label,
                load=f"{factor:g}",
                seed=seed,
                auto=auto,
                growth=growth,
                recipe=recipe,
                server=study.server,
                slots=choice.slots or slots_of(study.plan),
                cost=study.plan.cost,
                window_ns=study.window_ns,
            ),
            replicas=replicas,
            one_realisation=study.one_realisation,
        )
        for seed in study.seeds
    ]


def _entitled(study: Study, replicas: int) -> Recipe:
    """The recipe with default contracts as parts of what all replicas together can do."""

    def of(tenant: Tenant) -> Tenant:
        contract = tenant.contract
        if contract is None or tenant.name not in study.default_contracts:
            return tenant
        return replace(tenant, contract=Contract(rate=contract.rate * replicas, burst=contract.burst * replicas))

    recipe = study.recipe
    if isinstance(recipe, DrawnRecipe):
        return replace(recipe, traffics=tuple((of(tenant), traffic) for tenant, traffic in recipe.traffics))
    assert isinstance(recipe, ReplayRecipe), "a recipe is drawn or replayed"
    return replace(recipe, tenants=tuple(of(tenant) for tenant in recipe.tenants))


def point_of(study: Study, load: float, factor: float, runs: Sequence[Mapping[str, TenantRun]]) -> Point:
    """What the runs of one load say. ``load``: what the search calls it (a factor, or a number of replicas)."""
    window_s = (study.window_ns[1] - study.window_ns[0]) / 1e9
    rates: dict[str, float] = {}
    costs: dict[str, float] = {}
    for planned in study.plan.tenants:
        name = planned.tenant.name
        if name in study.rates:
            rates[name], costs[name] = study.rates[name] * factor, study.costs[name] * factor
        else:
            own = [run[name] for run in runs]
            rates[name] = sum(run.total for run in own) / len(own) / window_s
            costs[name] = sum(run.cost for run in own) / len(own) / window_s
    promised = {name: attained([run[name] for run in runs], target) for name, target in study.targets.items()}
    return Point(load, promised, rates, costs)


@dataclass(slots=True)
class PolicyCapacity:
    """What is known of one policy so far. ``by_proportion``: replicas as target / capacity of one, rounded up."""

    choice: PolicyChoice
    capacity: Capacity
    fleet: Fleet | None = None
    by_proportion: int | None = None


@dataclass(slots=True)
class CapacityAnswer:
    """``target_rate``: requests/s for which replicas are counted."""

    study: Study
    policies: list[PolicyCapacity] = field(default_factory=list)
    target_rate: float | None = None
    interrupted: bool = False

    @property
    def best(self) -> PolicyCapacity | None:
        """The policy with the highest capacity; the first listed among equals."""
        known = [each for each in self.policies if each.capacity.found is not None]
        return max(known, key=_load_found, default=None)


def _load_found(each: PolicyCapacity) -> float:
    found = each.capacity.found
    return 0.0 if found is None else found.load


def find_capacity(
    study: Study,
    choices: Sequence[PolicyChoice],
    *,
    workers: Workers,
    tolerance: float = 0.02,
    target_rate: float | None = None,
    on_point: Callable[[CapacityAnswer], None] = lambda _: None,
    on_runs: Callable[[str], OnProgress] = lambda _: lambda done, total: None,  # noqa: ARG005 (no progress)
) -> CapacityAnswer:
    """Search for every policy in turn; ``on_point`` sees the answer after every load. An interrupt keeps what was found."""
    answer = CapacityAnswer(study, target_rate=target_rate)
    if target_rate is not None and study.total_rate is None:
        raise SourceError(
            "--target-rate is in requests/s, and this scenario has a closed loop: its rate is the server's"
        )
    for choice in choices:
        found = PolicyCapacity(choice, Capacity(()))
        answer.policies.append(found)

        def evaluate(factor: float, *, replicas: int = 1, load: float | None = None, found: PolicyCapacity) -> Point:
            choice = found.choice
            what = f"{choice.label}: load {factor:.4g}" + (f" on {replicas} replicas" if load is not None else "")
            runs = workers.map(promises_of_run, jobs_at(study, choice, factor, replicas), on_runs(what))
            return point_of(study, factor if load is None else load, factor, runs)

        def keep(capacity: Capacity, *, found: PolicyCapacity) -> None:
            found.capacity = capacity
            on_point(answer)

        search = LoadSearch(
            partial(evaluate, found=found),
            start=_start(study),
            tolerance=tolerance,
            on_point=partial(keep, found=found),
        )
        found.capacity = search.run()
        answer.interrupted = found.capacity.interrupted
        if answer.interrupted:
            break
        if target_rate is not None:
            _count_replicas(answer, found, partial(evaluate, found=found), on_point)
            if answer.interrupted:
                break
    on_point(answer)
    return answer


def _start(study: Study) -> float:
    """The load to try first: just below saturation, where most capacities lie; 1 where the offered load is not known."""
    cost = study.total_cost
    return 1.0 if not cost else min(max(_START_OF_SATURATION * study.saturation / cost, 1e-3), 1e3)


def _count_replicas(
    answer: CapacityAnswer,
    found: PolicyCapacity,
    evaluate: Callable[..., Point],
    on_point: Callable[[CapacityAnswer], None],
) -> None:
    study, point, rate = answer.study, found.capacity.found, answer.target_rate
    total = study.total_rate
    if point is None or rate is None or total is None:
        return
    factor = rate / total
    # Behind one queue, k replicas do at least as well as each with its own k-th part, which is the guess.
    found.by_proportion = guess = max(1, math.ceil(factor / point.load - 1e-9))

    def keep(fleet: Fleet) -> None:
        found.fleet = fleet
        on_point(answer)

    found.fleet = fewest_replicas(
        lambda replicas: evaluate(factor, replicas=replicas, load=float(replicas)),
        guess=guess,
        most=min(_MOST_REPLICAS, 2 * guess + 2),
        on_point=keep,
    )
    answer.interrupted = found.fleet.interrupted
