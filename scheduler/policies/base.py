"""What all policies share: choose a tenant, then serve that tenant's next request.

A policy here is a *key per tenant*: the backlogged tenant with the least key is served. Keys end in (arrival_ns, id) of the
tenant's next request, so ties are broken by age, never by name. Every operation is O(log n) in tenants and in queued
requests: a heap over tenants with changeable keys, and one heap by arrival per tenant.

Subclasses say what the key is and how accounts move (``_key``, ``_backlogged``, ``_charge``, ``_refund``, ``_settle``).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import ClassVar, Generic, TypeVar

from scheduler.cost import CostModel
from scheduler.extensible import mypyc_attr
from scheduler.keyed_heap import Key, KeyedHeap
from scheduler.lateness import Late, LateRule
from scheduler.output_estimate import OutputEstimate
from scheduler.request import Request
from scheduler.tenant_queue import TenantQueue
from tenants.tenant import Tenant


@mypyc_attr(allow_interpreted_subclasses=True)
class TenantState:
    """What every policy keeps of a tenant; policies add their accounts in a subclass. ``watched``: the request whose
    turning late is in the heap of latenesses. ``account``: what tokens of its next dispatch are reported under, in a policy
    that counts them (else 0)."""

    __slots__ = ("account", "estimate", "name", "queue", "tenant", "watched", "weight")

    def __init__(self, tenant: Tenant) -> None:
        self.name = tenant.name
        self.account = 0
        self.queue = TenantQueue()
        self.watched: Request | None = None
        self.estimate = OutputEstimate(tenant)
        self.configure(tenant)

    def configure(self, tenant: Tenant) -> None:
        self.tenant = tenant
        self.weight = tenant.weight
        self.watched = None


class Charge:
    """What a dispatched request was charged, kept until it ends: the estimated cost and the weight it was charged at.
    ``awaits_token``: no first token came yet. ``by_credit``: taken from a credit, in a policy that has some. ``account``: the
    tenant's at that time."""

    __slots__ = ("account", "arrival_ns", "awaits_token", "by_credit", "cost", "prompt_tokens", "state", "weight")

    def __init__(self, state: TenantState, request: Request, cost: float, weight: float) -> None:
        self.state = state
        self.arrival_ns = request.arrival_ns
        self.prompt_tokens = request.prompt_tokens
        self.cost = cost
        self.weight = weight
        self.awaits_token = True
        self.by_credit = False
        self.account = state.account


S = TypeVar("S", bound=TenantState)


