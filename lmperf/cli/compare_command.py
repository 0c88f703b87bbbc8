"""``lmperf compare``: runs side by side; exit code 108 when a later one is worse than the first."""

from __future__ import annotations

import argparse
import math
import sys
from pathlib import Path

from rich import box
from rich.table import Table
from rich.text import Text

from lmperf.console import results_console
from lmperf.exit_codes import ExitCode, worst
from lmperf.scenario.faults import Fault, Place, ScenarioError
from lmperf.wiring.regression import Difference, differences, incomparable
from loadgen.summary.files import read_summary
from loadgen.summary.schema import Summary
from loadgen.table import banner, title_of


def run(args: argparse.Namespace) -> ExitCode:
    if len(args.runs) < 2:
        raise ScenarioError.single("<flags>", "one run alone cannot be compared", "name two or more run folders")
    if not 0 <= args.tolerance < math.inf:
        raise ScenarioError.single("<flags>", f"--tolerance is {args.tolerance}", "0 or more: 0.1 allows 10%")
    base, *others = [(name, read_summary(Path(name))) for name in args.runs]
    reasons = [(name, incomparable(base[1], other)) for name, other in others]
    faults = [Fault(Place(name), (), f"cannot be compared with {base[0]}: {why}") for name, why in reasons if why]
    if faults:
        raise ScenarioError(faults)
    codes = [ExitCode.OK]
    for name, summary in (base, *others):
        for text in banner(summary):
            print(f"{name}: {text.plain}", file=sys.stderr)
            codes.append(ExitCode.INVALID)
    for name, summary in others:
        codes.append(_compare(base, (name, summary), args.tolerance))
    return worst(codes)


def _compare(base: tuple[str, Summary], run: tuple[str, Summary], tolerance: float) -> ExitCode:
    found = differences(base[1], run[1])
    console = results_console()
    for name, summary in (base, run):
        console.print(f"{name}: {title_of(summary)}", soft_wrap=True)
    console.print(_table(found, tolerance))
    if any(one.base.interval or one.run.interval for one in found):
        console.print("[95% intervals]: where both runs have one and they overlap, the difference proves nothing")
    regressed = [one for one in found if one.regressed(tolerance)]
    if not regressed:
        console.print(f"no figure is worse by more than {tolerance:.0%}", soft_wrap=True)
        return ExitCode.OK
    named = ", ".join(f"{one.tenant} {one.figure.removesuffix(' ms')}" for one in regressed)
    console.print(f"REGRESSION beyond {tolerance:.0%}: {named}", soft_wrap=True)
    return ExitCode.REGRESSION


def _table(found: list[Difference], tolerance: float) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    table.add_column("tenant", overflow="fold")
    table.add_column("figure", no_wrap=True)
    for name in ("first run", "this run", "difference"):
        table.add_column(name, justify="right")
    table.add_column("")
    last = None
    for one in found:
        if last not in {None, one.tenant}:
            table.add_section()
        digits, scale = (1, 100.0) if one.share else (2, 1.0)
        table.add_row(
            "" if one.tenant == last else one.tenant,
            "attained %" if one.share else one.figure,
            one.base.text(digits, scale),
            one.run.text(digits, scale),
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
    return f"{change * 100:+.1f} points" if one.share else f"{change:+.1%}"


def _word(one: Difference, tolerance: float) -> Text:
    if one.regressed(tolerance):
        return Text("WORSE", style="bold red")
    return Text("within intervals" if one.within_noise else "", style="dim")
