"""A guaranteed rate per tenant: credit for what each was promised, fair queueing for the rest, late work demoted.

Tenant i of weight phi_i (Phi = the sum over all configured tenants) is committed the rate ``r_i = phi_i / Phi * C``, C being
the server's rate of work, learnt while the queue is never empty (:mod:`scheduler.service_rate`):

1. *accrue*: credit ``cr_i = min(cr_i + r_i dt, h r_i)``, full at the start; h is the horizon, 30 s;
2. *demote*: requests that can no longer meet their TTFT limit wait behind their own tenant's others (``late: demote``);
3. *pick A*: among tenants with on-time requests and credit > 0, the earliest deadline (``order: deadline``) or the most
   credit per weight (``order: credit``); the estimated cost is taken from the credit;
4. *else B*: fair queueing over all queued tenants by finish tag F_i: ``V = max(V, F_i)``, ``F_i += c / phi_i``; a tenant that
   comes back from idle starts at ``max(F_i, V - h C / Phi)``;
5. *finish*: the estimation error goes to the account that was charged (credit or tag).

Order ``deadline`` spends slack up to the limit and keeps the most requests in their SLO; order ``credit`` keeps decay and
interference lowest. The credit is a token bucket of the same kind as a contract's, but an instance of its own: charged at
dispatch, by rule A only, at the learnt rate.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from scheduler.cost import CostModel
from scheduler.extensible import mypyc_attr
from scheduler.keyed_heap import Key, KeyedHeap
from scheduler.lateness import LateRule
from scheduler.policies.base import Charge, TenantPolicy, TenantState
from scheduler.policies.options import CommittedOptions, Order
from scheduler.request import Request
from scheduler.service_rate import ServiceRate
from tenants.tenant import Tenant

_NO_DEADLINE_NS = 1 << 62


@mypyc_attr(allow_interpreted_subclasses=True)
class CreditState(TenantState):
    """``credit`` as of ``credit_at_ns``, in cost units; ``finish``: fair tag."""

    __slots__ = ("credit", "credit_at_ns", "finish")

    def __init__(self, tenant: Tenant) -> None:
        super().__init__(tenant)
        self.credit: float | None = None
        self.credit_at_ns = 0
        self.finish = 0.0


@mypyc_attr(allow_interpreted_subclasses=True)
class Committed(TenantPolicy[CreditState]):
    """``_ready`` orders all queued tenants by fair tag (rule B); ``_entitled`` those with on-time requests and credit
    (rule A); ``_broke``: those that wait for credit, by when they will have some."""

    name: ClassVar[str] = "committed"

    def __init__(self, *, cost: CostModel, late: LateRule, options: CommittedOptions) -> None:
        super().__init__(cost=cost, late=late)
        self._horizon_s = options.horizon_s
        self._by_credit = options.order is Order.CREDIT
        self._rate = ServiceRate(options.start_rate)
        self._virtual = 0.0
        self._total_weight = 1.0
        self._now_ns = 0
        self._entitled: KeyedHeap = KeyedHeap()
        self._broke: KeyedHeap = KeyedHeap()
        self._rule_a = False

    def _new_state(self, tenant: Tenant) -> CreditState:
        return CreditState(tenant)

    def set_tenants(self, tenants: Sequence[Tenant], now_ns: int) -> None:
        for state in self._states.values():
            self._accrue(state, now_ns)
        self._total_weight = sum(tenant.weight for tenant in tenants)
        super().set_tenants(tenants, now_ns)
        for heap in (self._entitled, self._broke):
            for name in [n for n in heap if n not in self._states]:
                heap.discard(name)

    # -- 1: credit ---------------------------------------------------------------------------------------------------

    def _accrue(self, state: CreditState, now_ns: int, service_rate: float | None = None) -> float:
        credit = state.credit
        if credit is not None and now_ns <= state.credit_at_ns:
            return credit
        rate = state.weight / self._total_weight * (self._rate.value if service_rate is None else service_rate)
        full = self._horizon_s * rate
        if credit is None:
            credit = full
        else:
            credit += rate * (now_ns - state.credit_at_ns) / 1e9
            credit = min(credit, full)
        state.credit = credit
        state.credit_at_ns = max(state.credit_at_ns, now_ns)
        return credit

    def _before(self, now_ns: int) -> None:
        self._now_ns = now_ns
        if self._where and now_ns < self._rate.due_ns:
            return
        old_rate = self._rate.value
        if self._rate.observe(now_ns, backlogged=bool(self._where)) and self._rate.value != old_rate:
            for state in self._states.values():
                # What was earned until now was earned at the old rate.
                self._accrue(state, now_ns, old_rate)
                if state.queue:
                    self._touch(state)

    # -- 3 and 4: who is next ----------------------------------------------------------------------------------------

    def _key(self, state: CreditState) -> Key:
        return (state.finish,)

    def _touch(self, state: CreditState) -> None:
        super()._touch(state)
        head = state.queue.on_time.head
        if head is None:
            self._entitled.discard(state.name)
            self._broke.discard(state.name)
            return
        credit = self._accrue(state, self._now_ns)
        if credit > 0:
            self._broke.discard(state.name)
            self._entitled.set(state.name, self._entitled_key(state, head, credit))
        else:
            self._entitled.discard(state.name)
            wait_ns = -credit / (state.weight / self._total_weight * self._rate.value) * 1e9
            self._broke.set(state.name, (self._now_ns + int(wait_ns) + 1, head.id))

    def _entitled_key(self, state: CreditState, head: Request, credit: float) -> Key:
        if self._by_credit:
            # Credit per weight grows at the same pace for all until it is full, so it is compared by the time since when
            # it would have grown from nothing: a key that need not change as time passes. In whole ns, so that equal
            # credits tie, and fall to the older request, whatever the rounding of their weights.
            pace = self._rate.value / self._total_weight
            return (state.credit_at_ns - round(credit / state.weight / pace * 1e9), head.arrival_ns, head.id)
        limit_ns = state.tenant.slo.ttft_ns
        deadline_ns = _NO_DEADLINE_NS if limit_ns is None else head.arrival_ns + limit_ns
        return (deadline_ns, head.arrival_ns, head.id)

    def _choose(self, now_ns: int) -> CreditState | None:
        while (least := self._broke.due(now_ns)) is not None:
            self._touch(self._states[least])
        best = self._entitled.least()
        if best is not None and self._by_credit:
            self._settle_full_credits(now_ns)
            best = self._entitled.least()
        self._rule_a = best is not None
        if best is not None:
            return self._states[best]
        return super()._choose(now_ns)

    def _settle_full_credits(self, now_ns: int) -> None:
        """A full bucket stops growing: bring the present best up to date until it stays the best."""
        while (best := self._entitled.least()) is not None:
            state = self._states[best]
            if state.credit_at_ns == now_ns:
                return
            self._touch(state)

    def _backlogged(self, state: CreditState, now_ns: int) -> None:  # noqa: ARG002 (part of the hook)
        memory = self._horizon_s * self._rate.value / self._total_weight
        state.finish = max(state.finish, self._virtual - memory)

    def _charge(self, state: CreditState, request: Request, cost: float, now_ns: int) -> None:
        self._rate.dispatched(cost)
        if self._rule_a:
            state.credit = self._accrue(state, now_ns) - cost
            self._charges[request.id].by_credit = True
        else:
            self._virtual = max(self._virtual, state.finish)
            state.finish += cost / state.weight

    # -- 5: the truth ------------------------------------------------------------------------------------------------

    def requeue(self, request: Request, now_ns: int, reported_tokens: int = 0) -> None:
        charge = self._charges[request.id]
        self._correct(self._states[request.tenant], charge, -charge.cost, now_ns)
        self._rate.dispatched(-charge.cost)
        super().requeue(request, now_ns, reported_tokens)

    def _settle(self, state: CreditState, charge: Charge, true_cost: float, now_ns: int) -> None:
        self._correct(state, charge, true_cost - charge.cost, now_ns)

    def _correct(self, state: CreditState, charge: Charge, delta: float, now_ns: int) -> None:
        """A tenant that was removed and came back has new accounts, whose credit nothing was taken from."""
        if charge.by_credit and charge.state is state:
            state.credit = self._accrue(state, now_ns) - delta
        else:
            state.finish += delta / state.weight

    def _refund(self, state: CreditState, charge: Charge, now_ns: int) -> None:
        """Done by ``requeue``, which knows the account that was charged."""

    def _state_snapshot(self, state: CreditState) -> dict[str, object]:
        return {**super()._state_snapshot(state), "credit": state.credit, "finish_tag": state.finish}
