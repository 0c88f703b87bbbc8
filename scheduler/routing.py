"""Which backend runs a request, when several stand behind one queue.

Work is what the requests at a backend cost (prompt and estimated output, :mod:`scheduler.cost`), not how many there are:
ten short questions are less than two long documents. It counts from the dispatch to the end.

The policy has chosen the request before; the rules (:mod:`scheduler.route_rules`) choose among the backends with room, so none
lets a request overtake another, nor wait while any backend has room.

A request that failed at a backend avoids it when it is placed again, unless only that one has room.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from enum import StrEnum

import msgspec

from scheduler.backend_slots import BackendSlots
from scheduler.cost import CostModel
from scheduler.output_estimate import OutputEstimate
from scheduler.request import Request
from scheduler.route_rules import BySession, LeastWork, LongestPrefix, RoundRobin
from scheduler.slots import Slots
from tenants.tenant import Tenant

_KEPT_BLOCKS = 65_536


class Rule(StrEnum):
    """How one of several backends is chosen; see :mod:`scheduler.route_rules`."""

    LEAST_WORK = "least_work"
    ROUND_ROBIN = "round_robin"
    PREFIX = "prefix"
    SESSION = "session"


class Routing(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``slack``: of ``prefix``, in cost units: how much more work than the least a backend may have and still be preferred for
    its prefix cache; None: however much. The default is the cost of an 8,192-token prompt."""

    rule: Rule = Rule.LEAST_WORK
    slack: float | None = 8192.0

    def __post_init__(self) -> None:
        if self.slack is not None and not 0 <= self.slack < float("inf"):
            raise ValueError(f"routing: slack must be >= 0 cost units, or null (no bound), got {self.slack}")

    @classmethod
    def parse(cls, text: str) -> Routing:
        """``prefix``, ``prefix:slack=65536`` or ``prefix:slack=null``. Raises ValueError that says what would be right."""
        name, colon, setting = text.partition(":")
        if name not in set(Rule):
            raise ValueError(f"there is no rule {name!r}: one of {', '.join(Rule)}")
        if not colon:
            return cls(rule=Rule(name))
        key, _, value = setting.partition("=")
        if name != Rule.PREFIX or key != "slack":
            raise ValueError(f"{text!r} sets {key!r}, and only prefix has a setting, its slack")
        if value == "null":
            return cls(rule=Rule.PREFIX, slack=None)
        try:
            slack = float(value)
        except ValueError:
            raise ValueError(f"slack is {value!r}, which is neither a number of cost units nor null") from None
        return cls(rule=Rule.PREFIX, slack=slack)

    @property
    def reads_prefixes(self) -> bool:
        """Whether the blocks of a prompt may decide."""
        return self.rule in (Rule.PREFIX, Rule.SESSION)

    @property
    def text(self) -> str:
        """What results call it."""
        if self.rule is not Rule.PREFIX:
            return self.rule.value
        return "prefix, no slack bound" if self.slack is None else f"prefix, slack {self.slack:g}"


def routed_text(servers: int, routing: Routing) -> str:
    """``2 servers behind one queue, routing prefix, slack 8192``; empty for one, between which nothing decides."""
    return "" if servers < 2 else f"{servers} servers behind one queue, routing {routing.text}"


class Router:
    """All backends of one dispatcher and what occupies them. With a single one nothing is weighed."""

    def __init__(
        self, slots: Mapping[str, Slots], tenants: Iterable[Tenant], cost: CostModel, routing: Routing
    ) -> None:
        self._backends = {name: BackendSlots(name, of) for name, of in slots.items()}
        self._cost = cost
        self._rule = self._rule_of(routing)
        self._estimates: dict[str, OutputEstimate] = {}
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
        if not up:
            self._rule.lost(name)

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
        self._rule.placed(request, backend)
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
        return self._rule.choose(roomy, request)

    def _rule_of(self, routing: Routing) -> LeastWork:
        match routing.rule:
            case Rule.LEAST_WORK:
                return LeastWork()
            case Rule.ROUND_ROBIN:
                return RoundRobin(self._backends)
            case Rule.PREFIX:
                return LongestPrefix(None if routing.slack is None else 1000 * routing.slack, _KEPT_BLOCKS)
            case Rule.SESSION:
                return BySession()


def _thousandths(cost: float) -> int:
    """Whole thousandths of a cost unit: sums of ints come back to zero, whatever the order."""
    return round(1000 * cost)
