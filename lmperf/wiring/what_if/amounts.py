"""Whether what a difference makes of a trace can be simulated: how many requests it comes to, and where they fall."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from lmperf.scenario.faults import COMMAND_LINE, Fault, Place
from lmperf.scenario.faults import Path as KeyPath
from lmperf.wiring.what_if.settings import WhatIf
from loadgen.workload.replay import Int64s, ReplayRows
from tenants.tenant import Tenant

MOST_REQUESTS = 10_000_000
"""In one alternative: some minutes under each policy, and their rows in memory or on a disk."""

_PLACE = Place(COMMAND_LINE)
_BEYOND_NS = 2.0**63


def amount_faults(
    what_if: WhatIf,
    rows: ReplayRows,
    tenants: Sequence[Tenant],
    growth: Mapping[str, float],
    window_ns: tuple[int, int],
) -> list[Fault]:
    """``rows``, ``tenants``: those that the difference leaves, of which ``growth`` multiplies the arrivals."""
    if not growth:
        return []
    assert rows.tenant is not None, "a captured run names its tenants"
    own = {tenant.name: rows.arrival_ns[rows.tenant == number] for number, tenant in enumerate(tenants)}
    return [*_too_many(what_if, own, growth), *_too_few(what_if, own, growth, window_ns)]


def weight_faults(what_if: WhatIf, tenants: Sequence[Tenant]) -> list[Fault]:
    """Shares that a tenant cannot have."""
    return [
        Fault(_PLACE, ("tenants", tenant.name, "weight"), "makes a weight that no float can hold", "2 doubles it")
        for tenant in tenants
        if not 0.0 < tenant.weight * what_if.weights.get(tenant.name, 1.0) < math.inf
    ]


def _too_many(what_if: WhatIf, own: Mapping[str, Int64s], growth: Mapping[str, float]) -> list[Fault]:
    """Counts as :mod:`loadgen.workload.replay` does: each tenant's rows times its factor."""
    counts = {name: len(at) * growth.get(name, 1.0) for name, at in own.items()}
    total, before = sum(counts.values()), sum(map(len, own.values()))
    if total <= max(MOST_REQUESTS, before):
        return []
    most = max(counts, key=lambda name: counts[name])
    path = _rate_of(what_if, most, lambda rate: rate > 1.0)
    number = f"{total:,.0f}" if total < 1e15 else f"{total:.3g}"
    problem = f"makes {number} requests of {before:,}, more than {MOST_REQUESTS:,} in one alternative"
    remedy = "a smaller factor would do"
    if path == ("rate",) and len({growth.get(name) for name in own}) == 1:
        remedy = f"up to {_rounded_down(MOST_REQUESTS / before)} would do"
    return [Fault(_PLACE, path, problem, remedy)]


def _rounded_down(value: float) -> str:
    """To two digits."""
    unit = 10.0 ** (math.floor(math.log10(value)) - 1)
    return f"{math.floor(value / unit) * unit:,.6g}"


def _too_few(
    what_if: WhatIf,
    own: Mapping[str, Int64s],
    growth: Mapping[str, float],
    window_ns: tuple[int, int],
) -> list[Fault]:
    """Of load that shrinks: times beyond what 64 bits hold, and a window that nobody, or nobody of a tenant whose own rate was
    asked for, arrives in any more."""
    faults = []
    before, after = 0, 0
    for name, at in own.items():
        factor = growth.get(name, 1.0)
        inside = _in_window(at, 1.0, window_ns)
        left = _in_window(at, factor, window_ns) if factor < 1.0 else inside
        before, after = before + inside, after + left
        if factor >= 1.0 or not len(at):
            continue
        path = _rate_of(what_if, name, lambda rate: rate < 1.0)
        if float(at.max()) >= _BEYOND_NS * factor:
            problem = "puts arrivals later than 64 bits of nanoseconds can say (292 years)"
            faults.append(Fault(_PLACE, path, problem, "0.5 halves the load"))
        elif inside and not left and path != ("rate",):
            problem = f"leaves none of the {inside:,} requests of {name} in the measured window"
            faults.append(Fault(_PLACE, path, problem, "a larger factor, or remove=true in its place"))
    if before and not after and not faults:
        problem = f"leaves none of the {before:,} requests in the measured window"
        faults.append(Fault(_PLACE, ("rate",), problem, "a larger factor; 0.5 halves the load"))
    return faults


def _in_window(at: Int64s, factor: float, window_ns: tuple[int, int]) -> int:
    """How many arrive in the window, of load that does not grow: gaps divided by ``factor``."""
    start, end = (edge * factor for edge in window_ns)
    return int(np.count_nonzero((at >= start) & (at < end)))


def _rate_of(what_if: WhatIf, name: str, wrong: Callable[[float], bool]) -> KeyPath:
    """The setting that makes a tenant's load what it is: its own rate, where that is to blame, else that of all."""
    own = what_if.rates.get(name, 1.0)
    return ("tenants", name, "rate") if wrong(own) else ("rate",)
