"""The scheduling core: events in, actions out.

    events                      Dispatcher                       actions
    Arrived, FirstToken, ...  -> admission -> policy -> slots -> Dispatch, Reject, Expire, Abort, WakeAt

``handle(event)`` is a pure step of a state machine: no clock, no await, no log, no randomness. Drivers (asyncio, simpy, the
gateway) translate the world into events and carry out the actions. The same configuration and events give the same
actions, which is what makes a recorded log replayable and an offline answer worth believing.

A request's life here: admitted -> queued -> outstanding -> ended. Exactly one of Reject, Expire, or Dispatch-then-Finished
(or DispatchFailed) ends it; Cancelled may come at any point before.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import msgspec

from scheduler.admission import Admission
from scheduler.backend_slots import BackendSlots
from scheduler.dispatcher_config import DispatcherConfig
from scheduler.events import (
    Abort,
    AbortReason,
    AnyAction,
    AnyEvent,
    Arrived,
    BackendState,
    Cancelled,
    Dispatch,
    DispatchFailed,
    Event,
    Expire,
    Finished,
    FirstToken,
    PolicyChanged,
    PrefillProgress,
    Progress,
    RejectReason,
    SlotsChanged,
    TenantsChanged,
    Tick,
    WakeAt,
)
from scheduler.extensible import mypyc_attr
from scheduler.policies.build import PolicyContext, build_policy
from scheduler.request import Request
from scheduler.routing import Router
from scheduler.slots import Slots
from scheduler.timers import Timer, Timers


class _Outstanding:
    """A dispatched request; ``generation`` tells which policy dispatched it, ``aborted`` why we ended it, if we did."""

    __slots__ = ("aborted", "backend", "first_token", "generation", "request")

    def __init__(self, request: Request, backend: BackendSlots, generation: int) -> None:
        self.request = request
        self.backend = backend
        self.generation = generation
        self.first_token = False
        self.aborted: AbortReason | None = None


@mypyc_attr(allow_interpreted_subclasses=True)
class Dispatcher:
    """See the module docstring. Raises PolicyError for a policy or options that cannot be built; events about requests
    that are not here any more (a late Finished after a Cancelled) are ignored."""

    def __init__(self, config: DispatcherConfig) -> None:
        self.config = config
        self._context = PolicyContext(cost=config.cost, prefill_rate=config.prefill_rate)
        self.policy = build_policy(config.policy, config.options, self._context)
        self.policy.set_tenants(config.tenants, 0)
        self._sheds = self.policy.sheds
        self._counts_tokens = self.policy.wants_progress
        self._accounts_before = self._last_account = 0
        self._tenants = {tenant.name: tenant for tenant in config.tenants}
        self._admission = Admission(config.tenants, config.cost, config.prefill_rate)
        self._router = Router(config.backends, config.tenants, config.cost, config.routing)
        self._outstanding: dict[int, _Outstanding] = {}
        self._timers = Timers()
        self._generation = 0
        self._wake_ns: int | None = None
        self._actions: list[AnyAction] = []
        self._handlers: Mapping[type[Event], Callable[..., None]] = {
            Arrived: self._arrived,
            PrefillProgress: self._prefill_progress,
            FirstToken: self._first_token,
            Progress: self._progress,
            Finished: self._finished,
            Cancelled: self._cancelled,
            DispatchFailed: self._dispatch_failed,
            SlotsChanged: self._slots_changed,
            BackendState: self._backend_state,
            TenantsChanged: self._tenants_changed,
            PolicyChanged: self._policy_changed,
            Tick: self._tick,
        }

    @property
    def queued(self) -> int:
        return len(self.policy)

    @property
    def outstanding(self) -> int:
        return len(self._outstanding)

    def outstanding_at(self, backend: str) -> int:
        """Requests dispatched to one backend and not ended."""
        return len(self._router[backend].outstanding)

    def slots(self) -> dict[str, Slots]:
        """The slots of each backend now."""
        return {backend.name: backend.slots for backend in self._router}

    def reads_accounts(self, event: AnyEvent) -> bool:
        """Whether ``event`` may lead to a selection, or puts a request into a queue: drivers report progress before it, and
        need not before others."""
        return type(event) in _MAY_QUEUE or len(self.policy) > 0

    def handle(self, event: AnyEvent) -> list[AnyAction]:
        """Take in one event; the actions are to be carried out in order, now."""
        self._actions = []
        kind = type(event)
        self._handlers[kind](event)
        if kind is not Progress:
            now_ns = event.now_ns
            if self._timers.pending:
                # After the event, which may be what a timer waited for: an end at the very limit is an end, no time-out.
                self._run_timers(now_ns)
            self._fill(now_ns)
            # After the selections, each of which may bring forward another request that is already late.
            if self._sheds:
                self._expire_late(now_ns)
            if self._timers.pending or self._sheds:
                self._ask_to_wake()
        return self._actions

    # -- events ------------------------------------------------------------------------------------------------------

    def _arrived(self, event: Arrived) -> None:
        request = event.request
        refusal = self._admission.refusal(request, event.now_ns)
        if refusal is not None:
            self._actions.append(refusal)
            return
        self.policy.enqueue(request, event.now_ns)
        self._limit_wait(request, event.now_ns)
        if request.first_token_timeout_ns is not None:
            self._timers.set(request.id, Timer.FIRST_TOKEN, request.arrival_ns + request.first_token_timeout_ns)
        if request.timeout_ns is not None:
            self._timers.set(request.id, Timer.TOTAL, request.arrival_ns + request.timeout_ns)

    def _limit_wait(self, request: Request, now_ns: int) -> None:
        ttl_ns = request.ttl_ns if request.ttl_ns is not None else self._tenants[request.tenant].limits.ttl_ns
        if ttl_ns is not None:
            self._timers.set(request.id, Timer.TTL, now_ns + ttl_ns)

    def _prefill_progress(self, event: PrefillProgress) -> None:
        running = self._outstanding.get(event.request_id)
        if running is not None:
            running.backend.prefilled(event.request_id, event.tokens)

    def _first_token(self, event: FirstToken) -> None:
        running = self._outstanding.get(event.request_id)
        if running is None or running.first_token:
            return
        running.first_token = True
        running.backend.prefilled(event.request_id)
        if self._timers.pending:
            self._timers.clear(event.request_id, Timer.FIRST_TOKEN)
        if running.generation == self._generation:
            self.policy.on_first_token(event.request_id, event.now_ns)

    def _progress(self, event: Progress) -> None:
        counts: Sequence[tuple[int, int]] = event.counts
        before = self._accounts_before
        if before:
            # A policy that went is charged no more, one that came only for what it dispatched itself.
            counts = [(account - before, tokens) for account, tokens in counts if account > before]
        if counts:
            self.policy.on_progress(counts, event.now_ns)

    def _finished(self, event: Finished) -> None:
        self._end(event.request_id, event.prompt_tokens, event.output_tokens, event.now_ns, event.reported_tokens)

    def _end(self, request_id: int, prompt_tokens: int, output_tokens: int, now_ns: int, reported_tokens: int) -> None:
        running = self._outstanding.pop(request_id, None)
        if running is None:
            return
        running.backend.release(request_id)
        self._router.ended(running.request.tenant, output_tokens)
        if self._timers.pending:
            self._timers.clear_all(request_id)
        if self._admission.limited:
            self._admission.ended(request_id, prompt_tokens, output_tokens, now_ns)
        if running.generation == self._generation:
            self.policy.on_finish(request_id, prompt_tokens, output_tokens, now_ns, reported_tokens)

    def _cancelled(self, event: Cancelled) -> None:
        if self.policy.cancel(event.request_id, event.now_ns):
            self._dropped_from_queue(event.request_id, event.now_ns)
        elif event.request_id in self._outstanding:
            self._abort(event.request_id, AbortReason.CANCELLED)

    def _abort(self, request_id: int, reason: AbortReason) -> None:
        """At most one Abort a dispatch; the first reason stands."""
        running = self._outstanding[request_id]
        if running.aborted is None:
            running.aborted = reason
            self._timers.clear_all(request_id)
            self._actions.append(Abort(request_id, reason))

    def _dropped_from_queue(self, request_id: int, now_ns: int) -> None:
        self._timers.clear_all(request_id)
        self._router.forget(request_id)
        self._admission.left_queue(request_id, dispatched=False)
        self._admission.ended(request_id, 0, 0, now_ns)

    def _dispatch_failed(self, event: DispatchFailed) -> None:
        running = self._outstanding.get(event.request_id)
        if running is None:
            return
        tenant_is_gone = running.request.tenant not in self._tenants
        if not event.retryable or running.aborted is not None or tenant_is_gone:
            self._end(event.request_id, 0, 0, event.now_ns, event.reported_tokens)
            if event.retryable and running.aborted is not AbortReason.CANCELLED:
                reason = RejectReason.UNKNOWN_TENANT if running.aborted is None else RejectReason(running.aborted)
                self._actions.append(Expire(event.request_id, reason))
            return
        del self._outstanding[event.request_id]
        running.backend.release(event.request_id)
        if event.elsewhere:
            self._router.avoid(event.request_id, running.backend.name)
        self._admission.requeued(event.request_id)
        if running.generation == self._generation:
            self.policy.requeue(running.request, event.now_ns, event.reported_tokens)
        else:
            self.policy.enqueue(running.request, event.now_ns)
        self._limit_wait(running.request, event.now_ns)

    def _slots_changed(self, event: SlotsChanged) -> None:
        slots = Slots(sequences=event.sequences, prefill_tokens=event.prefill_tokens)
        self._router.set_slots(event.backend, slots)

    def _backend_state(self, event: BackendState) -> None:
        self._router.set_state(event.backend, up=event.up)

    def _tenants_changed(self, event: TenantsChanged) -> None:
        wanted = {tenant.name for tenant in event.tenants}
        for request in [r for r in self.policy if r.tenant not in wanted]:
            self.policy.cancel(request.id, event.now_ns)
            self._dropped_from_queue(request.id, event.now_ns)
            self._actions.append(Expire(request.id, RejectReason.UNKNOWN_TENANT))
        self.policy.set_tenants(event.tenants, event.now_ns)
        self._admission.set_tenants(event.tenants, self.policy, event.now_ns)
        self._router.set_tenants(event.tenants)
        self._tenants = {tenant.name: tenant for tenant in event.tenants}

    def _policy_changed(self, event: PolicyChanged) -> None:
        policy = build_policy(event.name, event.options, self._context)
        policy.set_tenants(tuple(self._tenants.values()), event.now_ns)
        for request in sorted(self.policy, key=lambda r: (r.arrival_ns, r.id)):
            policy.enqueue(request, event.now_ns)
        self.policy = policy
        self._sheds = policy.sheds
        self._counts_tokens = policy.wants_progress
        self._accounts_before = self._last_account
        self._generation += 1

    def _tick(self, event: Tick) -> None:  # noqa: ARG002 (its time is its message)
        self._wake_ns = None

    # -- after every event -------------------------------------------------------------------------------------------

    def _run_timers(self, now_ns: int) -> None:
        while (due := self._timers.pop_due(now_ns)) is not None:
            request_id, timer = due
            if self.policy.cancel(request_id, now_ns):
                self._dropped_from_queue(request_id, now_ns)
                self._actions.append(Expire(request_id, _EXPIRY[timer]))
            elif request_id in self._outstanding and timer is not Timer.TTL:
                self._abort(
                    request_id, AbortReason.TOTAL_TIMEOUT if timer is Timer.TOTAL else AbortReason.FIRST_TOKEN_TIMEOUT
                )

    def _expire_late(self, now_ns: int) -> None:
        for request in self.policy.expired(now_ns):
            self._dropped_from_queue(request.id, now_ns)
            self._actions.append(Expire(request.id, RejectReason.LATE))

    def _fill(self, now_ns: int) -> None:
        """Dispatch while something is queued and a backend has room: the queue is work-conserving."""
        policy, router, admission = self.policy, self._router, self._admission
        queued = len(policy)
        while queued and router.has_room():
            request = policy.select(now_ns)
            # Selecting may shed others, so the policy is asked each time.
            queued = len(policy)
            if request is None:
                break
            backend = router.place(request)
            self._outstanding[request.id] = _Outstanding(request, backend, self._generation)
            if self._timers.pending:
                self._timers.clear(request.id, Timer.TTL)
            if admission.limited:
                admission.left_queue(request.id, dispatched=True)
            account = self._account_of(request) if self._counts_tokens else 0
            self._actions.append(Dispatch(request, backend.name, account))
        if admission.limited:
            admission.observe(now_ns, backlogged=queued > 0)

    def _account_of(self, request: Request) -> int:
        """Policies count their accounts from 1 each; here they go on from those of the policy before."""
        own = self.policy.account_of(request.id)
        if not own:
            return 0
        account = self._accounts_before + own
        self._last_account = max(self._last_account, account)
        return account

    def _ask_to_wake(self) -> None:
        wake_ns = self._timers.next_ns()
        late_ns = self.policy.next_wakeup_ns()
        if late_ns is not None and (wake_ns is None or late_ns < wake_ns):
            wake_ns = late_ns
        if wake_ns is not None and wake_ns != self._wake_ns:
            self._wake_ns = wake_ns
            self._actions.append(WakeAt(wake_ns))

    def snapshot(self) -> dict[str, object]:
        """The state as plain data: the policy's, and each backend's occupied slots."""
        return {
            "policy": self.policy.snapshot(),
            "backends": {
                backend.name: {
                    "up": backend.up,
                    "outstanding": len(backend.outstanding),
                    "work": backend.work / 1000,
                    "prefill_tokens": backend.prefill_outstanding,
                    "slots": msgspec.to_builtins(backend.slots),
                }
                for backend in self._router
            },
        }


_MAY_QUEUE = frozenset({Arrived, DispatchFailed, TenantsChanged, PolicyChanged})
_EXPIRY = {
    Timer.TTL: RejectReason.TTL,
    Timer.FIRST_TOKEN: RejectReason.FIRST_TOKEN_TIMEOUT,
    Timer.TOTAL: RejectReason.TOTAL_TIMEOUT,
}
