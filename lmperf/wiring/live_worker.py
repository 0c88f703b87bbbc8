"""A worker process of a live run: ``python -m lmperf.wiring.live_worker FD``, with a socket to its parent as FD.

The same run loop as a run without workers, over its share of the workload. It ends when it has reported, or when the socket
closes: then nobody is left to report to, and only the rows on disk are saved.
"""

from __future__ import annotations

import asyncio
import contextlib
import pickle
import signal
import socket
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from typing import Any

import msgspec
import uvloop

from backends.openai import OpenAIBackend
from backends.protocol import BackendError
from lmperf.wiring.collector import quiet_collector
from lmperf.wiring.prompting import prompts_for
from lmperf.wiring.run_clock import RunClock
from lmperf.wiring.sources import source_of, timed
from lmperf.wiring.targets import Target
from lmperf.wiring.worker_job import WorkerJob
from loadgen.live.calls import CallMaker, LookAhead
from loadgen.live.engine import LiveRun
from loadgen.live.failures import Failures
from loadgen.live.lengths import LengthCheck
from loadgen.live.outage import OutageWatch
from loadgen.live.rehearsal import rehearse
from loadgen.live.watch import Watch
from loadgen.recorder import Recorder
from loadgen.workers.failover import RemoteFailover
from loadgen.workers.link import Link
from loadgen.workers.messages import (
    Broken,
    Ended,
    FromParent,
    Job,
    Ready,
    Standing,
    Start,
    Stop,
)
from loadgen.workers.remote import RemoteDriver
from loadgen.workers.report import WorkerReport
from scheduler.dispatcher import Dispatcher
from scheduler.drivers.live import LiveDriver
from scheduler.events import BackendState
from scheduler.request import Outcome
from scheduler.slot_control import pace_of

_TICK_S = 0.5
_FLUSH_TICKS = 4


class _Orphaned(Exception):  # noqa: N818 (an end, not a fault)
    """The parent is gone before the run began."""


