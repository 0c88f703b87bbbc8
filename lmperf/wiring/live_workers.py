"""A live run carried by several processes, seen from the parent: it keeps the queue and the time, and merges what they bring.

The queue is one for all when anything in it couples requests: limited slots, limits of a tenant, or several servers, of which
it knows what each has to do. Else nothing ever waits, each worker has a dispatcher of its own and the parent only merges.
"""

from __future__ import annotations

import asyncio
import pickle
import secrets
from collections.abc import Callable, Mapping, Sequence

import msgspec

from lmperf.console import Progress
from lmperf.scenario.load import Scenario
from lmperf.scenario.plan import Plan
from lmperf.wiring.collector import quiet_collector
from lmperf.wiring.dispatching import control_of_plan
from lmperf.wiring.interrupts import interruptible
from lmperf.wiring.live_results import Ending, Measured
from lmperf.wiring.live_slots import BesideTheQueue, failover_of, slot_loop_of
from lmperf.wiring.results import RunResult
from lmperf.wiring.run_clock import START_AHEAD_NS, RunClock
from lmperf.wiring.sources import growth_of, source_of, timed
from lmperf.wiring.targets import Target, wire_options
from lmperf.wiring.worker_job import WORKER_MODULE, ServerAccess, WorkerJob
from loadgen.cores import whole_cores
from loadgen.live.calls import TenantWire
from loadgen.live.engine import LiveEnd
from loadgen.live.failures import Failures
from loadgen.live.lengths import LengthCheck
from loadgen.live.outage import OutageWatch
from loadgen.live.watch import OwnLoad, Watch
from loadgen.offline.cell import Recipe
from loadgen.recorder import Recorder, record_trace
from loadgen.trace.reader import read_streams
from loadgen.workers.crew import Crew, Death, worker_name
from loadgen.workers.lost import lost_of, unfinished
from loadgen.workers.report import WorkerReport, joined_end
from loadgen.workload.share import Share
from scheduler.dispatcher import Dispatcher
from scheduler.dispatcher_config import DispatcherConfig
from scheduler.request import Outcome
from scheduler.slot_control import SlotControl
from scheduler.slots import Slots
from tenants.tenant import QueueLimits

_START_AHEAD_EACH_NS = 20_000_000


def workers_of(plan: Plan) -> tuple[int, tuple[str, ...]]:
    """How many processes carry the plan, and what should be said of that."""
    asked = count = plan.workers
    notes = []
    cpus = whole_cores()
    if asked > 1 and asked > cpus:
        notes.append(
            f"{asked} workers share {cpus} CPU{'s' if cpus > 1 else ''}: they delay each other; --workers {cpus} or fewer"
        )
    users = [planned.traffic.arrivals.users for planned in plan.tenants if planned.traffic is not None]
    if plan.trace is None and users and all(users):
        of_all = sum(each or 0 for each in users)
        if of_all < asked:
            count = of_all
            notes.append(f"{of_all} user{'s' if of_all > 1 else ''} for {asked} workers: {count} are started")
    return count, tuple(notes)


def access_to(plan: Plan, scenario: Scenario, target: Target) -> ServerAccess:
    """The ready target, as a worker reaches it."""
    model, resolve = scenario.model.backend, scenario.secrets.resolve
    return ServerAccess(
        urls={name: backend.base_url for name, backend in target.backends.items()},
        api_key=None if model.api_key is None else resolve(model.api_key),
        headers={name: resolve(value) for name, value in model.headers.items()},
        options=wire_options(plan.backend),
        metadata=target.metadata,
        capabilities=target.capabilities,
        model=target.model,
        endpoint=target.endpoint,
    )


def couples_requests(config: DispatcherConfig) -> bool:
    """Whether one request's fate depends on another's: then the queue must be one for all workers."""
    if len(config.backends) > 1 or any(slots != Slots() for slots in config.backends.values()):
        return True
    # A longest wait decides nothing where nothing waits.
    return any(
        (limits := tenant.limits) != QueueLimits(ttl_ns=limits.ttl_ns, burst_s=limits.burst_s)
        for tenant in config.tenants
    )


