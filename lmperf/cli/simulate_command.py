"""``lmperf simulate``: a captured trace, or a scenario over seeds, under several policies."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from lmperf.cli.comparison_output import write_scenario_answer
from lmperf.cli.comparison_text import print_verdicts
from lmperf.cli.counting import counted
from lmperf.cli.output import output_folder, results_folder
from lmperf.cli.scenarios import named_scenario
from lmperf.cli.simulate_trace import Work, trace_work
from lmperf.console import Progress, results_console
from lmperf.exit_codes import ExitCode
from lmperf.scenario.faults import ScenarioError
from lmperf.scenario.resolve import resolve
from lmperf.wiring.captured import is_trace
from lmperf.wiring.offline import ScenarioAnswer, known_server, policy_choices, simulate_scenario
from loadgen.offline.experiment import PolicyChoice

DEFAULT_SEEDS = 20


def run(args: argparse.Namespace) -> ExitCode:
    if (args.vary or args.alternatives) and (args.suite is not None or not is_trace(args.source or "")):
        remedy = "of a scenario simulate one after another, --set ... --output-dir A, then lmperf compare A B"
        raise ScenarioError.single("<flags>", "--vary and --alternative are of a trace, and this is none", remedy)
    if args.suite is not None:
        from lmperf.cli.suite_command import run_suite_command  # noqa: PLC0415 (only with the flag)

        return run_suite_command(args)
    if args.source is None:
        raise ScenarioError.single(
            "<flags>", "neither a source nor a suite is named", "name a run folder or a scenario"
        )
    choices = policy_choices(args.policies)
    if args.seeds is not None and args.seeds < 1:
        raise ScenarioError.single("<flags>", f"--seeds is {args.seeds}", "at least 1")
    if is_trace(args.source) and (args.seeds is not None or args.seed is not None):
        raise ScenarioError.single(
            "<flags>", "--seed and --seeds change a scenario, and this is a trace: it has one realisation"
        )
    # Read before a folder is made: a file that cannot be used leaves nothing behind.
    work = trace_work(args, choices) if is_trace(args.source) else _scenario(args, choices)
    name = Path(args.source).stem or "trace"
    console = results_console()
    with results_folder(output_folder(args, f"simulate-{name}"), args.argv) as directory:
        work(Progress(quiet=args.quiet), console, directory)
    # Where nothing could be compared there is no page.
    written = [path for path in (directory / "comparison.html", directory / "comparison.json") if path.exists()]
    console.print(f"written: {', '.join(map(str, written))}", soft_wrap=True)
    return ExitCode.OK


def _scenario(args: argparse.Namespace, choices: Sequence[PolicyChoice]) -> Work:
    scenario = named_scenario(args.source, args)
    # Any saturation will do to see whether there is a server model; the true one takes a simulation.
    known_server(resolve(scenario, saturation=scenario.model.load.saturation or 1.0))
    wanted = args.seeds or DEFAULT_SEEDS

    def work(progress: Progress, console: Console, directory: Path) -> None:
        progress.stage(f"{scenario.model.name}: {len(choices)} policies, baseline and raised load, {wanted} seeds")
        answer = simulate_scenario(
            scenario, choices, wanted, processes=args.processes, on_progress=counted(progress, "simulated runs")
        )
        progress.done()
        cells, seeds = answer.cells, len(answer.experiment.seeds)
        # Interrupted before any policy had both loads, there is nothing to compare.
        answer = replace(answer, comparisons=[each for each in answer.comparisons if each.verdicts])
        if answer.comparisons:
            whole = len({seed for _, _, seed in cells.results}) if cells.interrupted else seeds
            _say_scenario(console, answer, whole)
        for note in answer.experiment.recipe.notes:
            console.print(f"note: {note}", soft_wrap=True)
        write_scenario_answer(directory, answer, command=args.argv, seeds=seeds)
        if cells.interrupted:
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
