"""``lmperf simulate``: a captured trace, or a scenario over seeds, under several policies."""

from __future__ import annotations

import argparse
import shlex
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import msgspec
from rich.console import Console

from lmperf.cli.comparison_text import print_as_captured, print_reproduction, print_verdicts
from lmperf.cli.output import output_folder, results_folder
from lmperf.cli.scenarios import named_scenario
from lmperf.console import Progress, results_console
from lmperf.exit_codes import ExitCode
from lmperf.scenario.faults import ScenarioError
from lmperf.scenario.resolve import resolve
from lmperf.scenario.secrets import redact_argv
from lmperf.wiring.captured import captured_run, is_trace, server_for
from lmperf.wiring.doubts import NothingRunsError, doubts_of
from lmperf.wiring.offline import (
    ScenarioAnswer,
    TraceAnswer,
    known_server,
    policy_choices,
    replay_policies,
    simulate_scenario,
    simulate_trace,
)
from lmperf.wiring.what_if import apply, compare, parse_what_if
from loadgen.offline.experiment import OnProgress, PolicyChoice
from loadgen.report.comparison import Comparison, FidelityTable
from loadgen.report.render import write_comparison
from loadgen.summary.files import read_summary
from scheduler.server_model.spec import encode_server_model

DEFAULT_SEEDS = 20

Work = Callable[[Progress, Console, Path], None]
"""What is left to do once the input has been read: simulate, say, and write into a folder."""


def run(args: argparse.Namespace) -> ExitCode:
    if args.suite is not None:
        from lmperf.cli.suite_command import run_suite_command  # noqa: PLC0415 (only with the flag)

        return run_suite_command(args)
    if args.source is None:
        raise ScenarioError.single(
            "<flags>", "neither a source nor a suite is named", "name a run folder or a scenario"
        )
    choices = policy_choices(args.policies)
    if not choices:
        raise ScenarioError.single("<flags>", "--policies names no policy", "fifo,wfq,slo_aware, or all")
    if args.seeds is not None and args.seeds < 1:
        raise ScenarioError.single("<flags>", f"--seeds is {args.seeds}", "at least 1")
    if is_trace(args.source) and (args.seeds is not None or args.seed is not None):
        raise ScenarioError.single(
            "<flags>", "--seed and --seeds change a scenario, and this is a trace: it has one realisation"
        )
    # Read before a folder is made: a file that cannot be used leaves nothing behind.
    work = _trace(args, choices) if is_trace(args.source) else _scenario(args, choices)
    name = Path(args.source).stem or "trace"
    console = results_console()
    with results_folder(output_folder(args, f"simulate-{name}"), args.argv) as directory:
        work(Progress(quiet=args.quiet), console, directory)
    console.print(f"written: {directory / 'comparison.html'}, {directory / 'comparison.json'}", soft_wrap=True)
    return ExitCode.OK


def _counted(progress: Progress, what: str) -> OnProgress:
    started = time.monotonic()
    return lambda done, total: progress.counting(what, done, total, started)


def _scenario(args: argparse.Namespace, choices: Sequence[PolicyChoice]) -> Work:
    scenario = named_scenario(args.source, args)
    # Any saturation will do to see whether there is a server model; the true one takes a simulation.
    known_server(resolve(scenario, saturation=scenario.model.load.saturation or 1.0))
    seeds = args.seeds or DEFAULT_SEEDS

    def work(progress: Progress, console: Console, directory: Path) -> None:
        progress.stage(f"{scenario.model.name}: {len(choices)} policies, baseline and raised load, {seeds} seeds")
        answer = simulate_scenario(
            scenario, choices, seeds, processes=args.processes, on_progress=_counted(progress, "simulated runs")
        )
        progress.done()
        cells = answer.cells
        # Interrupted before any policy had both loads, there is nothing to compare.
        answer = replace(answer, comparisons=[each for each in answer.comparisons if each.verdicts])
        if answer.comparisons:
            whole = len({seed for _, _, seed in cells.results}) if cells.interrupted else seeds
            _say_scenario(console, answer, whole)
        routed, interrupted = answer.plan.routed, cells.interrupted
        _write(directory, command=args.argv, answer=answer, routed=routed, interrupted=interrupted)
        if interrupted:
            done, planned = len(cells.results), len(list(answer.experiment.jobs()))
            what = "figures are of what was finished" if answer.comparisons else "too few to compare anything"
            console.print(f"interrupted: {done} of {planned} simulated runs; {what}", soft_wrap=True)
            raise KeyboardInterrupt

    return work


def _say_scenario(console: Console, answer: ScenarioAnswer, seeds: int) -> None:
    plan = answer.plan
    console.print(
        f"scenario {plan.name}, server model {answer.server.name}, saturation {plan.saturation or 0:,.0f} cost units/s, "
        f"{seeds} seeds{plan.routed and f'; {plan.routed}'}",
        soft_wrap=True,
    )
    for comparison in answer.comparisons:
        print_verdicts(console, comparison.verdicts, comparison.noisy, loads="baseline against raised load")


def _doubts(folder: Path) -> list[str]:
    """Why the run of a folder must not be believed, as its summary says; nothing for a bare trace."""
    if not (folder / "summary.json").is_file():
        return []
    return read_summary(folder).validity.reasons


