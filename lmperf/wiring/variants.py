"""The same scenario with one thing different: another load, duration, policy, slots, weights or admission limits.

A variant is a scenario again, so that a live run of it leaves a resolved scenario that says what was run, and so that the
defaults that depend on what was changed (contracts on weights) follow.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from lmperf.scenario.load import Scenario
from lmperf.scenario.model import At, Growth
from lmperf.scenario.plan import Plan
from lmperf.scenario.resolve import BASELINE_OF_A_TRACE
from lmperf.scenario.server_model import PolicyModel, SlotsModel
from lmperf.scenario.tenant_model import TenantModel
from lmperf.wiring.saturation import resolve_with_saturation
from loadgen.offline.experiment import PolicyChoice
from scheduler.auto_rule import AutoRule, Follows, usual_rule
from scheduler.slots import Slots


def _with(scenario: Scenario, **changed: Any) -> Scenario:  # noqa: ANN401 (values of the scenario's own fields)
    return replace(scenario, model=scenario.model.model_copy(update=changed))


def pinned(scenario: Scenario, plan: Plan) -> Scenario:
    """The load of ``plan`` as a scenario: its figure of saturation is stated, so that no variant measures another."""
    load = scenario.model.load
    return _with(
        scenario,
        load=load.model_copy(
            update={"at": plan.at, "growth": plan.growth, "saturation": plan.saturation or load.saturation}
        ),
    )


def with_growth(scenario: Scenario) -> Scenario:
    """Who grows to the raised load, where the scenario does not say: everybody."""
    load = scenario.model.load
    named = load.noisy is not None or any(t.raised_load is not None for t in scenario.model.tenants.values())
    return scenario if named else _with(scenario, load=load.model_copy(update={"growth": Growth.ALL}))


def scaled(scenario: Scenario, factor: float) -> Scenario:
    """Every tenant's load times ``factor``, lengths untouched (users of a closed loop: rounded, at least one).

    A trace whose loads the scenario does not state is played faster, and its slice grows or shrinks with it so that the
    run lasts as long.
    """
    if factor == 1.0:
        return scenario
    model = scenario.model
    changed: dict[str, Any] = {"tenants": {name: _scaled(tenant, factor) for name, tenant in model.tenants.items()}}
    baseline = model.load.baseline
    as_recorded = model.trace is not None and all(t.load is None for t in model.tenants.values())
    if baseline is None and as_recorded and model.load.at is not At.NONE:
        baseline = BASELINE_OF_A_TRACE
    if baseline is not None:
        changed["load"] = model.load.model_copy(update={"baseline": baseline * factor})
    if model.trace is not None and as_recorded and model.load.at is At.NONE:
        trace = model.trace
        length = None if trace.duration_s is None else trace.duration_s * factor
        changed["trace"] = trace.model_copy(update={"speed": trace.speed * factor, "duration_s": length})
    return _with(scenario, **changed)


def _scaled(tenant: TenantModel, factor: float) -> TenantModel:
    changed: dict[str, Any] = {
        name: value * factor
        for name in ("rate", "load", "share", "raised_load")
        if (value := getattr(tenant, name)) is not None
    }
    if tenant.users is not None:
        changed["users"] = max(1, round(tenant.users * factor))
    arrivals: dict[str, Any] = {}
    if tenant.arrivals.steps is not None:
        arrivals["steps"] = [[start, rate * factor] for start, rate in tenant.arrivals.steps]
    if tenant.arrivals.ramp_from is not None:
        arrivals["ramp_from"] = tenant.arrivals.ramp_from * factor
    if arrivals:
        changed["arrivals"] = tenant.arrivals.model_copy(update=arrivals)
    return tenant.model_copy(update=changed)


def shortened(scenario: Scenario, duration_s: float) -> Scenario:
    """Arrivals for ``duration_s``; warm-up and cool-down shrink with it where they would leave too little to judge."""
    model = scenario.model
    changed: dict[str, Any] = {"duration_s": duration_s, "num_prompts": None}
    if model.judge is None:
        edges = (model.warmup_s or 0.0) + (model.cooldown_s or 0.0)
        shrink = min(1.0, 0.25 * duration_s / edges) if edges else 1.0
        for name in ("warmup_s", "cooldown_s"):
            if getattr(model, name) is not None:
                changed[name] = getattr(model, name) * shrink
    return _with(scenario, **changed)


def under_policy(scenario: Scenario, choice: PolicyChoice) -> Scenario:
    """Queued by ``choice``; slots of its own replace the scenario's."""
    changed: dict[str, Any] = {"policy": PolicyModel.model_validate({"name": choice.policy, **choice.options})}
    if choice.slots is not None:
        return with_slots(_with(scenario, **changed), choice.slots)
    return _with(scenario, **changed)


def with_slots(scenario: Scenario, slots: Slots, rule: AutoRule | None = None) -> Scenario:
    """Fixed slots; with ``rule`` ones that it moves, from there (within its bounds) on."""
    stated: dict[str, Any] = {"sequences": slots.sequences, "prefill_tokens": slots.prefill_tokens}
    if rule is not None:
        start = slots.sequences and min(max(slots.sequences, rule.least), rule.most)
        stated |= {
            "auto": rule.follows.value,
            "sequences": start,
            "min_sequences": rule.least,
            "max_sequences": rule.most,
        }
    return _with(scenario, slots=SlotsModel.model_validate(stated))


def auto_rules(scenario: Scenario) -> list[AutoRule]:
    """The usual rules by which this scenario's slots could move: by TPOT limits where a tenant has one and no server's slots
    are fixed, and by waiting counts. None with several workers, whose slots are fixed."""
    model = scenario.model
    if (model.workers or 1) > 1:
        return []
    fixed = any(server.sequences is not None for server in model.backend.urls or ())
    by_tpot = not fixed and any(t.slo is not None and t.slo.tpot_ms is not None for t in model.tenants.values())
    return [usual_rule(follows) for follows in Follows if by_tpot or follows is not Follows.TPOT]


def with_weights(scenario: Scenario, factors: Mapping[str, float]) -> Scenario:
    """Weights of the named groups multiplied; no tenant's load changes with them."""
    tenants = scenario.model.tenants
    weights = sum(tenant.weight * tenant.count for tenant in tenants.values())
    changed = {}
    for name, tenant in tenants.items():
        update: dict[str, Any] = {"weight": tenant.weight * factors.get(name, 1.0)}
        if tenant.share is not None:
            # A share is a part of what the weight entitles to; the load that it meant stays.
            update |= {"share": None, "load": tenant.share * tenant.weight / weights}
        changed[name] = tenant.model_copy(update=update)
    return _with(scenario, tenants=changed)


def with_queue_limits(scenario: Scenario, most: Mapping[str, int]) -> Scenario:
    """At most so many requests of each tenant of the named groups wait; what exceeds it is shed."""
    changed = dict(scenario.model.tenants)
    for name, queued in most.items():
        tenant = changed[name]
        limits = tenant.limits.model_copy(update={"max_queued": queued})
        changed[name] = tenant.model_copy(update={"limits": limits})
    return _with(scenario, tenants=changed)


def resolved(scenario: Scenario) -> Plan:
    """The plan of a variant at the load that it states."""
    return resolve_with_saturation(scenario)
