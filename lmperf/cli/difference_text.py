"""A difference of two runs in words: how large it is, and what is to be thought of it."""

from __future__ import annotations

import math

from lmperf.wiring.regression import Difference

WORSE, UNDECIDED, MAY_BE_CHANCE, WITHIN = "WORSE", "undecided", "may be chance", "within the tolerance"


def figure_of(one: Difference) -> str:
    """What was measured, with its unit."""
    return f"{one.figure} %" if one.share else one.figure


def sides_of(one: Difference) -> tuple[str, str]:
    """The first side and this one; a dash where a side does not state it."""
    first, this = ("-" if side is None else side.text(one.number) for side in (one.base, one.run))
    return first, this


def change_text(one: Difference) -> str:
    """``+12.3% [+1.0, +25.1]``."""
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


def word(one: Difference, tolerance: float) -> str:
    """One of the four above, or empty: not worse."""
    if one.regressed(tolerance):
        return WORSE
    if one.undecided(tolerance):
        return UNDECIDED
    if one.within_noise:
        return MAY_BE_CHANCE
    return WITHIN if one.interval is not None and _worse(one) else ""


def _worse(one: Difference) -> bool:
    change = one.change
    return change is not None and (change > 0) is one.higher_is_worse and change != 0


def sentences(found: list[Difference], tolerance: float) -> list[str]:
    """What is worse beyond the tolerance: shown to be, and without an interval to tell."""
    regressed = [one for one in found if one.regressed(tolerance)]
    undecided = [one for one in found if one.undecided(tolerance)]
    said = []
    if undecided:
        said.append(
            f"UNDECIDED, worse by more than {tolerance:.0%} without an interval to tell it from chance: {_named(undecided)}; "
            "longer runs or repeats decide"
        )
    if regressed:
        said.append(f"REGRESSION beyond {tolerance:.0%}: {_named(regressed)}")
    return said or [f"no figure is worse by more than {tolerance:.0%} and beyond chance"]


def _named(found: list[Difference]) -> str:
    return ", ".join(f"{one.tenant} {one.figure.removesuffix(' ms')}" for one in found)
