"""From a checked scenario to a :class:`lmperf.scenario.plan.Plan`: loads become rates, seconds become ns, defaults
become values. What goes wrong here (an unknown saturation, a missing file) is reported like a wrong line of the file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

from lmperf.scenario.faults import Fault, ScenarioError
from lmperf.scenario.load import Scenario
from lmperf.scenario.loads import offered_loads
from lmperf.scenario.members import AMOUNTS_OF_SATURATION, Member, members_of
from lmperf.scenario.model import At, Growth, ScenarioModel
from lmperf.scenario.plan import Judged, Plan, PlannedTenant
from lmperf.scenario.server_specs import backend_of, policy_of, slots_of, trace_of
from lmperf.scenario.tenant_specs import tenant_of, timeouts_of
from lmperf.scenario.units import ns_of_s
from lmperf.scenario.view import tenant_names
from scheduler.cost import CostModel
from tenants.thresholds import parse_threshold
from tenants.traffic import Traffic

BASELINE_OF_A_TRACE = 0.75
"""Of saturation; a drawn workload states its own loads, a trace's speed is an accident of where it was recorded."""


class _Experiment(NamedTuple):
    at: At
    growth: Growth
    noisy: tuple[str, ...]
    saturation: float | None


class _Loads(NamedTuple):
    """Cost units/s by tenant: said in the scenario, offered in this run, recorded in the trace; sum of weights."""

    said: Mapping[str, float]
    offered: Mapping[str, float]
    recorded: Mapping[str, float]
    saturation: float | None
    weights: float


def resolve(
    scenario: Scenario,
    *,
    saturation: float | None = None,
    at: At | str | None = None,
    growth: Growth | str | None = None,
    noisy: str | None = None,
    seed: int | None = None,
    traced_loads: Mapping[str, float] | None = None,
    needs_files: bool = True,
) -> Plan:
    """The plan of one run. Raises ScenarioError.

    ``needs_files``: the files that the scenario names (tokenizer, certificates, trace, server model) must be there; False for
    a run that was made elsewhere and is only looked at.

    ``saturation``: cost units/s (default: what the scenario states). ``at``, ``growth``, ``noisy`` and ``seed`` stand
    in for the scenario's, for experiments over them. ``traced_loads``: cost units/s of each tenant's rows as the trace
    has them (slice and speed applied). Until they are given, a plan whose trace is to be scaled leaves all loads as
    they are and says so in ``needs_traced_loads``.

    Where loads are fractions, the mix does not depend on ``saturation``: with ``at`` raised and any figure, the plan
    has the raised mix that the saturation itself is measured with.
    """
    model, document = scenario.model, scenario.document
    load = model.load
    faults: list[Fault] = []
    warnings: list[Fault] = list(scenario.warnings)
    members, found = members_of(scenario)
    faults.extend(found)
    known = load.saturation if saturation is None else saturation
    experiment = _Experiment(
        load.at if at is None else At(at),
        load.growth if growth is None else Growth(growth),
        _noisy(model, noisy),
        known,
    )
    cost = CostModel(prompt_weight=model.cost.prompt, output_weight=model.cost.output)
    faults.extend(_unknown_saturation(scenario, members, experiment))
    missing: list[Fault] = []
    backend, policy, slots, trace = (
        backend_of(scenario, missing),
        policy_of(model),
        slots_of(scenario, warnings),
        trace_of(scenario, missing),
    )
    if needs_files:
        faults.extend(missing)
    if faults:
        raise ScenarioError(faults)
    recorded = dict(traced_loads or {})
    said = _said(members, cost, known, recorded)
    waits = _scales_a_trace(members, experiment) and any(m.traced and m.name not in said for m in members)
    offered = dict(said) if waits else _offered(scenario, members, said, experiment)
    loads = _Loads(said, offered, recorded, known, sum(member.model.weight for member in members))
    if known is None:
        warnings.append(document.fault((), "the saturation is not known, so tenants have no default contract"))
    return Plan(
        name=model.name,
        description=model.description,
        duration_ns=_duration_ns(model),
        num_prompts=model.num_prompts,
        drain_ns=ns_of_s(model.drain_s),
        judged=_judged(model),
        seed=model.seed if seed is None else seed,
        backend=backend,
        policy=policy,
        cost=cost,
        slots=slots,
        at=experiment.at,
        growth=experiment.growth,
        noisy=experiment.noisy,
        saturation=known,
        trace=trace,
        thresholds=tuple(parse_threshold(text) for text in model.thresholds),
        tenants=tuple(_planned(scenario, member, loads, cost) for member in members),
        needs_traced_loads=waits,
        workers=model.workers,
        warnings=tuple(warnings),
    )


def _noisy(model: ScenarioModel, name: str | None) -> tuple[str, ...]:
    name = model.load.noisy if name is None else name
    if name is None:
        raisers = [group for group, tenant in model.tenants.items() if tenant.raised_load is not None]
        return tuple(n for group in raisers for n in tenant_names(group, model.tenants[group].count))
    if name in model.tenants:
        return tuple(tenant_names(name, model.tenants[name].count))
    return (name,)


