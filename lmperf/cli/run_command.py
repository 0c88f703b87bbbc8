"""``lmperf run``: one live run."""

from __future__ import annotations

import argparse
import asyncio
import sys
from pathlib import Path

import uvloop

from lmperf.cli.output import output_folder, percentiles_of, results_folder
from lmperf.cli.scenarios import scenario_of
from lmperf.console import Progress, results_console
from lmperf.exit_codes import ExitCode
from lmperf.scenario.faults import ScenarioError
from lmperf.scenario.load import Scenario
from lmperf.scenario.model import At
from lmperf.scenario.plan import Plan
from lmperf.wiring.interrupts import cancelled_by_signals
from lmperf.wiring.live import LiveOptions, run_live
from lmperf.wiring.results import RunResult
from lmperf.wiring.saturation import resolve_with_saturation


def run(args: argparse.Namespace) -> ExitCode:
    scenario = scenario_of(args)
    missing = scenario.secrets.missing()
    if missing:
        raise ScenarioError(missing)
    percentiles = percentiles_of(args)
    plan = resolve_with_saturation(scenario, at=None if args.at is None else At(args.at))
    if args.dry_run:
        from lmperf.cli.plan_text import print_plan  # noqa: PLC0415 (only here)

        print_plan(plan)
        return ExitCode.OK
    with results_folder(output_folder(args, plan.name), args.argv) as directory:
        result = run_once(
            scenario,
            plan,
            LiveOptions(
                directory=directory,
                percentiles=percentiles,
                ready_timeout_s=args.ready_timeout,
                event_log=args.event_log,
            ),
            Progress(quiet=args.quiet),
        )
    show(result)
    if result.target_failed is not None:
        print(f"lmperf run: {result.target_failed}", file=sys.stderr)
    return result.exit_code(strict=args.strict)


def run_once(scenario: Scenario, plan: Plan, options: LiveOptions, progress: Progress) -> RunResult:
    """One live run on an event loop of its own. Raises KeyboardInterrupt when a signal comes before or after its measured
    part, during which it ends in order."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        try:
            return runner.run(cancelled_by_signals(run_live(scenario, plan, options, progress)))
        except asyncio.CancelledError:
            raise KeyboardInterrupt from None


def show(result: RunResult) -> None:
    """The per-tenant table, the thresholds, and the paths of what was written, on stdout."""
    from loadgen.report.sentences import slots_moved, where_waiting_was  # noqa: PLC0415 (as the table)
    from loadgen.table import tenant_table  # noqa: PLC0415 (rich tables only when there is something to show)

    console = results_console()
    console.print(tenant_table(result.summary))
    for line in (where_waiting_was(result.summary), *slots_moved(result.summary)):
        if line:
            console.print(line, highlight=False, soft_wrap=True)
    for tenant in result.summary.tenants:
        for promise in tenant.promises:
            console.print(promise.sentence, highlight=False, soft_wrap=True)
    for threshold in result.thresholds:
        word = "passed" if threshold.passed else "FAILED"
        console.print(f"threshold {threshold.threshold.text}: {word}", highlight=False, soft_wrap=True)
    if result.directory is not None:
        console.print(_paths(result.directory), highlight=False, soft_wrap=True)


def _paths(directory: Path) -> str:
    shown = [
        name
        for name in ("report.html", "summary.json", "summary.csv", "requests.parquet")
        if (directory / name).exists()
    ]
    return f"results in {directory}: {', '.join(shown)}"
