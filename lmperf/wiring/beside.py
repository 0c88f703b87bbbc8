"""A live run beside what ``lmperf simulate`` found of the same arrivals under its policy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from lmperf.scenario.faults import Fault, Place, ScenarioError
from lmperf.wiring.captured import captured_run
from lmperf.wiring.compared import Compared
from lmperf.wiring.compared_simulations import Simulation
from lmperf.wiring.comparison_file import trace_source
from loadgen.offline.verdicts import TenantVerdict, verdicts_of_run
from loadgen.recorder import record_trace
from loadgen.trace.writer import TRACE_FILE


@dataclass(frozen=True, slots=True)
class Beside:
    """``run``, ``simulation``: the folders as they were named; figures by tenant, both made from rows in the same way."""

    run: str
    simulation: str
    policy: str
    live: Mapping[str, TenantVerdict]
    simulated: Mapping[str, TenantVerdict]


def beside(runs: Sequence[Compared], sides: Sequence[Simulation]) -> list[Beside]:
    """Every run beside every simulation of its arrivals that has its policy. Raises ScenarioError for a run or a simulation
    that has none to stand beside, with the reason."""
    found: list[Beside] = []
    faults: list[Fault] = []
    for run in runs:
        if len(run.folders) > 1 or not (run.folders[0] / TRACE_FILE).is_file():
            what = "a folder of several runs" if len(run.folders) > 1 else "a run without its rows"
            faults.append(Fault(Place(run.name), (), f"is {what}", "name a run folder with its requests.parquet"))
            continue
        captured = captured_run(run.folders[0], recorded=False)
        live = None
        digest = trace_source(captured).digest
        for side in sides:
            label = _label(run, side)
            if digest != side.found.source.digest:
                problem = f"its arrivals are not those that {side.name} simulated (of {side.found.source.name})"
                remedy = f"simulate this run itself: lmperf simulate {run.name}"
                faults.append(Fault(Place(run.name), (), problem, remedy))
            elif label is None:
                policy = run.summaries[0].policy or "none"
                problem = f"ran under {policy}, which {side.name} did not simulate"
                faults.append(Fault(Place(run.name), (), problem, f"simulate it with --policies {policy}"))
            else:
                live = live or verdicts_of_run(record_trace(captured.trace, captured.tenants))
                found.append(Beside(run.name, side.name, label, live, side.found.replayed[label]))
    if faults:
        raise ScenarioError(faults)
    return found


def _label(run: Compared, side: Simulation) -> str | None:
    """The simulated policy that is the run's, with the run's options; None where there is none."""
    summary = run.summaries[0]
    options = "".join(f":{key}={value}" for key, value in (summary.policy_options or {}).items())
    label = f"{summary.policy}{options}"
    return label if label in side.found.replayed else None
