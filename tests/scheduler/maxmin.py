"""Weighted max-min fair shares by water-filling: the oracle of the fairness tests, with tests of its own.

Raise one water level; a demand that lies below weight * level is satisfied, everybody else gets weight * level.
"""

from __future__ import annotations

from collections.abc import Mapping


def max_min(capacity: float, demands: Mapping[str, float], weights: Mapping[str, float]) -> dict[str, float]:
    """What each gets of ``capacity``: nobody more than its demand, and no one's share per weight can be raised without
    lowering another's that is not larger."""
    shares: dict[str, float] = {}
    open_names = set(demands)
    left = capacity
    while open_names:
        level = left / sum(weights[n] for n in open_names)
        satisfied = {n for n in open_names if demands[n] <= weights[n] * level}
        if not satisfied:
            return shares | {n: weights[n] * level for n in open_names}
        for name in satisfied:
            shares[name] = demands[name]
            left -= demands[name]
        open_names -= satisfied
    return shares
