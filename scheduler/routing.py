"""Which backend runs a request, when several stand behind one queue: the one with the least outstanding work.

Work is what the requests at a backend cost (prompt and estimated output, :mod:`scheduler.cost`), not how many there are:
ten short questions are less than two long documents. It counts from the dispatch to the end. Equal work: fewer requests,
then the order in which the backends were configured.

With ``affinity: prefix`` a request whose first prefix block was last sent to some backend goes there again, for the sake
of its prefix cache, while that backend has room and its work is at most ``slack`` above the least of those with room. The
policy has chosen the request before; affinity never lets one overtake another, nor wait while any backend has room.

A request that failed at a backend avoids it when it is placed again, unless only that one has room.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from enum import StrEnum

import msgspec

from scheduler.cost import CostModel, OutputEstimate
from scheduler.request import Request
from scheduler.slots import BackendSlots, Slots
from tenants.tenant import Tenant

_KEPT_PREFIXES = 65_536


class Affinity(StrEnum):
    """Whether a request returns to the backend that has its prefix."""

    NONE = "none"
    PREFIX = "prefix"


class Routing(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``slack``: in cost units, how much more work than the least a backend may have and still be preferred for its
    prefix cache. The default is the cost of an 8,192-token prompt."""

    affinity: Affinity = Affinity.NONE
    slack: float = 8192.0

    def __post_init__(self) -> None:
        if not self.slack >= 0:
            raise ValueError(f"routing: slack must be >= 0 cost units, got {self.slack}")


class Router:
    """All backends of one dispatcher and what occupies them. With a single one nothing is weighed."""

    def __init__(
        self, slots: Mapping[str, Slots], tenants: Iterable[Tenant], cost: CostModel, routing: Routing
    ) -> None:
        self._backends = {name: BackendSlots(name, of) for name, of in slots.items()}
        self._cost = cost
        self._routing = routing
        self._slack = _thousandths(routing.slack)
        self._estimates: dict[str, OutputEstimate] = {}
        self._last_at: dict[int, str] = {}
        self._avoided: dict[int, str] = {}
        self.set_tenants(tenants)

    def __iter__(self) -> Iterator[BackendSlots]:
        return iter(self._backends.values())

    def __getitem__(self, name: str) -> BackendSlots:
        return self._backends[name]

    def set_tenants(self, tenants: Iterable[Tenant]) -> None:
        """What was learnt of tenants that stay is kept."""
        self._estimates = {t.name: self._estimates.get(t.name) or OutputEstimate(t) for t in tenants}

    def set_slots(self, name: str, slots: Slots) -> None:
        """New slots of a backend, which may be a new one."""
        self._backends.setdefault(name, BackendSlots(name, slots)).slots = slots

    def set_state(self, name: str, *, up: bool) -> None:
        """A backend that went down comes back without its prefix cache."""
        self._backends[name].up = up
        if not up and self._last_at:
            self._last_at = {block: at for block, at in self._last_at.items() if at != name}

    def has_room(self) -> bool:
        """Whether any backend takes one more request."""
        for backend in self._backends.values():  # noqa: SIM110 (a generator costs more than the question)
            if backend.has_room():
                return True
        return False

    def place(self, request: Request) -> BackendSlots:
        """Occupy a slot for ``request``; to be asked only while there is room."""
        if len(self._backends) == 1:
            (backend,) = self._backends.values()
            backend.occupy(request)
            return backend
        backend = self._choose(request)
        estimate = self._estimates[request.tenant].of(request)
        backend.occupy(request, _thousandths(self._cost.of(request.prompt_tokens, estimate)))
        if self._routing.affinity is Affinity.PREFIX and request.prefix_blocks:
            self._remember(request.prefix_blocks[0], backend.name)
        return backend

    def avoid(self, request_id: int, name: str) -> None:
        """The next placement of a request prefers any other backend to ``name``."""
        if len(self._backends) > 1:
            self._avoided[request_id] = name

    def forget(self, request_id: int) -> None:
        """A request left the queue for good: what it avoided does not matter any more."""
        self._avoided.pop(request_id, None)

    def ended(self, tenant: str, output_tokens: int) -> None:
        """Learn from the true length of an answer; a request that gave nothing tells nothing."""
        if output_tokens > 0 and len(self._backends) > 1 and (estimate := self._estimates.get(tenant)) is not None:
            estimate.learn(output_tokens)

    def _choose(self, request: Request) -> BackendSlots:
        roomy = [backend for backend in self._backends.values() if backend.has_room()]
        if self._avoided and (avoided := self._avoided.pop(request.id, None)) is not None:
            roomy = [backend for backend in roomy if backend.name != avoided] or roomy
        least = min(roomy, key=BackendSlots.load)
        if self._routing.affinity is Affinity.PREFIX and request.prefix_blocks:
            last_at = self._last_at.get(request.prefix_blocks[0])
            for backend in roomy:
                if backend.name == last_at and backend.work <= least.work + self._slack:
                    return backend
        return least

    def _remember(self, block: int, name: str) -> None:
        """The most recently used prefixes, as many as are kept."""
        self._last_at.pop(block, None)
        self._last_at[block] = name
        if len(self._last_at) > _KEPT_PREFIXES:
            del self._last_at[next(iter(self._last_at))]


def _thousandths(cost: float) -> int:
    """Whole thousandths of a cost unit: sums of ints come back to zero, whatever the order."""
    return round(1000 * cost)
