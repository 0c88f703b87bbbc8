"""The asyncio driver: a slot for every request, in the policy's order. The only module of ``scheduler`` that knows asyncio.

The load generator and the gateway use it alike::

    ticket = driver.submit(request, on_abort=task.cancel)
    grant = await ticket.granted()          # raises NotServed when refused, expired or timed out in the queue
    ... ticket.tokens(received_ns, n) as output comes in ...
    ticket.finished(status, prompt_tokens, output_tokens)

Token counts are kept here and handed to the dispatcher as ``Progress``, summed by account, before every event after which a
selection is possible: no timer, so that the order of service does not depend on the driver.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from scheduler.dispatcher import Dispatcher
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
    Expire,
    Finished,
    FirstToken,
    PolicyChanged,
    Progress,
    Reject,
    RejectReason,
    SlotsChanged,
    TenantsChanged,
    Tick,
    WakeAt,
)
from scheduler.extensible import mypyc_attr
from scheduler.request import Request, Status

_LEAST_SLEEP_S = 0.001
_ROUNDING_NS = 1000


class NotServed(Exception):  # noqa: N818 (an outcome, not a fault)
    """The request never reached a backend. ``retry_after_ns`` is a hint, None when unknown."""

    def __init__(self, reason: RejectReason, retry_after_ns: int | None, at_ns: int) -> None:
        super().__init__(str(reason))
        self.reason = reason
        self.retry_after_ns = retry_after_ns
        self.at_ns = at_ns

    @property
    def status(self) -> Status:
        timed_out = self.reason in (RejectReason.FIRST_TOKEN_TIMEOUT, RejectReason.TOTAL_TIMEOUT)
        return Status.TIMED_OUT if timed_out else Status.SHED


class Ticket:
    """One request's way through the queue. Made by ``LiveDriver.submit``."""

    __slots__ = (
        "_driver",
        "_future",
        "_on_abort",
        "abort_reason",
        "account",
        "backend",
        "dispatched_ns",
        "enqueued_ns",
        "first_ns",
        "generated",
        "last_ns",
        "reported",
        "request",
        "unreported",
    )

    def __init__(
        self, driver: LiveDriver, request: Request, enqueued_ns: int, on_abort: Callable[[AbortReason], object] | None
    ) -> None:
        self._driver = driver
        self._future: asyncio.Future[None] = driver.loop.create_future()
        self._on_abort = on_abort
        self.request = request
        self.enqueued_ns = enqueued_ns
        self.dispatched_ns: int | None = None
        self.backend: str | None = None
        self.account = 0
        self.first_ns: int | None = None
        self.last_ns: int | None = None
        self.abort_reason: AbortReason | None = None
        self.generated = 0
        self.reported = 0
        self.unreported = 0

    @property
    def counted(self) -> bool:
        """Whether somebody counts its tokens as they come."""
        return self.account != 0

    async def granted(self) -> None:
        """Wait for a slot; then ``backend`` and ``dispatched_ns`` are set. Raises NotServed."""
        await self._future

    def tokens(self, received_ns: int, count: int | None) -> None:
        """A chunk with output arrived; ``count`` None when the number of tokens is not known yet (taken as one)."""
        count = 1 if count is None else count
        self.generated += count
        if self.account:
            self.unreported += count
            self._driver.unreported[self.request.id] = self
        self.last_ns = received_ns
        if self.first_ns is None:
            self.first_ns = received_ns
            self._driver.handle(FirstToken(self._driver.at(received_ns), self.request.id))

    def finished(self, status: Status, prompt_tokens: int | None, output_tokens: int | None) -> None:
        """The backend is done with it, however it ended; None where the truth is unknown."""
        self._driver.finish(
            self,
            status,
            self.request.prompt_tokens if prompt_tokens is None else prompt_tokens,
            self.generated if output_tokens is None else output_tokens,
        )

    def failed_to_dispatch(self, *, retryable: bool, elsewhere: bool = False) -> None:
        """The backend gave no answer. A retryable one is queued again, ``elsewhere`` for another backend: await ``granted``
        again (which raises if it was aborted meanwhile)."""
        self._driver.failed_to_dispatch(self, retryable=retryable, elsewhere=elsewhere)

    def cancel(self) -> None:
        """The client gave up: a queued request is dropped (``granted`` raises CancelledError), a dispatched one aborted
        through ``on_abort``."""
        self._driver.cancel(self)

    def grant(self, backend: str, account: int, now_ns: int) -> None:
        self.backend = backend
        self.account = account
        self.dispatched_ns = now_ns
        if not self._future.done():
            self._future.set_result(None)

    def drop(self) -> None:
        """Cancelled while it was queued: whoever waits for a slot must not wait for ever."""
        self._future.cancel()

    def await_again(self) -> None:
        """Back in the queue: as if never granted."""
        self._future = self._driver.loop.create_future()
        self.backend = None
        self.dispatched_ns = None
        self.account = self.reported = self.unreported = 0

    def refuse(self, reason: RejectReason, retry_after_ns: int | None, now_ns: int) -> None:
        if not self._future.done():
            self._future.set_exception(NotServed(reason, retry_after_ns, now_ns))

    def abort(self, reason: AbortReason) -> None:
        self.abort_reason = reason
        if self._on_abort is not None:
            self._on_abort(reason)


