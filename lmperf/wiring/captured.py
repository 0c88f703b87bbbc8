"""A captured run as the simulator needs it: rows to replay, tenants, policy and slots, and what calibration may read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lmperf.scenario.plan import Plan
from lmperf.wiring.dispatching import auto_of
from lmperf.wiring.header import header_plan, header_tenants, run_name
from loadgen.offline.cell import ReplayRecipe
from loadgen.offline.experiment import PolicyChoice
from loadgen.trace.decode import list_parts
from loadgen.trace.encode import RowEncoder
from loadgen.trace.errors import TraceError
from loadgen.trace.read import is_own, read_any
from loadgen.trace.reader import Trace, read_trace
from loadgen.trace.rows import TraceRows
from loadgen.trace.schema import TRACE_SCHEMA, TraceMetadata, with_metadata
from loadgen.workload.replay import MOONCAKE_BLOCK_TOKENS, ReplayRows
from scheduler.auto_rule import AutoRule
from scheduler.calibration.observations import Observations
from scheduler.calibration.step_law import CalibrationError, LawFit, fit_law
from scheduler.cost import CostModel
from scheduler.routing import Routing
from scheduler.server_model.spec import ServerLimits, ServerModelSpec, load_server_model, server_model_of
from scheduler.slots import Slots
from tenants.measures.columns import Int64s, StatusCode
from tenants.tenant import Tenant

SCENARIO_SUFFIXES = (".yaml", ".yml")
MIN_BATCHED_TOKENS = 8192


@dataclass(frozen=True, slots=True)
class CapturedRun:
    """A trace with what its header says: tenants and their SLOs, policy, slots, cost. ``noisy``: whose load its scenario
    raises. ``auto``, ``backends``, ``routing``: as in a job."""

    trace: Trace
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
    def arrivals(self) -> str:
        """How a replay makes the arrivals that followed an answer: ``regenerated`` or ``recorded`` (docs/definitions)."""
        return "recorded" if self.recipe.recorded else "regenerated"

    @property
    def name(self) -> str:
        return run_name(self.trace.path)


def is_trace(source: str) -> bool:
    """True for a run folder or a file that is no scenario; False for a scenario file or a built-in scenario's name."""
    path = Path(source)
    return path.is_dir() or (path.suffix not in SCENARIO_SUFFIXES and (path.is_file() or path.suffix == ".parquet"))


def any_trace(path: Path | str) -> Trace:
    """A trace of ours, or a public one as if it were ours. Raises TraceError."""
    path = Path(path)
    return read_trace(path) if is_own(path) else _as_ours(read_any(path), path)


def _as_ours(rows: TraceRows, path: Path) -> Trace:
    metadata = rows.metadata()
    schema = with_metadata(TRACE_SCHEMA, metadata)
    batch = RowEncoder((), (0, metadata.end_ns or 1), schema).encode(list(rows.outcomes()))
    return Trace(path, metadata, pa.Table.from_batches([batch], schema))


def captured_run(path: Path | str, *, recorded: bool) -> CapturedRun:
    """Read a trace and its header. Raises TraceError."""
    trace = any_trace(path)
    if not len(trace):
        raise TraceError(trace.path, "the trace has no rows: nothing to replay")
    if trace.replay_lengths()[1].all():
        raise TraceError(
            trace.path,
            "no row has an output length, so nothing can be simulated: record usage, or import the log with "
            "--map output_tokens=COLUMN",
        )
    metadata = trace.metadata
    plan = header_plan(trace)
    tenants = header_tenants(trace, plan)
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
        window_ns=metadata.window_ns or (0, int(trace.ints("arrival_ns").max(initial=0)) + 1),
        recipe=ReplayRecipe(
            _replay_rows(trace, tenants),
            tenants,
            start_ns=0,
            recorded=recorded,
            block_tokens=metadata.prefix_block_tokens or MOONCAKE_BLOCK_TOKENS,
        ),
        noisy=() if plan is None else plan.noisy,
        auto=_auto(metadata, plan),
        backends=_backends(metadata, plan),
        routing=Routing() if plan is None else plan.backend.routing,
    )


def _auto(metadata: TraceMetadata, plan: Plan | None) -> AutoRule | None:
    """What moved the slots: the plan's word, else (a gateway's trace) the header's."""
    told = (metadata.slots or {}).get("auto")
    return auto_of(plan) if plan is not None else None if told is None else msgspec.convert(told, AutoRule)


def _backends(metadata: TraceMetadata, plan: Plan | None) -> Mapping[str, Slots]:
    told = (metadata.slots or {}).get("backends")
    return plan.slots.own if plan is not None else {} if told is None else msgspec.convert(told, dict[str, Slots])


