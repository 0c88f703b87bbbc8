"""``lmperf compare``: runs side by side; exit code 108 when a later one is worse than the first. Folders of ``lmperf simulate``
stand side by side too, and live runs beside what was simulated of their arrivals, without such a judgement."""

from __future__ import annotations

import argparse
import math
import sys
from pathlib import Path

from rich.text import Text

from lmperf.cli.compare_simulated import say_doubts, show_beside, show_simulations
from lmperf.console import results_console
from lmperf.exit_codes import ExitCode, worst
from lmperf.scenario.faults import Fault, Place, ScenarioError
from lmperf.wiring.compared import Pair, compared, pair_of
from lmperf.wiring.compared_simulations import is_simulation, read_simulations, simulations
from lmperf.wiring.comparison_file import COMPARISON_JSON
from lmperf.wiring.regression import Difference, differences, incomparable
from loadgen.fitted_table import FittedTable
from loadgen.table import title_of


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
    if args.output_dir is not None:
        live = next(name for name in args.runs if name not in simulated)
        raise ScenarioError.single(
            "<flags>", f"--output-dir writes a page of folders of simulate, and {live} is none", "leave it out"
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
    found = [(other.name, _compare(pair_of(base, other), args.tolerance)) for other in others]
    regressed = [name for name, code in found if code is ExitCode.REGRESSION]
    undecided = any(code is ExitCode.UNDECIDED for _, code in found)
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


def _compare(pair: Pair, tolerance: float) -> ExitCode:
    """Prints one comparison: OK, a regression, or undecided for want of an interval."""
    found = differences(pair)
    console = results_console()
    for side in (pair.base, pair.run):
        several = f", {len(side.summaries)} runs" if len(side.summaries) > 1 else ""
        console.print(f"{side.name}: {title_of(side.summaries[0])}{several}", soft_wrap=True)
    console.print(_table(found, tolerance))
    console.print(f"95% interval of the difference: {pair.how}", soft_wrap=True)
    regressed = [one for one in found if one.regressed(tolerance)]
    undecided = [one for one in found if one.undecided(tolerance)]
    if undecided:
        console.print(
            f"UNDECIDED, worse by more than {tolerance:.0%} without an interval to tell it from chance: {_named(undecided)}; "
            "longer runs or repeats decide",
            soft_wrap=True,
        )
    if regressed:
        console.print(f"REGRESSION beyond {tolerance:.0%}: {_named(regressed)}", soft_wrap=True)
        return ExitCode.REGRESSION
    if undecided:
        return ExitCode.UNDECIDED
    console.print(f"no figure is worse by more than {tolerance:.0%} and beyond chance", soft_wrap=True)
    return ExitCode.OK


def _named(found: list[Difference]) -> str:
    return ", ".join(f"{one.tenant} {one.figure.removesuffix(' ms')}" for one in found)


def _table(found: list[Difference], tolerance: float) -> FittedTable:
    table = FittedTable(None, ("tenant", "figure"), ("first", "this", "difference", ""), left=("",))
    last = None
    for one in found:
        if last not in {None, one.tenant}:
            table.add_section()
        table.add_row(
            "" if one.tenant == last else one.tenant,
            f"{one.figure} %" if one.share else one.figure,
            *("-" if side is None else side.text(one.number) for side in (one.base, one.run)),
            _change(one),
            _word(one, tolerance),
        )
        last = one.tenant
    return table


def _change(one: Difference) -> str:
    change = one.change
    if change is None:
        return "-"
    if math.isinf(change):
        return "no longer reached" if change > 0 else "reached again"
    unit = " points" if one.share else "%"
    shown = f"{change * 100:+.1f}{unit}"
    if one.interval is None:
        return shown
    return f"{shown} [{one.interval.low * 100:+.1f}, {one.interval.high * 100:+.1f}]"


def _word(one: Difference, tolerance: float) -> Text:
    if one.regressed(tolerance):
        return Text("WORSE", style="bold red")
    if one.undecided(tolerance):
        return Text("undecided", style="yellow")
    if one.within_noise:
        return Text("may be chance", style="dim")
    return Text("within the tolerance" if one.interval is not None and _worse(one) else "", style="dim")


def _worse(one: Difference) -> bool:
    change = one.change
    return change is not None and (change > 0) is one.higher_is_worse and change != 0
