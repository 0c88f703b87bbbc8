"""The simpy driver: the same dispatcher and policies, over server models, in virtual time.

One simpy process for the arrivals, one chain of events per replica (:mod:`scheduler.drivers.replica`): an event a *run of
steps*, never one a token or a process a request.

What happens at the end of a step is reported in this order: prefilled chunks (but a prompt's last, which its first token
tells), first tokens, ends; each may dispatch more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from collections.abc import Sequence as Sequence_
from typing import Protocol

from scheduler.dispatcher import Dispatcher
from scheduler.drivers.errors import SimulationError
from scheduler.drivers.replica import Replica
from scheduler.drivers.virtual_time import VirtualTime
from scheduler.events import (
    Abort,
    AbortReason,
    AnyEvent,
    Arrived,
    Cancelled,
    Dispatch,
    Expire,
    Finished,
    Progress,
    Reject,
    RejectReason,
    Tick,
    WakeAt,
)
from scheduler.request import ErrorClass, Outcome, Request, Status, TokensSource
from scheduler.server_model.protocol import Sequence, ServerModel
from scheduler.steplog import OnGaps

OnOutcome = Callable[[Outcome], None]


class Control(Protocol):
    """Something above the dispatcher that speaks to it now and then, such as a :class:`scheduler.slot_control.SlotControl`."""

    @property
    def period_ns(self) -> int: ...

    @property
    def reads_waiting(self) -> bool: ...

    def observe_waiting(self, backend: str, *, waiting: int, outstanding: int, now_ns: int) -> None:
        """Told of every replica before ``control``, if ``reads_waiting``."""

    def control(self, now_ns: int, *, queued: bool) -> Sequence_[AnyEvent]:
        """Events to hand over now; ``queued``: something waits."""


After = Callable[[Outcome], Iterable[Request]]
"""``after(outcome)``: requests that arrive because this one ended (closed loop, sessions, retries); their arrival_ns must
not lie before the end."""

_FROM_MODEL = TokensSource.MODEL
_TIMEOUTS = {RejectReason.FIRST_TOKEN_TIMEOUT, RejectReason.TOTAL_TIMEOUT}


__all__ = ["Control", "Simulation", "SimulationError"]


class Flight:
    """A dispatched request, until it ends."""

    __slots__ = ("account", "dispatched_ns", "replica", "request")

    def __init__(self, request: Request, replica: Replica, account: int, dispatched_ns: int) -> None:
        self.request = request
        self.replica = replica
        self.account = account
        self.dispatched_ns = dispatched_ns


class Simulation:
    """One run: arrivals through a dispatcher onto replicas.

    ``arrivals``: requests in order of arrival_ns. ``replicas``: server model by backend name, the names of the
    dispatcher's configuration. ``on_gaps`` gets the token gaps of requests whose arrival lies in ``gap_window_ns`` (None: of
    all). ``after``: see ``After``.
    ``until_ns``: stop there; what has not ended is reported as unfinished. ``control`` is asked every period of its own.
    ``most``: so many requests arrive, the first ones, and no more.
    """

    def __init__(
        self,
        dispatcher: Dispatcher,
        replicas: Mapping[str, ServerModel],
        arrivals: Iterable[Request],
        on_outcome: OnOutcome,
        *,
        on_gaps: OnGaps | None = None,
        gap_window_ns: tuple[int, int] | None = None,
        after: After | None = None,
        until_ns: int | None = None,
        control: Control | None = None,
        most: int | None = None,
    ) -> None:
        self.env = VirtualTime()
        self._left = -1 if most is None else most
        self._dispatcher = dispatcher
        self._counts_tokens = False
        self._replicas = {name: Replica(name, model, self, on_gaps) for name, model in replicas.items()}
        self._on_outcome = on_outcome
        self._after = after
        self._until_ns = until_ns
        self._gap_window_ns = gap_window_ns
        self._queued: dict[int, Request] = {}
        self._flights: dict[int, Flight] = {}
        self._last_progress_ns = -1
        self._wake_number = 0
        self._arrivals = iter(arrivals)
        self._arrivals_over = False
        self._coming = 0
        if control is not None:
            self.env.call_at(control.period_ns, self._ask, control)

    @property
    def now_ns(self) -> int:
        """Virtual time."""
        return self.env.now_ns

    def run(self) -> int:
        """Run to the end; returns the virtual time at the end, in ns."""
        self._await_arrival()
        if self._until_ns is None:
            self.env.run()
        else:
            self.env.run(until=self._until_ns)
        self._leave_unfinished()
        for replica in self._replicas.values():
            if replica.log is not None:
                replica.log.flush()
        return self.now_ns

    def _await_arrival(self) -> None:
        """Take in what arrives now, and wait for the next that does not."""
        now_ns = self.env.now_ns
        for request in self._arrivals:
            if not self._left:
                break
            if request.arrival_ns > now_ns:
                self.env.call_at(request.arrival_ns, self._arrive, request)
                return
            if request.arrival_ns < now_ns:
                raise SimulationError(
                    f"request {request.id} arrives at {request.arrival_ns} ns, after time already reached {now_ns} ns: "
                    "sort the trace by arrival"
                )
            self._arrived(request)
        self._arrivals_over = True

    def _arrive(self, request: Request) -> None:
        if self._left:
            self._arrived(request)
        self._await_arrival()

    def _ask(self, control: Control) -> None:
        now_ns = self.env.now_ns
        if control.reads_waiting:
            for name, replica in self._replicas.items():
                waiting, outstanding = replica.waiting, self._dispatcher.outstanding_at(name)
                control.observe_waiting(name, waiting=waiting, outstanding=outstanding, now_ns=now_ns)
        for event in control.control(now_ns, queued=self._dispatcher.queued > 0):
            self.handle(event)
        if not self._arrivals_over or self._queued or self._flights or self._coming:
            self.env.call_at(now_ns + control.period_ns, self._ask, control)

    def _arrived(self, request: Request) -> None:
        self._left -= 1
        now_ns = self.env.now_ns
        self._queued[request.id] = request
        if request.cancel_after_ns is not None:
            self.env.call_at(now_ns + request.cancel_after_ns, self._cancel, request)
        self.handle(Arrived(now_ns, request))

    def _cancel(self, request: Request) -> None:
        if request.id in self._flights:
            self.handle(Cancelled(self.now_ns, request.id))
        elif request.id in self._queued:
            del self._queued[request.id]
            self.handle(Cancelled(self.now_ns, request.id))
            self._end_without_service(request, Status.CANCELLED, ErrorClass.CANCELLED, "planned cancel")

    # -- the dispatcher ----------------------------------------------------------------------------------------------

    def handle(self, event: AnyEvent) -> None:
        """Report progress, hand the event over, carry out the actions."""
        if self._counts_tokens and self._dispatcher.reads_accounts(event):
            self._report_progress()
        for action in self._dispatcher.handle(event):
            kind = type(action)
            if kind is Dispatch:
                assert isinstance(action, Dispatch), "narrowed by its exact type"
                self._dispatch(action.request, action.backend, action.account)
            else:
                self._carry_out(action)

    def _carry_out(self, action: Reject | Expire | Abort | WakeAt | Dispatch) -> None:
        match action:
            case Reject(request_id=request_id, reason=reason) | Expire(request_id=request_id, reason=reason):
                request = self._queued.pop(request_id)
                if reason in _TIMEOUTS:
                    self._end_without_service(request, Status.TIMED_OUT, ErrorClass(reason), str(reason))
                else:
                    self._end_without_service(request, Status.SHED, ErrorClass.SHED, str(reason))
            case Abort(request_id=request_id, reason=reason):
                self._abort(request_id, reason)
            case WakeAt(at_ns=at_ns):
                self._wake_number += 1
                self.env.call_at(max(at_ns, self.now_ns), self._tick, self._wake_number)

    def _tick(self, number: int) -> None:
        if number == self._wake_number:
            self.handle(Tick(self.now_ns))

    def _report_progress(self) -> None:
        """The new tokens of each account; once for each instant is enough."""
        now_ns = self.env.now_ns
        if now_ns == self._last_progress_ns:
            return
        self._last_progress_ns = now_ns
        counts: list[tuple[int, int]] = []
        for replica in self._replicas.values():
            counts += replica.model.new_tokens(now_ns)
        if counts:
            self._dispatcher.handle(Progress(now_ns, tuple(counts)))

    def _dispatch(self, request: Request, backend: str, account: int) -> None:
        del self._queued[request.id]
        replica, now_ns = self._replicas[backend], self.env.now_ns
        flight = self._flights[request.id] = Flight(request, replica, account, now_ns)
        if account:
            self._counts_tokens = True
        replica.send(flight)

    def reach(self, flight: Flight) -> None:
        """A request enters the engine's queue of its replica."""
        try:
            flight.replica.admit(flight.request, flight.account)
        except ValueError as error:
            self._end_unserved(flight, Status.FAILED, ErrorClass.SERVER_ERROR, str(error))

    def _abort(self, request_id: int, reason: AbortReason) -> None:
        flight = self._flights.get(request_id)
        if flight is None:
            return
        cancelled = reason is AbortReason.CANCELLED
        status = Status.CANCELLED if cancelled else Status.TIMED_OUT
        error_class = ErrorClass.CANCELLED if cancelled else ErrorClass(reason)
        if request_id in flight.replica.running:
            flight.replica.abort(flight.request, status, error_class)
        else:
            flight.replica.withdraw(flight)
            self._end_unserved(flight, status, error_class)

    def counts_gaps(self, request: Request) -> bool:
        """Whether a request's token gaps go to ``on_gaps``."""
        window = self._gap_window_ns
        return window is None or window[0] <= request.arrival_ns < window[1]

    # -- outcomes ----------------------------------------------------------------------------------------------------

    def finished(self, replica: Replica, sequence: Sequence, status: Status, error_class: ErrorClass | None) -> None:
        """A sequence left its replica."""
        request = sequence.request
        dispatched_ns = self._flights[request.id].dispatched_ns
        last_ns = None if sequence.last_ps is None else sequence.last_ps // 1000
        self._end(
            Outcome(
                request=request,
                status=status,
                ended_ns=self.env.now_ns,
                error_class=error_class,
                backend=replica.name,
                enqueued_ns=request.arrival_ns,
                dispatched_ns=dispatched_ns,
                connect_ns=0,
                sent_ns=dispatched_ns,
                first_token_ns=None if sequence.first_ps is None else sequence.first_ps // 1000,
                last_token_ns=last_ns,
                finished_ns=last_ns if error_class is None else None,
                prompt_tokens=request.prompt_tokens,
                cached_prompt_tokens=sequence.cached_tokens,
                output_tokens=sequence.output_tokens if error_class is None else sequence.generated,
                tokens_source=_FROM_MODEL,
            ),
            sequence.reported,
        )

    def _end_unserved(self, flight: Flight, status: Status, error_class: ErrorClass, detail: str | None = None) -> None:
        """A dispatched request ends before its replica's queue."""
        request = flight.request
        self._end(
            Outcome(
                request=request,
                status=status,
                ended_ns=self.env.now_ns,
                error_class=error_class,
                detail=detail,
                enqueued_ns=request.arrival_ns,
                dispatched_ns=flight.dispatched_ns,
                connect_ns=0,
                sent_ns=flight.dispatched_ns,
                prompt_tokens=request.prompt_tokens,
                output_tokens=0,
                tokens_source=_FROM_MODEL,
            )
        )

    def _end(self, outcome: Outcome, reported_tokens: int = 0) -> None:
        request = outcome.request
        del self._flights[request.id]
        output_tokens = outcome.output_tokens or 0
        self.handle(
            Finished(
                outcome.ended_ns, request.id, outcome.status, request.prompt_tokens, output_tokens, reported_tokens
            )
        )
        self._emit(outcome)

    def _end_without_service(self, request: Request, status: Status, error_class: ErrorClass, detail: str) -> None:
        self._emit(
            Outcome(
                request=request,
                status=status,
                ended_ns=self.now_ns,
                error_class=error_class,
                detail=detail,
                enqueued_ns=request.arrival_ns,
            )
        )

    def _emit(self, outcome: Outcome) -> None:
        self._on_outcome(outcome)
        if self._after is None:
            return
        for request in self._after(outcome):
            self._coming += 1
            self.env.call_at(max(request.arrival_ns, self.now_ns), self._arrive_later, request)

    def _arrive_later(self, request: Request) -> None:
        self._coming -= 1
        if self._left:
            self._arrived(request)

    def _leave_unfinished(self) -> None:
        """Report what has not ended, in order of arrival; nothing arrives because of it."""
        left = [*self._queued.values(), *(flight.request for flight in self._flights.values())]
        for request in sorted(left, key=lambda request: (request.arrival_ns, request.id)):
            flight = self._flights.get(request.id)
            self._on_outcome(
                Outcome(
                    request=request,
                    status=Status.UNFINISHED,
                    ended_ns=self.now_ns,
                    error_class=ErrorClass.UNFINISHED,
                    enqueued_ns=request.arrival_ns,
                    dispatched_ns=None if flight is None else flight.dispatched_ns,
                )
            )