def _trace(args: argparse.Namespace, choices: Sequence[PolicyChoice]) -> Work:
    progress = Progress(quiet=args.quiet)
    progress.stage(f"reading {args.source}")
    captured = captured_run(args.source, recorded=args.arrivals == "recorded")
    what_if = parse_what_if(args.settings, captured) if args.settings else None
    if args.server_model is None:
        progress.stage("fitting a server model to it")
    server, fit = server_for(captured, args.server_model)
    changed = None if what_if is None else apply(what_if, captured, server)
    routed = captured.routed if changed is None else changed.routed
    try:
        notes = doubts_of(*((captured, server) if changed is None else (changed.captured, changed.server)), choices)
    except NothingRunsError as error:
        remedy = "a server model, or server.kv_tokens, that holds them"
        where = args.source if what_if is None else f"what if ({what_if.text})"
        raise ScenarioError.single(where, f"no request can run: {error}", remedy) from error

    def work(progress: Progress, console: Console, directory: Path) -> None:
        progress.stage(f"{args.source}: {len(captured.trace)} requests of {len(captured.tenants)} tenants")
        for reason in _doubts(Path(args.source)):
            console.print(f"the captured run was INVALID: {reason}", soft_wrap=True)
        if fit is not None:
            (directory / "server-model.json").write_bytes(encode_server_model(server))
            for warning in fit.warnings:
                console.print(f"calibration: {warning}", soft_wrap=True)
        scratch = directory.absolute()
        answer = replay_policies(captured, server, fit, choices, scratch=scratch, on_stage=progress.stage)
        counted = _counted(progress, "simulated runs")
        if what_if is not None and not answer.interrupted:
            progress.stage(f"what if: {what_if.text}")
            try:
                found = compare(
                    what_if, captured, server, choices, processes=args.processes, scratch=scratch, on_progress=counted
                )
                answer = replace(answer, comparisons=[found])
            except KeyboardInterrupt:
                answer = replace(answer, interrupted=True)
        elif not answer.interrupted:
            progress.stage("deriving baseline and raised loads")
            answer = simulate_trace(answer, choices, processes=args.processes, scratch=scratch, on_progress=counted)
        progress.done()
        text = None if what_if is None else what_if.text
        say_trace(console, answer, text, routed, notes)
        _write(
            directory,
            command=args.argv,
            answer=answer,
            what_if=text,
            routed=routed,
            notes=notes,
            interrupted=answer.interrupted,
        )
        if answer.interrupted:
            console.print("interrupted: what is not above was not simulated to its end", soft_wrap=True)
            raise KeyboardInterrupt

    return work


def say_trace(
    console: Console,
    answer: TraceAnswer,
    what_if: str | None = None,
    routed: str = "",
    notes: Sequence[str] = (),
) -> None:
    """The whole answer in the terminal. ``what_if``: the difference that the comparison is about, if one was asked for;
    ``routed``: between which servers, where there are several; ``notes``: what makes the comparison doubtful."""
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
    for note in notes:
        console.print(f"note: {note}", soft_wrap=True)
    if not answer.comparisons:
        return
    if what_if is not None:
        console.print(
            f"what if ({what_if}): below, the baseline is the trace as captured and the raised load is that difference"
            f"{routed and f' ({routed})'}; one realisation (no intervals)",
            soft_wrap=True,
        )
        for comparison in answer.comparisons:
            print_verdicts(
                console,
                comparison.verdicts,
                comparison.noisy,
                loads=f"as captured against {what_if}",
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


def _write(
    directory: Path,
    *,
    command: Sequence[str],
    answer: ScenarioAnswer | TraceAnswer,
    what_if: str | None = None,
    routed: str = "",
    notes: Sequence[str] = (),
    interrupted: bool,
) -> None:
    """The comparison as data, and, where anything is to be compared, as a page."""
    data = [
        {"noisy": list(each.noisy), "in_contract": list(each.in_contract)}
        | ({"removed": list(each.removed)} if each.removed else {})
        | {"policies": [msgspec.to_builtins(verdict) for verdict in each.verdicts]}
        for each in answer.comparisons
    ]
    (directory / "comparison.json").write_bytes(
        msgspec.json.format(
            msgspec.json.encode(
                {"schema": "lmperf.comparison/1.0", "interrupted": interrupted, "comparisons": data}
                | ({} if what_if is None else {"what_if": what_if})
                | ({"routing": routed} if routed else {})
                | ({"notes": list(notes)} if notes else {})
            ),
            indent=2,
        )
    )
    if not answer.comparisons:
        return
    fidelity = None
    if isinstance(answer, TraceAnswer):
        tenants = answer.captured.tenants
        fidelity = FidelityTable(rows=answer.reproduction, arrivals=answer.captured.arrivals)
    else:
        tenants = answer.experiment.recipe.tenants
    targets = {t.name: t.slo.attainment for t in tenants if t.slo.attainment is not None}
    first, *others = (
        Comparison(
            verdicts=each.verdicts,
            targets=targets,
            noisy=each.noisy,
            in_contract=each.in_contract,
            removed=each.removed,
            difference=what_if is not None,
            notes=notes,
            fidelity=fidelity,
            baseline="the baseline load" if what_if is None else "the trace as captured",
            raised="the raised load" if what_if is None else f"what if ({what_if})",
        )
        for each in answer.comparisons
    )
    command_line = f"lmperf {shlex.join(redact_argv(command))}"
    write_comparison(directory / "comparison.html", first, others=others, command=command_line)
