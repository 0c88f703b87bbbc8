"""What ``lmperf simulate`` leaves in its folder, and ``lmperf compare`` of such folders: the comparison as data, and, where
anything is compared, as a page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from lmperf.cli.output import again
from lmperf.wiring import offline
from lmperf.wiring.comparison_file import (
    ComparisonFile,
    OneComparison,
    SimulatedSource,
    server_digest,
    trace_source,
    write_comparison_file,
)
from lmperf.wiring.offline import ScenarioAnswer, TraceAnswer
from loadgen.offline.verdicts import verdicts_of_run
from loadgen.report.alternatives import AS_CAPTURED
from loadgen.report.comparison import Comparison, FidelityTable
from loadgen.report.render import COMPARISON_HTML, write_comparison
from loadgen.report.render_alternatives import write_alternatives
from tenants.tenant import Tenant

BASELINE_LOAD = "the baseline load"


def write_scenario_answer(directory: Path, answer: ScenarioAnswer, *, command: Sequence[str], seeds: int) -> None:
    """``seeds``: how many were asked for."""
    targets, notes = _targets(answer.experiment.recipe.tenants), answer.experiment.recipe.notes
    write_comparison_file(
        directory,
        ComparisonFile(
            source=SimulatedSource(kind="scenario", name=answer.plan.name, seeds=seeds),
            server_model=answer.server.name,
            server_digest=server_digest(answer.server),
            interrupted=answer.cells.interrupted,
            targets=targets,
            comparisons=tuple(OneComparison.of(each) for each in answer.comparisons),
            routing=answer.plan.routed,
            notes=notes,
        ),
    )
    if answer.comparisons:
        first, *others = (_shown(each, targets, notes=notes) for each in answer.comparisons)
        write_comparison(directory / COMPARISON_HTML, first, others=others, command=again(command))


def write_trace_answer(
    directory: Path,
    answer: TraceAnswer,
    *,
    command: Sequence[str],
    difference: str | None,
    routed: Mapping[str, str],
    notes: Sequence[str],
) -> None:
    """``difference``: the one difference in words, where there is one alone; ``routed``: between which servers, by the name
    of the comparison, empty for derived loads; ``notes``: what makes it doubtful."""
    captured = answer.captured
    several = answer.unchanged is not None and difference is None
    targets = _targets(captured.tenants)
    write_comparison_file(
        directory,
        ComparisonFile(
            source=trace_source(captured),
            server_model=answer.server.name,
            server_digest=server_digest(answer.server),
            interrupted=answer.interrupted,
            targets=targets,
            comparisons=tuple(
                OneComparison.of(each, routed.get(each.name, "") if several else "") for each in answer.comparisons
            ),
            as_captured=None if answer.unchanged is None else OneComparison.of(answer.unchanged),
            replayed={label: verdicts_of_run(recorder) for label, recorder in answer.as_captured.items()},
            what_if=difference or "",
            routing="" if several else next(iter(routed.values()), ""),
            notes=tuple(notes),
        ),
    )
    fidelity = FidelityTable(rows=answer.reproduction, arrivals=captured.arrivals)
    if several and answer.unchanged is not None and answer.unchanged.verdicts:
        unchanged, *alternatives = shown_alternatives(answer)
        write_alternatives(
            directory / COMPARISON_HTML,
            unchanged,
            alternatives,
            notes=notes,
            fidelity=fidelity,
            command=again(command),
        )
    elif answer.comparisons:
        first, *others = (_shown(each, targets, fidelity, difference, notes) for each in answer.comparisons)
        write_comparison(directory / COMPARISON_HTML, first, others=others, command=again(command))


def write_compared(
    directory: Path,
    found: ComparisonFile,
    shown: Sequence[Comparison],
    *,
    answer: str,
    against: str,
    command: Sequence[str],
) -> None:
    """Folders side by side. ``shown``: what ``found`` holds, the trace as captured first where it holds that; ``answer``: what
    it says, in words; ``against``: what decay is against."""
    write_comparison_file(directory, found)
    unchanged = None if found.as_captured is None else shown[0]
    write_alternatives(
        directory / COMPARISON_HTML,
        unchanged,
        shown if unchanged is None else shown[1:],
        notes=found.notes,
        command=again(command),
        answer=answer,
        against=against,
    )


def shown_alternatives(answer: TraceAnswer) -> list[Comparison]:
    """The trace as captured, then each alternative, as a report shows them."""
    targets = _targets(answer.captured.tenants)
    found = [*([] if answer.unchanged is None else [answer.unchanged]), *answer.comparisons]
    return [alternative_of(OneComparison.of(each), targets) for each in found]


def alternative_of(found: OneComparison, targets: Mapping[str, float], name: str | None = None) -> Comparison:
    """One of several, as a report shows it; ``name``: if not its own."""
    own = found.alternative if name is None else name
    shown = replace(_comparison(found, targets, own), name=own)
    return shown if found.alternative else replace(shown, baseline=BASELINE_LOAD)


def _shown(
    found: offline.Comparison,
    targets: Mapping[str, float],
    fidelity: FidelityTable | None = None,
    difference: str | None = None,
    notes: Sequence[str] = (),
) -> Comparison:
    what_if = None if difference is None else f"what if ({difference})"
    return replace(_comparison(OneComparison.of(found), targets, what_if), notes=notes, fidelity=fidelity)


def _comparison(found: OneComparison, targets: Mapping[str, float], difference: str | None) -> Comparison:
    """``difference``: what the trace has, in words; None where a raised load stands against a baseline."""
    return Comparison(
        verdicts=found.policies,
        targets=targets,
        noisy=found.noisy,
        in_contract=found.in_contract,
        removed=found.removed,
        difference=difference is not None,
        baseline=BASELINE_LOAD if difference is None else AS_CAPTURED,
        raised="the raised load" if difference is None else difference,
    )


def _targets(tenants: Sequence[Tenant]) -> dict[str, float]:
    return {t.name: t.slo.attainment for t in tenants if t.slo.attainment is not None}
