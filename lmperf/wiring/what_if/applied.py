"""A captured run with a difference made.

More load: gaps are divided and rows cycled (:mod:`loadgen.workload.replay`). An added tenant has the rows of the one it is
like, begun elsewhere: its times are turned round the trace by the golden ratio of its length, so that two alike do not
burst together. Requests that came because another ended cannot be multiplied, so then recorded times are played, in
whatever stands beside it too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import msgspec

from lmperf.scenario.faults import COMMAND_LINE, ScenarioError
from lmperf.wiring.captured import CapturedRun
from lmperf.wiring.what_if.amounts import amount_faults, weight_faults
from lmperf.wiring.what_if.settings import WhatIf
from loadgen.offline.rows import only_tenants, with_copy
from scheduler.routing import routed_text
from scheduler.server_model.spec import ServerLimits, ServerModelSpec

_GOLDEN = 0.6180339887498949


@dataclass(frozen=True, slots=True)
class Changed:
    """A captured run with the difference made. ``growth``: what the recipe's rows are multiplied by."""

    captured: CapturedRun
    server: ServerModelSpec
    growth: Mapping[str, float]
    replicas: int

    @property
    def routed(self) -> str:
        """As that of the captured run."""
        return routed_text(self.replicas * len(self.captured.all_slots), self.captured.routing)


def apply(what_if: WhatIf, captured: CapturedRun, server: ServerModelSpec) -> Changed:
    """Raises ScenarioError for limits that no server can have, and for loads that cannot be simulated."""
    recipe = captured.recipe
    rows, tenants = recipe.rows, list(captured.tenants)
    by_name = {tenant.name: number for number, tenant in enumerate(tenants)}
    for turn, (name, like) in enumerate(what_if.added.items(), start=1):
        tenants.append(replace(tenants[by_name[like]], name=name))
        rows = with_copy(rows, by_name[like], len(tenants) - 1, turn * _GOLDEN % 1.0)
    kept = [number for number, tenant in enumerate(tenants) if tenant.name not in what_if.removed]
    if len(kept) < len(tenants):
        rows = only_tenants(rows, kept)
        tenants = [tenants[number] for number in kept]
    growth = what_if.growth(tenant.name for tenant in tenants)
    faults = [
        *weight_faults(what_if, tenants),
        *amount_faults(what_if, rows, tenants, growth, captured.window_ns),
    ]
    if faults:
        raise ScenarioError(faults)
    tenants = [replace(t, weight=t.weight * what_if.weights.get(t.name, 1.0)) for t in tenants]
    changed = replace(
        recipe, rows=rows, tenants=tuple(tenants), recorded=recipe.recorded or multiplied(what_if, captured)
    )
    names = {tenant.name for tenant in tenants}
    try:
        limits = msgspec.convert(msgspec.to_builtins(server.limits) | dict(what_if.server), ServerLimits)
    except (msgspec.ValidationError, ValueError) as error:
        remedy = "see the limits in the server-model file"
        path = ("server", *what_if.server) if len(what_if.server) == 1 else ("server",)
        raise ScenarioError.single(COMMAND_LINE, str(error), remedy, path=path) from error
    return Changed(
        captured=replace(
            captured,
            tenants=tuple(tenants),
            recipe=changed,
            slots=msgspec.structs.replace(captured.slots, **what_if.slots),
            backends={n: msgspec.structs.replace(each, **what_if.slots) for n, each in captured.backends.items()},
            auto=None if "sequences" in what_if.slots else captured.auto,
            routing=msgspec.structs.replace(captured.routing, **what_if.routing),
            noisy=tuple(name for name in captured.noisy if name in names),
        ),
        server=msgspec.structs.replace(server, limits=limits),
        growth=growth,
        replicas=what_if.replicas,
    )


def multiplied(what_if: WhatIf, captured: CapturedRun) -> bool:
    """True where rows are multiplied of which some came because another ended, so that recorded times must be played."""
    names = (tenant.name for tenant in captured.tenants)
    return captured.recipe.rows.after_row is not None and bool(what_if.growth([*names, *what_if.added]))
