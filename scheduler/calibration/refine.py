"""The step law refined with the simulator in the loop.

Least squares on spans (:mod:`scheduler.calibration.step_law`) cannot see what happens before the first token, nor how a step
with prefill is spread over the gaps of the others. So its solution is only the start: the captures are replayed, and the
parameters move (Nelder and Mead, Computer Journal 7, 1965, on their logarithms) to where the figures that people read agree
best::

    loss = mean over captures and figures of w * rho(ln(simulated / captured) / scale) + ridge * sum ln(parameter / start)^2

with rho(x) = sqrt(1 + x^2) - 1, which is linear in the tails: a capture taken while the host was disturbed pulls no harder
than any other. A disturbance only ever slows a run down, so errors are not symmetric: w is ``TOO_SLOW`` where the simulated
server is slower than the captured one, else 1, and the fit is to the server as it is when nothing disturbs it (a low quantile
of the captures, not their mean). Every capture weighs the same, whatever its length. The ridge keeps what the captures do not
identify where it started. Deterministic.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np

from scheduler.calibration.figures import errors, figures
from scheduler.calibration.observations import Floats, Int64s, Observations
from scheduler.calibration.replay import replay
from scheduler.server_model.spec import STATED, ServerLimits, StepLaw

SCALES = {
    "ttft_p50": 0.08,
    "ttft_p90": 0.09,
    "ttft_p99": 0.09,
    "tpot_mean": 0.024,
    "tpot_p99": 0.036,
    "itl_p99": 0.20,
    "e2e_mean": 0.03,
    "throughput": 0.01,
}
"""The figures that are fitted, each with the relative error that counts as one unit: about what repeats of one run differ
by."""

RIDGE = 0.02
TOO_SLOW = 3.0
_FIRST_STEP = 0.15
_FLOOR = 1e-3


@dataclass(frozen=True, slots=True)
class Refined:
    """``loss``: 0 is a perfect fit; 0.4 when every figure errs by its scale and none is too slow."""

    law: StepLaw
    loss: float


def refine(
    captures: Sequence[Observations],
    start: StepLaw,
    limits: ServerLimits,
    *,
    evaluations: int = 140,
    rows: Sequence[Int64s] | None = None,
) -> Refined:
    """Move the parameters from ``start`` (those that are 0, and those that are stated, stay).

    ``evaluations``: a search takes at most so many replays of all captures. ``rows``: of each capture, the requests whose
    figures are compared (None: all)."""
    compared: Sequence[Int64s | None] = [None] * len(captures) if rows is None else rows
    measured = [_figures(seen, some) for seen, some in zip(captures, compared, strict=True)]

    def loss(law: StepLaw) -> float:
        losses = [
            capture_loss(seen, goal, law, limits, some)
            for seen, goal, some in zip(captures, measured, compared, strict=True)
        ]
        return sum(losses) / len(losses)

    return _searched(loss, start, evaluations)


def _searched(loss: Callable[[StepLaw], float], start: StepLaw, evaluations: int) -> Refined:
    from scipy.optimize import minimize  # noqa: PLC0415 (heavy, and only calibration needs it)

    names = [name for name in StepLaw.__struct_fields__ if getattr(start, name) > 0 and name not in STATED]

    def law_at(z: Floats) -> StepLaw:
        moved = {name: getattr(start, name) * math.exp(step) for name, step in zip(names, z.tolist(), strict=True)}
        return msgspec.structs.replace(start, **moved)

    origin = np.zeros(len(names))
    found = minimize(
        lambda z: loss(law_at(z)) + RIDGE * float(z @ z),
        origin,
        method="Nelder-Mead",
        options={
            "maxfev": evaluations,
            "initial_simplex": np.vstack([origin, np.eye(len(names)) * _FIRST_STEP]),
            "adaptive": True,
            "xatol": 4e-3,
            "fatol": 1e-3,
        },
    )
    return Refined(law_at(found.x), float(found.fun))


def _figures(seen: Observations, rows: Int64s | None) -> dict[str, float]:
    return figures(seen if rows is None else seen.take(rows))


def capture_loss(
    seen: Observations, measured: dict[str, float], law: StepLaw, limits: ServerLimits, rows: Int64s | None = None
) -> float:
    """The weighted mean of rho over the fitted figures of one capture, or of some of its ``rows``."""
    found = errors(measured, _figures(replay(seen, law, limits, by_block=rows is not None).times, rows))
    losses = []
    for name, scale in SCALES.items():
        if name in found:
            unit = math.log(max(_FLOOR, 1 + found[name])) / scale
            slower = unit < 0 if name == "throughput" else unit > 0
            losses.append((TOO_SLOW if slower else 1.0) * (math.sqrt(1 + unit * unit) - 1))
    return sum(losses) / max(1, len(losses))
