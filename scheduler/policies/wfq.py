"""Weighted fair queueing: start-time fair queueing for a server with D requests outstanding, SFQ(D).

Each tenant i with weight phi_i has a start tag S_i (while it is backlogged) and a finish tag F_i, in cost units per weight,
and the queue has a virtual time V:

* idle to backlogged: ``S_i = max(V, F_i)`` (no credit is saved while idle);
* serve the backlogged tenant with the least S; on dispatch ``V = max(V, S_i)``, ``F_i = S_i + est / phi_i`` and, while it
  stays backlogged, ``S_i = F_i``;
* when the request ends, F_i (and S_i, if queued) moves by ``(true - est) / phi_i``, at the weight it was charged at;
* a requeue refunds ``est``; when nothing is queued or outstanding, ``V = max F``: old service is not held against anyone.

Sources: Goyal, Vin, Cheng, "Start-time Fair Queueing" (SIGCOMM 1996) for the tags; Jin, Chase, Kaur, "Interposed
proportional sharing for a storage service utility" (SIGMETRICS 2004) for D outstanding requests; charging a guess and
correcting it at the end is what Kubernetes' API priority and fairness does for requests of unknown duration.

Bound (Jin et al., SFQ(D)): over any interval in which i and j are both backlogged their weighted dispatched costs differ
by at most ``(D + 1) * (c_i / phi_i + c_j / phi_j)``, c the largest cost of one request; with costs estimated at dispatch
the outstanding estimation error of both is added.

V never goes back here: a correction may lower a tenant's S below V, and a newcomer must not gain by that.
"""

from __future__ import annotations

from typing import ClassVar, TypeVar

from scheduler.cost import CostModel
from scheduler.extensible import mypyc_attr
from scheduler.keyed_heap import Key
from scheduler.lateness import LateRule
from scheduler.policies.base import Charge, TenantPolicy, TenantState
from scheduler.request import Request
from tenants.tenant import Tenant


@mypyc_attr(allow_interpreted_subclasses=True)
class FairState(TenantState):
    """``start``: the start tag S of the queue's head; ``finish``: the finish tag F of the last dispatch."""

    __slots__ = ("finish", "start")

    def __init__(self, tenant: Tenant) -> None:
        super().__init__(tenant)
        self.start = 0.0
        self.finish = 0.0


F = TypeVar("F", bound=FairState)


@mypyc_attr(allow_interpreted_subclasses=True)
class FairQueueing(TenantPolicy[F]):
    """The tags; subclasses may change the weight that a dispatch is charged at (``_phi``)."""

    def __init__(self, *, cost: CostModel, late: LateRule) -> None:
        super().__init__(cost=cost, late=late)
        self._virtual = 0.0

    def _phi(self, state: F) -> float:
        return state.weight

    def _key(self, state: F) -> Key:
        return (state.start,)

    def _backlogged(self, state: F, now_ns: int) -> None:  # noqa: ARG002 (part of the hook)
        state.start = max(self._virtual, state.finish)

    def _charge(self, state: F, request: Request, cost: float, now_ns: int) -> None:  # noqa: ARG002 (part of the hook)
        phi = self._phi(state)
        self._charges[request.id].weight = phi
        self._virtual = max(self._virtual, state.start)
        state.finish = state.start = state.start + cost / phi

    def _refund(self, state: F, charge: Charge, now_ns: int) -> None:  # noqa: ARG002 (part of the hook)
        self._move(state, -charge.cost / charge.weight)

    def _settle(self, state: F, charge: Charge, true_cost: float, now_ns: int) -> None:  # noqa: ARG002 (part of the hook)
        self._move(state, (true_cost - charge.cost) / charge.weight)

    def _drained(self) -> None:
        self._virtual = max((s.finish for s in self._states.values()), default=self._virtual)

    def _move(self, state: F, by: float) -> None:
        state.finish += by
        state.start += by

    def _state_snapshot(self, state: F) -> dict[str, object]:
        return {**super()._state_snapshot(state), "start_tag": state.start, "finish_tag": state.finish}


@mypyc_attr(allow_interpreted_subclasses=True)
class Wfq(FairQueueing[FairState]):
    name: ClassVar[str] = "wfq"

    def _new_state(self, tenant: Tenant) -> FairState:
        return FairState(tenant)
