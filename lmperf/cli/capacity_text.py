"""The answer of ``lmperf capacity``, for people (a table, a sentence) and as data (capacity.json)."""

from __future__ import annotations

from collections.abc import Mapping

from rich.console import Console

from lmperf.scenario.model import At
from lmperf.wiring.capacity import CapacityAnswer, PolicyCapacity
from lmperf.wiring.capacity_study import Study
from loadgen.fitted_table import FittedTable
from loadgen.offline.search import Attained, Point
from tenants.measures.shares import percent_within, promised

SCHEMA = "lmperf.capacity/1.1"


def print_points(console: Console, study: Study, found: PolicyCapacity) -> None:
    """Every load that was tried, and every number of replicas."""
    if not found.capacity.points:
        return
    title = f"{found.choice.label}: every load tried, attainment in % [95% interval] (target)"
    console.print(points_table(title, "load", study.targets, found.capacity.points))
    if found.fleet is not None and found.fleet.points:
        routing = study.plan.backend.routing.text
        title = f"{found.choice.label}: replicas behind one queue at the target rate, routing {routing}"
        console.print(points_table(title, "replicas", study.targets, found.fleet.points))


def points_table(title: str, first: str, targets: Mapping[str, float], points: tuple[Point, ...]) -> FittedTable:
    """``first``: what the points differ in. ``targets``: by tenant."""
    tenants = [f"{name} ({promised(target)})" for name, target in targets.items()]
    table = FittedTable(title, (first,), ("requests/s", "cost units/s", *tenants, "verdict"), left=("verdict",))
    for point in points:
        table.add_row(
            f"{point.load:.4g}",
            f"{sum(point.rates.values()):,.2f}",
            f"{sum(point.costs.values()):,.0f}",
            *(attained_text(point.tenants[name]) for name in targets),
            point.verdict.value,
        )
    return table


def attained_text(tenant: Attained) -> str:
    """``99.12 [98.74, 99.41]``."""
    if tenant.share is None:
        return "no requests"
    return percent_within(tenant.share, tenant.interval, 2)


def sentence(answer: CapacityAnswer, found: PolicyCapacity) -> str:
    """What was found of one policy, in one sentence (two where replicas were asked for)."""
    study, capacity, label = answer.study, found.capacity, found.choice.label
    point = capacity.found
    if point is None and not capacity.points:
        return f"{label}: no load was tried."
    if point is None:
        return _none_found(label, found)
    per_tenant = ", ".join(f"{name} {rate:,.2f}" for name, rate in point.rates.items())
    said = (
        f"{label}: every tenant is at its target up to {point.load:.4g} times {_LOAD_ONE[study.plan.at]} by estimate "
        f"({_certainty(found)}), "
        f"{sum(point.costs.values()):,.0f} cost units/s ({sum(point.costs.values()) / study.saturation:.0%} of "
        f"saturation), {sum(point.rates.values()):,.2f} requests/s ({per_tenant})"
    )
    if capacity.failing is None:
        said += "; no load that was tried misses a target"
    else:
        said += f"; {capacity.first_to_break} is the first to miss its target, at {capacity.failing.load:.4g}"
        again = [p.load for p in capacity.points if p.load > capacity.failing.load and p.at_target]
        if again:
            said += f" (though at {again[0]:.4g} all are at target again: a longer duration_s would smooth that)"
    if not found.searched:
        said += "; the search did not come to its end"
    return f"{said}.{_replicas(answer, found)}"


def _none_found(label: str, found: PolicyCapacity) -> str:
    capacity = found.capacity
    lowest, high = capacity.points[0].load, capacity.high
    who = f": {capacity.first_to_break} misses its target" if capacity.first_to_break else ""
    if not found.searched:
        return (
            f"{label}: the search did not come to its end, and no load is known that keeps every target; "
            f"{lowest:.3g} is the lowest tried{who}."
        )
    tried = f"tried down to {lowest:.3g}"
    if high is None:
        more = "but no miss is shown: more seeds or a longer duration_s would decide it"
        return f"{label}: at no load is every tenant at its target ({tried}){who}, {more}."
    shown = "" if high == lowest else f"; shown from {high:.3g} up"
    return f"{label}: no load keeps every tenant's target ({tried}{shown}){who}."


_LOAD_ONE = {
    At.NONE: "the scenario's load",
    At.BASELINE: "the scenario's baseline load",
    At.RAISED: "the scenario's raised load",
}