def _replay_rows(trace: Trace, tenants: tuple[Tenant, ...]) -> ReplayRows:
    lengths, _ = trace.replay_lengths()
    known = [tenant.name for tenant in tenants]
    codes = np.array([known.index(name) for name in trace.tenants], dtype=np.int64)[trace.stamps().tenant]
    ids = trace.ints("request_id")
    order = np.lexsort((ids, trace.ints("arrival_ns")))
    row_of = {int(request_id): row for row, request_id in enumerate(ids[order])}
    after = np.array([row_of.get(int(i), -1) for i in trace.ints("after_request_id")[order]], dtype=np.int64)
    offsets, names = _blocks(trace, order)
    return ReplayRows(
        arrival_ns=trace.ints("arrival_ns")[order],
        prompt_tokens=np.maximum(trace.ints("prompt_tokens")[order], 1),
        output_tokens=np.maximum(lengths[order], 1),
        tenant=codes[order],
        after_row=after if (after >= 0).any() else None,
        think_ns=np.maximum(trace.ints("think_ns")[order], 0),
        block_offsets=offsets,
        block_ids=names,
    )


def _blocks(trace: Trace, order: Int64s) -> tuple[Int64s | None, Int64s | None]:
    """Where each row's prefix blocks begin and end, and their names, with the rows in this order; None without any."""
    starts, names = list_parts(trace.lists("prefix_blocks"))
    if starts[-1] == starts[0]:
        return None, None
    sizes = np.diff(starts)[order]
    offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    places = np.arange(offsets[-1]) + np.repeat(starts[:-1][order] - offsets[:-1], sizes)
    return offsets, np.asarray(names[places], dtype=np.int64)


def observations_of(trace: Trace) -> Observations:
    """What calibration reads of a trace: requests that ended OK with tokens. Raises CalibrationError when there is none."""
    stamps = trace.stamps()
    first, last = trace.ints("first_token_ns"), trace.ints("last_token_ns")
    output, prompt, sent = trace.ints("output_tokens"), trace.ints("prompt_tokens"), trace.ints("sent_ns")
    good = (stamps.status == StatusCode.OK) & (first >= 0) & (last >= first) & (output > 0) & (prompt > 0) & (sent >= 0)
    if not good.any():
        raise CalibrationError(
            f"{trace.path}: no request with a first token, so no server model can be fitted to it; name one with "
            "--server-model FILE|PRESET"
        )
    rows = np.flatnonzero(good)
    rows = rows[np.argsort(sent[rows], kind="stable")]
    gaps = trace.gaps()
    kept = good[gaps.owner]
    users, turnaround_ns = None, 0
    if trace.metadata.load_mode == "closed":
        users, turnaround_ns = _users_of(sent[rows], last[rows])
    return Observations(
        run_name(trace.path),
        sent[rows],
        first[rows],
        last[rows],
        prompt[rows],
        output[rows],
        users=users,
        turnaround_ns=turnaround_ns,
        gaps_ns=gaps.gap_ns[kept] if kept.any() else None,
    )


def observations_by_server(trace: Trace) -> list[Observations]:
    """The same, apart for each server of a run on several: a step is one engine's, and so is what it batches. Which user of a
    closed loop went where is not known, so their requests count as they came."""
    names = sorted({name for name in trace.values("backend") if name is not None})
    if len(names) < 2:
        return [observations_of(trace)]
    found = []
    for name in names:
        rows = Trace(trace.path, trace.metadata, trace.table.filter(pc.field("backend") == name))
        if (rows.ints("first_token_ns") >= 0).any():
            seen = observations_of(rows)
            found.append(replace(seen, name=f"{seen.name} on {name}", users=None, turnaround_ns=0))
    return found or [observations_of(trace)]


def _users_of(sent_ns: Int64s, last_ns: Int64s) -> tuple[int, int]:
    """How many users a closed loop had (the most requests at once), and how long one takes from answer to next request
    (median; the k-th request after the first of every user follows the k-th answer)."""
    change = np.concatenate([np.ones(len(sent_ns), dtype=np.int64), -np.ones(len(last_ns), dtype=np.int64)])
    # At one instant the answer comes before the request that it allows.
    order = np.lexsort((change, np.concatenate([sent_ns, last_ns])))
    users = int(np.cumsum(change[order]).max())
    waits = sent_ns[users:] - np.sort(last_ns)[: len(sent_ns) - users]
    return users, max(0, int(np.median(waits))) if len(waits) else 0


def server_for(captured: CapturedRun, server_model: str | None) -> tuple[ServerModelSpec, LawFit | None]:
    """A named server model, else one fitted to the trace itself (with the limits that its header knows)."""
    if server_model is not None:
        return load_server_model(server_model), None
    fit = fit_law(observations_by_server(captured.trace))
    limits = known_limits([captured]) or limits_seen(fit)
    return ServerModelSpec(name=f"calibrated from {captured.name}", law=fit.law, limits=limits), fit


def known_limits(captures: Sequence[CapturedRun]) -> ServerLimits | None:
    """The engine's limits, where the header of a capture has them."""
    for capture in captures:
        model = capture.trace.metadata.server_model
        if model is not None:
            return server_model_of(model, where=str(capture.trace.path)).limits
    return None


def limits_seen(fit: LawFit) -> ServerLimits:
    """Limits where nobody states them: the most requests that decoded at once, and a usual token budget."""
    sequences = max(fit.peak_decoding, 1)
    return ServerLimits(max_num_seqs=sequences, max_num_batched_tokens=max(MIN_BATCHED_TOKENS, sequences))
