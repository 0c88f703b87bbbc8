"""SLO-aware fair queueing: a tenant about to break its TTFT objective gets a larger weight, within its share.

Start-time fair queueing (:mod:`scheduler.policies.wfq`) with an effective weight

    phi_eff = phi / priority,    priority = max(floor, (limit - observed) / limit)     (1 = all slack left, floor = none)

where ``observed`` is the tenant's TTFT at its objective's percentile over a sliding window, *including the ages of requests
that have no first token yet* (or a tenant whose requests never come back would look healthy). With floor = 0.1 a tenant is
boosted at most tenfold, so every tenant keeps at least ``phi_i / (10 * sum phi)``: nobody starves.

Who earns the boost: only a tenant within its share of the cost dispatched over the window
(``<= share_slack * phi_i / sum phi``), or one whose contract's bucket is not negative; otherwise the flooder, whose
latency its own flood destroys, would boost itself and drag its neighbours down.

The weights are recomputed at fixed epochs from the run's start, at the first event after each, and held between: cheap and
deterministic. Before ``min_samples`` the priority is 1, unless the oldest age exceeds the limit: then the ages alone speak.

``reading: literal`` takes the formula as it is often quoted: strict priority to the *highest* value, which serves those
with the most slack and starves those about to break. It is kept so that the comparison can be shown.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import ClassVar

from scheduler.bucket import TokenBucket
from scheduler.cost import CostModel
from scheduler.extensible import mypyc_attr
from scheduler.keyed_heap import Key
from scheduler.lateness import LateRule
from scheduler.policies.awaiting import Awaiting
from scheduler.policies.base import Charge
from scheduler.policies.options import Reading, SloAwareOptions
from scheduler.policies.wfq import FairQueueing, FairState
from scheduler.request import Request
from tenants.measures.window import WindowedQuantile
from tenants.tenant import Tenant


@mypyc_attr(allow_interpreted_subclasses=True)
class SloState(FairState):
    """``samples``: TTFTs in the window; ``awaiting``: requests without a first token; ``dispatched_cost`` in the window;
    ``contract``: its bucket, charged at arrival; ``priority``: the remaining slack of the present epoch; ``objective``: what
    it is promised."""

    __slots__ = ("awaiting", "contract", "contract_charges", "dispatched_cost", "objective", "priority", "samples")

    def __init__(self, tenant: Tenant, window_ns: int) -> None:
        self.samples = WindowedQuantile(window_ns)
        self.awaiting = Awaiting()
        self.dispatched_cost = 0.0
        self.priority = 1.0
        self.contract: TokenBucket | None = None
        self.contract_charges: dict[int, float] = {}
        super().__init__(tenant)

    def configure(self, tenant: Tenant) -> None:
        super().configure(tenant)
        self.objective = tenant.slo.ttft_objective
        contract = tenant.contract
        if contract is None:
            self.contract = None
        elif self.contract is None or (self.contract.rate, self.contract.burst) != (contract.rate, contract.burst):
            self.contract = TokenBucket(contract.rate, contract.burst)


@mypyc_attr(allow_interpreted_subclasses=True)
class SloAware(FairQueueing[SloState]):
    """See the module docstring."""

    name: ClassVar[str] = "slo_aware"

    def __init__(self, *, cost: CostModel, late: LateRule, options: SloAwareOptions) -> None:
        super().__init__(cost=cost, late=late)
        self._options = options
        self._literal = options.reading is Reading.LITERAL
        self._window_ns = round(options.window_s * 1e9)
        self._epoch_ns = round(options.epoch_s * 1e9)
        self._next_epoch_ns = 0
        self._total_weight = 0.0
        self._dispatched: deque[tuple[int, SloState, float]] = deque()
        self._dispatched_cost = 0.0
        self._touched: set[str] = set()

    def _new_state(self, tenant: Tenant) -> SloState:
        return SloState(tenant, self._window_ns)

    def set_tenants(self, tenants: Sequence[Tenant], now_ns: int) -> None:
        """A contract that comes while requests wait is charged for them, and not for those that run."""
        contracts = {name: state.contract for name, state in self._states.items()}
        super().set_tenants(tenants, now_ns)
        for name, state in self._states.items():
            if state.contract is not contracts.get(name):
                state.contract_charges.clear()
                for request in state.queue:
                    self._charge_contract(state, request, now_ns)
        self._total_weight = sum(state.weight for state in self._states.values())

    def _phi(self, state: SloState) -> float:
        return state.weight / state.priority

    def _key(self, state: SloState) -> Key:
        return (-state.priority,) if self._literal else (state.start,)

    # -- what is observed --------------------------------------------------------------------------------------------

    def enqueue(self, request: Request, now_ns: int) -> None:
        super().enqueue(request, now_ns)
        state = self._states[request.tenant]
        state.awaiting.add(request.arrival_ns, request.id)
        self._touched.add(state.name)
        self._charge_contract(state, request, now_ns)

    def _charge_contract(self, state: SloState, request: Request, now_ns: int) -> None:
        if state.contract is not None:
            cost = self._cost.of(request.prompt_tokens, state.estimate.of(request))
            state.contract.charge(cost, now_ns)
            state.contract_charges[request.id] = cost

    def cancel(self, request_id: int, now_ns: int) -> bool:
        state = self._where.get(request_id)
        if not super().cancel(request_id, now_ns):
            return False
        assert state is not None, "a cancelled request was queued"
        self._left_without_service(state, request_id, now_ns)
        return True

    def expired(self, now_ns: int) -> list[Request]:
        shed = super().expired(now_ns)
        for request in shed:
            self._left_without_service(self._states[request.tenant], request.id, now_ns)
        return shed

    def _left_without_service(self, state: SloState, request_id: int, now_ns: int) -> None:
        state.awaiting.discard(request_id)
        charged = state.contract_charges.pop(request_id, None)
        if charged is not None and state.contract is not None:
            state.contract.charge(-charged, now_ns)

    def on_first_token(self, request_id: int, now_ns: int) -> None:
        self._before(now_ns)
        charge = self._charges.get(request_id)
        if charge is None or not charge.awaits_token:
            return
        charge.awaits_token = False
        state = self._states.get(charge.state.name)
        if state is not None and state is charge.state:
            state.awaiting.discard(request_id)
            state.samples.add(now_ns, now_ns - charge.arrival_ns)
            self._touched.add(state.name)

    def _charge(self, state: SloState, request: Request, cost: float, now_ns: int) -> None:
        super()._charge(state, request, cost, now_ns)
        self._count_dispatch(state, cost, now_ns)

    def _refund(self, state: SloState, charge: Charge, now_ns: int) -> None:
        super()._refund(state, charge, now_ns)
        self._count_dispatch(state, -charge.cost, now_ns)

    def _count_dispatch(self, state: SloState, cost: float, now_ns: int) -> None:
        self._dispatched.append((now_ns, state, cost))
        state.dispatched_cost += cost
        self._dispatched_cost += cost

    def on_finish(
        self, request_id: int, prompt_tokens: int, output_tokens: int, now_ns: int, reported_tokens: int = 0
    ) -> None:
        charge = self._charges[request_id]
        state = self._states.get(charge.state.name)
        super().on_finish(request_id, prompt_tokens, output_tokens, now_ns, reported_tokens)
        if state is None:
            return
        if charge.awaits_token:
            state.awaiting.discard(request_id)
        if state.contract_charges:
            charged = state.contract_charges.pop(request_id, None)
            if charged is not None and state.contract is not None:
                state.contract.charge(self._cost.of(prompt_tokens, output_tokens) - charged, now_ns)

    # -- the epochs --------------------------------------------------------------------------------------------------

    def _before(self, now_ns: int) -> None:
        if now_ns < self._next_epoch_ns:
            return
        self._next_epoch_ns = (now_ns // self._epoch_ns + 1) * self._epoch_ns
        while self._dispatched and self._dispatched[0][0] <= now_ns - self._window_ns:
            _, tenant, cost = self._dispatched.popleft()
            tenant.dispatched_cost -= cost
            self._dispatched_cost -= cost
        idle = []
        for name in self._touched:
            state = self._states.get(name)
            if state is None:
                idle.append(name)
                continue
            before = state.priority
            state.priority = self._slack(state, now_ns)
            if state.priority != before and self._literal:
                self._touch(state)
            if not state.awaiting and not state.samples and state.priority == 1.0:
                idle.append(name)
        self._touched.difference_update(idle)

    def _slack(self, state: SloState, now_ns: int) -> float:
        objective = state.objective
        if objective is None:
            return 1.0
        state.samples.expire(now_ns)
        if not self._literal and not self._earns_boost(state, now_ns):
            return 1.0
        ages = state.awaiting.ages_ns(now_ns)
        if len(state.samples) < self._options.min_samples:
            oldest_ns = next(ages, None)
            if oldest_ns is None or oldest_ns <= objective.limit_ns:
                return 1.0
            observed = WindowedQuantile(self._window_ns).quantile(
                objective.percentile, state.awaiting.ages_ns(now_ns), len(state.awaiting)
            )
        else:
            observed = state.samples.quantile(objective.percentile, ages, len(state.awaiting))
        if observed is None:
            return 1.0
        return max(self._options.floor, min(1.0, (objective.limit_ns - observed) / objective.limit_ns))

    def _earns_boost(self, state: SloState, now_ns: int) -> bool:
        if state.contract is not None and state.contract.level(now_ns) >= 0:
            return True
        fair = self._options.share_slack * state.weight / self._total_weight
        return state.dispatched_cost <= fair * self._dispatched_cost

    def _state_snapshot(self, state: SloState) -> dict[str, object]:
        return {**super()._state_snapshot(state), "priority": state.priority, "awaiting": len(state.awaiting)}
