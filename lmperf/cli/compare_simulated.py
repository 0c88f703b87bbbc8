"""``lmperf compare`` of folders that ``lmperf simulate`` wrote: what they hold, side by side."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from lmperf.cli.alternatives_text import print_alternatives
from lmperf.cli.beside_text import print_beside
from lmperf.cli.comparison_output import alternative_of
from lmperf.console import results_console
from lmperf.exit_codes import ExitCode
from lmperf.wiring.beside import beside
from lmperf.wiring.compared import Compared
from lmperf.wiring.compared_simulations import Simulation, rows_of
from lmperf.wiring.what_if.alternatives import UNCHANGED
from loadgen.report.alternatives import answer_in_common


def show_simulations(sides: Sequence[Simulation]) -> ExitCode:
    """They differ because somebody asked what would be if they did, so nothing is called a regression."""
    console = results_console()
    for side in sides:
        console.print(f"{side.name}: {side.title}", soft_wrap=True)
        for note in side.found.notes:
            console.print(f"  note: {note}", soft_wrap=True)
    if len({side.found.server_model for side in sides}) > 1:
        console.print("note: their server models differ, which may be all that makes a difference", soft_wrap=True)
    rows = rows_of(sides)
    baselines = dict.fromkeys("the trace as captured" if row.found.alternative else "the baseline load" for row in rows)
    shown = [alternative_of(row.found, row.targets, row.name) for row in rows]
    answer = answer_in_common(shown, unchanged=UNCHANGED)
    print_alternatives(console, shown, answer=answer, against=" or ".join(baselines))
    console.print("simulated: nothing of this is judged as a regression", soft_wrap=True)
    return ExitCode.OK


def show_beside(runs: Sequence[Compared], sides: Sequence[Simulation]) -> ExitCode:
    """Live runs beside what was simulated of the same arrivals; an invalid run is shown too, and is the code."""
    found = beside(runs, sides)
    invalid = [reason for run in runs for reason in run.invalid]
    for reason in invalid:
        print(f"INVALID RUN: {reason}", file=sys.stderr)
    console = results_console()
    for side in sides:
        console.print(f"{side.name}: {side.title}", soft_wrap=True)
    print_beside(console, found)
    return ExitCode.INVALID if invalid else ExitCode.OK
