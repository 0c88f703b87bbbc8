"""Virtual token counter: the backlogged tenant that has been served least is served next.

Each tenant has a counter of service received per weight. It is charged ``w_p * prompt / phi`` at dispatch and ``w_q / phi``
for every generated token, so no output length is ever guessed. A tenant that comes back from idle is lifted, so that idling
saves no credit: to the least counter among the queued tenants, or, if nobody is queued, to the counter that the tenant which
left the queue last has now.

Source: Sheng et al., "Fairness in Serving Large Language Models" (OSDI 2024), Algorithm 2 and its lift.
Bound there: two tenants that are both backlogged differ in weighted service by at most ``2 * max(w_p * L_in, w_q * M)`` per
weight, with L_in the longest prompt and M the KV tokens of the running batch.
"""

from __future__ import annotations

from typing import ClassVar

from scheduler.cost import CostModel
from scheduler.extensible import mypyc_attr
from scheduler.keyed_heap import Key
from scheduler.lateness import LateRule
from scheduler.policies.base import Charge, TenantState
from scheduler.policies.by_token import TokenPolicy
from scheduler.request import Request
from tenants.tenant import Tenant


@mypyc_attr(allow_interpreted_subclasses=True)
class CounterState(TenantState):
    __slots__ = ("counter",)

    def __init__(self, tenant: Tenant) -> None:
        super().__init__(tenant)
        self.counter = 0.0


@mypyc_attr(allow_interpreted_subclasses=True)
class Vtc(TokenPolicy[CounterState]):
    """See the module docstring."""

    name: ClassVar[str] = "vtc"

    def __init__(self, *, cost: CostModel, late: LateRule) -> None:
        super().__init__(cost=cost, late=late)
        self._last_left: CounterState | None = None

    def _new_state(self, tenant: Tenant) -> CounterState:
        return CounterState(tenant)

    def _key(self, state: CounterState) -> Key:
        return (state.counter,)

    def _backlogged(self, state: CounterState, now_ns: int) -> None:  # noqa: ARG002 (part of the hook)
        least = self._ready.least_value()
        if least is not None:
            state.counter = max(state.counter, least)
        elif self._last_left is not None:
            state.counter = max(state.counter, self._last_left.counter)

    def _charge(self, state: CounterState, request: Request, cost: float, now_ns: int) -> None:  # noqa: ARG002
        state.counter += self._cost.prompt_weight * request.prompt_tokens / state.weight

    def _emptied(self, state: CounterState) -> None:
        self._last_left = state

    def _charge_tokens(self, state: CounterState, weight: float, tokens: int) -> None:
        state.counter += self._cost.output_weight * tokens / weight

    def _charge_rest(self, state: CounterState, charge: Charge, prompt_tokens: int, output_tokens: int) -> None:
        state.counter += self._cost.of(prompt_tokens, output_tokens) / charge.weight

    def _refund(self, state: CounterState, charge: Charge, now_ns: int) -> None:  # noqa: ARG002 (part of the hook)
        state.counter -= self._cost.prompt_weight * charge.prompt_tokens / charge.weight

    def _state_snapshot(self, state: CounterState) -> dict[str, object]:
        return {**super()._state_snapshot(state), "counter": state.counter}