class WakeTimer:
    """Calls ``on_due`` at a time of the run's clock, one at a time and never before it: a loop may round its timers to whole
    ms (uvloop does) and fire early, and a dispatcher that is asked early asks to be woken again at once, some dozen times."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, now_ns: Callable[[], int], on_due: Callable[[], object]
    ) -> None:
        self._loop = loop
        self._now_ns = now_ns
        self._on_due = on_due
        self._at_ns = 0
        self._handle: asyncio.TimerHandle | None = None

    def set(self, at_ns: int) -> None:
        """In place of the time that was set before."""
        self.close()
        self._at_ns = at_ns
        self._handle = self._loop.call_later(max(0, at_ns - self._now_ns()) / 1e9, self._fire)

    def close(self) -> None:
        """Forget the time."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _fire(self) -> None:
        early_ns = self._at_ns - self._now_ns()
        if early_ns > 0:
            # Less than a microsecond is the loop's arithmetic, and no reason to be a millisecond late.
            least_s = 0.0 if early_ns < _ROUNDING_NS else _LEAST_SLEEP_S
            self._handle = self._loop.call_later(max(least_s, early_ns / 1e9), self._fire)
            return
        self._handle = None
        self._on_due()


@mypyc_attr(allow_interpreted_subclasses=True)
class LiveDriver:
    """Feeds one dispatcher from one event loop. ``now_ns``: monotonic ns since the run's start."""

    def __init__(
        self, dispatcher: Dispatcher, now_ns: Callable[[], int], loop: asyncio.AbstractEventLoop | None = None
    ) -> None:
        self.dispatcher = dispatcher
        self.loop = asyncio.get_running_loop() if loop is None else loop
        self.unreported: dict[int, Ticket] = {}
        self._now_ns = now_ns
        self._last_ns = 0
        self._tickets: dict[int, Ticket] = {}
        self._wake = WakeTimer(self.loop, now_ns, self._tick)

    def at(self, stamp_ns: int | None = None) -> int:
        """A time for the next event: ``stamp_ns`` (default: now), never before the last event's."""
        self._last_ns = max(self._last_ns, self._now_ns() if stamp_ns is None else stamp_ns)
        return self._last_ns

    def submit(self, request: Request, on_abort: Callable[[AbortReason], object] | None = None) -> Ticket:
        """Put a request into the queue now. ``on_abort`` is called if it must be ended after its dispatch."""
        ticket = Ticket(self, request, self.at(), on_abort)
        self._tickets[request.id] = ticket
        self.handle(Arrived(ticket.enqueued_ns, request))
        return ticket

    def finish(self, ticket: Ticket, status: Status, prompt_tokens: int, output_tokens: int) -> None:
        """See ``Ticket.finished``."""
        request_id = ticket.request.id
        self.unreported.pop(request_id, None)
        self._tickets.pop(request_id, None)
        self.handle(Finished(self.at(), request_id, status, prompt_tokens, output_tokens, ticket.reported))

    def cancel(self, ticket: Ticket) -> None:
        """See ``Ticket.cancel``."""
        request_id = ticket.request.id
        if request_id not in self._tickets:
            return
        self.handle(Cancelled(self.at(), request_id))
        if ticket.backend is None:
            self._tickets.pop(request_id, None)
            ticket.drop()

    def failed_to_dispatch(self, ticket: Ticket, *, retryable: bool, elsewhere: bool = False) -> None:
        """See ``Ticket.failed_to_dispatch``."""
        request_id = ticket.request.id
        self.unreported.pop(request_id, None)
        reported = ticket.reported
        if retryable:
            ticket.await_again()
        else:
            self._tickets.pop(request_id, None)
        self.handle(DispatchFailed(self.at(), request_id, retryable, elsewhere, reported))
        if retryable and ticket.abort_reason is AbortReason.CANCELLED:
            self._tickets.pop(request_id, None)
            ticket.drop()

    def set_slots(self, backend: str, sequences: int | None, prefill_tokens: int | None) -> None:
        self.handle(SlotsChanged(self.at(), backend, sequences, prefill_tokens))

    def set_backend_state(self, backend: str, *, up: bool) -> None:
        self.handle(BackendState(self.at(), backend, up))

    def reconfigure(self, event: TenantsChanged | PolicyChanged) -> None:
        """New tenants or another policy."""
        self.handle(event)

    def handle(self, event: AnyEvent) -> None:
        """Report progress, hand the event over, carry out the actions."""
        if self.unreported and self.dispatcher.reads_accounts(event):
            self._report_progress(event.now_ns)
        for action in self.dispatcher.handle(event):
            self._carry_out(action, event.now_ns)

    def _report_progress(self, now_ns: int) -> None:
        counts: dict[int, int] = {}
        for ticket in self.unreported.values():
            counts[ticket.account] = counts.get(ticket.account, 0) + ticket.unreported
            ticket.reported += ticket.unreported
            ticket.unreported = 0
        self.unreported.clear()
        self.dispatcher.handle(Progress(now_ns, tuple(sorted(counts.items()))))

    def _carry_out(self, action: AnyAction, now_ns: int) -> None:
        match action:
            case Dispatch(request=request, backend=backend, account=account):
                self._tickets[request.id].grant(backend, account, now_ns)
            case Reject(request_id=request_id, reason=reason, retry_after_ns=retry_after_ns):
                self._tickets.pop(request_id).refuse(reason, retry_after_ns, now_ns)
            case Expire(request_id=request_id, reason=reason):
                self._tickets.pop(request_id).refuse(reason, None, now_ns)
            case Abort(request_id=request_id, reason=reason):
                self._tickets[request_id].abort(reason)
            case WakeAt(at_ns=at_ns):
                self._wake.set(at_ns)

    def _tick(self) -> None:
        self.handle(Tick(self.at()))

    def close(self) -> None:
        """Stop the wake-up timer."""
        self._wake.close()
