"""How much load a server takes before the first tenant's attainment falls below its target, and how many replicas more
takes: a scenario, its loads multiplied, simulated over seeds.

The search itself is :mod:`loadgen.offline.search`; here a load becomes simulated runs. Every load uses the same seeds. The
factor multiplies every tenant's load; contracts, weights, slots and lengths stay as they are.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from lmperf.scenario.server_specs import DEFAULT_PREFILL_TOKENS, DEFAULT_SEQUENCES
from lmperf.wiring.capacity_study import Study
from lmperf.wiring.dispatching import auto_of, slots_of
from lmperf.wiring.target_rate import LEAST_REQUESTS, MOST_REPLICAS
from loadgen.offline.cell import CellJob, DrawnRecipe, Recipe, ReplayRecipe
from loadgen.offline.experiment import OnProgress, PolicyChoice
from loadgen.offline.replicas import ReplicatedJob, promises_of_run
from loadgen.offline.search import Capacity, Fleet, LoadSearch, Point, TenantRun, attained, fewest_replicas
from loadgen.offline.workers import Workers
from scheduler.slots import Slots
from tenants.measures.intervals import MIN_SEEDS
from tenants.tenant import Contract, Tenant

_START_OF_SATURATION = 0.9


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
    auto = choice.auto or (auto_of(study.plan) if choice.slots is None else None)
    backends = {name: choice.slots or slots for name, slots in study.plan.slots.own.items()}
    return [
        ReplicatedJob(
            cell=CellJob(
                policy=choice.policy,
                options=choice.options,
                policy_label=choice.label,
                load=f"{factor:g}",
                seed=seed,
                auto=auto,
                backends=backends,
                routing=study.plan.backend.routing,
                growth=growth,
                recipe=recipe,
                server=study.server,
                slots=choice.slots or slots_of(study.plan),
                cost=study.plan.cost,
                window_ns=study.window_ns,
            ),
            replicas=replicas,
            one_realisation=study.one_realisation,
            few_seeds=len(study.seeds) < MIN_SEEDS,
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
    """What is known of one policy so far. ``by_proportion``: replicas as target / capacity of one, rounded up. ``searched``:
    the search for its capacity came to its end; ``complete``: that for replicas too, where there is one."""

    choice: PolicyChoice
    capacity: Capacity
    searched: bool = False
    complete: bool = False
    fleet: Fleet | None = None
    by_proportion: int | None = None


@dataclass(slots=True)
class CapacityAnswer:
    """``target_rate``: requests/s for which replicas are counted. ``choices``: what was asked for; where it was interrupted,
    not all of it has begun."""

    study: Study
    choices: Sequence[PolicyChoice] = ()
    policies: list[PolicyCapacity] = field(default_factory=list)
    target_rate: float | None = None
    interrupted: bool = False

    @property
    def complete(self) -> bool:
        """False while it is searched for, and for ever where that was stopped, however it was."""
        return len(self.policies) == len(self.choices) and all(each.complete for each in self.policies)

    @property
    def not_begun(self) -> list[str]:
        """Labels of policies of which no load was tried."""
        begun = {each.choice.label for each in self.policies if each.capacity.points}
        return [choice.label for choice in self.choices if choice.label not in begun]

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
    on_stage: Callable[[str], None] = lambda _: None,
) -> CapacityAnswer:
    """Search for every policy in turn; ``on_point`` sees the answer after every load, ``on_stage`` what is looked for next
    where that may take long. An interrupt keeps what was found."""
    answer = CapacityAnswer(study, tuple(choices), target_rate=target_rate)
    try:
        for choice in choices:
            found = PolicyCapacity(choice, Capacity(()))
            answer.policies.append(found)
            _search(answer, found, workers, tolerance, on_point, on_runs, on_stage)
            if answer.interrupted:
                break
    except KeyboardInterrupt:
        answer.interrupted = True
    on_point(answer)
    return answer


def _search(
    answer: CapacityAnswer,
    found: PolicyCapacity,
    workers: Workers,
    tolerance: float,
    on_point: Callable[[CapacityAnswer], None],
    on_runs: Callable[[str], OnProgress],
    on_stage: Callable[[str], None],
) -> None:
    """One policy: its capacity, then the replicas where a rate was asked for."""
    study, choice = answer.study, found.choice

    def evaluate(factor: float, *, replicas: int = 1, load: float | None = None) -> Point:
        what = f"{choice.label}: load {factor:.4g}" + (f" on {replicas} replicas" if load is not None else "")
        runs = workers.map(promises_of_run, jobs_at(study, choice, factor, replicas), on_runs(what))
        return point_of(study, factor if load is None else load, factor, runs)

    def keep(capacity: Capacity) -> None:
        found.capacity = capacity
        on_point(answer)

    search = LoadSearch(evaluate, start=_start(study), tolerance=tolerance, least=_least(study), on_point=keep)
    found.capacity = search.run()
    answer.interrupted = found.capacity.interrupted
    found.searched = not answer.interrupted
    if answer.target_rate is not None and found.searched:
        _count_replicas(answer, found, evaluate, on_point, on_stage)
    found.complete = not answer.interrupted


def _start(study: Study) -> float:
    """The load to try first: just below saturation, where most capacities lie; 1 where the offered load is not known."""
    cost = study.total_cost
    return 1.0 if not cost else min(max(_START_OF_SATURATION * study.saturation / cost, 1e-3), 1e3)


def _least(study: Study) -> float:
    """No load is tried at which some promised tenant would send too few requests, over all seeds, to tell anything."""
    runs_s = (study.window_ns[1] - study.window_ns[0]) / 1e9 * len(study.seeds)
    rates = [study.rates[name] for name in study.targets if study.rates.get(name)]
    wanted = [LEAST_REQUESTS / (rate * runs_s) for rate in rates]
    return min(max([1e-3, *wanted]), _start(study))


def _count_replicas(
    answer: CapacityAnswer,
    found: PolicyCapacity,
    evaluate: Callable[..., Point],
    on_point: Callable[[CapacityAnswer], None],
    on_stage: Callable[[str], None],
) -> None:
    point, rate = found.capacity.found, answer.target_rate
    if point is None or rate is None:
        return
    factor = answer.study.factor_for(rate)
    # Behind one queue, k replicas do at least as well as each with its own k-th part, which is the guess.
    found.by_proportion = guess = max(1, math.ceil(factor / point.load - 1e-9))
    most = min(MOST_REPLICAS, 2 * guess + 2)
    on_stage(
        f"{found.choice.label}: how many replicas take {rate:,.6g} requests/s? {min(guess, most):,} are tried first"
    )

    def keep(fleet: Fleet) -> None:
        found.fleet = fleet
        on_point(answer)

    found.fleet = fewest_replicas(
        lambda replicas: evaluate(factor, replicas=replicas, load=float(replicas)),
        guess=guess,
        most=most,
        on_point=keep,
    )
    answer.interrupted = found.fleet.interrupted
