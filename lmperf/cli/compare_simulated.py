"""``lmperf compare`` of folders that ``lmperf simulate`` wrote: what they hold, side by side."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from lmperf.cli.alternatives_text import print_alternatives
from lmperf.cli.beside_text import print_beside
from lmperf.cli.comparison_output import alternative_of, write_compared
from lmperf.cli.output import output_folder, results_folder
from lmperf.console import results_console
from lmperf.exit_codes import ExitCode
from lmperf.wiring.beside import beside
from lmperf.wiring.compared import Compared
from lmperf.wiring.compared_simulations import MODELS_DIFFER, Simulation, models_differ, rows_of, side_by_side
from lmperf.wiring.comparison_file import COMPARISON_JSON
from lmperf.wiring.what_if.alternatives import UNCHANGED
from loadgen.report.alternatives import answer_in_common
from loadgen.report.render import COMPARISON_HTML


def show_simulations(sides: Sequence[Simulation], args: argparse.Namespace) -> ExitCode:
    """They differ because somebody asked what would be if they did, so nothing is called a regression. Page and data are
    written where ``--output-dir`` names a folder."""
    console = results_console()
    for side in sides:
        console.print(f"{side.name}: {side.title}", soft_wrap=True)
        for note in side.found.notes:
            console.print(f"  note: {note}", soft_wrap=True)
    if models_differ(sides):
        console.print(f"note: {MODELS_DIFFER}", soft_wrap=True)
    rows = rows_of(sides)
    shown = [alternative_of(row.found, row.targets, row.name) for row in rows]
    answer = answer_in_common(shown, unchanged=UNCHANGED)
    against = " or ".join(dict.fromkeys(each.baseline for each in shown))
    print_alternatives(console, shown, answer=answer, against=against)
    console.print("simulated: nothing of this is judged as a regression", soft_wrap=True)
    if args.output_dir is not None:
        with results_folder(output_folder(args, "compare"), args.argv) as directory:
            write_compared(
                directory, side_by_side(sides, rows), shown, answer=answer, against=against, command=args.argv
            )
        console.print(f"written: {directory / COMPARISON_HTML}, {directory / COMPARISON_JSON}", soft_wrap=True)
    return ExitCode.OK


def say_doubts(runs: Sequence[Compared]) -> list[str]:
    """Prints what is wrong with runs before anything is read from them; why they are invalid."""
    invalid = [reason for run in runs for reason in run.invalid]
    for reason in invalid:
        print(f"INVALID RUN: {reason}", file=sys.stderr)
    for failed in (failed for run in runs for failed in run.unserved):
        print(f"SERVER FAILED: {failed}", file=sys.stderr)
    return invalid


def show_beside(runs: Sequence[Compared], sides: Sequence[Simulation]) -> ExitCode:
    """Live runs beside what was simulated of the same arrivals; an invalid run is shown too, and is the code."""
    found = beside(runs, sides)
    invalid = say_doubts(runs)
    console = results_console()
    for side in sides:
        console.print(f"{side.name}: {side.title}", soft_wrap=True)
    print_beside(console, found)
    return ExitCode.INVALID if invalid else ExitCode.OK
