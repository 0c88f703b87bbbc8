"""A suite: a set of scenarios under a set of policies, and one table of what each policy keeps where.

``policy-study`` has nine scenarios: a flooder, unequal weights, flash crowds, heavy tails, a tenant back from idle, a swarm,
everybody growing, and a production trace. Its rows are every policy with ``late: keep`` at the scenario's slots, the policies
that gain most from demotion with it, both orders of ``committed``, and ``committed`` with automatic slots.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from lmperf.catalog import find_scenario
from lmperf.scenario.faults import ScenarioError, one_of
from lmperf.scenario.load import load_scenario
from lmperf.wiring.known import installed
from lmperf.wiring.offline import named_policies, simulate_scenario
from loadgen.offline.experiment import OnProgress, PolicyChoice
from loadgen.offline.verdicts import Figure, PolicyVerdict, figure
from scheduler.auto_rule import AutoRule
from scheduler.policies.build import POLICIES
from scheduler.slots import Slots

SUITES: dict[str, tuple[str, ...]] = {
    "policy-study": (
        "study-a-flooder",
        "study-b-five-and-one",
        "study-c-flash-crowd",
        "study-k-crowd-infeasible",
        "study-d-heavy-tail",
        "study-e-back-from-idle",
        "study-f-swarm",
        "study-g-all",
        "study-h-azure",
    )
}
NEED_A_TRACE = ("study-h-azure",)
AUTO = AutoRule()
_SLOTS = Slots(sequences=64, prefill_tokens=2048)
_FIGURES = ("worst_attainment", "mean_attainment", "p99_decay", "rho_excess", "throughput_ratio")


@dataclass(frozen=True, slots=True)
class SuiteRow:
    """One policy in one scenario; figures as in a :class:`loadgen.offline.verdicts.PolicyVerdict`."""

    scenario: str
    choice: PolicyChoice
    verdict: PolicyVerdict

    def data(self) -> dict[str, object]:
        """The row of ``suite.json``."""
        verdict = self.verdict
        figures = {
            "worst_attainment": verdict.worst_attainment,
            "mean_attainment": verdict.mean_attainment,
            "p99_decay": verdict.decay_in_contract,
            "rho_excess": verdict.rho,
            "throughput_ratio": verdict.throughput_ratio,
        }
        slots: object = "auto" if self.choice.auto is not None else (self.choice.slots or _SLOTS).sequences
        return {
            "scenario": self.scenario,
            "policy": self.choice.policy,
            "options": dict(self.choice.options),
            "slots": slots,
            **{name: _data(figures[name]) for name in _FIGURES},
        }


def _data(found: Figure) -> dict[str, float | None]:
    interval = found.interval
    return {
        "value": found.value,
        "low": None if interval is None else interval.low,
        "high": None if interval is None else interval.high,
    }


@dataclass(slots=True)
class SuiteResult:
    """``skipped``: scenario to reason. ``notes``: scenario to what makes it doubtful. ``interrupted``: some are missing.
    ``complete``: none is, and none will come."""

    name: str
    rows: list[SuiteRow] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)
    notes: dict[str, tuple[str, ...]] = field(default_factory=dict)
    interrupted: bool = False
    complete: bool = False

    @property
    def scenarios(self) -> list[str]:
        return list(dict.fromkeys(row.scenario for row in self.rows))

    @property
    def choices(self) -> list[PolicyChoice]:
        found: dict[str, PolicyChoice] = {}
        for row in self.rows:
            found.setdefault(row.choice.label, row.choice)
        return list(found.values())

    def row(self, scenario: str, label: str) -> SuiteRow | None:
        for row in self.rows:
            if row.scenario == scenario and row.choice.label == label:
                return row
        return None

    def mean_worst(self, label: str) -> Figure:
        """The mean over scenarios of the least attained tenant's attainment."""
        values = [row.verdict.worst_attainment.value for row in self.rows if row.choice.label == label]
        known = [value for value in values if value is not None]
        return Figure(float(np.mean(known))) if known else figure(())


def study_choices(policies: str) -> list[PolicyChoice]:
    """The rows of the study; ``policies`` as ``--policies`` (``all``, or names that keep only their rows). Raises PolicyError
    and RegistryError."""
    choices = [
        PolicyChoice(label=name, policy=name, options={"late": "keep"})
        for name in POLICIES.names()
        if name != "committed"
    ]
    choices += [
        PolicyChoice(label=f"{name}, late demoted", policy=name, options={"late": "demote"})
        for name in ("edf", "slo_aware")
    ]
    choices += [
        PolicyChoice(label="committed, late kept", policy="committed", options={"late": "keep", "order": "deadline"}),
        PolicyChoice(label="committed (deadline)", policy="committed", options={"late": "demote", "order": "deadline"}),
        PolicyChoice(label="committed (credit)", policy="committed", options={"late": "demote", "order": "credit"}),
        PolicyChoice(
            label="committed (deadline), auto slots",
            policy="committed",
            options={"late": "demote", "order": "deadline"},
            auto=AUTO,
        ),
    ]
    order = ["fifo", "priority", "edf", "wfq", "drr", "vtc", "slo_aware"]
    choices.sort(key=lambda choice: order.index(choice.label) if choice.label in order else len(order))
    if policies.strip() == "all":
        return choices
    wanted = named_policies(policies)
    for name in wanted:
        POLICIES.target(name)
    return [choice for choice in choices if choice.policy in wanted]


def run_suite(
    name: str,
    choices: Sequence[PolicyChoice],
    *,
    seeds: int,
    first_seed: int,
    trace: Path | None,
    settings: Iterable[str] = (),
    processes: int | None = None,
    on_scenario: Callable[[str], OnProgress] = lambda _: lambda done, total: None,  # noqa: ARG005 (no progress)
    on_rows: Callable[[SuiteResult], None] = lambda _: None,
) -> SuiteResult:
    """Run every scenario; ``on_rows`` is told after each. An interrupted suite keeps the scenarios that are finished."""
    if name not in SUITES:
        raise ScenarioError.single("<flags>", f"--suite {name!r} is not known", one_of(name, SUITES))
    result = SuiteResult(name)
    try:
        for scenario_name in SUITES[name]:
            overrides = [f"seed={first_seed}", *settings]
            if scenario_name in NEED_A_TRACE:
                if trace is None or not trace.is_file():
                    result.skipped[scenario_name] = "needs the Azure LLM 2023 conversation trace: --trace FILE"
                    continue
                overrides.append(f"trace.path={trace}")
            scenario = load_scenario(find_scenario(scenario_name), overrides=overrides, known=installed())
            answer = simulate_scenario(
                scenario, choices, seeds, processes=processes, on_progress=on_scenario(scenario_name)
            )
            if answer.cells.interrupted:
                # Its rows would rest on fewer seeds than the others.
                raise KeyboardInterrupt
            if answer.experiment.recipe.notes:
                result.notes[scenario_name] = answer.experiment.recipe.notes
            by_label = {choice.label: choice for choice in choices}
            for verdict in answer.comparisons[0].verdicts:
                result.rows.append(SuiteRow(scenario_name, by_label[verdict.label], verdict))
            on_rows(result)
        result.complete = True
    except KeyboardInterrupt:
        result.interrupted = True
    on_rows(result)
    return result