def _unknown_saturation(scenario: Scenario, members: list[Member], experiment: _Experiment) -> list[Fault]:
    if experiment.saturation is not None:
        return []
    remedy = "state it (load.saturation, cost units/s), or give rates in requests/s"
    problem = "is a fraction of saturation, which is not known"
    needs = [
        (*member.path, key)
        for member in members
        for key in AMOUNTS_OF_SATURATION
        if getattr(member.model, key) is not None and (key != "raised_load" or experiment.at is At.RAISED)
    ]
    if scenario.model.load.baseline is not None and experiment.at is not At.NONE:
        needs.append(("load", "baseline"))
    return [scenario.document.fault(path, problem, remedy) for path in dict.fromkeys(needs)]


def _said(
    members: list[Member], cost: CostModel, saturation: float | None, traced_loads: Mapping[str, float]
) -> dict[str, float]:
    """Cost units/s that each open-loop tenant is said to offer."""
    weights = sum(member.model.weight for member in members)
    said: dict[str, float] = {}
    for member in members:
        model = member.model
        if member.traced and member.name not in traced_loads:
            continue
        if member.rate is not None:
            said[member.name] = member.rate * _cost_of_one(member, cost)
        elif model.load is not None and saturation is not None:
            said[member.name] = model.load * saturation
        elif model.share is not None and saturation is not None:
            said[member.name] = model.share * saturation * model.weight / weights
        elif member.traced:
            said[member.name] = traced_loads[member.name]
    return said


def _cost_of_one(member: Member, cost: CostModel) -> float:
    return cost.of(member.mean_prompt or 0.0, member.mean_output or 0.0)


def _scales_a_trace(members: list[Member], experiment: _Experiment) -> bool:
    return any(m.traced and (m.model.load is not None or experiment.at is not At.NONE) for m in members)


def _offered(
    scenario: Scenario, members: list[Member], said: Mapping[str, float], experiment: _Experiment
) -> dict[str, float]:
    load, saturation = scenario.model.load, experiment.saturation
    baseline = load.baseline
    if baseline is None and any(m.traced for m in members) and all(m.model.load is None for m in members):
        baseline = BASELINE_OF_A_TRACE
    own = {
        m.name: m.model.raised_load * saturation
        for m in members
        if m.model.raised_load is not None and saturation is not None
    }
    unknown = [name for name in experiment.noisy if name not in said]
    if experiment.at is At.RAISED and unknown and experiment.growth is Growth.NOISY:
        known = ", ".join(said) or "none"
        problem = f"the load of `{unknown[0]}` cannot be raised: it is no open-loop tenant of this scenario"
        raise ScenarioError([scenario.document.fault(("load", "noisy"), problem, f"name one of {known}")])
    try:
        return offered_loads(
            said,
            at=experiment.at,
            growth=experiment.growth,
            noisy=experiment.noisy,
            baseline=None if baseline is None or saturation is None else baseline * saturation,
            raised=load.raised,
            own_raised=own,
        )
    except ValueError as error:
        remedy = "name it (load.noisy), give a tenant raised_load, or let all grow (load.growth: all)"
        raise ScenarioError([scenario.document.fault(("load", "at"), str(error), remedy)]) from error


def _planned(scenario: Scenario, member: Member, loads: _Loads, cost: CostModel) -> PlannedTenant:
    load = loads.offered.get(member.name)
    growth = 1.0
    traffic = member.traffic
    if member.traced:
        recorded = loads.recorded.get(member.name)
        growth = 1.0 if load is None or not recorded else load / recorded
    elif traffic is not None and load is not None:
        traffic = _at_load(member, traffic, load, loads.said[member.name], _cost_of_one(member, cost))
    return PlannedTenant(
        tenant=tenant_of(scenario, member, loads.saturation, loads.weights),
        group=member.group,
        traffic=traffic,
        timeouts=timeouts_of(scenario.model, member.model),
        offered=load,
        growth=growth,
    )


def _at_load(member: Member, traffic: Traffic, load: float, said: float, cost_of_one: float) -> Traffic:
    if member.rate is None:
        # A ramp's start was written in requests/s for the load that was said, so it grows with it.
        arrivals = replace(traffic.arrivals, rate=said / cost_of_one)
        traffic = replace(traffic, arrivals=arrivals)
    return traffic if load == said else traffic.grown(load / said)


def _duration_ns(model: ScenarioModel) -> int | None:
    if model.duration_s is not None:
        return ns_of_s(model.duration_s)
    if model.trace is not None and model.trace.duration_s is not None:
        return ns_of_s(model.trace.duration_s / model.trace.speed)
    return None


def _judged(model: ScenarioModel) -> Judged:
    return Judged(
        warmup_ns=ns_of_s(model.warmup_s or 0.0),
        cooldown_ns=ns_of_s(model.cooldown_s or 0.0),
        span=None if model.judge is None else (model.judge[0], model.judge[1]),
    )
