"""``lmperf simulate --suite NAME``: many scenarios, every policy, one table."""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import msgspec

from lmperf.cli.output import output_folder, results_folder
from lmperf.console import Progress, results_console
from lmperf.exit_codes import ExitCode
from lmperf.wiring.suite import SUITES, SuiteResult, run_suite, study_choices
from loadgen.fitted_table import FittedTable
from loadgen.offline.experiment import OnProgress
from loadgen.whole_file import write_whole
from tenants.measures.shares import cut

DEFAULT_SEEDS = 5
_PROMISED = frozenset({"worst_attainment", "mean_attainment"})
_TRACE_BESIDE = Path("../shared/traces/azure-llm-2023/AzureLLMInferenceTrace_conv.csv.gz")


def run_suite_command(args: argparse.Namespace) -> ExitCode:
    progress = Progress(quiet=args.quiet)
    console = results_console()
    choices = study_choices("all" if args.policies == "fifo,wfq,slo_aware" else args.policies)
    seeds = args.seeds or DEFAULT_SEEDS
    trace = Path(args.trace) if args.trace is not None else _TRACE_BESIDE
    with results_folder(output_folder(args, f"suite-{args.suite}"), args.argv) as directory:

        def on_scenario(name: str) -> OnProgress:
            started = time.monotonic()
            return lambda done, total: progress.counting(name, done, total, started)

        def on_rows(result: SuiteResult) -> None:
            _write(directory, result)

        result = run_suite(
            args.suite,
            choices,
            seeds=seeds,
            first_seed=args.seed or 0,
            trace=trace.resolve() if trace.is_file() or args.trace is not None else None,
            settings=args.settings,
            processes=args.processes,
            on_scenario=on_scenario,
            on_rows=on_rows,
        )
    progress.done()
    if result.rows:
        console.print(_table(result, seeds))
        console.print(_other_figures(result))
    for scenario, notes in result.notes.items():
        for note in notes:
            console.print(f"{scenario}: note: {note}", soft_wrap=True)
    for scenario, reason in result.skipped.items():
        console.print(f"skipped {scenario}: {reason}", soft_wrap=True)
    console.print(f"written: {directory / 'suite.json'}", soft_wrap=True)
    if result.interrupted:
        done, planned = len(result.scenarios), len(SUITES[args.suite]) - len(result.skipped)
        what = "and the figures are of these" if done else "so there are no figures"
        console.print(f"interrupted: {done} of {planned} scenarios were finished, {what}", soft_wrap=True)
        return ExitCode.INTERRUPTED
    return ExitCode.OK


def _write(directory: Path, result: SuiteResult) -> None:
    data = {
        "schema": "lmperf.suite/1.1",
        "suite": result.name,
        "rows": [row.data() for row in result.rows],
        "skipped": result.skipped,
        **({"notes": result.notes} if result.notes else {}),
        "interrupted": result.interrupted,
        "complete": result.complete,
    }
    write_whole(directory / "suite.json", msgspec.json.format(msgspec.json.encode(data), indent=2))


def _short(scenario: str) -> str:
    return scenario.removeprefix("study-").partition("-")[0]


def _table(result: SuiteResult, seeds: int) -> FittedTable:
    table = FittedTable(
        f"{result.name}: attainment of the worst tenant in contract under the raised load, mean of {seeds} seeds",
        ("policy",),
        (*map(_short, result.scenarios), "mean"),
        caption="the 95% intervals over seeds are in suite.json",
    )
    for choice in result.choices:
        cells = []
        for scenario in result.scenarios:
            row = result.row(scenario, choice.label)
            found = None if row is None else row.verdict.worst_attainment
            cells.append(_share(None if found is None else found.value))
        table.add_row(choice.label, *cells, _share(result.mean_worst(choice.label).value))
    return table


def _share(value: float | None) -> str:
    return "-" if value is None else cut(value, 3)


def _other_figures(result: SuiteResult) -> FittedTable:
    table = FittedTable(
        "means over the scenarios",
        ("policy",),
        ("worst attainment", "mean attainment", "decay in contract", "rho", "throughput"),
    )
    for choice in result.choices:
        verdicts = [row.verdict for row in result.rows if row.choice.label == choice.label]
        means = []
        for name in ("worst_attainment", "mean_attainment", "decay_in_contract", "rho", "throughput_ratio"):
            values = [getattr(verdict, name).value for verdict in verdicts]
            known = [value for value in values if value is not None]
            mean = sum(known) / len(known) if known else None
            means.append(_share(mean) if name in _PROMISED else "-" if mean is None else f"{mean:.3f}")
        table.add_row(choice.label, *means)
    return table
