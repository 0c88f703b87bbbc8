"""What a dispatcher starts from, as plain data."""

from __future__ import annotations

import msgspec

from scheduler.cost import CostModel
from scheduler.routing import Routing
from scheduler.slots import Slots
from tenants.tenant import Tenant


class DispatcherConfig(msgspec.Struct, frozen=True, kw_only=True):
    """All that a dispatcher starts from; the first line of an event log. ``backends``: slots by backend name (>= 1);
    ``routing``: which of several a request goes to."""

    tenants: tuple[Tenant, ...]
    policy: str
    options: dict[str, object] = {}
    cost: CostModel = CostModel()
    prefill_rate: float = 40_000.0
    backends: dict[str, Slots]
    routing: Routing = Routing()
