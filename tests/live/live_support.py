"""A live run on a virtual clock: a real source, pacer, driver and dispatcher in front of a backend that does as scripted."""

from __future__ import annotations

import asyncio
import selectors
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from backends.protocol import Call, OnTokens, SoFar, WireResult, leave_so_far
from loadgen.live.calls import LookAhead
from loadgen.live.engine import LiveEnd, LiveRun
from loadgen.pacer import Pacer
from scheduler.dispatcher import Dispatcher
from scheduler.dispatcher_config import DispatcherConfig
from scheduler.drivers.live import LiveDriver
from scheduler.request import ErrorClass, Outcome, Request, Status, TokensSource
from scheduler.slots import Slots
from tenants.tenant import Tenant

MS = 1_000_000
S = 1_000_000_000
BACKEND = "server"


class _JumpingSelector(selectors.DefaultSelector):
    loop: VirtualLoop

    def select(self, timeout=None):
        events = super().select(0)
        if not events and (timeout is None or timeout > 0):
            self.loop.jump()
        return events


class VirtualLoop(asyncio.SelectorEventLoop):
    """When nothing is ready, time jumps to the next timer; a loop without one has a run that would hang for ever."""

    def __init__(self) -> None:
        selector = _JumpingSelector()
        self.now_ns = 0
        super().__init__(selector)
        selector.loop = self
        self._clock_resolution = 5e-10

    def time(self) -> float:
        return self.now_ns / 1e9

    def clock(self) -> int:
        return self.now_ns

    def jump(self) -> None:
        due = [handle.when() for handle in self._scheduled if not handle.cancelled()]
        if not due:
            raise RuntimeError("deadlock: every task waits and no timer is set")
        self.now_ns = max(self.now_ns, round(min(due) * 1e9))


class VirtualWakeup:
    """The pacer's alarm as a timer of the virtual loop."""

    def __init__(self, loop: VirtualLoop, callback: Callable[[], None]) -> None:
        self._loop, self._callback = loop, callback
        self._timer: asyncio.TimerHandle | None = None

    def arm(self, at_ns: int) -> None:
        self.disarm()
        self._timer = self._loop.call_at(at_ns / 1e9, self._callback)

    def disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def close(self) -> None:
        self.disarm()


@dataclass(frozen=True)
class Answer:
    """``first_ms`` after the call, then ``tokens`` in all, ``gap_ms`` apart. ``hangs``: no more after the ``stalls_after``
    tokens (None: after all). ``raises``: a bug of the backend, at the first token's time."""

    first_ms: int = 10
    tokens: int = 3
    gap_ms: int = 5
    stalls_after: int | None = None
    fails: bool = False
    raises: BaseException | None = None


class ScriptedBackend:
    """Answers each call as ``script(request id)`` says."""

    def __init__(self, clock: Callable[[], int], script: Callable[[int], Answer]) -> None:
        self._clock = clock
        self._script = script
        self.calls: list[int] = []
        self.running = 0
        self.most_running = 0

    async def generate(self, call: Call, on_tokens: OnTokens, *, each: bool = True) -> WireResult:
        self.calls.append(call.request_id)
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        sent_ns = self._clock()
        try:
            return await self._answer(self._script(call.request_id), on_tokens)
        except asyncio.CancelledError as cancelled:
            leave_so_far(SoFar(0, sent_ns), cancelled)
            raise
        finally:
            self.running -= 1

    async def _answer(self, answer: Answer, on_tokens: OnTokens) -> WireResult:
        sent_ns = self._clock()
        chunks = array("q")
        for number in range(answer.tokens):
            if answer.stalls_after == number:
                await asyncio.get_running_loop().create_future()
            await asyncio.sleep((answer.gap_ms if number else answer.first_ms) / 1000)
            if answer.raises is not None:
                raise answer.raises
            if answer.fails:
                return WireResult(
                    status=Status.FAILED,
                    ended_ns=self._clock(),
                    error_class=ErrorClass.HTTP_5XX,
                    sent_ns=sent_ns,
                    chunk_ns=array("q"),
                )
            chunks.append(self._clock())
            on_tokens(self._clock(), 1)
        now_ns = self._clock()
        return WireResult(
            status=Status.OK,
            ended_ns=now_ns,
            connect_ns=0,
            sent_ns=sent_ns,
            finished_ns=now_ns,
            chunk_ns=chunks,
            output_tokens=answer.tokens,
            tokens_source=TokensSource.USAGE,
        )