class _Worker:
    """What the parent says, turned into a run."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self._job: asyncio.Future[bytes] = loop.create_future()
        self._start: asyncio.Future[Start] = loop.create_future()
        self._link: Link[FromParent]
        self._driver: RemoteDriver | None = None
        self._failover: RemoteFailover | None = None
        self._run: LiveRun | None = None
        self._stops = 0

    async def work(self, sock: socket.socket) -> None:
        kind: Any = FromParent
        self._link = await Link[FromParent].over(sock, kind, self._take, self._lost)
        try:
            report = await self._carry_out()
        except _Orphaned:
            return
        except Exception as error:  # noqa: BLE001 (told to the parent, which ends the run)
            self._link.send(Broken(f"{type(error).__name__}: {error}", traceback.format_exc()))
        else:
            self._link.send(Ended(pickle.dumps(report, pickle.HIGHEST_PROTOCOL)))
        self._link.close()
        await self._link.closed

    def _take(self, messages: Sequence[FromParent]) -> None:
        for message in messages:
            match message:
                case Job(job=job):
                    self._job.set_result(job)
                case Start():
                    self._start.set_result(message)
                case Stop():
                    self._stop()
                case BackendState():
                    if self._failover is not None:
                        self._failover.state(message)
                case _:
                    if self._driver is not None:
                        self._driver.take(message)

    def _stop(self) -> None:
        self._stops += 1
        if self._run is not None:
            self._run.stop()

    def _lost(self) -> None:
        """The parent is gone: nothing is waited for any more."""
        for future in (self._job, self._start):
            if not future.done():
                future.set_exception(_Orphaned())
                future.exception()
        self._stop()
        self._stop()

    async def _carry_out(self) -> WorkerReport:
        # Our own parent's, over a socket that only it and we have.
        job: WorkerJob = pickle.loads(await self._job)  # noqa: S301 (see above)
        clock = RunClock()
        async with AsyncExitStack() as stack:
            backends: dict[str, OpenAIBackend] = {}
            server = job.server
            for name, url in server.urls.items():
                backends[name] = OpenAIBackend(
                    url, api_key=server.api_key, headers=server.headers, options=server.options, clock=clock
                )
                stack.push_async_callback(backends[name].close)
            run = await self._prepared(job, backends, clock)
            self._link.send(Ready())
            start = await self._start
            clock.origin_ns = start.origin_ns
            return await self._measured(job, run, start)

    async def _prepared(self, job: WorkerJob, backends: Mapping[str, OpenAIBackend], clock: RunClock) -> LiveRun:
        """Everything that need not be done on time."""
        plan, server = job.plan, job.server
        source = source_of(job.recipe, plan.seed, job.growth, job.share)
        target = Target(
            backends=backends,
            metadata=server.metadata,
            capabilities=server.capabilities,
            model=server.model,
            endpoint=server.endpoint,
            emulator=None,
        )
        prompts, exactness = await prompts_for(target, plan, source.block_tokens)
        if exactness != job.exactness:
            raise BackendError(
                f"the server's tokenizer answers differently from before: {job.exactness}, then {exactness}"
            )
        calls = CallMaker(job.wires, prompts, job.run)
        with_limits = timed(plan)
        driver: LiveDriver
        if job.shared:
            driver = self._driver = RemoteDriver(job.dispatcher, clock, self._link.send)
        else:
            driver = LiveDriver(Dispatcher(job.dispatcher), clock)
        if len(backends) > 1:
            self._failover = RemoteFailover(backends, self._link.send)
        run = LiveRun(
            source,
            driver,
            backends,
            calls,
            clock,
            until_ns=job.until_ns,
            num_prompts=None if plan.num_prompts is None else job.share.of_total(plan.num_prompts),
            drain_s=plan.drain_ns / 1e9,
            ahead=LookAhead(map(with_limits, source.absolute()), calls.make),
            prepare_request=with_limits,
            failover=self._failover,
        )
        await asyncio.to_thread(run.prepare)
        for backend in backends.values():
            await backend.warm_up(job.connections)
        await rehearse(job.dispatcher)
        return run

    async def _measured(self, job: WorkerJob, run: LiveRun, start: Start) -> WorkerReport:
        metadata = msgspec.structs.replace(
            job.metadata, start_monotonic_ns=start.origin_ns, start_utc=start.start_utc, window_ns=job.window_ns
        )
        tenants = tuple(planned.tenant for planned in job.plan.tenants)
        recorder = Recorder(tenants, job.window_ns, job.directory, metadata=metadata, worker=job.name)
        outage = OutageWatch(self._telling(recorder.on_outcome) if job.tells_pace else recorder.on_outcome)
        failures = Failures(outage)
        lengths = LengthCheck(failures)
        self._run = run
        for _ in range(self._stops):
            run.stop()
        try:
            with quiet_collector():
                async with Watch() as watch:
                    ticker = asyncio.create_task(self._tick(run, recorder))
                    try:
                        end = await run.run(lengths)
                    finally:
                        ticker.cancel()
                        await asyncio.gather(ticker, return_exceptions=True)
                    load = watch.own_load()
        finally:
            recorder.close_rows()
        return WorkerReport(
            end=end,
            load=load,
            recorder=recorder.state(job.columns_file),
            failures=failures.state(),
            lengths=lengths.state(),
            outage=outage.state(),
        )

    def _telling(self, on_outcome: Callable[[Outcome], None]) -> Callable[[Outcome], None]:
        """``on_outcome``, with the pace of each answer told to the parent."""

        def both(outcome: Outcome) -> None:
            pace = pace_of(outcome)
            if pace is not None:
                self._link.send(pace)
            on_outcome(outcome)

        return both

    async def _tick(self, run: LiveRun, recorder: Recorder) -> None:
        ticks = 0
        while True:
            await asyncio.sleep(_TICK_S)
            self._link.send(Standing(run.done, run.queued, run.in_flight, run.failed))
            ticks += 1
            if ticks % _FLUSH_TICKS == 0:
                run.settle()
                recorder.flush()


def main(argv: Sequence[str]) -> None:
    # The parent alone hears the terminal, and says when to stop.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sock = socket.socket(fileno=int(argv[0]))

    async def work() -> None:
        await _Worker().work(sock)

    with contextlib.suppress(_Orphaned):
        uvloop.run(work())


if __name__ == "__main__":
    main(sys.argv[1:])
