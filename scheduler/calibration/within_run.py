"""Intervals of refined parameters within one run, where there are too few captures to leave one out.

A block bootstrap (Carlstein 1986; a block is consecutive requests, since neighbours depend on each other). Each refit replays
the captures in full, since what the server had to do does not change, and compares figures over blocks drawn with replacement,
the same for captured and replayed requests. From the spread of the refits' logarithms::

    interval = p * exp(+- t(refits - 1) * s)

It tells how far the requests of these captures leave the law open, and nothing of how one run differs from the next. Of more
than MOST_REQUESTS a stretch of consecutive ones from the middle of each capture is refitted: the interval is that of so many,
wider than all of them would give.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from scheduler.calibration.observations import Int64s, Observations, blocks_of
from scheduler.calibration.refine import refine
from scheduler.calibration.step_law import Interval95
from scheduler.server_model.spec import STATED, ServerLimits, StepLaw

REFITS = 20
EVALUATIONS = 60
"""Replays of all captures that one refit, which starts at the law itself, may take."""

MOST_REQUESTS = 2_000
"""In all captures together: some twelve hundred replays of so many take a minute or less."""


def within_run(
    captures: Sequence[Observations],
    law: StepLaw,
    limits: ServerLimits,
    *,
    refits: int = REFITS,
    seed: int = 0,
    on_progress: Callable[[int], None] = lambda _done: None,
) -> dict[str, Interval95]:
    """By parameter of ``law``, the refined fit to ``captures``; empty for fewer than two refits."""
    from scipy import stats  # noqa: PLC0415 (heavy, and only calibration needs it)

    if refits < 2:
        return {}
    captures = [_middle(seen, MOST_REQUESTS // len(captures)) for seen in captures]
    rng = np.random.default_rng(seed)
    laws = []
    for done in range(1, refits + 1):
        rows = [drawn_blocks(len(seen), rng) for seen in captures]
        laws.append(refine(captures, law, limits, evaluations=EVALUATIONS, rows=rows).law)
        on_progress(done)
    t = float(stats.t.ppf(0.975, refits - 1))
    found = {}
    for name in StepLaw.__struct_fields__:
        value = getattr(law, name)
        if name not in STATED and value > 0:
            half = t * float(np.std(np.log([getattr(one, name) for one in laws]), ddof=1))
            found[name] = Interval95(value, value * math.exp(-half), value * math.exp(half))
    return found


def no_narrower(within: Mapping[str, Interval95], spans: Mapping[str, Interval95]) -> dict[str, Interval95]:
    """Each interval ``within`` a run, with all of that of the least squares that the fit started from: refits start at the law,
    so where the run does not tell two parameters apart they stay beside it, and least squares do not."""
    return {
        name: Interval95(found.value, min(found.low, spans[name].low), max(found.high, spans[name].high))
        if name in spans
        else found
        for name, found in within.items()
    }


def _middle(seen: Observations, most: int) -> Observations:
    skipped = max(0, len(seen) - most) // 2
    return seen.take(np.arange(skipped, skipped + most)) if skipped else seen


def drawn_blocks(n: int, rng: np.random.Generator) -> Int64s:
    """Of ``n`` rows in order, the rows of as many blocks as there are, drawn with replacement."""
    block = blocks_of(n)
    count = int(block[-1]) + 1
    return np.concatenate([np.flatnonzero(block == i) for i in rng.integers(0, count, count)])
