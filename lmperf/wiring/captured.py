"""A captured run as the simulator needs it: rows to replay, tenants, policy and slots, and what calibration may read."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa

from lmperf.scenario.plan import Plan
from lmperf.wiring.dispatching import auto_of
from lmperf.wiring.header import header_plan, header_tenants, run_name
from lmperf.wiring.observed import observations
from lmperf.wiring.replayed import replay_rows
from loadgen.offline.cell import ReplayRecipe
from loadgen.offline.experiment import PolicyChoice
from loadgen.recording.window import FOREVER_NS, is_burst
from loadgen.signals import beside
from loadgen.trace.encode import RowEncoder
from loadgen.trace.parts import ROWS_AT_ONCE, TraceFile
from loadgen.trace.read import is_own, read_any
from loadgen.trace.reader import Trace
from loadgen.trace.rows import TraceRows
from loadgen.trace.schema import TRACE_SCHEMA, TraceMetadata, with_metadata
from loadgen.workload.replay import MOONCAKE_BLOCK_TOKENS, ReplayRows
from scheduler.auto_rule import AutoRule
from scheduler.calibration.calibrate import calibrate, limits_seen
from scheduler.calibration.doubts_of_law import wide
from scheduler.calibration.step_law import fit_law
from scheduler.cost import CostModel
from scheduler.routing import Routing, routed_text
from scheduler.server_model.spec import ServerLimits, ServerModelSpec, load_server_model, server_limits_of
from scheduler.slots import Slots
from tenants.tenant import Tenant

SCENARIO_SUFFIXES = (".yaml", ".yml")


@dataclass(frozen=True, slots=True)
class CapturedRun:
    """A trace, read part by part, with what its header says: tenants and their SLOs, policy, slots, cost. ``noisy``: whose
    load its scenario raises. ``auto``, ``backends``, ``routing``: as in a job."""

    trace: TraceFile | Trace
    tenants: tuple[Tenant, ...]
    policy: PolicyChoice
    slots: Slots
    cost: CostModel
    window_ns: tuple[int, int]
    recipe: ReplayRecipe
    noisy: tuple[str, ...] = ()
    auto: AutoRule | None = None
    backends: Mapping[str, Slots] = field(default_factory=dict)
    routing: Routing = field(default_factory=Routing)

    @property
    def all_slots(self) -> list[Slots]:
        """The slots of each server."""
        return list(self.backends.values()) or [self.slots]

    @property
    def routed(self) -> str:
        """``2 servers behind one queue, routing prefix, slack 8192``; empty for one."""
        return routed_text(len(self.all_slots), self.routing)

    @property
    def arrivals(self) -> str:
        """How a replay makes the arrivals that followed an answer: ``regenerated`` or ``recorded`` (docs/definitions)."""
        return "recorded" if self.recipe.recorded else "regenerated"

    @property
    def has_rate(self) -> bool:
        """False where its arrivals make none: a burst that no header gives a window, and one instant in any window."""
        return self.window_ns[1] < FOREVER_NS and bool(np.ptp(self.recipe.rows.arrival_ns))

    @property
    def name(self) -> str:
        return run_name(self.trace.path)


def is_trace(source: str) -> bool:
    """True for a run folder or a file that is no scenario; False for a scenario file or a built-in scenario's name."""
    path = Path(source)
    return path.is_dir() or (path.suffix not in SCENARIO_SUFFIXES and (path.is_file() or path.suffix == ".parquet"))


def any_trace(path: Path | str) -> TraceFile | Trace:
    """A trace of ours, to be read part by part, or a public one in memory as if it were ours. Raises TraceError."""
    path = Path(path)
    return TraceFile(path) if is_own(path) else _as_ours(read_any(path), path)


def _as_ours(rows: TraceRows, path: Path) -> Trace:
    metadata = rows.metadata()
    schema = with_metadata(TRACE_SCHEMA, metadata)
    encoder = RowEncoder((), (0, metadata.end_ns or 1), schema)
    outcomes = rows.outcomes()
    batches = iter(lambda: list(islice(outcomes, ROWS_AT_ONCE)), [])
    table = pa.Table.from_batches([encoder.encode(batch) for batch in batches], schema)
    return Trace(path, metadata, table.combine_chunks())


