"""``lmperf tune``: policies, slots, weights and admission limits tried in the simulator; a table and a recommendation."""

from __future__ import annotations

import argparse
from pathlib import Path

import msgspec
from rich.console import Console

from lmperf.cli.counting import counted
from lmperf.cli.live_checks import codes_of, confirm_live, live_data, live_flags, refuse_missing_secrets
from lmperf.cli.output import again, output_folder, results_folder, write_resolved
from lmperf.cli.scenarios import named_scenario
from lmperf.cli.tune_text import answer_data, recommendation, trials_table
from lmperf.console import Progress, results_console
from lmperf.exit_codes import ExitCode, worst
from lmperf.scenario.faults import ScenarioError
from lmperf.wiring.confirm import Confirmation
from lmperf.wiring.offline import policy_choices
from lmperf.wiring.tune import TuneAnswer, Tuner, tune
from loadgen.offline.workers import Workers
from loadgen.whole_file import write_whole

FILE = "tune.json"


def run(args: argparse.Namespace) -> ExitCode:
    if args.seeds < 1:
        raise ScenarioError.single("<flags>", f"--seeds is {args.seeds}", "at least 1; 5 for an interval")
    flags = live_flags(args)
    scenario = named_scenario(args.scenario, args)
    if flags.asked:
        refuse_missing_secrets(scenario)
    choices = policy_choices(args.policies)
    progress = Progress(quiet=args.quiet)
    console = results_console()
    live = Confirmation()
    with Workers(args.processes) as workers:
        tuner = Tuner(scenario, seeds=args.seeds, workers=workers, on_runs=lambda what: counted(progress, what))
        with results_folder(output_folder(args, f"tune-{tuner.answer.raised.name}"), args.argv) as directory:
            write_resolved(directory, scenario, tuner.answer.raised)
            progress.stage(f"{tuner.answer.raised.name}: baseline and raised load, {args.seeds} seeds a trial")
            command = again(args.argv)
            answer = tune(tuner, choices, on_trial=lambda state: _write(directory, state, live, command))
            progress.done()
            _write(directory, answer, live, command)
            _say(console, answer)
            console.print(f"written: {directory / FILE}", soft_wrap=True)
            best = answer.best
            if flags.asked and best is not None and not answer.interrupted:
                variant = best.setting.of(answer.scenario)
                live = confirm_live(
                    console,
                    flags,
                    variant,
                    (1.0,),
                    directory,
                    progress,
                    on_check=lambda state: _write(directory, answer, state, command),
                    what=f"the recommended setting, raised load ({best.setting.label})",
                )
    return _exit_code(answer, live)


def _exit_code(answer: TuneAnswer, live: Confirmation) -> ExitCode:
    return worst(codes_of(live, interrupted=answer.interrupted))


def _say(console: Console, answer: TuneAnswer) -> None:
    if answer.trials:
        console.print(trials_table(answer.raised.name, answer.trials, answer.best, answer.seeds))
    if answer.raised.routed:
        console.print(answer.raised.routed, soft_wrap=True)
    for note in answer.notes:
        console.print(f"note: {note}", soft_wrap=True)
    console.print(recommendation(answer), soft_wrap=True)
    if answer.interrupted:
        console.print("interrupted: the answer is that of the settings tried so far", soft_wrap=True)


def _write(directory: Path, answer: TuneAnswer, live: Confirmation, command: str) -> None:
    """Whole or not at all: a reader never sees half a file."""
    data = answer_data(answer, command) | live_data(live)
    data |= {"interrupted": answer.interrupted or live.interrupted, "complete": answer.complete and live.complete}
    write_whole(directory / FILE, msgspec.json.format(msgspec.json.encode(data), indent=2))
