"""What speaks against a fitted law by its parameters alone, in sentences for people: an interval wider than its value, one
left at the end of its range or far from where any server is, one that parts of the captures put elsewhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from scheduler.calibration.observations import Observations
from scheduler.calibration.step_law import Interval95
from scheduler.calibration.words import parameter_text, symbol
from scheduler.server_model.spec import STATED, StepLaw

LEAST_OFFSET_US = 1.0
"""Where a refinement, which only scales what is above 0, starts an offset that was found to be 0."""

NO_DISTANCE_US = 10 * LEAST_OFFSET_US
"""What a refinement makes of such a start. No client is so near to a server's engine."""

FAR_US = 1e6
"""An offset above which the times of sending are doubted: once round the earth and a busy front end take half of it."""

TOO_FAR_US = 5e6
"""An offset that no server has: before a client waits so long for a quiet one it has given up."""

STEP_US = (20.0, 1e7)
"""Between what a step takes of any engine: a launch on an accelerator takes some 10 us, and 10 s a token are no service."""

MOVED = 4.0
"""By what factor a parameter may move as parts of the captures are left out. Over the eight captures of an H200 none moved by
more than some 1.6; of a single one c moved by 8 (the halves of one long-prompt run), and predicted no other load."""


def wide(intervals: Mapping[str, Interval95]) -> list[str]:
    """Parameters whose interval is wider than their value; ``intervals``: those that are shown beside it."""
    return [
        f"{parameter_text(name)} is known only to within {(found.high - found.low) / found.value / 2:.0%} "
        f"(from {found.low:,.4g} to {found.high:,.4g})"
        for name, found in intervals.items()
        if 0 < found.value < found.high - found.low
    ]


def at_bounds(captures: Sequence[Observations], law: StepLaw) -> list[str]:
    """A prompt that costs nothing, and a client at no distance from the server, are what no server is; sequences and KV that
    cost nothing may be, or are mistaken for each other."""
    found = []
    if law.b_us <= 0 and any(seen.computed_tokens.any() for seen in captures):
        found.append(
            "b is 0, the end of its range: prompts would cost nothing. The captures do not say what a prompt costs; are the "
            "times of sending right, and do prompts vary in length?"
        )
    if law.d_us <= 0:
        found.append(
            "d is 0, the end of its range: the captures do not tell what resident KV costs from what a sequence costs (c), so "
            "other lengths than theirs may be mispredicted; capture loads that differ in lengths and in rate"
        )
    if law.offset_us <= NO_DISTANCE_US:
        found.append(
            f"offset is {law.offset_us:.2g} us, the end of its range: no request takes so little to reach the engine. Are the "
            "times of sending right?"
        )
    if law.offset_us > FAR_US:
        found.append(
            f"offset is {law.offset_us / 1e6:.3g} s: no quiet server takes so long before it begins. Are the times of sending "
            "those at which requests went out, and in the units that they should be in?"
        )
    return found


def moved(law: StepLaw, left_out: Sequence[StepLaw]) -> list[str]:
    """Parameters that parts of the captures put elsewhere; ``left_out``: the laws without each part. Of one that
    :func:`at_bounds` doubts already nothing more is said."""
    found = []
    for name in (name for name in StepLaw.__struct_fields__ if name not in STATED and getattr(law, name) > 0):
        values = [getattr(one, name) for one in (law, *left_out)]
        low, high = min(values), max(values)
        if high > MOVED * low:
            found.append(f"{parameter_text(name)} goes from {low:,.4g} to {high:,.4g}")
    if not found:
        return []
    what = f"as parts of the captures are left out, {', '.join(found)}: the captures do not say what it is"
    return [
        f"{what}, and other loads than theirs may be mispredicted; capture loads that differ in lengths and in rate"
    ]


def no_servers_law(law: StepLaw) -> str:
    """Why no server can have this law; empty where one may."""
    low, high = STEP_US
    found = []
    if not low <= law.a_us <= high:
        found.append(
            f"{symbol('a_us')} is {law.a_us:,.4g} us a step, and a step takes {low:,.0f} us to {high / 1e6:,.0f} s"
        )
    if law.offset_us > TOO_FAR_US:
        found.append(f"offset is {law.offset_us / 1e6:,.4g} s, and {TOO_FAR_US / 1e6:,.0f} s is the most")
    if not found:
        return ""
    return f"no server has this law: {', '.join(found)}; are the captures' times in the units that they should be in?"
