"""What the header of a trace says of the run that it was captured in: its plan, tenants and promises."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from lmperf.scenario.faults import ScenarioError
from lmperf.scenario.load import scenario_from_text
from lmperf.scenario.plan import Plan
from lmperf.scenario.resolve import resolve
from loadgen.trace.errors import TraceError
from loadgen.trace.parts import TraceFile
from loadgen.trace.reader import Trace
from tenants.tenant import Tenant

_ANY_SATURATION = 10_000.0
"""A resolved scenario states its saturation, or its rates; then this figure decides nothing."""


def header_plan(trace: TraceFile | Trace) -> Plan | None:
    """The plan of the captured run; None for a trace without one (imported). Raises TraceError."""
    text = trace.metadata.scenario
    if text is None:
        return None
    try:
        scenario = scenario_from_text(text, file=f"{trace.path} (its scenario)")
        return resolve(scenario, saturation=scenario.model.load.saturation or _ANY_SATURATION, needs_files=False)
    except ScenarioError as error:
        raise TraceError(trace.path, f"the scenario in its header cannot be used: {error}") from error


def header_tenants(trace: TraceFile | Trace, plan: Plan | None) -> tuple[Tenant, ...]:
    """The tenants of the plan, then those that only the rows name."""
    planned = () if plan is None else tuple(each.tenant for each in plan.tenants)
    names = {tenant.name for tenant in planned}
    return (*planned, *(Tenant(name=name) for name in trace.tenants if name not in names))


def run_name(path: Path) -> str:
    """What people call the run at ``path``: its folder, or its file."""
    return path.parent.name if path.name == "requests.parquet" and path.parent.name else path.name


def run_names(paths: Sequence[Path]) -> list[str]:
    """Of each of several runs, no two alike: with as many folders before the name as it takes, and a number where one is
    there twice."""
    called = {path: run_name(path) for path in paths}
    above = {
        path: list((path.parent if path.name == "requests.parquet" else path).absolute().parts[1:-1]) for path in called
    }
    while alike := [path for path, name in called.items() if list(called.values()).count(name) > 1 and above[path]]:
        called |= {path: f"{above[path].pop()}/{called[path]}" for path in alike}
    names = [called[path] for path in paths]
    seen: Counter[str] = Counter()
    for number, name in enumerate(names):
        seen[name] += 1
        if seen[name] > 1:
            names[number] = f"{name} ({seen[name]})"
    return names
