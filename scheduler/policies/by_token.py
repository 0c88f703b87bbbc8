"""What policies share that charge a tenant for every token as it comes, instead of an estimate at dispatch.

Whoever counts the tokens reports sums: all dispatched requests that are charged alike (one tenant, one weight) have one
*token account*, a number, and a report says how many tokens came under it. How many of a single request's tokens were reported
is asked for when that matters, at its end and when its dispatch is undone.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import TypeVar

from scheduler.cost import CostModel
from scheduler.extensible import mypyc_attr
from scheduler.lateness import LateRule
from scheduler.policies.base import Charge, TenantPolicy, TenantState
from scheduler.request import Request
from tenants.tenant import Tenant

S = TypeVar("S", bound=TenantState)


@mypyc_attr(allow_interpreted_subclasses=True)
class TokenPolicy(TenantPolicy[S]):
    """``_accounts``: tenant and weight by number, counted from 1; an account is never given to another tenant or weight."""

    def __init__(self, *, cost: CostModel, late: LateRule) -> None:
        super().__init__(cost=cost, late=late)
        self._accounts: dict[int, tuple[str, float]] = {}
        self._last_account = 0

    @abstractmethod
    def _charge_tokens(self, state: S, weight: float, tokens: int) -> None:
        """Dispatched requests of ``state`` that are charged at ``weight`` gave ``tokens`` (< 0: taken back)."""

    @abstractmethod
    def _charge_rest(self, state: S, charge: Charge, prompt_tokens: int, output_tokens: int) -> None:
        """A request ended: how many tokens were charged too few (< 0: too many)."""

    @property
    def wants_progress(self) -> bool:
        return True

    def set_tenants(self, tenants: Sequence[Tenant], now_ns: int) -> None:
        super().set_tenants(tenants, now_ns)
        used = {charge.account for charge in self._charges.values()}
        self._accounts = {number: account for number, account in self._accounts.items() if number in used}
        for state in self._states.values():
            state.account = self._last_account = self._last_account + 1
            self._accounts[state.account] = (state.name, state.weight)

    def on_progress(self, counts: Sequence[tuple[int, int]], now_ns: int) -> None:
        self._before(now_ns)
        accounts, states, charge_tokens = self._accounts, self._states, self._charge_tokens
        for number, tokens in counts:
            account = accounts.get(number)
            if account is None:
                continue
            state = states.get(account[0])
            if state is not None:
                charge_tokens(state, account[1], tokens)
                self._held = None
                if state.queue.head is not None:
                    self._touch(state)

    def requeue(self, request: Request, now_ns: int, reported_tokens: int = 0) -> None:
        self._charge_tokens(self._states[request.tenant], self._charges[request.id].weight, -reported_tokens)
        super().requeue(request, now_ns, reported_tokens)

    def on_finish(
        self, request_id: int, prompt_tokens: int, output_tokens: int, now_ns: int, reported_tokens: int = 0
    ) -> None:
        charge = self._charges[request_id]
        state = self._states.get(charge.state.name)
        if state is not None:
            self._charge_rest(state, charge, prompt_tokens - charge.prompt_tokens, output_tokens - reported_tokens)
        super().on_finish(request_id, prompt_tokens, output_tokens, now_ns, reported_tokens)