def captured_run(path: Path | str, *, recorded: bool) -> CapturedRun:
    """Read a trace and its header. Raises TraceError."""
    trace = any_trace(path)
    metadata = trace.metadata
    plan = header_plan(trace)
    tenants = header_tenants(trace, plan)
    rows, notes = replay_rows(trace, tenants)
    queued = metadata.policy not in (None, "none")
    slots = {k: v for k, v in (metadata.slots or {}).items() if k in Slots.__struct_fields__}
    return CapturedRun(
        trace=trace,
        tenants=tenants,
        policy=PolicyChoice(
            label=metadata.policy or "none",
            policy=metadata.policy if queued and metadata.policy else "fifo",
            options=dict(metadata.policy_options or {}) if queued else {},
        ),
        slots=msgspec.convert(slots, Slots),
        cost=CostModel() if plan is None else plan.cost,
        window_ns=metadata.window_ns or _window_of(rows),
        recipe=ReplayRecipe(
            rows,
            tenants,
            start_ns=0,
            recorded=recorded,
            block_tokens=metadata.prefix_block_tokens or MOONCAKE_BLOCK_TOKENS,
            notes=notes,
        ),
        noisy=() if plan is None else plan.noisy,
        auto=_auto(metadata, plan),
        backends=_backends(metadata, plan),
        routing=_routing(metadata, plan),
    )


def _window_of(rows: ReplayRows) -> tuple[int, int]:
    """The window of a trace whose header has none: its arrivals; of a burst, until the last answer of whichever run of it is
    looked at."""
    return (0, FOREVER_NS if is_burst(rows.arrival_ns) else int(rows.arrival_ns.max()) + 1)


def _auto(metadata: TraceMetadata, plan: Plan | None) -> AutoRule | None:
    """What moved the slots: the plan's word, else (a gateway's trace) the header's."""
    told = (metadata.slots or {}).get("auto")
    return auto_of(plan) if plan is not None else None if told is None else msgspec.convert(told, AutoRule)


def _backends(metadata: TraceMetadata, plan: Plan | None) -> Mapping[str, Slots]:
    told = (metadata.slots or {}).get("backends")
    return plan.slots.own if plan is not None else {} if told is None else msgspec.convert(told, dict[str, Slots])


def _routing(metadata: TraceMetadata, plan: Plan | None) -> Routing:
    told = (metadata.slots or {}).get("routing")
    return plan.backend.routing if plan is not None else Routing() if told is None else msgspec.convert(told, Routing)


@dataclass(frozen=True, slots=True)
class Fitted:
    """A server model made from the captured run itself. ``how``: by which of the two fits, in a few words."""

    how: str
    warnings: tuple[str, ...]


REFINED_UP_TO = 3_000
"""Requests whose replays, some hundred and forty times, take seconds."""


def server_for(captured: CapturedRun, server_model: str | None) -> tuple[ServerModelSpec, Fitted | None]:
    """A named server model, else one fitted to the trace itself (with the limits that its header knows): the full fit of
    ``lmperf calibrate`` where it takes seconds, else least squares alone."""
    if server_model is not None:
        return load_server_model(server_model), None
    seen = observations([captured.trace])
    limits = known_limits([captured])
    if limits is None or not limits.prefix_cache:
        # The replay will compute every prompt in full, so the law must be of whole prompts.
        seen = [replace(one, cached_tokens=None) for one in seen]
    name = f"calibrated from {captured.name}"
    if sum(map(len, seen)) <= REFINED_UP_TO:
        found = beside(lambda: calibrate(seen, name=name, limits=limits, hold_out=False))
        return found.spec, Fitted("refined by replaying it", found.warnings)
    fit = fit_law(seen)
    warnings = [*fit.warnings, *wide(fit.intervals)]
    spec = ServerModelSpec(name=name, law=fit.law, limits=limits or limits_seen(seen, warnings))
    how = (
        "least squares alone, the run being long; to refine it: "
        f"lmperf calibrate {shlex.quote(str(captured.trace.path))} -o model.json, then --server-model model.json"
    )
    return spec, Fitted(how, tuple(warnings))


def known_limits(captures: Sequence[CapturedRun]) -> ServerLimits | None:
    """The engine's limits, where the header of a capture has them."""
    return limits_of_headers([capture.trace for capture in captures])


def limits_of_headers(traces: Sequence[TraceFile | Trace]) -> ServerLimits | None:
    """The engine's limits, where the header of a trace has them."""
    for trace in traces:
        model = trace.metadata.server_model
        if model is not None:
            return server_limits_of(model, where=str(trace.path))
    return None
