"""A live run from a plan to its results folder."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import signal
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import aiohttp
import msgspec

from backends.emulator.process import EmulatorProcess
from lmperf.console import Progress
from lmperf.scenario.dump import resolved_yaml
from lmperf.scenario.load import Scenario
from lmperf.scenario.plan import Plan
from lmperf.wiring.dispatching import BACKEND, dispatcher_config
from lmperf.wiring.prompting import prompts_for, wires_of
from lmperf.wiring.results import FOREVER_NS, RunResult, window_as_run, write_results
from lmperf.wiring.servers import server_model_of
from lmperf.wiring.sources import arrivals_end_ns, growth_of, recipe_of, source_of
from lmperf.wiring.targets import Target, ready_target
from loadgen.live.calls import CallMaker, LookAhead
from loadgen.live.engine import LiveEnd, LiveRun
from loadgen.live.failures import Failures
from loadgen.live.lengths import LengthCheck
from loadgen.live.watch import OwnLoad, Watch
from loadgen.recorder import Recorder
from loadgen.trace.schema import TraceMetadata
from loadgen.workload.source import Source
from scheduler.dispatcher import Dispatcher
from scheduler.drivers.live import LiveDriver
from scheduler.event_log import LoggedDispatcher
from scheduler.request import Request

_FLUSH_S = 2.0
_START_AHEAD_NS = 50_000_000
_EMULATOR_LATENESS_BOUND_NS = 5_000_000
_WARM_UP_CONNECTIONS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveOptions:
    """What a run takes beside its plan. ``event_log``: write every event and action, for parity checks."""

    directory: Path
    percentiles: tuple[float, ...]
    ready_timeout_s: float = 600.0
    event_log: bool = False
    quiet: bool = False


class _Clock:
    """ns since the run's start; before ``start_soon``, ns since it was made.

    The start is set a moment ahead, so that everything that must know it (the header of the rows on disk, which a
    killed run leaves behind) is made before the first arrival and does not delay it."""

    def __init__(self) -> None:
        self.origin_ns = time.monotonic_ns()

    def start_soon(self) -> str:
        """Time 0 lies a moment ahead; its instant in UTC."""
        self.origin_ns = time.monotonic_ns() + _START_AHEAD_NS
        start = datetime.now(UTC) + timedelta(microseconds=_START_AHEAD_NS // 1000)
        return start.isoformat(timespec="milliseconds")

    def __call__(self) -> int:
        return time.monotonic_ns() - self.origin_ns


class _TimedSource:
    """A source whose requests carry the time-outs that the plan gives their tenant."""

    def __init__(self, source: Source, plan: Plan) -> None:
        self._source = source
        self._limits = {
            planned.tenant.name: {
                "first_token_timeout_ns": planned.timeouts.first_token_ns,
                "timeout_ns": planned.timeouts.total_ns,
            }
            for planned in plan.tenants
            if planned.timeouts.first_token_ns is not None or planned.timeouts.total_ns is not None
        }

    def of(self, request: Request) -> Request:
        limits = self._limits.get(request.tenant)
        return request if limits is None else msgspec.structs.replace(request, **limits)


async def run_live(scenario: Scenario, plan: Plan, options: LiveOptions, progress: Progress) -> RunResult:
    """Run the plan. Raises BackendError, EmulatorProcessError, TraceError, SourceError before anything is sent."""
    clock = _Clock()
    source = source_of(recipe_of(plan), plan.seed, growth_of(plan.tenants))
    progress.stage(f"backend: {plan.backend.url or plan.backend.kind}")
    async with ready_target(
        plan, scenario, clock, ready_timeout_s=options.ready_timeout_s, on_wait=progress.waiting
    ) as target:
        prompts, exactness = await prompts_for(target, plan, source.block_tokens)
        progress.stage(f"model {target.model}, {target.endpoint} endpoint; {exactness}")
        directory = options.directory
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "scenario.resolved.yaml").write_text(resolved_yaml(scenario, plan), encoding="utf-8")
        with _dispatcher(plan, directory, log=options.event_log) as dispatcher:
            session = _Session(plan, source, target, dispatcher, directory, clock, progress, scenario.secrets.redact)
            calls = CallMaker(wires_of(plan, scenario, target), prompts)
            return await session.run(calls, options)


@contextlib.contextmanager
def _dispatcher(plan: Plan, directory: Path, *, log: bool) -> Iterator[Dispatcher]:
    config = dispatcher_config(plan, server_model_of(plan.backend))
    if not log:
        yield Dispatcher(config)
        return
    with (directory / "events.jsonl").open("wb") as file:
        yield LoggedDispatcher(config, file.write)


class _Session:
    """One live run between a ready target and its results."""

    def __init__(
        self,
        plan: Plan,
        source: Source,
        target: Target,
        dispatcher: Dispatcher,
        directory: Path,
        clock: _Clock,
        progress: Progress,
        redact: Callable[[str], str],
    ) -> None:
        self._redact = redact
        self._plan = plan
        self._source = source
        self._target = target
        self._dispatcher = dispatcher
        self._directory = directory
        self._clock = clock
        self._progress = progress
        self._until_ns = arrivals_end_ns(plan, source)

    async def run(self, calls: CallMaker, options: LiveOptions) -> RunResult:
        plan, clock = self._plan, self._clock
        timed = _TimedSource(self._source, plan)
        run = LiveRun(
            self._source,
            LiveDriver(self._dispatcher, clock),
            {BACKEND: self._target.backend},
            calls,
            clock,
            until_ns=self._until_ns,
            num_prompts=plan.num_prompts,
            drain_s=plan.drain_ns / 1e9,
            ahead=LookAhead(map(timed.of, self._source.absolute()), calls.make),
            prepare_request=timed.of,
        )
        self._progress.stage("preparing requests and connections")
        await asyncio.to_thread(run.prepare)
        await self._target.backend.warm_up(_connections(plan))
        gc.collect()
        gc.freeze()
        try:
            with _interruptible(run.stop):
                async with Watch() as watch:
                    recorder = self._recorder(clock.start_soon())
                    failures = Failures(recorder.on_outcome)
                    lengths = LengthCheck(failures)
                    ticker = asyncio.create_task(self._tick(run, recorder))
                    try:
                        end = await run.run(lengths)
                    finally:
                        ticker.cancel()
                        await asyncio.gather(ticker, return_exceptions=True)
                    load = watch.own_load()
        finally:
            gc.unfreeze()
        self._progress.done()
        notes = [*lengths.warnings(), *map(self._redact, failures.notes())]
        return await self._finish(recorder, end, load, notes, options)

    def _recorder(self, start_utc: str) -> Recorder:
        """The recorder of a run whose start is known."""
        until = self._until_ns
        window = (0, FOREVER_NS)
        if until is not None:
            judged = self._plan.judged.window(until)
            window = (judged.start_ns, judged.end_ns)
        metadata = msgspec.structs.replace(
            self._metadata(), start_monotonic_ns=self._clock.origin_ns, start_utc=start_utc, window_ns=window
        )
        tenants = tuple(planned.tenant for planned in self._plan.tenants)
        return Recorder(tenants, window, self._directory, metadata=metadata)

    async def _tick(self, run: LiveRun, recorder: Recorder) -> None:
        flushed = 0.0
        while True:
            await asyncio.sleep(0.5)
            now_s = self._clock() / 1e9
            self._progress.running(
                now_s,
                None if self._until_ns is None else self._until_ns / 1e9,
                done=run.done,
                queued=run.queued,
                in_flight=run.in_flight,
                failed=run.failed,
                expected=self._source.expected_requests,
            )
            if now_s - flushed >= _FLUSH_S:
                flushed = now_s
                recorder.flush()

    async def _finish(
        self,
        recorder: Recorder,
        end: LiveEnd,
        load: OwnLoad,
        notes: list[str],
        options: LiveOptions,
    ) -> RunResult:
        server: dict[str, object] = {
            "model": self._target.model,
            "endpoint": self._target.endpoint,
            "version": self._target.metadata.version,
            "loop_lag_max_ms": load.loop_lag_max_ms,
            "generator_cpu_share": load.cpu_share_mean,
        }
        if self._target.emulator is not None:
            server |= await self._emulator_lateness(self._target.emulator, recorder)
        self._progress.stage("writing results")
        cut_ns = end.arrivals_ended_ns if end.interrupted else None
        recorder.window_ns = window_as_run(recorder.window_ns, cut_ns=cut_ns, ended_ns=end.ended_ns)
        final = msgspec.structs.replace(recorder.metadata, window_ns=recorder.window_ns, end_ns=end.ended_ns)
        return await asyncio.to_thread(
            write_results,
            recorder,
            self._plan,
            metadata=final,
            directory=self._directory,
            percentiles=options.percentiles,
            server=server,
            warnings=_warnings(self._plan, end, load, notes),
            interrupted=end.interrupted,
        )

    async def _emulator_lateness(self, emulator: EmulatorProcess, recorder: Recorder) -> dict[str, object]:
        try:
            stats = await emulator.stats()
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            recorder.invalidate(f"the embedded server ended before the run did, so its lateness is not known: {error}")
            return {}
        late_ns = stats.lateness_p99_ns or 0
        if late_ns > _EMULATOR_LATENESS_BOUND_NS:
            recorder.invalidate(
                f"the embedded server itself fell behind: P99 of its steps ended {late_ns / 1e6:.1f} ms late (bound "
                f"{_EMULATOR_LATENESS_BOUND_NS / 1e6:.0f} ms); use fewer streams, a larger time scale or a quieter machine"
            )
        return {"step_lateness_p99_ms": late_ns / 1e6, "steps": stats.steps, "cpu_s": stats.cpu_s}

    def _metadata(self) -> TraceMetadata:
        plan = self._plan
        closed = any(planned.traffic is not None and planned.traffic.arrivals.users for planned in plan.tenants)
        server = server_model_of(plan.backend)
        return TraceMetadata(
            kind="live",
            scenario=(self._directory / "scenario.resolved.yaml").read_text(encoding="utf-8"),
            load_mode="closed" if closed else "open",
            queueing="policy" if plan.policy.queues else "target",
            server_model=None if server is None else msgspec.to_builtins(server),
            slots={"sequences": plan.slots.sequences, "prefill_tokens": plan.slots.prefill_tokens},
            policy=plan.policy.name,
            policy_options=dict(plan.policy.options),
            prefix_block_tokens=self._source.block_tokens,
            seed=plan.seed,
        )


def _connections(plan: Plan) -> int:
    """Sockets opened before the clock starts: as many as may be in use at once, as far as that is known."""
    users = sum(planned.traffic.arrivals.users or 0 for planned in plan.tenants if planned.traffic is not None)
    if plan.slots.sequences is not None:
        return min(plan.slots.sequences, users) if users else plan.slots.sequences
    return users or _WARM_UP_CONNECTIONS


def _warnings(plan: Plan, end: LiveEnd, load: OwnLoad, notes: list[str]) -> tuple[str, ...]:
    found = [*(str(warning) for warning in plan.warnings), *notes]
    if end.unfinished:
        found.append(f"{end.unfinished} requests had no answer when the run ended; they count as never finished")
    if load.saturated:
        found.append(
            f"the generator used {load.cpu_share_max:.0%} of a CPU for a second: its own work may have delayed what it "
            "measured"
        )
    return tuple(found)


@contextlib.contextmanager
def _interruptible(stop: Callable[[], None]) -> Iterator[None]:
    """Ctrl-C and SIGTERM stop the run in order; a second one stops the waiting too."""
    loop = asyncio.get_running_loop()
    signals = (signal.SIGINT, signal.SIGTERM)

    def on_signal() -> None:
        print("\nstopping: no more arrivals; waiting for answers (again: give up on them)", file=sys.stderr)
        stop()

    for number in signals:
        loop.add_signal_handler(number, on_signal)
    try:
        yield
    finally:
        for number in signals:
            loop.remove_signal_handler(number)
