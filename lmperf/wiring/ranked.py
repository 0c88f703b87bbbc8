"""Whether a calibrated model ranks policies as they were measured: captures of one load under several, each simulated under
its own policy by a law that never saw it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

import msgspec

from lmperf.wiring.captured import CapturedRun, any_trace, captured_run
from lmperf.wiring.header import run_names
from lmperf.wiring.offline import as_captured, offered_cost
from loadgen.offline.cell import record_cell
from loadgen.recorder import Recorder, record_trace
from loadgen.trace.errors import TraceError
from scheduler.calibration.calibrate import HeldOut
from scheduler.server_model.spec import ServerModelSpec, StepLaw
from tenants.measures.attainment import attainment
from tenants.slo import Metric

SAME_LOAD = 0.05
"""By how much of itself the cost that a tenant sends a second may differ between captures of one load."""

MOST_REQUESTS = 100_000
"""Of all captures that are simulated: some ten seconds."""

ATTAINED, TTFT_P99 = "worst tenant attainment", "TTFT P99"
ALIKE = {ATTAINED: 0.01, TTFT_P99: 0.05}
"""What measured policies must differ by to be ranked: a point of attainment, 5% of a TTFT."""

Figures = dict[str, float]


@dataclass(frozen=True, slots=True)
class RankedPolicy:
    """Figures by name (attainment: 0 to 1; TTFT: ns from the intended arrival, inf where it was never reached)."""

    policy: str
    captured: Figures
    simulated: Figures


@dataclass(frozen=True, slots=True)
class Ranking:
    """``loads``: of each load that was captured under two policies or more, these. ``not_told``: why there is none."""

    loads: tuple[tuple[RankedPolicy, ...], ...] = ()
    not_told: str = ""

    def pairs(self, figure: str) -> tuple[int, int]:
        """Of the pairs of policies that differ as measured, how many differ the same way as simulated, and how many there
        are."""
        ranked = total = 0
        for load in self.loads:
            for one, other in combinations(load, 2):
                before, after = one.captured.get(figure, math.nan), other.captured.get(figure, math.nan)
                if math.isnan(before - after) or not _differ(figure, before, after):
                    continue
                total += 1
                ranked += (after > before) == (other.simulated[figure] > one.simulated[figure])
        return ranked, total

    def as_data(self) -> dict[str, object]:
        """What the server-model file keeps of it."""
        if self.not_told:
            return {"not_told": self.not_told}
        pairs = {figure: dict(zip(("as_measured", "pairs"), self.pairs(figure), strict=True)) for figure in ALIKE}
        return {"loads": msgspec.to_builtins(self.loads), **pairs}


def _differ(figure: str, before: float, after: float) -> bool:
    unit = 1.0 if figure == ATTAINED else min(before, after)
    return abs(after - before) > ALIKE[figure] * unit


def rank_policies(paths: Sequence[Path | str], spec: ServerModelSpec, held_out: Sequence[HeldOut]) -> Ranking:
    """Of the captures at ``paths``; ``held_out``: the law of each that never saw it, by the capture's name."""
    held_laws = {held.capture: held.law for held in held_out}
    try:
        traces = [any_trace(path) for path in paths]
        called = dict(zip((trace.path for trace in traces), run_names([trace.path for trace in traces]), strict=True))
        runs = [
            captured_run(path, recorded=False)
            for path, trace in zip(paths, traces, strict=True)
            if trace.metadata.policy is not None
        ]
    except TraceError as error:
        return Ranking(not_told=str(error))
    policies = {run.policy.label for run in runs}
    if len(policies) < 2:
        whose = f"all are of one policy ({', '.join(policies)})" if policies else "no capture says its policy"
        return Ranking(not_told=f"{whose}; give runs of one load under several")
    groups = [group for group in _by_load(runs) if len({_label(run, group) for run in group}) > 1]
    if not groups:
        return Ranking(
            not_told="no two policies are of one load (the same tenants and promises, each as busy within 5%)"
        )
    laws = {path: held_laws[name] for path, name in called.items() if name in held_laws}
    if not all(run.trace.path in laws for group in groups for run in group):
        return Ranking(not_told="a capture of several policies could not be held out")
    if sum(len(run.trace) for group in groups for run in group) > MOST_REQUESTS:
        return Ranking(
            not_told=f"the captures have more than {MOST_REQUESTS:,} requests, which would take long to simulate"
        )
    return Ranking(tuple(_ranked(group, spec, laws) for group in groups))


def _by_load(runs: Sequence[CapturedRun]) -> list[list[CapturedRun]]:
    groups: list[list[CapturedRun]] = []
    for run in runs:
        for group in groups:
            if _same_load(run, group[0]):
                group.append(run)
                break
        else:
            groups.append([run])
    return groups


def _same_load(one: CapturedRun, other: CapturedRun) -> bool:
    promised = {tenant.name: tenant.slo for tenant in one.tenants}
    if promised != {tenant.name: tenant.slo for tenant in other.tenants}:
        return False
    before, after = offered_cost(one), offered_cost(other)
    return all(abs(after[name] - before[name]) <= SAME_LOAD * max(before[name], after[name]) for name in before)


def _label(run: CapturedRun, group: Sequence[CapturedRun]) -> str:
    """The policy with its options; with its slots too where those of the group differ."""
    options = "".join(f":{key}={value}" for key, value in sorted(run.policy.options.items()))
    if all(each.slots == run.slots for each in group):
        return run.policy.label + options
    slots = ", ".join(
        "unlimited" if each is None else str(each) for each in (run.slots.sequences, run.slots.prefill_tokens)
    )
    return f"{run.policy.label}{options} (slots {slots})"


def _ranked(
    group: Sequence[CapturedRun], spec: ServerModelSpec, laws: Mapping[Path, StepLaw]
) -> tuple[RankedPolicy, ...]:
    captured: dict[str, list[Figures]] = {}
    simulated: dict[str, list[Figures]] = {}
    for run in group:
        server = msgspec.structs.replace(spec, law=laws[run.trace.path])
        label = _label(run, group)
        captured.setdefault(label, []).append(_figures(record_trace(run.trace, run.tenants)))
        simulated.setdefault(label, []).append(_figures(record_cell(as_captured(run, server, run.policy))))
    return tuple(RankedPolicy(label, _mean(captured[label]), _mean(simulated[label])) for label in captured)


def _figures(recorder: Recorder) -> Figures:
    columns = recorder.columns().judged()
    promised = [tenant for tenant in recorder.tenants if tenant.slo.has_limits]
    shares = [attainment(columns.of(tenant.name), tenant.slo).share for tenant in promised]
    known = [share for share in shares if share is not None]
    tail = recorder.histogram(Metric.TTFT, None).percentile(99.0)
    found = {TTFT_P99: math.inf if tail.never or tail.value_ns is None else float(tail.value_ns)}
    return found | ({ATTAINED: min(known)} if known else {})


def _mean(found: Sequence[Figures]) -> Figures:
    """Over the runs of one policy."""
    return {name: sum(one[name] for one in found) / len(found) for name in found[0]}
