"""``lmperf compare``: runs side by side; exit code 108 when a later one is worse than the first. Folders of ``lmperf simulate``
stand side by side too, and live runs beside what was simulated of their arrivals, without such a judgement."""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.text import Text

from lmperf.cli.compare_page import DIFFERENCES_JSON, Found, write_compared_runs
from lmperf.cli.compare_simulated import say_doubts, show_beside, show_simulations
from lmperf.cli.difference_text import UNDECIDED, WORSE, change_text, figure_of, sentences, sides_of, word
from lmperf.cli.output import output_folder, results_folder
from lmperf.console import results_console
from lmperf.exit_codes import ExitCode, worst
from lmperf.scenario.faults import Fault, Place, ScenarioError
from lmperf.wiring.compared import Compared, compared, pair_of
from lmperf.wiring.compared_simulations import is_simulation, read_simulations, simulations
from lmperf.wiring.comparison_file import COMPARISON_JSON
from lmperf.wiring.regression import Difference, differences, incomparable
from loadgen.fitted_table import FittedTable
from loadgen.report.render import COMPARISON_HTML
from loadgen.table import title_of

_STYLES = {WORSE: "bold red", UNDECIDED: "yellow"}


def run(args: argparse.Namespace) -> ExitCode:
    if len(args.runs) < 2:
        raise ScenarioError.single("<flags>", "one run alone cannot be compared", "name two or more run folders")
    if not 0 <= args.tolerance < math.inf:
        raise ScenarioError.single("<flags>", f"--tolerance is {args.tolerance}", "0 or more: 0.1 allows 10%")
    files = [Path(name) for name in args.runs if Path(name).name == COMPARISON_JSON and Path(name).is_file()]
    if files:
        raise ScenarioError(
            Fault(Place(str(file)), (), "is a file of a folder", f"name the folder: {file.parent}") for file in files
        )
    simulated = [name for name in args.runs if is_simulation(name)]
    if len(simulated) == len(args.runs):
        return show_simulations(simulations(simulated), args)
    if simulated and args.output_dir is not None:
        raise ScenarioError.single(
            "<flags>",
            "--output-dir writes a page of runs, or of folders of simulate, and these are both",
            "leave it out, or name one kind",
        )
    read = [compared(name) for name in args.runs if name not in simulated]
    if simulated:
        return show_beside(read, read_simulations(simulated))
    base, *others = read
    reasons = [(other.name, incomparable(base, other)) for other in others]
    faults = [Fault(Place(name), (), f"cannot be compared with {base.name}: {why}") for name, why in reasons if why]
    if faults:
        raise ScenarioError(faults)
    invalid = say_doubts(read)
    found = []
    for other in others:
        pair = pair_of(base, other)
        found.append(Found(other, pair.how, differences(pair)))
        _say(found[-1], base, args.tolerance)
    if args.output_dir is not None:
        with results_folder(output_folder(args, "compare"), args.argv) as directory:
            write_compared_runs(directory, base, found, tolerance=args.tolerance, command=args.argv)
        console = results_console()
        console.print(f"written: {directory / COMPARISON_HTML}, {directory / DIFFERENCES_JSON}", soft_wrap=True)
    return _code(found, args, invalid=bool(invalid))


def _code(found: Sequence[Found], args: argparse.Namespace, *, invalid: bool) -> ExitCode:
    regressed = [each.side.name for each in found if any(one.regressed(args.tolerance) for one in each.differences)]
    undecided = any(one.undecided(args.tolerance) for each in found for one in each.differences)
    codes = [ExitCode.UNDECIDED if args.strict and undecided else ExitCode.OK]
    if invalid:
        codes.append(ExitCode.INVALID)
    if regressed:
        codes.append(ExitCode.REGRESSION)
    if len(codes) > 2:
        print(
            f"both apply: {int(ExitCode.INVALID)}, a run is invalid (above), and {int(ExitCode.REGRESSION)}, a regression in "
            f"{', '.join(regressed)}; the code is {int(worst(codes))}, since an invalid run proves no regression",
            file=sys.stderr,
        )
    return worst(codes)


def _say(found: Found, base: Compared, tolerance: float) -> None:
    console = results_console()
    for side in (base, found.side):
        several = f", {len(side.summaries)} runs" if len(side.summaries) > 1 else ""
        console.print(f"{side.name}: {title_of(side.summaries[0])}{several}", soft_wrap=True)
    console.print(_table(found.differences, tolerance))
    console.print(f"95% interval of the difference: {found.how}", soft_wrap=True)
    for sentence in sentences(found.differences, tolerance):
        console.print(sentence, soft_wrap=True)


def _table(found: list[Difference], tolerance: float) -> FittedTable:
    table = FittedTable(None, ("tenant", "figure"), ("first", "this", "difference", ""), left=("",))
    last = None
    for one in found:
        if last not in {None, one.tenant}:
            table.add_section()
        said = word(one, tolerance)
        table.add_row(
            "" if one.tenant == last else one.tenant,
            figure_of(one),
            *sides_of(one),
            change_text(one),
            Text(said, style=_STYLES.get(said, "dim")),
        )
        last = one.tenant
    return table
