"""Quantiles of the laws that intervals rest on.

From ``scipy.special`` and loaded at the first use: ``scipy.stats`` takes half a second to import, and no run needs it
before its first request.
"""

from __future__ import annotations

from types import ModuleType

import numpy as np


def normal_quantile(p: float) -> float:
    return float(_special().ndtri(p))


def normal_probability(x: float) -> float:
    return float(_special().ndtr(x))


def t_quantile(p: float, freedom: float) -> float:
    """Student's t with ``freedom`` degrees of freedom."""
    return float(_special().stdtrit(freedom, p))


def beta_quantile(p: float, a: float, b: float) -> float:
    return float(_special().betaincinv(a, b, p))


def binomial_quantile(p: float, trials: int, share: float) -> int:
    """The least k with P(X <= k) >= ``p``, of ``trials`` with probability ``share`` each."""
    special = _special()
    if not 0 < share < 1:
        return trials if share >= 1 and p > 0 else 0
    # The inverse takes k as continuous and may be off by one through rounding, so the cumulative probability decides.
    near = special.bdtrik(p, trials, share)
    k = 0 if np.isnan(near) else int(np.clip(np.ceil(near), 0, trials))
    while k > 0 and special.bdtr(k - 1, trials, share) >= p:
        k -= 1
    while k < trials and special.bdtr(k, trials, share) < p:
        k += 1
    return k


def _special() -> ModuleType:
    from scipy import special  # noqa: PLC0415 (slow to import; see the module docstring)

    module: ModuleType = special
    return module
