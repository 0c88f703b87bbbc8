"""Deficit round robin with costs that become known late.

Tenants with queued requests take turns. A turn adds ``quantum_i = phi_i / min phi * mean cost`` to tenant i's deficit (the
least weight gets one mean request a turn, so only ratios of weights matter) and serves its requests while the deficit is
positive; the prompt is charged at dispatch, output tokens as they appear, and the debt is carried on, also through idle
times (a credit is not: an idle tenant's deficit is cut to 0, as in the original). When every backlogged tenant is in debt,
the number of whole rounds until the first one is not is skipped in one step.

Source: Shreedhar and Varghese, "Efficient fair queuing using deficit round robin" (SIGCOMM 1995). With charges after the
fact, as here, a tenant overshoots its deficit by what it has outstanding, so the difference between two backlogged tenants
is bounded by one quantum plus the outstanding cost of each, per weight.

In *turns* rather than in a ring: tenant i's next turn is a round number, and the least (round, position) is served, which is
the same order and costs O(log n).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar

from scheduler.cost import CostModel
from scheduler.extensible import mypyc_attr
from scheduler.keyed_heap import Key
from scheduler.lateness import LateRule
from scheduler.output_estimate import EWMA_FACTOR
from scheduler.policies.base import Charge, TenantState
from scheduler.policies.by_token import TokenPolicy
from scheduler.request import Request
from tenants.tenant import Tenant


@mypyc_attr(allow_interpreted_subclasses=True)
class DeficitState(TenantState):
    """``deficit`` as of round ``round``; ``position``: place in the ring, by who became backlogged first."""

    __slots__ = ("deficit", "position", "round")

    def __init__(self, tenant: Tenant) -> None:
        super().__init__(tenant)
        self.deficit = 0.0
        self.round = 0
        self.position = 0


@mypyc_attr(allow_interpreted_subclasses=True)
class Drr(TokenPolicy[DeficitState]):
    name: ClassVar[str] = "drr"

    def __init__(self, *, cost: CostModel, late: LateRule) -> None:
        super().__init__(cost=cost, late=late)
        self._round = 0
        self._position = 0
        self._mean_cost: float | None = None
        self._least_weight = 1.0

    def _new_state(self, tenant: Tenant) -> DeficitState:
        return DeficitState(tenant)

    def set_tenants(self, tenants: Sequence[Tenant], now_ns: int) -> None:
        self._least_weight = min((tenant.weight for tenant in tenants), default=1.0)
        super().set_tenants(tenants, now_ns)

    def _quantum(self, state: DeficitState) -> float:
        return state.weight / self._least_weight * (self._mean_cost or 1.0)

    def _served_in_round(self, state: DeficitState) -> int:
        """The round in which the tenant can next be served: now, or after enough quanta to leave its debt."""
        if state.deficit > 0:
            return state.round
        return state.round + math.floor(-state.deficit / self._quantum(state)) + 1

    def _key(self, state: DeficitState) -> Key:
        return (self._served_in_round(state), state.position)

    def _backlogged(self, state: DeficitState, now_ns: int) -> None:  # noqa: ARG002 (part of the hook)
        self._position += 1
        state.position = self._position
        state.deficit = min(0.0, state.deficit + self._quantum(state) * max(0, self._round - state.round))
        state.round = max(state.round, self._round)

    def _charge(self, state: DeficitState, request: Request, cost: float, now_ns: int) -> None:  # noqa: ARG002
        if self._mean_cost is None:
            self._mean_cost = cost
        turn = self._served_in_round(state)
        state.deficit += self._quantum(state) * (turn - state.round)
        state.round = turn
        self._round = max(self._round, turn)
        state.deficit -= self._cost.prompt_weight * request.prompt_tokens

    def _charge_tokens(self, state: DeficitState, weight: float, tokens: int) -> None:  # noqa: ARG002 (quanta carry it)
        state.deficit -= self._cost.output_weight * tokens

    def _charge_rest(self, state: DeficitState, charge: Charge, prompt_tokens: int, output_tokens: int) -> None:  # noqa: ARG002 (as above)
        state.deficit -= self._cost.of(prompt_tokens, output_tokens)

    def _refund(self, state: DeficitState, charge: Charge, now_ns: int) -> None:  # noqa: ARG002 (part of the hook)
        state.deficit += self._cost.prompt_weight * charge.prompt_tokens

    def _settle(self, state: DeficitState, charge: Charge, true_cost: float, now_ns: int) -> None:  # noqa: ARG002
        assert self._mean_cost is not None, "a dispatch came before its end"
        self._mean_cost += EWMA_FACTOR * (true_cost - self._mean_cost)

    def _state_snapshot(self, state: DeficitState) -> dict[str, object]:
        return {**super()._state_snapshot(state), "deficit": state.deficit, "round": state.round}
