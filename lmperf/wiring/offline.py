"""Offline answers: a scenario over seeds, or a captured trace, under several policies."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from lmperf.scenario.load import Scenario
from lmperf.scenario.model import At, Growth
from lmperf.scenario.plan import Plan
from lmperf.scenario.resolve import resolve
from lmperf.wiring.captured import CapturedRun, Fitted
from lmperf.wiring.dispatching import auto_of, slots_of
from lmperf.wiring.saturation import resolve_with_saturation, saturation_of_servers
from lmperf.wiring.servers import server_model_of
from lmperf.wiring.sources import (
    NO_RATE,
    ONE_REALISATION,
    SourceError,
    arrivals_end_ns,
    growth_of,
    recipe_of,
    seeds_of,
    source_of,
)
from loadgen.offline.cell import CellJob, ReplayRecipe, record_cell
from loadgen.offline.experiment import (
    BASELINE,
    RAISED,
    Cells,
    Experiment,
    Load,
    OnProgress,
    PolicyChoice,
    run_experiment,
)
from loadgen.offline.fidelity import FidelityRow, fidelity
from loadgen.offline.verdicts import PolicyVerdict, judge_policies
from loadgen.recorder import Recorder, record_trace
from scheduler.policies.build import POLICIES, PolicyContext, PolicyError, build_policy
from scheduler.server_model.spec import ServerModelSpec

BASELINE_OF_SATURATION = 0.75
RAISED_OVER_BASELINE = 1.2


@dataclass(frozen=True, slots=True)
class Comparison:
    """Policies under one raised load against the baseline. ``noisy``: whose load grew (all: everybody's); ``in_contract``:
    whom the verdicts are about; ``removed``: tenants of the baseline alone; ``name``, ``settings``: of a what-if."""

    noisy: tuple[str, ...]
    verdicts: list[PolicyVerdict]
    in_contract: tuple[str, ...]
    removed: tuple[str, ...] = ()
    name: str = ""
    settings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ScenarioAnswer:
    """``comparisons``: one per raised load (one noisy tenant, or each in turn)."""

    plan: Plan
    server: ServerModelSpec
    experiment: Experiment
    cells: Cells
    comparisons: list[Comparison]


def named_policies(names: str) -> list[str]:
    """The names of ``fifo,wfq,...`` or ``all``. Raises PolicyError where there is none, or one twice; results go by name."""
    listed = POLICIES.names() if names.strip() == "all" else [name.strip() for name in names.split(",") if name.strip()]
    if not listed:
        raise PolicyError("--policies names no policy; fifo,wfq,slo_aware, or all")
    for number, name in enumerate(listed):
        if name in listed[:number]:
            raise PolicyError(f"--policies: {name} is named twice; name it once")
    return listed


def policy_choices(names: str) -> list[PolicyChoice]:
    """Of ``--policies``. An option may follow a name: ``slo_aware:late=demote``. Raises PolicyError, also where one policy is
    named in two ways."""
    choices: list[PolicyChoice] = []
    for text in named_policies(names):
        name, *settings = text.split(":")
        options: dict[str, object] = {}
        for setting in settings:
            key, _, value = setting.partition("=")
            if key in options:
                raise PolicyError(f"--policies: {text} gives {key} twice; an option has one value")
            options[key] = _typed(value)
        build_policy(name, options, PolicyContext())
        same = next((each.label for each in choices if (each.policy, each.options) == (name, options)), None)
        if same is not None:
            raise PolicyError(f"--policies: {text} is {same} again; name one of them, or give it another option")
        choices.append(PolicyChoice(label=text, policy=name, options=options))
    return choices


def _typed(text: str) -> object:
    try:
        return float(text) if "." in text else int(text)
    except ValueError:
        return text


# -- a scenario ------------------------------------------------------------------------------------------------------


def known_server(plan: Plan) -> ServerModelSpec:
    """The server model of a plan. Raises SourceError for a real server of which none is known."""
    server = server_model_of(plan.backend)
    if server is None:
        raise SourceError(
            "this scenario names a real server and no server model: calibrate one (lmperf calibrate) and name it with "
            "--server-model FILE"
        )
    return server


def simulate_scenario(
    scenario: Scenario,
    choices: Sequence[PolicyChoice],
    seeds: int,
    *,
    processes: int | None = None,
    on_progress: OnProgress | None = None,
) -> ScenarioAnswer:
    """Baseline and raised load under every policy, over ``seeds`` replicates. Raises SourceError when the scenario has no
    server model, or no duration."""
    base = resolve_with_saturation(scenario, at=At.BASELINE)
    server = known_server(base)
    raised_plans = _raised_plans(scenario, base)
    if not raised_plans:
        raise SourceError(
            "no tenant of this scenario has a load that could be raised: give one a rate or a load (a closed loop has users)"
        )
    recipe = recipe_of(base)
    until_ns = arrivals_end_ns(base, source_of(recipe, base.seed, growth_of(base.tenants)))
    if until_ns is None:
        raise SourceError("a simulated experiment needs a duration: set duration_s")
    window = base.judged.window(until_ns)
    if isinstance(recipe, ReplayRecipe) and recipe.one_realisation:
        recipe = replace(recipe, notes=(*recipe.notes, ONE_REALISATION))
    loads = [Load(label=BASELINE, growth=growth_of(base.tenants))]
    for label, plan in raised_plans.items():
        loads.append(Load(label=label, growth=_relative_growth(base, plan), noisy=plan.noisy))
    experiment = Experiment(
        recipe=recipe,
        policies=choices,
        loads=loads,
        seeds=seeds_of(recipe, base.seed, seeds),
        server=server,
        slots=slots_of(base),
        auto=auto_of(base),
        backends=base.slots.own,
        routing=base.backend.routing,
        cost=base.cost,
        window_ns=(window.start_ns, window.end_ns),
        in_contract=next(iter(raised_plans.values())).in_contract,
        groups={planned.tenant.name: planned.group for planned in base.tenants},
    )
    cells = run_experiment(experiment, processes=processes, on_progress=on_progress)
    comparisons = []
    for label, plan in raised_plans.items():
        view = replace(experiment, in_contract=plan.in_contract)
        comparisons.append(Comparison(plan.noisy, judge_policies(view, cells, BASELINE, label), plan.in_contract))
    return ScenarioAnswer(base, server, experiment, cells, comparisons)


def _raised_plans(scenario: Scenario, base: Plan) -> dict[str, Plan]:
    """The raised load: of the scenario's noisy tenant, or of each tenant in turn."""
    if base.noisy or base.growth is Growth.ALL:
        return {RAISED: _at_saturation(scenario, base, None)}
    groups = dict.fromkeys(planned.group for planned in base.tenants if planned.offered is not None)
    return {f"{RAISED} by {group}": _at_saturation(scenario, base, group) for group in groups}


def _at_saturation(scenario: Scenario, base: Plan, noisy: str | None) -> Plan:
    if base.trace is not None:
        return resolve_with_saturation(scenario, at=At.RAISED, noisy=noisy)
    return resolve(scenario, saturation=base.saturation, at=At.RAISED, noisy=noisy)


def _relative_growth(base: Plan, raised: Plan) -> dict[str, float]:
    """What the recipe of ``base`` must be multiplied by to offer the loads of ``raised``."""
    growth = {}
    for before, after in zip(base.tenants, raised.tenants, strict=True):
        name = before.tenant.name
        if base.trace is not None:
            growth[name] = after.growth
        elif before.offered and after.offered:
            growth[name] = after.offered / before.offered
    return {name: k for name, k in growth.items() if abs(k - 1.0) > 1e-9}


# -- a captured trace ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TraceAnswer:
    """``fit``: None when a server model was given. ``reproduction``: the captured run against its own simulation.
    ``as_captured``: every policy on the captured arrivals. ``comparisons``: baseline against raised loads, derived; in a
    what-if the trace against each alternative, and ``unchanged`` the trace itself as if it were one. ``underived``: why there
    are none, where the trace has no rate. ``interrupted``: some of these are missing."""

    captured: CapturedRun
    server: ServerModelSpec
    fit: Fitted | None
    measured: Recorder
    reproduction: list[FidelityRow]
    reproduced: Recorder
    as_captured: dict[str, Recorder]
    saturation: float | None = None
    comparisons: list[Comparison] = field(default_factory=list)
    unchanged: Comparison | None = None
    underived: str = ""
    interrupted: bool = False


def replay_policies(
    captured: CapturedRun,
    server: ServerModelSpec,
    fit: Fitted | None,
    choices: Sequence[PolicyChoice],
    *,
    scratch: Path | None = None,
    on_stage: Callable[[str], None] = lambda _: None,
) -> TraceAnswer:
    """Reproduce the captured run, and replay its arrivals under every policy. ``scratch``: the folder whose disk holds
    the rows of the runs meanwhile; None: memory does. An interrupt after the reproduction keeps what is finished."""

    def replayed(choice: PolicyChoice) -> Recorder:
        return record_cell(replace(as_captured(captured, server, choice), scratch=scratch))

    on_stage("reproducing the captured run")
    measured = record_trace(captured.trace, captured.tenants, scratch=scratch)
    reproduced = replayed(captured.policy)
    on_stage("replaying it under every policy")
    under: dict[str, Recorder] = {}
    interrupted = False
    try:
        for choice in choices:
            under[choice.label] = replayed(choice)
    except KeyboardInterrupt:
        interrupted = True
    return TraceAnswer(
        captured=captured,
        server=server,
        fit=fit,
        measured=measured,
        reproduction=fidelity(measured, reproduced),
        reproduced=reproduced,
        as_captured=under,
        interrupted=interrupted,
    )


def simulate_trace(
    answer: TraceAnswer,
    choices: Sequence[PolicyChoice],
    *,
    processes: int | None = None,
    scratch: Path | None = None,
    on_progress: OnProgress | None = None,
) -> TraceAnswer:
    """The answer with baseline and raised loads derived from the trace (docs/definitions.md, "Growing a trace").
    ``scratch``: as in :func:`replay_policies`. An interrupt keeps the raised loads that are finished. A burst has no load
    that could be scaled."""
    captured, server = answer.captured, answer.server
    if not captured.has_rate:
        return replace(answer, underived=f"no loads are derived: {NO_RATE}")
    recorded = replace(captured.recipe, recorded=True)
    comparisons: list[Comparison] = []
    rate = answer.saturation
    try:
        rate = saturation_of_servers(recorded, server, captured.all_slots, captured.cost)
        for noisy in _growers(captured):
            found = _derived(
                captured, server, choices, rate, noisy, processes=processes, scratch=scratch, on_progress=on_progress
            )
            comparisons.append(found)
    except KeyboardInterrupt:
        return replace(answer, saturation=rate, comparisons=comparisons, interrupted=True)
    return replace(answer, saturation=rate, comparisons=comparisons)


def as_captured(captured: CapturedRun, server: ServerModelSpec, choice: PolicyChoice) -> CellJob:
    return CellJob(
        policy=choice.policy,
        options=choice.options,
        policy_label=choice.label,
        load="as captured",
        seed=0,
        recipe=captured.recipe,
        server=server,
        slots=choice.slots or captured.slots,
        auto=choice.auto or (captured.auto if choice.slots is None else None),
        backends={name: choice.slots or slots for name, slots in captured.backends.items()},
        routing=captured.routing,
        cost=captured.cost,
        window_ns=captured.window_ns,
    )


def _growers(captured: CapturedRun) -> list[tuple[str, ...]]:
    """Whose load grows: the scenario's noisy tenant, else each in turn; a trace of one tenant grows as a whole."""
    names = [tenant.name for tenant in captured.tenants]
    if len(names) == 1:
        return [tuple(names)]
    return [captured.noisy] if captured.noisy else [(name,) for name in names]


def _derived(
    captured: CapturedRun,
    server: ServerModelSpec,
    choices: Sequence[PolicyChoice],
    saturation: float,
    noisy: tuple[str, ...],
    *,
    processes: int | None,
    scratch: Path | None,
    on_progress: OnProgress | None,
) -> Comparison:
    """All tenants scaled alike to the baseline, then the noisy one up to the raised load; rows are cycled to fill."""
    offered = offered_cost(captured)
    total = sum(offered.values())
    scale = BASELINE_OF_SATURATION * saturation / total
    extra = (RAISED_OVER_BASELINE - 1) * total
    grow = 1 + extra / sum(offered[name] for name in noisy)
    baseline = dict.fromkeys(offered, scale)
    raised = {name: scale * (grow if name in noisy else 1.0) for name in offered}
    recipe = replace(captured.recipe, recorded=True)
    names = tuple(offered)
    experiment = Experiment(
        recipe=recipe,
        policies=choices,
        loads=[Load(label=BASELINE, growth=baseline), Load(label=RAISED, growth=raised, noisy=noisy)],
        seeds=(0,),
        server=server,
        slots=captured.slots,
        auto=captured.auto,
        backends=captured.backends,
        routing=captured.routing,
        cost=captured.cost,
        window_ns=captured.window_ns,
        in_contract=names if len(noisy) == len(names) else tuple(name for name in names if name not in noisy),
        scratch=scratch,
    )
    cells = run_experiment(experiment, processes=processes, on_progress=on_progress)
    if cells.interrupted:
        raise KeyboardInterrupt
    return Comparison(noisy, judge_policies(experiment, cells, BASELINE, RAISED), experiment.in_contract)


def offered_cost(captured: CapturedRun) -> dict[str, float]:
    """Cost units/s of each tenant's rows, from the first instant of the run to the last arrival."""
    rows = captured.recipe.rows
    assert rows.tenant is not None, "a captured run names its tenants"
    costs = captured.cost.prompt_weight * rows.prompt_tokens + captured.cost.output_weight * rows.output_tokens
    span_ns = int(rows.arrival_ns.max())
    sums = np.bincount(rows.tenant, costs, minlength=len(captured.tenants)) * 1e9 / span_ns
    return {tenant.name: float(sums[i]) for i, tenant in enumerate(captured.tenants)}
