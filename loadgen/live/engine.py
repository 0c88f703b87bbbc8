"""The run loop: every request at its deadline into the queue, from there onto its backend, its outcome to the recorder.

    source -> pacer -> driver (policy, slots) -> backend.generate -> outcome -> recorder
                 ^----------------- source.after(outcome) ----------------'

One task a request, which lives from its arrival to its outcome; a user's next request that is due at once goes on in the
same task, so it is on the wire before the next answer is looked at. What can wait (the outcome's row, the call of a later
request) waits (:mod:`loadgen.live.settle`). Nothing here grows with the run but the requests in flight.
Ending: when nothing can arrive any more (``until_ns`` is past, ``num_prompts`` are released, or nothing is left that an
arrival could follow) the run waits ``drain_s`` for answers; what is left is *unfinished*. ``stop`` (Ctrl-C) makes no more
arrivals and drains; a second ``stop`` drains no longer.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from backends.failover import TakesBack
from backends.outcome import Ended, outcomes_of
from backends.protocol import Call, Clock, ModelBackend, WireResult
from loadgen.live.calls import LookAhead, MakesCalls
from loadgen.live.endings import given_up, not_served
from loadgen.live.settle import Settling
from loadgen.pacer import Pacer
from loadgen.workload.source import Source
from scheduler.drivers.live import LiveDriver, NotServed, Ticket
from scheduler.events import AbortReason
from scheduler.request import Outcome, Request, Status
from tenants.measures.histogram import Histogram

_CALL_WAIT_S, _OUTCOME_WAIT_S = 0.004, 0.25
"""A call may be needed as soon as the next answer ends; an outcome is not before somebody looks (``LiveRun.settle``)."""


@dataclass(frozen=True, slots=True)
class LiveEnd:
    """How a run ended. ``last_arrival_ns``: the last request released; ``arrivals_ended_ns``: from when on none could
    arrive; ``lag``: release minus deadline."""

    ended_ns: int
    last_arrival_ns: int
    arrivals_ended_ns: int
    released: int
    interrupted: bool
    unfinished: int
    lag: Histogram


class LiveRun:
    """One run. ``backends`` by the dispatcher's backend names. ``clock`` gives ns since the run's start and must be the
    driver's. ``until_ns``: no arrival after it (closed loops go on until then). ``num_prompts``: so many requests are
    released, the first in order of arrival. ``prepare_request`` is applied to requests that do not come through ``ahead``.
    ``pacer``: a test's, on its own clock. ``failover``: what becomes of requests that do not reach one of several
    backends."""

    def __init__(
        self,
        source: Source,
        driver: LiveDriver,
        backends: Mapping[str, ModelBackend],
        calls: MakesCalls,
        clock: Clock,
        *,
        until_ns: int | None = None,
        num_prompts: int | None = None,
        drain_s: float = 60.0,
        ahead: LookAhead | None = None,
        prepare_request: Callable[[Request], Request] | None = None,
        pacer: Pacer | None = None,
        failover: TakesBack | None = None,
    ) -> None:
        self._source = source
        self._driver = driver
        self._backends = backends
        self._calls = calls
        self._on_outcome: Callable[[Outcome], None] = _nowhere
        self._clock = clock
        self._until_ns = until_ns
        self._drain_s = drain_s
        self._prepare_request = prepare_request or (lambda request: request)
        self._ahead = ahead or LookAhead(source.absolute(), calls.make)
        self._pacer = pacer or Pacer(clock)
        self._pacer.most = num_prompts
        self._calls_to_make: Settling[Request | str] = Settling(self._make_calls, self.fail, _CALL_WAIT_S)
        self._outcomes_to_take: Settling[Ended | Outcome] = Settling(self._take_outcomes, self.fail, _OUTCOME_WAIT_S)
        self._failover = failover
        self._tasks: set[asyncio.Task[None]] = set()
        self._users: list[Request] | None = None
        self._expected: set[int] = set()
        self._schedule_over = False
        self._interrupted = False
        self._drain_over = asyncio.Event()
        self._idle = asyncio.Event()
        self._last_arrival_ns = 0
        self._unfinished = 0
        self._failure: BaseException | None = None
        self.in_flight = 0
        self.queued = 0
        self.done = 0
        self.failed = 0

    def prepare(self) -> None:
        """Make the first calls, those of every user among them; before the clock starts."""
        self._users = [self._prepare_request(request) for request in self._source.start_closed(0)]
        self._ahead.hold(self._users)
        self._foresee(user.tenant for user in self._users)
        self._ahead.fill()

    def settle(self) -> None:
        """Hand over now what waits of the outcomes, to whoever decides by them or writes them down."""
        self._outcomes_to_take.finish()

    def stop(self) -> None:
        """No more arrivals; called again: no more waiting either."""
        if self._interrupted:
            self._drain_over.set()
        self._interrupted = True
        self._pacer.stop()

    async def run(self, on_outcome: Callable[[Outcome], None]) -> LiveEnd:
        """Run to the end; ``on_outcome`` is called once for every request released. Raises what a broken part of lmperf
        raised (never what a server did)."""
        self._on_outcome = on_outcome
        if self._users is None:
            self.prepare()
        until = None
        if self._until_ns is not None:
            delay_s = max(0, self._until_ns - self._clock()) / 1e9
            until = asyncio.get_running_loop().call_later(delay_s, self._pacer.close)
        self._ahead.start()
        try:
            for request in self._users or ():
                self._push(request)
            async for due in self._pacer.pace(self._schedule(), more=True):
                for request in due:
                    self._release(request)
                self._close_when_nothing_can_follow()
        except Exception as error:  # noqa: BLE001 (raised below, when every request has its outcome)
            self._failure = self._failure or error
        finally:
            if until is not None:
                until.cancel()
            self._ahead.close()
        arrivals_ended_ns = self._clock()
        await self._drain()
        if self._failure is not None:
            raise self._failure
        return LiveEnd(
            ended_ns=self._clock(),
            last_arrival_ns=self._last_arrival_ns,
            arrivals_ended_ns=arrivals_ended_ns,
            released=self._pacer.released,
            interrupted=self._interrupted,
            unfinished=self._unfinished,
            lag=self._pacer.lag,
        )

    # -- arrivals ----------------------------------------------------------------------------------------------------

    def _schedule(self) -> Iterator[Request]:
        yield from self._ahead
        self._schedule_over = True
        asyncio.get_running_loop().call_soon(self._close_when_nothing_can_follow)

    def _release(self, request: Request) -> None:
        self._last_arrival_ns = max(self._last_arrival_ns, request.arrival_ns)
        self._expected.discard(request.id)
        call = self._ahead.take(request.id)
        task = asyncio.ensure_future(self._serve(request, call))
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.fail(error)
        self._close_when_nothing_can_follow()

    def fail(self, error: BaseException) -> None:
        """A part of lmperf broke: the run ends now, with what it raised."""
        self._failure = self._failure or error
        self._pacer.stop()
        self._drain_over.set()

    def _close_when_nothing_can_follow(self) -> None:
        if not self._tasks:
            self._idle.set()
        if self._pacer.spent or (self._schedule_over and not self._expected and not self._tasks):
            self._pacer.close()

    def _follow(self, outcome: Outcome) -> Request | None:
        """What arrives because ``outcome`` happened: the request, if it is due now; one that is due later is pushed."""
        if self._interrupted or self._pacer.spent:
            return None
        request = self._source.after(outcome)
        if request is None or (self._until_ns is not None and request.arrival_ns >= self._until_ns):
            return None
        request = self._prepare_request(request)
        # One that was refused at once waited for nothing: its user's next goes through the pacer, or a user who comes
        # back at once would keep the loop until he is let in.
        if outcome.status is not Status.SHED and self._pacer.admit(request):
            self._last_arrival_ns = max(self._last_arrival_ns, request.arrival_ns)
            if self._pacer.spent:
                self._pacer.close()
            return request
        self._push(request)
        self._calls_to_make.add(request)
        return None

    def _push(self, request: Request) -> None:
        self._expected.add(request.id)
        self._pacer.push(request)

    def _make_calls(self, wanted: Sequence[Request | str]) -> None:
        """Make the calls of requests that are not due yet; for a tenant's name, that of one that will follow an answer."""
        tenants: list[str] = []
        for what in wanted:
            if isinstance(what, str):
                tenants.append(what)
            elif what.id in self._expected:
                self._ahead.hold((what,))
        self._foresee(tenants)

    def _foresee(self, tenants: Iterable[str]) -> None:
        """Make the call of a request that will follow an answer, for each of ``tenants``."""
        for tenant, count in Counter(tenants).items():
            self._ahead.hold(self._source.foresee(tenant, count))

    # -- one request -------------------------------------------------------------------------------------------------

    async def _serve(self, first: Request, call: Call | None) -> None:
        task = asyncio.current_task()
        assert task is not None, "runs as a task"
        self._idle.clear()
        request: Request | None = first
        while request is not None:
            request = await self._serve_one(request, call, task)
            while task.cancelling():  # it was that request, and not the user's next one, that was given up
                task.uncancel()
            call = None if request is None else self._ahead.take(request.id)

    async def _serve_one(self, request: Request, call: Call | None, task: asyncio.Task[None]) -> Request | None:
        """Serve one request; what arrives because of it, if that is due at once."""
        if call is None:
            call = self._calls.make(request)
        ticket = self._driver.submit(request, on_abort=lambda _: task.cancel())
        cancel_timer = None
        if request.cancel_after_ns is not None:
            delay_s = max(0, request.arrival_ns + request.cancel_after_ns - self._clock()) / 1e9
            cancel_timer = asyncio.get_running_loop().call_later(delay_s, self._cancel, ticket, task)
        try:
            ended = await self._wait(ticket) or await self._generate(ticket, call)
            if ended is None:
                ended = await self._wait(ticket) or await self._generate(ticket, call, again=True)
                assert ended is not None, "a request goes back into the queue once"
        finally:
            if cancel_timer is not None:
                cancel_timer.cancel()
        self.done += 1
        self.failed += ended.status is not Status.OK
        self._unfinished += ended.status is Status.UNFINISHED
        if isinstance(ended, Outcome):
            outcome = ended
            self._outcomes_to_take.add(ended)
        else:
            outcome = Outcome(
                request=request, status=ended.status, ended_ns=ended.ended_ns, finished_ns=ended.finished_ns
            )
            self._outcomes_to_take.add(Ended(request, ended, ticket.backend, ticket.enqueued_ns, ticket.dispatched_ns))
        self._calls_to_make.add(request.tenant)
        return self._follow(outcome)

    async def _wait(self, ticket: Ticket) -> Outcome | None:
        """None once the request may run; its outcome if it never will."""
        self.queued += 1
        try:
            await ticket.granted()
        except NotServed as refusal:
            return not_served(ticket, refusal)
        except asyncio.CancelledError as cancelled:
            outcome = given_up(ticket, self._clock(), cancelled)
            if ticket.backend is None:
                self._driver.cancel(ticket)
            else:
                # The slot was granted in the very step in which the request was given up.
                ticket.finished(outcome.status, None, None)
            return outcome
        finally:
            self.queued -= 1
        return None

    async def _generate(self, ticket: Ticket, call: Call, *, again: bool = False) -> Outcome | WireResult | None:
        """Always reports to the driver that the request ended, whatever happened. The outcome of one that we ended, else
        what the backend said; None when it never reached its backend and is in the queue again.
        """
        assert ticket.backend is not None, "granted"
        self.in_flight += 1
        try:
            result = await self._backends[ticket.backend].generate(call, ticket.tokens, each=ticket.counted)
        except asyncio.CancelledError as cancelled:
            outcome = given_up(ticket, self._clock(), cancelled)
            ticket.finished(outcome.status, None, None)
            return outcome
        except Exception:
            ticket.finished(Status.FAILED, None, None)
            raise
        finally:
            self.in_flight -= 1
        if self._failover is not None and self._failover.takes_back(ticket, result, again=again):
            return None
        ticket.finished(result.status, result.prompt_tokens, result.output_tokens)
        return result

    def _take_outcomes(self, ended: Sequence[Ended | Outcome]) -> None:
        joined = iter(outcomes_of([what for what in ended if isinstance(what, Ended)]))
        for what in ended:
            self._on_outcome(what if isinstance(what, Outcome) else next(joined))

    def _cancel(self, ticket: Ticket, task: asyncio.Task[None]) -> None:
        """The workload's own plan: this user gives up now."""
        ticket.abort_reason = AbortReason.CANCELLED
        task.cancel()

    # -- the end -----------------------------------------------------------------------------------------------------

    async def _drain(self) -> None:
        # A task that is cancelled before it began reports nothing: let the last released ones begin.
        await asyncio.sleep(0)
        if self._tasks and self._failure is None:
            self._idle.clear()
            waits = [asyncio.ensure_future(self._idle.wait()), asyncio.ensure_future(self._drain_over.wait())]
            await asyncio.wait(waits, timeout=self._drain_s, return_when=asyncio.FIRST_COMPLETED)
            for wait in waits:
                wait.cancel()
            await asyncio.gather(*waits, return_exceptions=True)
        left = list(self._tasks)
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)
        self._calls_to_make.finish()
        self._outcomes_to_take.finish()
        self._driver.close()


def _nowhere(_: Outcome) -> None:
    raise RuntimeError("a request ended before the run began")
