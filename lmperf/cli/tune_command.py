"""``lmperf tune``: policies, slots, weights and admission limits tried in the simulator; a table and a recommendation."""

from __future__ import annotations

import argparse
from pathlib import Path

import msgspec
from rich.console import Console

from lmperf.cli.counting import counted
from lmperf.cli.live_checks import codes_of, confirm_live, live_data, print_checks, refuse_missing_secrets
from lmperf.cli.output import output_folder, results_folder
from lmperf.cli.scenarios import named_scenario
from lmperf.console import Progress, results_console
from lmperf.exit_codes import ExitCode, worst
from lmperf.scenario.faults import ScenarioError
from lmperf.wiring.confirm import Confirmation
from lmperf.wiring.offline import policy_choices
from lmperf.wiring.tune import TuneAnswer, Tuner, tune
from lmperf.wiring.tune_ranking import Trial, efficient
from loadgen.offline.verdicts import Figure
from loadgen.offline.workers import Workers
from loadgen.table import ruled
from loadgen.whole_file import write_whole
from tenants.measures.shares import promised

FILE = "tune.json"
SCHEMA = "lmperf.tune/1.0"


def run(args: argparse.Namespace) -> ExitCode:
    if args.seeds < 1:
        raise ScenarioError.single("<flags>", f"--seeds is {args.seeds}", "at least 1; 5 for an interval")
    if not 0 < args.live_duration < float("inf"):
        raise ScenarioError.single("<flags>", f"--live-duration is {args.live_duration}", "seconds above 0")
    scenario = named_scenario(args.scenario, args)
    if args.live:
        refuse_missing_secrets(scenario)
    choices = policy_choices(args.policies)
    progress = Progress(quiet=args.quiet)
    console = results_console()
    live = Confirmation()
    with Workers(args.processes) as workers:
        tuner = Tuner(scenario, seeds=args.seeds, workers=workers, on_runs=lambda what: counted(progress, what))
        with results_folder(output_folder(args, f"tune-{tuner.answer.raised.name}"), args.argv) as directory:
            progress.stage(f"{tuner.answer.raised.name}: baseline and raised load, {args.seeds} seeds a trial")
            answer = tune(tuner, choices, on_trial=lambda state: _write(directory, state, live))
            progress.done()
            _write(directory, answer, live)
            _say(console, answer)
            best = answer.best
            if args.live and best is not None and not answer.interrupted:
                variant = best.setting.of(answer.scenario)
                live = confirm_live(
                    args, variant, (1.0,), directory, progress, on_check=lambda state: _write(directory, answer, state)
                )
                progress.done()
                print_checks(console, live, what=f"the recommended setting, raised load ({best.setting.label})")
    console.print(f"written: {directory / FILE}", soft_wrap=True)
    return _exit_code(answer, live)


def _exit_code(answer: TuneAnswer, live: Confirmation) -> ExitCode:
    return worst(codes_of(live, interrupted=answer.interrupted))


def _say(console: Console, answer: TuneAnswer) -> None:
    best, front = answer.best, efficient(answer.trials)
    table = ruled(
        title=f"{answer.raised.name}: what each setting keeps under the raised load [95% interval over {answer.seeds} seeds]",
        caption="> recommended, * on the trade-off: no other setting is better in attainment, decay and throughput alike.\n"
        "D: sequences (auto: moved within these bounds while it runs), X: prefill tokens outstanding; missed: tenants in "
        "contract below target; throughput: against row 1",
    )
    for column in ("", "setting", "worst attained %", "missed", "decay", "rho", "throughput"):
        table.add_column(column, justify="left" if column in ("", "setting") else "right", no_wrap=column != "setting")
    for trial in answer.trials:
        verdict = trial.verdict
        mark = ">" if trial is best else "*" if trial in front else ""
        table.add_row(
            mark,
            trial.setting.label,
            verdict.worst_attainment.percent(),
            str(len(trial.missed)),
            verdict.decay_in_contract.format(2),
            verdict.rho.format(2),
            verdict.throughput_ratio.format(3),
        )
    console.print(table)
    if answer.raised.routed:
        console.print(answer.raised.routed, soft_wrap=True)
    for note in answer.notes:
        console.print(f"note: {note}", soft_wrap=True)
    console.print(recommendation(answer), soft_wrap=True)


def recommendation(answer: TuneAnswer) -> str:
    """The best setting and what it is predicted to keep, in one sentence."""
    best = answer.best
    if best is None:
        return "no trial was finished, so nothing is recommended"
    attained = "; ".join(
        f"{name} {found.percent(2)}% (target {promised(answer.targets[name])}%)"
        for name, found in answer.attained(best).items()
    )
    kept = "every tenant in contract is at its target" if not best.missed else f"{', '.join(best.missed)} still miss"
    own = " (the scenario's own)" if best is answer.trials[0] else ""
    doubt = best.doubt and f" {best.doubt}"
    stopped = "; the search was interrupted" if answer.interrupted else ""
    return f"recommended: {best.setting.label}{own}: {kept} under the raised load: {attained}{stopped}.{doubt}"


def _write(directory: Path, answer: TuneAnswer, live: Confirmation) -> None:
    """Whole or not at all: a reader never sees half a file."""
    best, front = answer.best, efficient(answer.trials)
    data = {
        "schema": SCHEMA,
        "scenario": answer.raised.name,
        "seeds": answer.seeds,
        "targets": answer.targets,
        **({"routing": answer.raised.routed} if answer.raised.routed else {}),
        **({"notes": list(answer.notes)} if answer.notes else {}),
        "interrupted": answer.interrupted or live.interrupted,
        "recommendation": None
        if best is None
        else {
            "setting": best.setting.data(),
            "label": best.setting.label,
            "sentence": recommendation(answer),
            **({"doubt": best.doubt} if best.doubt else {}),
            "attainment": {name: _figure(found) for name, found in answer.attained(best).items()},
        },
        "trials": [_trial(trial, efficient=trial in front) for trial in answer.trials],
        **live_data(live),
    }
    write_whole(directory / FILE, msgspec.json.format(msgspec.json.encode(data), indent=2))


def _trial(trial: Trial, *, efficient: bool) -> dict[str, object]:
    verdict = trial.verdict
    return {
        "label": trial.setting.label,
        "setting": trial.setting.data(),
        "on_the_trade_off": efficient,
        "missed": list(trial.missed),
        "worst_attainment": _figure(verdict.worst_attainment),
        "decay_in_contract": _figure(verdict.decay_in_contract),
        "rho": _figure(verdict.rho),
        "throughput_ratio": _figure(verdict.throughput_ratio),
        "throughput_tokens_per_s": _figure(verdict.throughput),
    }


def _figure(found: Figure) -> dict[str, float | None]:
    interval = found.interval
    return {
        "value": found.value,
        "low": None if interval is None else interval.low,
        "high": None if interval is None else interval.high,
    }
