"""What surrounds a live run, whether one process carries it or several: the header of its rows, its window, its results."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import msgspec

from backends.emulator.process import EmulatorProcess
from lmperf.console import Progress
from lmperf.scenario.plan import Plan
from lmperf.wiring.dispatching import auto_of, slots_of
from lmperf.wiring.results import RunResult, write_results
from lmperf.wiring.run_clock import RunClock
from lmperf.wiring.servers import server_model_of
from lmperf.wiring.targets import Target
from loadgen.live.engine import LiveEnd
from loadgen.live.outage import OutageWatch
from loadgen.live.watch import OwnLoad
from loadgen.offline.cell import slots_data
from loadgen.recorder import Recorder
from loadgen.recording.window import FOREVER_NS, window_as_run
from loadgen.summary.target import LOST, STOPPED_S
from loadgen.trace.schema import TraceMetadata

_EMULATOR_LATENESS_BOUND_NS = 5_000_000

ALONE = "the generator"
"""The name of the one process of a run without workers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """How the measured part of a run ended. ``loads``: of each process of the generator, by what people call it.
    ``outage``: whether the server was still there. ``cut_ns``: when arrivals were cut short, if they were."""

    end: LiveEnd
    loads: Mapping[str, OwnLoad]
    outage: OutageWatch
    notes: Sequence[str]
    cut_ns: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """A run's plan, its ready target, and where its results go. ``until_ns``: no arrival after it."""

    plan: Plan
    target: Target
    directory: Path
    until_ns: int | None
    block_tokens: int
    percentiles: tuple[float, ...]

    @property
    def window_ns(self) -> tuple[int, int]:
        """What is judged, as far as it is known before the run."""
        if self.until_ns is None:
            return (0, FOREVER_NS)
        judged = self.plan.judged.window(self.until_ns)
        return (judged.start_ns, judged.end_ns)

    def metadata(self) -> TraceMetadata:
        """The header of the rows, but for the start."""
        plan = self.plan
        closed = any(planned.traffic is not None and planned.traffic.arrivals.users for planned in plan.tenants)
        server = server_model_of(plan.backend)
        return TraceMetadata(
            kind="live",
            scenario=(self.directory / "scenario.resolved.yaml").read_text(encoding="utf-8"),
            load_mode="closed" if closed else "open",
            queueing="policy" if plan.policy.queues else "target",
            server_model=None if server is None else msgspec.to_builtins(server),
            slots=slots_data(slots_of(plan), auto_of(plan), plan.slots.own, plan.backend.routing),
            policy=plan.policy.name,
            policy_options=dict(plan.policy.options),
            prefix_block_tokens=self.block_tokens,
            seed=plan.seed,
        )

    def recorder(self, clock: RunClock, start_utc: str) -> Recorder:
        """The recorder of a run whose start is known."""
        window = self.window_ns
        metadata = msgspec.structs.replace(
            self.metadata(), start_monotonic_ns=clock.origin_ns, start_utc=start_utc, window_ns=window
        )
        tenants = tuple(planned.tenant for planned in self.plan.tenants)
        return Recorder(tenants, window, self.directory, metadata=metadata)

    async def finish(self, recorder: Recorder, ending: Ending, progress: Progress) -> RunResult:
        """Write everything that a finished run leaves."""
        end, loads = ending.end, ending.loads
        server: dict[str, object] = {
            "model": self.target.model,
            "endpoint": self.target.endpoint,
            "version": self.target.metadata.version,
            "loop_lag_max_ms": max(load.loop_lag_max_ms for load in loads.values()),
            "generator_cpu_share": max(load.cpu_share_mean for load in loads.values()),
        }
        if len(loads) > 1:
            server["generator_cpu_shares"] = {name: load.cpu_share_mean for name, load in loads.items()}
        outage = ending.outage
        if outage.stopped_ns is not None:
            server |= {STOPPED_S: outage.stopped_ns / 1e9, LOST: outage.lost}
        if self.target.emulator is not None:
            server |= await _emulator_lateness(self.target.emulator, recorder)
        progress.stage("writing results")
        most = self.plan.num_prompts
        recorder.window_ns = window_as_run(
            recorder.window_ns,
            cut_ns=ending.cut_ns,
            ended_ns=end.ended_ns,
            spent=most is not None and end.released >= most,
        )
        final = msgspec.structs.replace(recorder.metadata, window_ns=recorder.window_ns, end_ns=end.ended_ns)
        return await asyncio.to_thread(
            write_results,
            recorder,
            self.plan,
            metadata=final,
            directory=self.directory,
            percentiles=self.percentiles,
            server=server,
            warnings=_warnings(self.plan, ending),
            interrupted=end.interrupted,
        )


def _warnings(plan: Plan, ending: Ending) -> tuple[str, ...]:
    found = [*(str(warning) for warning in plan.warnings), *ending.notes]
    if ending.end.unfinished:
        found.append(f"{ending.end.unfinished} requests had no answer when the run ended; they count as never finished")
    for name, load in ending.loads.items():
        if load.saturated:
            found.append(
                f"{name} used {load.cpu_share_max:.0%} of a CPU for a second: its own work may have delayed what it measured"
            )
    return tuple(found)


async def _emulator_lateness(emulator: EmulatorProcess, recorder: Recorder) -> dict[str, object]:
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