async def run_workers(
    count: int,
    measured: Measured,
    *,
    recipe: Recipe,
    expected: float | None,
    server: ServerAccess,
    wires: Mapping[str, TenantWire],
    exactness: str,
    connections: int,
    dispatcher: Dispatcher,
    logged: bool,
    clock: RunClock,
    progress: Progress,
    redact: Callable[[str], str],
    notes: Sequence[str],
) -> RunResult:
    """The plan over ``count`` workers. ``logged``: the dispatcher writes a log, so all events must come to it."""
    plan = measured.plan
    control = control_of_plan(plan)
    shared = logged or control is not None or couples_requests(dispatcher.config)
    run_id = secrets.token_hex(4)
    jobs = [
        WorkerJob(
            name=worker_name(index),
            share=Share(index, count),
            plan=plan,
            recipe=recipe,
            growth=growth_of(plan.tenants),
            server=server,
            wires=wires,
            run=run_id,
            exactness=exactness,
            shared=shared,
            tells_pace=control is not None,
            dispatcher=dispatcher.config,
            until_ns=measured.until_ns,
            metadata=measured.metadata(),
            window_ns=measured.window_ns,
            directory=measured.directory,
            connections=-(-connections // count),
        )
        for index in range(count)
    ]
    progress.stage(f"preparing requests and connections in {count} workers")
    pickled = [pickle.dumps(job, pickle.HIGHEST_PROTOCOL) for job in jobs]
    async with Crew(WORKER_MODULE, pickled, clock, dispatcher if shared else None) as crew:
        beside = _beside(crew, control, measured.target, clock)
        with quiet_collector():
            try:
                stopped = False

                def stop() -> None:
                    nonlocal stopped
                    stopped = True
                    crew.stop()

                def fail(_: BaseException) -> None:
                    crew.stop()
                    crew.stop()

                with interruptible(stop):
                    async with Watch() as watch:
                        start_utc = clock.start_soon(START_AHEAD_NS + count * _START_AHEAD_EACH_NS)
                        crew.begin(clock.origin_ns, start_utc)
                        recorder = measured.recorder(clock, start_utc)
                        ticker = asyncio.create_task(_tick(measured, crew, clock, progress, expected))
                        try:
                            async with beside.running(fail):
                                found = await crew.ended()
                        finally:
                            ticker.cancel()
                            await asyncio.gather(ticker, return_exceptions=True)
                        load = watch.own_load()
            except BaseException:
                for job in jobs:
                    job.columns_file.unlink(missing_ok=True)
                raise
    progress.done()
    recorder.metadata = msgspec.structs.replace(recorder.metadata, slot_moves=beside.moves)
    merged = _Merged(measured, recorder, stopped=stopped, ended_ns=clock())
    for index, each in enumerate(found):
        if isinstance(each, Death):
            merged.take_over(jobs[index], each)
        else:
            merged.add(jobs[index].name, each)
    return await measured.finish(recorder, merged.ending(load, [*notes, *beside.notes()], redact), progress)


def _beside(crew: Crew, control: SlotControl | None, target: Target, clock: RunClock) -> BesideTheQueue:
    """What stands beside the queue of all workers, and hears what they tell."""
    if crew.queue is None:
        return BesideTheQueue(None)
    failover = failover_of(target, crew.queue, crew.tell_state)
    beside = BesideTheQueue(slot_loop_of(control, target, crew.queue, clock), failover)
    crew.on_pace = beside.take
    if failover is not None:
        crew.on_unreached = lambda told: failover.unreached(told.backend, requeued=told.requeued)
    return beside


async def _tick(measured: Measured, crew: Crew, clock: RunClock, progress: Progress, expected: float | None) -> None:
    until_ns = measured.until_ns
    while True:
        await asyncio.sleep(0.5)
        standing = crew.standing
        progress.running(
            clock() / 1e9,
            None if until_ns is None else until_ns / 1e9,
            done=standing.done,
            queued=standing.queued,
            in_flight=standing.in_flight,
            failed=standing.failed,
            expected=expected,
        )


class _Merged:
    """One run from what became of its workers: counts added, figures pooled, nothing averaged."""

    def __init__(self, measured: Measured, recorder: Recorder, *, stopped: bool, ended_ns: int) -> None:
        self._measured = measured
        self._recorder = recorder
        self._stopped = stopped
        self._ended_ns = ended_ns
        self._outage = OutageWatch(lambda _: None)
        self._failures = Failures(self._outage)
        self._lengths = LengthCheck(self._failures)
        self._ends: list[LiveEnd] = []
        self._loads: dict[str, OwnLoad] = {}
        self._lost = 0
        self._died_ns: list[int] = []

    def add(self, name: str, report: WorkerReport) -> None:
        self._recorder.absorb(report.recorder)
        self._failures.add(report.failures)
        self._lengths.add(report.lengths)
        self._outage.add(report.outage)
        self._ends.append(report.end)
        self._loads[f"worker {name}"] = report.load

    def take_over(self, job: WorkerJob, death: Death) -> None:
        """Record what a dead worker had on disk, and all else that it had taken on as unfinished."""
        measured, recorder = self._measured, self._recorder
        job.columns_file.unlink(missing_ok=True)  # of one that died between leaving it and saying so
        outcomes: list[Outcome] = []
        trace = read_streams(measured.directory, job.name)
        if trace is not None:
            recorder.absorb(record_trace(trace, recorder.tenants).state())
            outcomes = list(trace.outcomes())
            for outcome in outcomes:
                self._lengths(outcome)
        until_ns = death.at_ns if job.until_ns is None else min(death.at_ns, job.until_ns)
        source = source_of(job.recipe, job.plan.seed, job.growth, job.share)
        held = {each.request.id: each for each in death.held}
        lost = lost_of(source, outcomes, held, until_ns, death.released)
        with_limits = timed(job.plan)
        for request in lost.requests:
            recorder.on_outcome(
                unfinished(with_limits(request), held.get(request.id), death.at_ns, f"worker {job.name} died")
            )
        self._lost += len(lost)
        self._died_ns.append(death.at_ns)
        without_rows = (
            f", and {lost.nameless} more, which followed answers that were lost with it, have no row and are in no tenant's "
            "figures"
            if lost.nameless
            else ""
        )
        unseen = (
            "; what its users and sessions sent in its last half second, of which nobody was told, is not counted"
            if not job.shared and source.follows
            else ""
        )
        recorder.invalidate(
            f"worker {job.name} died {death.at_ns / 1e9:.1f} s after the start ({death.how}): {len(lost.requests)} of its "
            f"requests count as unfinished (those of its last moments whose rows were not on disk yet among them){without_rows}"
            f"{unseen}, and the run ended early, since its share of the later arrivals could not be sent"
        )

    def ending(self, queue_load: OwnLoad, notes: Sequence[str], redact: Callable[[str], str]) -> Ending:
        end = joined_end(self._ends, ended_ns=self._ended_ns, interrupted=self._stopped, lost=self._lost)
        cut_ns = end.arrivals_ended_ns if self._stopped else None
        return Ending(
            end=end,
            loads={"the process of the queue": queue_load, **self._loads},
            outage=self._outage,
            notes=[*notes, *self._lengths.warnings(), *map(redact, self._failures.notes())],
            cut_ns=min(self._died_ns, default=cut_ns),
        )
