"""Baseline and raised load: from what each tenant is said to offer to what it offers in one run, in cost units/s.

With a_i what tenant i is said to offer (docs/definitions.md):

    baseline    b_i = a_i * s      s = baseline total / sum a, or 1 where the scenario states no baseline
    raised      noisy j: grows until the total is F * sum b      growth all: F * b_i for every i
                F = ``raised``, or what the tenants' own raised loads r_j * s make of the total, or 1.2

All tenants are scaled alike to the baseline first, so the mix is the scenario's; then only the noisy ones grow.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from lmperf.scenario.model import At, Growth

RAISED_DEFAULT = 1.2


def offered_loads(
    said: Mapping[str, float],
    *,
    at: At,
    growth: Growth = Growth.NOISY,
    noisy: Collection[str] = (),
    baseline: float | None = None,
    raised: float | None = None,
    own_raised: Mapping[str, float] | None = None,
) -> dict[str, float]:
    """What each tenant offers, in the unit of ``said``.

    ``baseline``: the total to reach (None: that of ``said``). ``raised``: F, which wins over ``own_raised``, the raised
    loads that tenants state themselves (before scaling). Raises ValueError when the load is to be raised by nobody.
    """
    if at is At.NONE:
        return dict(said)
    scale = 1.0 if baseline is None else baseline / sum(said.values())
    base = {name: load * scale for name, load in said.items()}
    if at is At.BASELINE:
        return base
    own = {name: load * scale for name, load in (own_raised or {}).items()}
    total = sum(base.values())
    factor = RAISED_DEFAULT if raised is None else raised
    if raised is None and own:
        factor = sum((base | own).values()) / total
    if growth is Growth.ALL:
        return {name: load * factor for name, load in base.items()}
    if raised is None and any(name in own for name in noisy):
        return base | {name: load for name, load in own.items() if name in noisy}
    growing = sum(load for name, load in base.items() if name in noisy)
    if growing <= 0:
        raise ValueError("the load is raised, but no tenant is named whose load grows")
    k = 1 + (factor - 1) * total / growing
    return {name: load * k if name in noisy else load for name, load in base.items()}
