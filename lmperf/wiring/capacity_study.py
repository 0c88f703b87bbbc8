"""What a search for a capacity works on: a resolved scenario, its server model, its seeds, what tenants offer at load 1."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from lmperf.scenario.load import Scenario
from lmperf.scenario.model import At
from lmperf.scenario.plan import Plan
from lmperf.wiring.saturation import resolve_with_saturation, saturation_of
from lmperf.wiring.servers import server_model_of
from lmperf.wiring.sources import SourceError, arrivals_end_ns, growth_of, recipe_of, seeds_of, source_of
from loadgen.offline.cell import DrawnRecipe, Recipe, ReplayRecipe
from loadgen.workload.arrivals import expected_arrivals
from scheduler.routing import Routing
from scheduler.server_model.spec import ServerModelSpec
from tenants.measures.intervals import MIN_SEEDS
from tenants.tenant import Tenant


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """See the module docstring. ``growth``: the recipe's own factors at load 1. ``rates``, ``costs``: requests/s and cost
    units/s of each tenant at load 1 (a closed loop has none). ``default_contracts``: tenants whose contract is a part of
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

    def factor_for(self, rate: float) -> float:
        """The load at which all tenants together send ``rate`` requests/s. Raises SourceError for a closed loop."""
        total = self.total_rate
        if not total:
            raise SourceError(
                "--target-rate is in requests/s, and this scenario has a closed loop: its rate is the server's; give every "
                "tenant a rate or a load"
            )
        return rate / total

    @property
    def targets(self) -> dict[str, float]:
        """The attainment that each tenant was promised."""
        return _targets([planned.tenant for planned in self.plan.tenants])


def study_of(scenario: Scenario, *, seeds: int, at: At | None = None, routing: Routing | None = None) -> Study:
    """``routing``: in place of the scenario's, between its servers and between replicas. Raises SourceError when there is
    nothing to search for, or nothing to search with."""
    plan = resolve_with_saturation(scenario, at=at)
    if routing is not None:
        plan = replace(plan, backend=replace(plan.backend, routing=routing))
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
    single = recipe.one_realisation
    rates, costs = _offered(plan, recipe, growth, until_ns / 1e9)
    return Study(
        scenario=scenario,
        plan=plan,
        server=server,
        recipe=recipe,
        growth=growth,
        window_ns=(window.start_ns, window.end_ns),
        seeds=tuple(seeds_of(recipe, plan.seed, seeds)),
        one_realisation=single,
        saturation=plan.saturation or saturation_of(plan, server),
        rates=rates,
        costs=costs,
        default_contracts=frozenset(
            p.tenant.name
            for p in plan.tenants
            if (stated := scenario.model.tenants[p.group].contract) is None or stated.rate is None
        ),
        warnings=_warnings(plan, recipe, seeds=seeds),
    )


def _targets(tenants: Sequence[Tenant]) -> dict[str, float]:
    return {t.name: t.slo.attainment for t in tenants if t.slo.has_limits and t.slo.attainment is not None}


def _warnings(plan: Plan, recipe: Recipe, *, seeds: int) -> tuple[str, ...]:
    found = list(recipe.notes)
    traced = isinstance(recipe, ReplayRecipe)
    single = recipe.one_realisation
    tenants = [planned.tenant for planned in plan.tenants]
    aside = [t.name for t in tenants if t.slo.objectives]
    if aside:
        found.append(f"percentile objectives ({', '.join(aside)}) do not enter: capacity is about attainment")
    if single:
        found.append("the trace has no duration_s, so it has one realisation: intervals come from blocks of its time")
    elif traced:
        found.append(
            "a trace is played faster at a higher load, so each load plays a longer part of it: expect more noise"
        )
    if not single:
        found += too_few_seeds(seeds)
    return tuple(found)


def too_few_seeds(seeds: int) -> list[str]:
    """What to say of so few that nothing has an interval; empty where there are enough."""
    if seeds >= MIN_SEEDS:
        return []
    return [f"{seeds} seed{'s give' if seeds > 1 else ' gives'} no interval; at least {MIN_SEEDS} do"]


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
