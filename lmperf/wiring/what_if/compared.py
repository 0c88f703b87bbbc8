"""The trace as captured and its alternatives, simulated under every policy, each alternative against the trace itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from pathlib import Path

import msgspec
import numpy as np

from lmperf.wiring.captured import CapturedRun
from lmperf.wiring.offline import Comparison, as_captured
from lmperf.wiring.what_if.alternatives import UNCHANGED, Alternative
from lmperf.wiring.what_if.applied import Changed, apply, multiplied
from lmperf.wiring.what_if.settings import WhatIf
from loadgen.offline.cell import CellResult, ReplayRecipe, TenantFigures, tenant_figures
from loadgen.offline.experiment import BASELINE, RAISED, Cells, Experiment, Load, OnProgress, PolicyChoice
from loadgen.offline.replicas import ReplicatedJob, run_replicated
from loadgen.offline.verdicts import judge_policies
from loadgen.offline.workers import Workers
from scheduler.server_model.spec import ServerModelSpec
from tenants.measures.columns import Columns
from tenants.tenant import Tenant


@dataclass(frozen=True, slots=True)
class Answered:
    """``unchanged``: the trace itself, as if it were an alternative. ``comparisons``: each alternative against it, in the
    order asked for; both hold only policies that were simulated at both. ``interrupted``: only ``done`` of ``planned`` runs
    were."""

    unchanged: Comparison
    comparisons: list[Comparison]
    done: int
    planned: int

    @property
    def interrupted(self) -> bool:
        return self.done < self.planned


def compare(
    alternatives: Sequence[Alternative],
    captured: CapturedRun,
    server: ServerModelSpec,
    choices: Sequence[PolicyChoice],
    *,
    processes: int | None = None,
    scratch: Path | None = None,
    on_progress: OnProgress | None = None,
) -> Answered:
    """Simulate the trace as captured once, and each alternative, under every policy. ``scratch``: as in a job. An interrupt
    keeps what is finished; runs are made alternative by alternative, so that whole ones are."""
    everything = [Alternative(UNCHANGED, WhatIf(settings=())), *alternatives]
    before = played(alternatives, captured)
    changes = [apply(each.what_if, before, server) for each in everything]
    keys = [(number, choice.label) for number in range(len(everything)) for choice in choices]
    jobs = [
        _job(each.what_if, changed, choice, scratch)
        for each, changed in zip(everything, changes, strict=True)
        for choice in choices
    ]
    results: dict[tuple[int, str], CellResult] = {}
    with suppress(KeyboardInterrupt), Workers(processes) as workers:
        for index, result in workers.results(run_replicated, jobs):
            results[keys[index]] = result
            if on_progress is not None:
                on_progress(len(results), len(jobs))

    def of(number: int) -> dict[str, CellResult]:
        return {label: result for (at, label), result in results.items() if at == number}

    unchanged, *others = (
        _comparison(each, changed, captured, choices, of(0), of(number))
        for number, (each, changed) in enumerate(zip(everything, changes, strict=True))
    )
    return Answered(unchanged, others, len(results), len(jobs))


def played(alternatives: Sequence[Alternative], captured: CapturedRun) -> CapturedRun:
    """The captured run as all of them play it: at recorded times where any of them must, so that they stay comparable."""
    if not any(multiplied(each.what_if, captured) for each in alternatives):
        return captured
    return replace(captured, recipe=replace(captured.recipe, recorded=True))


def _job(what_if: WhatIf, changed: Changed, choice: PolicyChoice, scratch: Path | None) -> ReplicatedJob:
    cell = as_captured(changed.captured, changed.server, choice)
    slots = cell.slots if choice.slots is None else msgspec.structs.replace(choice.slots, **what_if.slots)
    cell = replace(cell, load=RAISED, growth=changed.growth, slots=slots, scratch=scratch)
    return ReplicatedJob(cell=cell, replicas=changed.replicas)


def _comparison(
    alternative: Alternative,
    changed: Changed,
    captured: CapturedRun,
    choices: Sequence[PolicyChoice],
    before: Mapping[str, CellResult],
    after: Mapping[str, CellResult],
) -> Comparison:
    """``before``, ``after``: by the label of the policy."""
    tenants = {t.name: t for t in (*captured.tenants, *changed.captured.tenants)}
    window_s = (captured.window_ns[1] - captured.window_ns[0]) / 1e9
    cells = {
        (label, load, 0): _with_absent(result, tenants, window_s)
        for load, side in ((BASELINE, before), (RAISED, after))
        for label, result in side.items()
    }
    noisy = alternative.what_if.grown(tuple(tenants))
    there = tuple(tenant.name for tenant in changed.captured.tenants)
    experiment = Experiment(
        recipe=_named(captured.recipe, tuple(tenants.values())),
        policies=choices,
        loads=[Load(label=BASELINE), Load(label=RAISED, growth=changed.growth, noisy=noisy)],
        seeds=(0,),
        server=changed.server,
        slots=changed.captured.slots,
        cost=captured.cost,
        window_ns=captured.window_ns,
        in_contract=tuple(name for name in there if name not in noisy) or there,
    )
    return Comparison(
        noisy,
        judge_policies(experiment, Cells(cells), BASELINE, RAISED),
        experiment.in_contract,
        removed=tuple(name for name in tenants if name not in there),
        name=alternative.name,
        settings=alternative.what_if.settings,
    )


def _named(recipe: ReplayRecipe, tenants: tuple[Tenant, ...]) -> ReplayRecipe:
    """The recipe with the tenants of both sides; only their names are read."""
    return replace(recipe, tenants=tenants)


def _with_absent(result: CellResult, tenants: Mapping[str, Tenant], window_s: float) -> CellResult:
    """A tenant that one side does not have, as one without requests, so that both sides have the same rows."""
    return replace(
        result,
        tenants={name: result.tenants.get(name) or _absent(tenant, window_s) for name, tenant in tenants.items()},
    )


def _absent(tenant: Tenant, window_s: float) -> TenantFigures:
    none = np.zeros(0, dtype=np.int64)
    columns = Columns(
        tenants=(tenant.name,),
        tenant=np.zeros(0, dtype=np.int32),
        status=np.zeros(0, dtype=np.int8),
        in_window=np.zeros(0, dtype=np.bool_),
        **{
            each.name: none for each in fields(Columns) if each.name not in ("tenants", "tenant", "status", "in_window")
        },
    )
    return tenant_figures(columns, tenant, window_s)
