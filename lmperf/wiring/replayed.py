"""The rows of a captured trace as a workload to replay: read part by part, held as a few columns (some 50 B a request)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loadgen.recording.stamps import ABSENT
from loadgen.trace.collect import TenantCodes, collected
from loadgen.trace.decode import list_parts
from loadgen.trace.errors import TraceError
from loadgen.trace.lengths import Bools, drawn_notes, lengths_to_replay, likely_lengths
from loadgen.trace.parts import TraceFile
from loadgen.trace.reader import Trace
from loadgen.workload.replay import ReplayRows
from tenants.measures.columns import Int64s
from tenants.tenant import Tenant

_COLUMNS = (
    "request_id",
    "arrival_ns",
    "prompt_tokens",
    "output_tokens",
    "target_output_tokens",
    "after_request_id",
    "think_ns",
)


def replay_rows(trace: TraceFile | Trace, tenants: Sequence[Tenant]) -> tuple[ReplayRows, tuple[str, ...]]:
    """In arrival order; ``tenant`` indexes ``tenants``, which has every name of the trace. And sentences on the rows that had
    to be given a length. Raises TraceError for a trace without a row, or without any prompt's or output's length."""
    codes = TenantCodes()
    names: list[NDArray[np.int64]] = []

    def of(part: Trace) -> dict[str, NDArray[Any]]:
        starts, blocks = list_parts(part.lists("prefix_blocks"))
        names.append(blocks)
        return {name: part.ints(name) for name in _COLUMNS} | {
            "status": part.statuses(),
            "tenant": codes.of(part),
            "blocks": np.diff(starts).astype(np.int32),
        }

    found = collected(trace.parts(), len(trace), of)
    if not found:
        raise TraceError(trace.path, "the trace has no rows: nothing to replay")
    prompts, no_prompt = likely_lengths(found.pop("prompt_tokens"), found["tenant"])
    lengths, no_output = lengths_to_replay(
        found.pop("output_tokens"), found.pop("target_output_tokens"), found.pop("status"), found["tenant"]
    )
    notes = (*_notes(trace, no_prompt, "a prompt", "prompt"), *_notes(trace, no_output, "an output", "output"))
    del no_prompt, no_output
    order = np.lexsort((found["request_id"], found["arrival_ns"]))
    after = _after_row(found.pop("request_id")[order], found.pop("after_request_id")[order])
    known = [tenant.name for tenant in tenants]
    numbers = np.array([known.index(name) for name in codes.names], dtype=np.int32)
    offsets, block_ids = _blocks(found.pop("blocks"), names, order)
    think = found.pop("think_ns")
    rows = ReplayRows(
        arrival_ns=found.pop("arrival_ns")[order],
        prompt_tokens=prompts[order],
        output_tokens=np.maximum(lengths[order], 1),
        tenant=numbers[found.pop("tenant")[order]],
        after_row=after,
        think_ns=np.maximum(think[order], 0) if (think > 0).any() else None,
        block_offsets=offsets,
        block_ids=block_ids,
    )
    return rows, notes


def _notes(trace: TraceFile | Trace, imputed: Bools, a_kind: str, kind: str) -> list[str]:
    if imputed.all():
        raise TraceError(
            trace.path,
            f"no row has {a_kind} length, so nothing can be simulated: record usage, or import the log with "
            f"--map {kind}_tokens=COLUMN",
        )
    return drawn_notes(imputed, kind)


def _after_row(ids: Int64s, after: Int64s) -> Int64s | None:
    """The row of each request that another waited for, -1 for none; None where no row waited."""
    if (after == ABSENT).all():
        return None
    by_id = np.argsort(ids, kind="stable")
    ranked = ids[by_id]
    place = np.minimum(np.searchsorted(ranked, after), len(ranked) - 1)
    rows: Int64s = np.where(ranked[place] == after, by_id[place], -1)
    return rows if (rows >= 0).any() else None


def _blocks(
    sizes: NDArray[np.int32], parts: list[NDArray[np.int64]], order: Int64s
) -> tuple[Int64s | None, Int64s | None]:
    """Where each row's prefix blocks begin and end, and their names, with the rows in this order; None without any."""
    names = np.concatenate(parts)
    parts.clear()
    if not len(names):
        return None, None
    starts = np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)])
    taken = sizes[order]
    offsets = np.concatenate([[0], np.cumsum(taken, dtype=np.int64)])
    places = np.arange(offsets[-1]) + np.repeat(starts[:-1][order] - offsets[:-1], taken)
    return offsets, names[places]
