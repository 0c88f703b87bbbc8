"""Intervals of refined parameters, from the fits that each left one capture out.

The delete-one jackknife (Tukey 1958) on logarithms, since every parameter is above 0: with n captures,

    se^2 = (n - 1) / n * sum over i of (ln p_without_i - mean)^2,   interval = p * exp(+- t(n - 1) * se)

It is of the parameter that the fit with all captures gave and holds it. Captures are the replicates: requests of one depend
on each other. It takes three, and no parameter that one fit set to 0.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from scheduler.calibration.step_law import Interval95
from scheduler.server_model.spec import STATED, StepLaw

MIN_CAPTURES = 3


def jackknife(law: StepLaw, left_out: Sequence[StepLaw]) -> dict[str, Interval95]:
    """By parameter of ``law``, the fit to all captures; ``left_out``: the fits without each one of them."""
    from scipy import stats  # noqa: PLC0415 (heavy, and only calibration needs it)

    n = len(left_out)
    if n < MIN_CAPTURES:
        return {}
    t = float(stats.t.ppf(0.975, n - 1))
    found = {}
    for name in StepLaw.__struct_fields__:
        value, without = getattr(law, name), [getattr(one, name) for one in left_out]
        if name not in STATED and value > 0 and min(without) > 0:
            logs = np.log(without)
            half = t * math.sqrt((n - 1) / n * float(((logs - logs.mean()) ** 2).sum()))
            found[name] = Interval95(value, value * math.exp(-half), value * math.exp(half))
    return found