@mypyc_attr(allow_interpreted_subclasses=True)
class TenantPolicy(ABC, Generic[S]):
    """Base of the policies; implements :class:`scheduler.policy.Policy`."""

    name: ClassVar[str] = ""

    def __init__(self, *, cost: CostModel, late: LateRule) -> None:
        self._cost = cost
        self._late = late
        # Asked at every step; a member of an enum costs more to name than a call (Python 3.11).
        self._sheds = late.mode is Late.SHED
        self._keeps = late.mode is Late.KEEP
        self._states: dict[str, S] = {}
        self._where: dict[int, S] = {}
        self._charges: dict[int, Charge] = {}
        self._ready: KeyedHeap = KeyedHeap()
        self._turning_late: KeyedHeap = KeyedHeap()
        self._shed: list[Request] = []
        self._held: Request | None = None

    # -- what a policy decides ---------------------------------------------------------------------------------------

    @abstractmethod
    def _new_state(self, tenant: Tenant) -> S:
        """The accounts of a tenant that was not there before."""

    def _key(self, state: S) -> Key:  # noqa: ARG002 (part of the hook)
        """The order among backlogged tenants, without the final (arrival, id)."""
        return ()

    def _backlogged(self, state: S, now_ns: int) -> None:
        """``state``'s queue went from empty to not empty (called before the key is taken)."""

    def _charge(self, state: S, request: Request, cost: float, now_ns: int) -> None:
        """``request`` of ``state`` is dispatched at an estimated ``cost``."""

    def _refund(self, state: S, charge: Charge, now_ns: int) -> None:
        """A dispatch is undone."""

    def _settle(self, state: S, charge: Charge, true_cost: float, now_ns: int) -> None:
        """A dispatched request ended and its true cost is known."""

    def _emptied(self, state: S) -> None:
        """``state``'s queue went from not empty to empty, by service, cancel or shedding."""

    def _drained(self) -> None:
        """Nothing is queued or outstanding any more."""

    def _before(self, now_ns: int) -> None:
        """Called first in every method that moves time."""

    # -- the protocol ------------------------------------------------------------------------------------------------

    @property
    def wants_progress(self) -> bool:
        return False

    @property
    def sheds(self) -> bool:
        return self._sheds

    def set_tenants(self, tenants: Sequence[Tenant], now_ns: int) -> None:
        self._before(now_ns)
        self._held = None
        wanted = {tenant.name: tenant for tenant in tenants}
        for name in [n for n in self._states if n not in wanted]:
            if self._states[name].queue:
                raise ValueError(f"tenant {name!r} still has queued requests; drain or cancel them before removing it")
            del self._states[name]
        for name, tenant in wanted.items():
            if name in self._states:
                self._states[name].configure(tenant)
            else:
                self._states[name] = self._new_state(tenant)
        for state in self._states.values():
            self._touch(state)

    def enqueue(self, request: Request, now_ns: int) -> None:
        self._before(now_ns)
        if request.id in self._where:
            raise ValueError(f"request {request.id} is already queued")
        state = self._states[request.tenant]
        queue = state.queue
        was_idle = queue.head is None
        self._push(state, request)
        if was_idle:
            self._backlogged(state, now_ns)
        if queue.head is request:
            # Behind another one it changes nothing about its tenant.
            self._touch(state)

    def _push(self, state: S, request: Request) -> None:
        self._held = None
        state.queue.push(request)
        self._where[request.id] = state

    def peek(self, now_ns: int) -> Request | None:
        self._before(now_ns)
        if self._held is None:
            if not self._keeps:
                self._sort_out_late(now_ns)
            state = self._choose(now_ns)
            self._held = None if state is None else state.queue.head
        return self._held

    def select(self, now_ns: int) -> Request | None:
        request = self.peek(now_ns)
        if request is None:
            return None
        self._held = None
        state = self._where.pop(request.id)
        state.queue.remove(request.id)
        cost = self._cost.of(request.prompt_tokens, state.estimate.of(request))
        self._charges[request.id] = Charge(state, request, cost, state.weight)
        self._charge(state, request, cost, now_ns)
        if state.queue.head is None:
            self._emptied(state)
        self._touch(state)
        return request

    def cancel(self, request_id: int, now_ns: int) -> bool:
        self._before(now_ns)
        state = self._where.pop(request_id, None)
        if state is None:
            return False
        self._held = None
        self._drop(state, request_id)
        self._touch(state)
        return True

    def _drop(self, state: S, request_id: int) -> None:
        """A request, already out of ``_where``, leaves the queue unserved."""
        state.queue.remove(request_id)
        if not state.queue:
            self._emptied(state)
        if not self._where and not self._charges:
            self._drained()

    def requeue(self, request: Request, now_ns: int, reported_tokens: int = 0) -> None:  # noqa: ARG002 (part of the protocol)
        self._before(now_ns)
        charge = self._charges.pop(request.id)
        state = self._states[request.tenant]
        self._refund(state, charge, now_ns)
        # Not ``_backlogged``: the request counts as never having left, so its tenant did not come back from idle.
        self._push(state, request)
        self._touch(state)

    def on_first_token(self, request_id: int, now_ns: int) -> None:  # noqa: ARG002 (part of the protocol)
        self._before(now_ns)

    def account_of(self, request_id: int) -> int:
        return self._charges[request_id].account

    def on_progress(self, counts: Sequence[tuple[int, int]], now_ns: int) -> None:  # noqa: ARG002 (part of the protocol)
        self._before(now_ns)

    def on_finish(
        self,
        request_id: int,
        prompt_tokens: int,
        output_tokens: int,
        now_ns: int,
        reported_tokens: int = 0,  # noqa: ARG002 (part of the protocol)
    ) -> None:
        self._before(now_ns)
        charge = self._charges.pop(request_id)
        state = self._states.get(charge.state.name)
        self._held = None
        if state is not None:
            if output_tokens > 0:
                state.estimate.learn(output_tokens)
            self._settle(state, charge, self._cost.of(prompt_tokens, output_tokens), now_ns)
            self._touch(state)
        if not self._where and not self._charges:
            self._drained()

    def expired(self, now_ns: int) -> list[Request]:
        self._before(now_ns)
        if self._sheds:
            self._sort_out_late(now_ns)
        shed, self._shed = self._shed, []
        return shed

    def next_wakeup_ns(self) -> int | None:
        if not self._sheds:
            return None
        least_ns = self._turning_late.least_value()
        return None if least_ns is None else int(least_ns) + 1

    def snapshot(self) -> dict[str, object]:
        return {
            "policy": self.name,
            "queued": len(self),
            "outstanding": len(self._charges),
            "tenants": {name: self._state_snapshot(state) for name, state in self._states.items()},
        }

    def _state_snapshot(self, state: S) -> dict[str, object]:
        return {"weight": state.weight, "queued": len(state.queue), "late": len(state.queue.late)}

    def __len__(self) -> int:
        return len(self._where)

    def __iter__(self) -> Iterator[Request]:
        for state in self._states.values():
            yield from state.queue

    # -- inside ------------------------------------------------------------------------------------------------------

    def _choose(self, now_ns: int) -> S | None:  # noqa: ARG002 (policies that steer by time read it)
        least = self._ready.least()
        return None if least is None else self._states[least]

    def _touch(self, state: S) -> None:
        """Bring the heaps up to date after ``state``'s queue or account changed."""
        head = state.queue.head
        if head is None:
            self._ready.discard(state.name)
            self._turning_late.discard(state.name)
            state.watched = None
            return
        self._ready.set(state.name, self._key(state) + (head.arrival_ns, head.id))  # noqa: RUF005 (half as dear)
        if not self._keeps:
            self._watch(state)

    def _watch(self, state: S) -> None:
        """Keep in the heap of latenesses when the on-time head of ``state`` will turn late."""
        on_time = state.queue.on_time.head
        if on_time is not None and on_time is state.watched:
            return
        limit_ns = state.tenant.slo.ttft_ns
        if limit_ns is None or on_time is None:
            state.watched = None
            self._turning_late.discard(state.name)
        else:
            state.watched = on_time
            self._turning_late.set(state.name, (self._late.late_after_ns(on_time, limit_ns), on_time.id))

    def _sort_out_late(self, now_ns: int) -> None:
        """Demote or shed heads that can no longer meet their limit."""
        while (name := self._turning_late.due(now_ns - 1)) is not None:
            state = self._states[name]
            request = state.queue.on_time.head
            assert request is not None, "a tenant in the lateness heap has an on-time head"
            self._held = None
            if self._sheds:
                del self._where[request.id]
                self._drop(state, request.id)
                self._shed.append(request)
            else:
                state.queue.demote(request)
            self._touch(state)