def load_one(study: Study) -> str:
    """What the factor 1 stands for, as far as the load does not depend on the server."""
    rate, cost = study.total_rate, study.total_cost
    known = "" if rate is None or cost is None else f" ({rate:,.2f} requests/s, {cost:,.0f} cost units/s)"
    return f"{_LOAD_ONE[study.plan.at]}{known}"


def _certainty(found: PolicyCapacity) -> str:
    """What is beyond chance: the load up to which all targets are kept, and the load from which one is missed."""
    capacity = found.capacity
    if capacity.high is None and not any(point.has_interval for point in capacity.points):
        return "no interval: too few seeds"
    kept = "shown to hold at no load" if capacity.low is None else f"shown to hold up to {capacity.low:.4g}"
    missed = "shown to fail at none" if capacity.high is None else f"shown to fail from {capacity.high:.4g}"
    return f"{kept}, {missed}"


def _replicas(answer: CapacityAnswer, found: PolicyCapacity) -> str:
    fleet = found.fleet
    if answer.target_rate is None or fleet is None:
        return ""
    if fleet.count is None:
        rate = f"{answer.target_rate:,.6g} requests/s"
        if not fleet.points:
            return f" {rate}: no number of replicas was tried."
        most = f"{fleet.points[-1].load:.0f} replicas are enough"
        return f" {rate}: not even {most}{'' if found.complete else ', and more were not tried'}."
    sure = "" if fleet.sure_count in (None, fleet.count) else f"; {fleet.sure_count} are shown to be, at 95%"
    unsure = "; the interval does not show it" if fleet.sure_count is None else ""
    verb = "replica is" if fleet.count == 1 else "replicas behind one queue are"
    return (
        f" {answer.target_rate:,.6g} requests/s: {fleet.count} {verb} enough{sure}{unsure} (by proportion: "
        f"{found.by_proportion})."
    )


# -- data ------------------------------------------------------------------------------------------------------------


def answer_data(answer: CapacityAnswer, command: str) -> dict[str, object]:
    """capacity.json; it can be written after every point. ``command``: what was typed, without secrets."""
    study = answer.study
    return {
        "schema": SCHEMA,
        "command": command,
        "scenario": study.plan.name,
        "load_1": {
            "at": study.plan.at.value,
            "requests_per_s": study.total_rate,
            "cost_units_per_s": study.total_cost,
        },
        "server_model": study.server.name,
        "saturation_cost_units_per_s": study.saturation,
        "seeds": list(study.seeds),
        "targets": study.targets,
        "target_rate_per_s": answer.target_rate,
        "routing": study.plan.backend.routing.text,
        "interrupted": answer.interrupted,
        "complete": answer.complete,
        "not_begun": answer.not_begun,
        "notes": list(study.warnings),
        "policies": [_policy_data(answer, found) for found in answer.policies],
    }


def _policy_data(answer: CapacityAnswer, found: PolicyCapacity) -> dict[str, object]:
    capacity, fleet, point = found.capacity, found.fleet, found.capacity.found
    return {
        "policy": found.choice.policy,
        "label": found.choice.label,
        "options": dict(found.choice.options),
        "complete": found.complete,
        "capacity": None if point is None else _load_data(point) | {"low": capacity.low, "high": capacity.high},
        "first_to_break": capacity.first_to_break,
        "sentence": sentence(answer, found),
        "points": [_point_data(each, "factor") for each in capacity.points],
        "replicas": None
        if fleet is None
        else {
            "enough": fleet.count,
            "shown_to_be_enough": fleet.sure_count,
            "by_proportion": found.by_proportion,
            "points": [_point_data(each, "replicas") for each in fleet.points],
        },
    }


def _load_data(point: Point) -> dict[str, object]:
    return {
        "factor": point.load,
        "requests_per_s": sum(point.rates.values()),
        "cost_units_per_s": sum(point.costs.values()),
        "tenant_requests_per_s": dict(point.rates),
    }


def _point_data(point: Point, name: str) -> dict[str, object]:
    return {
        name: point.load,
        "requests_per_s": sum(point.rates.values()),
        "cost_units_per_s": sum(point.costs.values()),
        "verdict": point.verdict.value,
        "at_target": point.at_target,
        "tenants": _tenants_data(point.tenants),
    }


def _tenants_data(tenants: Mapping[str, Attained]) -> dict[str, object]:
    return {
        name: {
            "attainment": tenant.share,
            "low": None if tenant.interval is None else tenant.interval.low,
            "high": tenant.at_most if tenant.interval is None else tenant.interval.high,
            "target": tenant.target,
            "requests": tenant.requests,
            "verdict": tenant.verdict.value,
        }
        for name, tenant in tenants.items()
    }
