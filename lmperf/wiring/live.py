"""A live run from a plan to its results folder."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from lmperf.console import Progress
from lmperf.flag_defaults import READY_TIMEOUT_S
from lmperf.scenario.dump import resolved_yaml
from lmperf.scenario.load import Scenario
from lmperf.scenario.plan import Plan
from lmperf.wiring.collector import quiet_collector
from lmperf.wiring.dispatching import control_of_plan, dispatcher_config
from lmperf.wiring.interrupts import interruptible
from lmperf.wiring.live_results import ALONE, Ending, Measured
from lmperf.wiring.live_slots import BesideTheQueue, check_waiting_counts, failover_of, slot_loop_of
from lmperf.wiring.live_workers import access_to, run_workers, workers_of
from lmperf.wiring.prompting import prompts_for, wires_of
from lmperf.wiring.results import RunResult
from lmperf.wiring.run_clock import RunClock
from lmperf.wiring.servers import server_model_of
from lmperf.wiring.sources import arrivals_end_ns, growth_of, recipe_of, source_of, timed
from lmperf.wiring.targets import ready_target
from lmperf.wiring.too_long import too_long
from loadgen.live.calls import CallMaker, LookAhead
from loadgen.live.engine import LiveRun
from loadgen.live.failures import Failures
from loadgen.live.lengths import LengthCheck
from loadgen.live.outage import OutageWatch
from loadgen.live.rehearsal import rehearse
from loadgen.live.watch import Watch
from loadgen.recorder import Recorder
from loadgen.workload.source import Source
from scheduler.dispatcher import Dispatcher
from scheduler.drivers.live import LiveDriver
from scheduler.event_log import LoggedDispatcher

_FLUSH_S = 2.0
_WARM_UP_CONNECTIONS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveOptions:
    """What a run takes beside its plan. ``event_log``: write every event and action, for parity checks."""

    directory: Path
    percentiles: tuple[float, ...]
    ready_timeout_s: float = READY_TIMEOUT_S
    event_log: bool = False
    quiet: bool = False


async def run_live(scenario: Scenario, plan: Plan, options: LiveOptions, progress: Progress) -> RunResult:
    """Run the plan. Raises BackendError, EmulatorProcessError, WorkerError, TraceError, SourceError before anything is
    sent."""
    clock = RunClock()
    recipe = recipe_of(plan)
    source = source_of(recipe, plan.seed, growth_of(plan.tenants))
    progress.stage(f"backend: {plan.backend.where}")
    async with ready_target(
        plan, scenario, clock, ready_timeout_s=options.ready_timeout_s, on_wait=progress.waiting
    ) as target:
        await check_waiting_counts(plan, target)
        if target.metadata.max_model_len is not None:
            found = too_long(
                scenario,
                plan,
                source_of(recipe, plan.seed, growth_of(plan.tenants)),
                max_model_len=target.metadata.max_model_len,
                ignore_eos=plan.backend.ignore_eos and target.capabilities.ignore_eos is not False,
            )
            for warning in found:
                progress.stage(f"warning: {warning}")
            plan = replace(plan, warnings=(*plan.warnings, *found))
        prompts, exactness = await prompts_for(target, plan, source.block_tokens)
        progress.stage(f"model {target.model}, {target.endpoint} endpoint; {exactness}")
        directory = options.directory
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "scenario.resolved.yaml").write_text(resolved_yaml(scenario, plan), encoding="utf-8")
        measured = Measured(
            plan=plan,
            target=target,
            directory=directory,
            until_ns=arrivals_end_ns(plan, source),
            block_tokens=source.block_tokens,
            percentiles=options.percentiles,
        )
        wires = wires_of(plan, scenario, target)
        redact = scenario.secrets.redact
        with _dispatcher(plan, directory, log=options.event_log) as dispatcher:
            count, doubts = workers_of(plan)
            notes = (*recipe.notes, *doubts)
            for note in notes:
                progress.stage(f"warning: {note}")
            if count == 1:
                calls = CallMaker(wires, prompts)
                return await _run_alone(measured, source, dispatcher, calls, clock, progress, redact, notes)
            return await run_workers(
                count,
                measured,
                recipe=recipe,
                expected=source.expected_requests,
                server=access_to(plan, scenario, target),
                wires=wires,
                exactness=exactness,
                connections=connections(plan),
                dispatcher=dispatcher,
                logged=options.event_log,
                clock=clock,
                progress=progress,
                redact=redact,
                notes=notes,
            )


@contextlib.contextmanager
def _dispatcher(plan: Plan, directory: Path, *, log: bool) -> Iterator[Dispatcher]:
    config = dispatcher_config(plan, server_model_of(plan.backend))
    if not log:
        yield Dispatcher(config)
        return
    with (directory / "events.jsonl").open("wb") as file:
        yield LoggedDispatcher(config, file.write)


async def _run_alone(
    measured: Measured,
    source: Source,
    dispatcher: Dispatcher,
    calls: CallMaker,
    clock: RunClock,
    progress: Progress,
    redact: Callable[[str], str],
    notes: tuple[str, ...],
) -> RunResult:
    """The whole run in this process."""
    plan, backends = measured.plan, measured.target.backends
    with_limits = timed(plan)
    driver = LiveDriver(dispatcher, clock)
    failover = failover_of(measured.target, driver)
    beside = BesideTheQueue(slot_loop_of(control_of_plan(plan), measured.target, driver, clock), failover)
    run = LiveRun(
        source,
        driver,
        backends,
        calls,
        clock,
        until_ns=measured.until_ns,
        num_prompts=plan.num_prompts,
        drain_s=plan.drain_ns / 1e9,
        ahead=LookAhead(map(with_limits, source.absolute()), calls.make),
        prepare_request=with_limits,
        failover=failover,
    )
    progress.stage("preparing requests and connections")
    await asyncio.to_thread(run.prepare)
    for backend in backends.values():
        await backend.warm_up(connections(plan))
    await rehearse(dispatcher.config)
    with quiet_collector(), interruptible(run.stop):
        async with Watch() as watch:
            recorder = measured.recorder(clock, clock.start_soon())
            outage = OutageWatch(beside.watching(recorder.on_outcome))
            failures = Failures(outage)
            lengths = LengthCheck(failures)
            ticker = asyncio.create_task(_tick(measured, run, recorder, clock, progress, source.expected_requests))
            try:
                async with beside.running(run.fail, run.settle):
                    end = await run.run(lengths)
            finally:
                ticker.cancel()
                await asyncio.gather(ticker, return_exceptions=True)
            load = watch.own_load()
    progress.done()
    ending = Ending(
        end=end,
        loads={ALONE: load},
        outage=outage,
        notes=[*notes, *lengths.warnings(), *map(redact, failures.notes()), *beside.notes()],
        cut_ns=end.arrivals_ended_ns if end.interrupted else None,
    )
    recorder.metadata = msgspec.structs.replace(recorder.metadata, slot_moves=beside.moves)
    return await measured.finish(recorder, ending, progress)


async def _tick(
    measured: Measured,
    run: LiveRun,
    recorder: Recorder,
    clock: RunClock,
    progress: Progress,
    expected: float | None,
) -> None:
    flushed = 0.0
    until_ns = measured.until_ns
    while True:
        await asyncio.sleep(0.5)
        now_s = clock() / 1e9
        progress.running(
            now_s,
            None if until_ns is None else until_ns / 1e9,
            done=run.done,
            queued=run.queued,
            in_flight=run.in_flight,
            failed=run.failed,
            expected=expected,
        )
        if now_s - flushed >= _FLUSH_S:
            flushed = now_s
            run.settle()
            recorder.flush()


def connections(plan: Plan) -> int:
    """Sockets opened before the clock starts: as many as may be in use at once, as far as that is known."""
    users = sum(planned.traffic.arrivals.users or 0 for planned in plan.tenants if planned.traffic is not None)
    if plan.slots.sequences is not None:
        return min(plan.slots.sequences, users) if users else plan.slots.sequences
    return users or _WARM_UP_CONNECTIONS
