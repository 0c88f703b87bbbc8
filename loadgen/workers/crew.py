"""All workers of a run: started, told when time 0 is, stopped in order, and gathered, whatever becomes of each.

A worker that dies takes its requests with it and nothing else: its slots are freed, the others stop in order, and the run's
end says which, when and how. Nothing here waits for a worker that is gone.
"""

from __future__ import annotations

import asyncio
import logging
import pickle
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Self, TypeVar

from loadgen.workers.messages import (
    Broken,
    Ended,
    FromParent,
    FromWorker,
    Job,
    QueueAnswer,
    QueueEvent,
    Ready,
    Standing,
    Start,
    Stop,
    Unreached,
)
from loadgen.workers.process import WorkerProcess
from loadgen.workers.queue import Held, SharedQueue
from loadgen.workers.report import WorkerReport
from scheduler.dispatcher import Dispatcher
from scheduler.events import BackendState
from scheduler.slot_control import Pace

log = logging.getLogger("lmperf")

_GIVE_UP_S = 10.0
_CLOSE_S = 5.0
_Value = TypeVar("_Value")
_NOTHING_YET = Standing(0, 0, 0, 0)


class WorkerError(RuntimeError):
    """The workers could not be made ready; the message says which one and why."""


@dataclass(frozen=True, slots=True)
class Death:
    """A worker that ended without a report. ``held``: what the shared queue held of it, now or a
    moment ago. ``released``: how many requests it had told of, up to half a second before."""

    worker: int
    name: str
    how: str
    at_ns: int
    held: tuple[Held, ...]
    released: int = 0


@dataclass(slots=True)
class _Member:
    process: WorkerProcess
    ready: asyncio.Future[None]
    ended: asyncio.Future[bytes | Death]
    standing: Standing = _NOTHING_YET
    broken: str = ""
    watcher: asyncio.Task[None] | None = None


