"""``lmperf simulate TRACE``: reproduced, then compared under derived loads, or with what is different in a what-if."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from rich.console import Console

from lmperf.cli.alternatives_text import print_alternatives
from lmperf.cli.comparison_output import shown_alternatives, write_trace_answer
from lmperf.cli.comparison_text import print_as_captured, print_reproduction, print_verdicts
from lmperf.cli.counting import counted
from lmperf.console import Progress
from lmperf.scenario.faults import Fault, ScenarioError
from lmperf.wiring.captured import CapturedRun, captured_run, server_for
from lmperf.wiring.doubts import NothingRunsError, doubts_of
from lmperf.wiring.offline import TraceAnswer, replay_policies, simulate_trace
from lmperf.wiring.what_if.alternatives import UNCHANGED, Alternative, parse_alternatives
from lmperf.wiring.what_if.applied import Changed, apply
from lmperf.wiring.what_if.compared import compare, played
from loadgen.offline.experiment import PolicyChoice
from loadgen.report.alternatives import answer_of_alternatives
from loadgen.summary.files import read_summary
from loadgen.summary.target import target_failed
from scheduler.server_model.spec import ServerModelSpec, encode_server_model

Work = Callable[[Progress, Console, Path], None]
"""What is left to do once the input has been read: simulate, say, and write into a folder."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What a comparison of a trace is about. ``alternatives``: none (derived loads), one difference, or several side by side,
    which all have ``common`` settings; ``routed``: by name, between which servers, where there are several; ``notes``: what
    makes the comparison doubtful."""

    alternatives: Sequence[Alternative] = ()
    common: Sequence[str] = ()
    several: bool = False
    routed: dict[str, str] = field(default_factory=dict)
    notes: Sequence[str] = ()

    @property
    def difference(self) -> str | None:
        """The one difference in words; None where there is none, or several."""
        return self.alternatives[0].name if self.alternatives and not self.several else None


def trace_work(args: argparse.Namespace, choices: Sequence[PolicyChoice]) -> Work:
    """Reads the trace at once. Raises ScenarioError, TraceError and what else makes it of no use."""
    progress = Progress(quiet=args.quiet)
    progress.stage(f"reading {args.source}")
    captured = captured_run(args.source, recorded=args.arrivals == "recorded")
    alternatives = parse_alternatives(args.settings, args.vary, args.alternatives, captured)
    if args.server_model is None:
        progress.stage("fitting a server model to it")
    server, fit = server_for(captured, args.server_model)
    asked = _asked(args, alternatives, captured, server, choices)

    def work(progress: Progress, console: Console, directory: Path) -> None:
        progress.stage(f"{args.source}: {len(captured.trace)} requests of {len(captured.tenants)} tenants")
        for reason in _doubts(Path(args.source)):
            console.print(reason, soft_wrap=True)
        if fit is not None:
            (directory / "server-model.json").write_bytes(encode_server_model(server))
            for warning in fit.warnings:
                console.print(f"calibration: {warning}", soft_wrap=True)
        scratch = directory.absolute()
        answer = replay_policies(captured, server, fit, choices, scratch=scratch, on_stage=progress.stage)
        on_progress = counted(progress, "simulated runs")
        told = "what is not above was not simulated to its end"
        if alternatives and not answer.interrupted:
            progress.stage(f"what if: {_stage(alternatives)}")
            found = compare(
                alternatives,
                captured,
                server,
                choices,
                processes=args.processes,
                scratch=scratch,
                on_progress=on_progress,
            )
            comparisons = [each for each in found.comparisons if each.verdicts]
            answer = replace(answer, comparisons=comparisons, unchanged=found.unchanged, interrupted=found.interrupted)
            told = f"{found.done} of {found.planned} simulated runs; {told}"
        elif not answer.interrupted:
            progress.stage("deriving baseline and raised loads")
            answer = simulate_trace(answer, choices, processes=args.processes, scratch=scratch, on_progress=on_progress)
        progress.done()
        about = replace(asked, notes=[*asked.notes, answer.underived]) if answer.underived else asked
        # Written first: whoever reads the tables may close the pipe.
        write_trace_answer(
            directory,
            answer,
            command=args.argv,
            difference=about.difference,
            routed=about.routed,
            notes=about.notes,
        )
        say_trace(console, answer, about)
        if answer.interrupted:
            console.print(f"interrupted: {told}", soft_wrap=True)
            raise KeyboardInterrupt

    return work


def _stage(alternatives: Sequence[Alternative]) -> str:
    return alternatives[0].name if len(alternatives) == 1 else f"{len(alternatives)} alternatives"


def _asked(
    args: argparse.Namespace,
    alternatives: Sequence[Alternative],
    captured: CapturedRun,
    server: ServerModelSpec,
    choices: Sequence[PolicyChoice],
) -> Asked:
    """Raises ScenarioError for limits that no server can have, and where no request can ever run."""
    several = bool(args.vary or args.alternatives)
    routed: dict[str, str] = {}
    notes: dict[str, list[str]] = {}
    if not alternatives:
        sides = [("", captured, server, captured.routed)]
    else:
        changes = zip(alternatives, _applied(alternatives, captured, server), strict=True)
        sides = [(each.name, changed.captured, changed.server, changed.routed) for each, changed in changes]
    for name, of, model, servers in sides:
        try:
            for note in doubts_of(of, model, choices):
                notes.setdefault(note, []).append(name)
        except NothingRunsError as error:
            remedy = "a server model, or server.kv_tokens, that holds them"
            where = f"what if ({name})" if name else args.source
            raise ScenarioError.single(where, f"no request can run: {error}", remedy) from error
        routed[name] = servers
    said = [
        f"{', '.join(names)}: {note}" if several and len(names) < len(alternatives) else note
        for note, names in notes.items()
    ]
    if several and played(alternatives, captured) is not captured:
        said.append(
            "requests that came because another ended are played at their recorded times in all of this, since at least one "
            "alternative multiplies them"
        )
    return Asked(alternatives=alternatives, common=args.settings, several=several, routed=routed, notes=said)


def _applied(alternatives: Sequence[Alternative], captured: CapturedRun, server: ServerModelSpec) -> list[Changed]:
    """Raises ScenarioError with the faults of all, each at the flag that gave it."""
    changes: list[Changed] = []
    faults: list[Fault] = []
    for each in alternatives:
        try:
            changes.append(apply(each.what_if, captured, server))
        except ScenarioError as error:
            faults.extend(each.placed(error.faults))
    if faults:
        raise ScenarioError(faults)
    return changes


def _doubts(folder: Path) -> list[str]:
    """Why the run of a folder must not be believed, or is hard to reproduce, as its summary says; nothing for a bare trace."""
    if not (folder / "summary.json").is_file():
        return []
    summary = read_summary(folder)
    found = [f"the captured run was INVALID: {reason}" for reason in summary.validity.reasons]
    failed = target_failed(summary)
    if failed is not None:
        found.append(f"of the captured run: {failed}; a simulation serves them, so its errors below hold that too")
    return found


def say_trace(console: Console, answer: TraceAnswer, asked: Asked) -> None:
    """The whole answer in the terminal."""
    law = answer.server.law
    source = "as named" if answer.fit is None else f"fitted to this trace, {answer.fit.how}"
    attended = f" + {law.attended_us * 1000:.2f} ns/attended pair" if law.attended_us else ""
    console.print(
        f"server model {answer.server.name} ({source}): step = {law.a_us:,.0f} us + {law.b_us:.2f} us/prefilled token + "
        f"{law.c_us:.2f} us/sequence + {law.d_us:.4f} us/KV token{attended}, offset {law.offset_us / 1000:.1f} ms",
        soft_wrap=True,
    )
    print_reproduction(console, answer.reproduction, answer.captured.arrivals)
    print_as_captured(console, answer.as_captured)
    for note in asked.notes:
        console.print(f"note: {note}", soft_wrap=True)
    if not answer.comparisons:
        return
    if asked.several:
        _say_alternatives(console, answer, asked)
        return
    routed = next(iter(asked.routed.values()), "")
    if asked.difference is not None:
        console.print(
            f"what if ({asked.difference}): below, the baseline is the trace as captured and the raised load is that "
            f"difference{routed and f' ({routed})'}; one realisation (no intervals)",
            soft_wrap=True,
        )
        for comparison in answer.comparisons:
            print_verdicts(
                console,
                comparison.verdicts,
                comparison.noisy,
                loads=f"as captured against {asked.difference}",
                nobody="no tenant's load",
            )
        return
    console.print(
        f"derived loads: baseline 0.75 of saturation ({answer.saturation or 0:,.0f} cost units/s at these slots), raised 1.2 "
        f"times that{routed and f'; {routed}'}; arrivals of the trace scaled, one realisation (no intervals)",
        soft_wrap=True,
    )
    for comparison in answer.comparisons:
        print_verdicts(console, comparison.verdicts, comparison.noisy, loads="derived baseline against raised load")


def _say_alternatives(console: Console, answer: TraceAnswer, asked: Asked) -> None:
    one = len(asked.alternatives) == 1
    number = "1 alternative" if one else f"{len(asked.alternatives)} alternatives"
    common = f"; {'it has' if one else 'all have'} {', '.join(asked.common)}" if asked.common else ""
    console.print(
        f"what if: {number} beside the trace as captured{common}; one realisation (no intervals)",
        soft_wrap=True,
    )
    for each in asked.alternatives:
        own = each.what_if.settings[len(asked.common) :]
        named = not all(setting in each.name for setting in own)
        what = "; ".join(part for part in (", ".join(own) if named else "", asked.routed.get(each.name)) if part)
        if what:
            console.print(f"  {each.name}: {what}", soft_wrap=True)
    shown = shown_alternatives(answer)
    print_alternatives(console, shown, answer=answer_of_alternatives(shown, unchanged=UNCHANGED))
    console.print("each alternative in full, every policy and tenant against the trace: in the report", soft_wrap=True)