class PlainCalls:
    """Makes calls whose body is as long as the prompt."""

    def __init__(self) -> None:
        self.made: list[int] = []

    def make(self, request: Request) -> Call:
        self.made.append(request.id)
        return Call(request_id=request.id, path="/v1/completions", body=b"x" * request.prompt_tokens, headers={})


@dataclass
class ListSource:
    """A source of the given requests; ``then`` maps a request's id to what follows its outcome."""

    requests: list[Request]
    then: dict[int, Request] = field(default_factory=dict)
    tenants: tuple[Tenant, ...] = (Tenant(name="a"),)
    block_tokens: int = 512
    expected_requests: float | None = None
    limit: int | None = None
    follows: bool = True

    def absolute(self) -> Iterator[Request]:
        return iter(self.requests)

    def start_closed(self, now_ns: int) -> list[Request]:
        return []

    def after(self, outcome: Outcome) -> Request | None:
        return self.then.pop(outcome.request.id, None)

    def foresee(self, tenant: str, count: int) -> Sequence[Request]:
        return ()


@dataclass
class Played:
    """What a run came to."""

    outcomes: list[Outcome]
    backend: ScriptedBackend
    calls: PlainCalls
    end: LiveEnd | None = None

    @property
    def ids(self) -> list[int]:
        return [outcome.request.id for outcome in self.outcomes]

    def of(self, request_id: int) -> Outcome:
        (outcome,) = (each for each in self.outcomes if each.request.id == request_id)
        return outcome


def request(i: int, at_ms: float = 0.0, **more: object) -> Request:
    values: dict[str, object] = {"tenant": "a", "prompt_tokens": 10, "target_output_tokens": 3}
    return Request(id=i, arrival_ns=round(at_ms * MS), **(values | more))


def play(
    source,
    script: Callable[[int], Answer] = lambda _: Answer(),
    *,
    sequences: int | None = None,
    until_ms: float | None = None,
    num_prompts: int | None = None,
    drain_s: float = 60.0,
    during: Iterable[tuple[float, Callable[[VirtualLoop, LiveRun], object]]] = (),
    played: Played | None = None,
    on_end: Callable[[VirtualLoop, Outcome], object] = lambda _loop, _outcome: None,
) -> Played:
    """Run ``source`` against the scripted backend. ``during``: (ms, what to do then). ``played``: filled in, also by a run
    that raises. ``on_end``: called as the source is asked what follows an outcome, in the step in which it is known."""
    loop = VirtualLoop()
    calls = PlainCalls()
    played = played or Played([], ScriptedBackend(loop.clock, script), calls)
    played.backend, played.calls = ScriptedBackend(loop.clock, script), calls

    async def main() -> LiveEnd:
        config = DispatcherConfig(
            tenants=tuple(source.tenants), policy="fifo", backends={BACKEND: Slots(sequences=sequences)}
        )
        run = LiveRun(
            source,
            LiveDriver(Dispatcher(config), loop.clock, loop),
            {BACKEND: played.backend},
            calls,
            loop.clock,
            until_ns=None if until_ms is None else round(until_ms * MS),
            num_prompts=num_prompts,
            drain_s=drain_s,
            ahead=LookAhead(source.absolute(), calls.make),
            pacer=Pacer(loop.clock, loop, wakeup=VirtualWakeup, monotonic=loop.clock),
        )
        for at_ms, act in during:
            loop.call_at(at_ms / 1000, act, loop, run)
        after = source.after

        def ended(outcome: Outcome) -> Request | None:
            on_end(loop, outcome)
            return after(outcome)

        source.after = ended
        return await run.run(played.outcomes.append)

    try:
        played.end = loop.run_until_complete(main())
        left = [task for task in asyncio.all_tasks(loop) if not task.done()]
        assert not left, f"tasks outlive the run: {left}"
    finally:
        loop.close()
    return played