class Crew:
    """``async with Crew(module, jobs, clock, dispatcher) as crew``: all workers started and ready; then ``begin``,
    ``stop`` at any time, ``ended``. ``jobs``: one a worker, pickled. ``dispatcher``: that of ``queue``, the one of all workers;
    None when each worker has its own. ``on_pace``, to be set before ``begin``, is told of answers by workers whose job says so,
    ``on_unreached`` of requests that did not reach one of several backends. Raises WorkerError.
    """

    def __init__(
        self,
        module: str,
        jobs: Sequence[bytes],
        clock: Callable[[], int],
        dispatcher: Dispatcher | None = None,
    ) -> None:
        self._jobs = jobs
        self._clock = clock
        loop = asyncio.get_running_loop()
        self._members = [
            _Member(WorkerProcess(worker_name(i), module), loop.create_future(), loop.create_future())
            for i in range(len(jobs))
        ]
        self.queue = None if dispatcher is None else SharedQueue(dispatcher, clock, self._answer)
        self.on_pace: Callable[[Pace], object] = lambda _: None
        self.on_unreached: Callable[[Unreached], object] = lambda _: None
        self._touched: set[int] = set()
        self._stops = 0
        self._giving_up: asyncio.TimerHandle | None = None

    async def __aenter__(self) -> Self:
        try:
            await asyncio.gather(*(self._start(i) for i in range(len(self._members))))
            await asyncio.gather(*(member.ready for member in self._members))
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @property
    def pids(self) -> list[int]:
        return [member.process.pid for member in self._members]

    @property
    def standing(self) -> Standing:
        """All workers' together; each tells twice a second."""
        found = [member.standing for member in self._members]
        return Standing(
            done=sum(s.done for s in found),
            queued=sum(s.queued for s in found),
            in_flight=sum(s.in_flight for s in found),
            failed=sum(s.failed for s in found),
        )

    def begin(self, origin_ns: int, start_utc: str) -> None:
        """Time 0 lies at ``origin_ns`` of the monotonic clock."""
        self._tell_all(Start(origin_ns, start_utc))

    def tell_state(self, backend: str, up: bool) -> None:
        """To every worker: a backend went down or came back."""
        self._tell_all(BackendState(self._clock(), backend, up))

    def stop(self) -> None:
        """No more arrivals; again: no more waiting, and a worker that does not end then is ended."""
        self._stops += 1
        self._tell_all(Stop())
        if self._stops > 1 and self._giving_up is None:
            self._giving_up = asyncio.get_running_loop().call_later(_GIVE_UP_S, self._kill_the_rest)

    async def ended(self) -> list[WorkerReport | Death]:
        """What became of each worker, in their order."""
        found = await asyncio.gather(*(member.ended for member in self._members))
        # Read when all have ended: to unpack a large report would delay what others still wait for. The bytes are our own
        # child's, over a socket that only it and we have.
        return [each if isinstance(each, Death) else pickle.loads(each) for each in found]  # noqa: S301 (see above)

    async def close(self) -> None:
        if self._giving_up is not None:
            self._giving_up.cancel()
        await asyncio.gather(*(member.process.close(_CLOSE_S) for member in self._members))
        watchers = [member.watcher for member in self._members if member.watcher is not None]
        await asyncio.gather(*watchers)
        if self.queue is not None:
            self.queue.close()

    # -- one worker --------------------------------------------------------------------------------------------------

    async def _start(self, index: int) -> None:
        process = self._members[index].process
        await process.start(lambda messages: self._take(index, messages), lambda: self._lost(index))
        process.send(Job(self._jobs[index]))

    def _take(self, index: int, messages: Sequence[FromWorker]) -> None:
        member = self._members[index]
        events: list[QueueEvent] = []
        for message in messages:
            match message:
                case Ready():
                    _settle(member.ready, None)
                case Standing():
                    member.standing = message
                case Ended(report=report):
                    _settle(member.ended, report)
                case Pace():
                    self.on_pace(message)
                case Unreached():
                    self.on_unreached(message)
                case Broken(error=error, traceback=traceback):
                    member.broken = error
                    log.error("worker %s failed:\n%s", member.process.name, traceback)
                case _:
                    events.append(message)
        if events and self.queue is not None:
            self.queue.take(index, events)
        for touched in self._touched:
            self._members[touched].process.flush()
        self._touched.clear()

    def _answer(self, worker: int, answer: QueueAnswer) -> None:
        self._members[worker].process.send(answer)
        self._touched.add(worker)

    def _lost(self, index: int) -> None:
        member = self._members[index]
        at_ns = self._clock()
        # Also of one that ended in order: a slot that was granted to it as it left would stay occupied.
        held = () if self.queue is None else tuple(self.queue.drop(index))
        if member.ended.done():
            return
        last = member.standing
        member.standing = Standing(last.done, 0, 0, last.failed)
        released = last.done + last.queued + last.in_flight
        member.watcher = asyncio.create_task(self._name_the_cause(index, at_ns, held, released))

    async def _name_the_cause(self, index: int, at_ns: int, held: tuple[Held, ...], released: int) -> None:
        member = self._members[index]
        how = await member.process.gone(_CLOSE_S)
        name = member.process.name
        if member.process.stderr:
            log.error("worker %s wrote before it ended (%s):\n%s", name, how, member.process.stderr)
        if not member.ready.done():
            member.ready.set_exception(WorkerError(f"worker {name} could not be made ready: {member.broken or how}"))
            return
        _settle(member.ended, Death(index, name, member.broken or how, at_ns, held, released))
        self._tell_all(Stop())

    def _tell_all(self, message: FromParent) -> None:
        for member in self._members:
            member.process.send(message)

    def _kill_the_rest(self) -> None:
        for member in self._members:
            if not member.ended.done():
                member.process.kill()


def worker_name(index: int) -> str:
    """How people and files call worker ``index``."""
    return f"w{index}"


def _settle(future: asyncio.Future[_Value], value: _Value) -> None:
    if not future.done():
        future.set_result(value)
