"""Any trace as rows of a workload: our own parquet or run folder, or a public format by content."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import repeat
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from loadgen.trace.collect import TenantCodes, collected
from loadgen.trace.lengths import lengths_to_replay
from loadgen.trace.parts import TraceFile
from loadgen.trace.public.detect import read_public
from loadgen.trace.reader import Trace
from loadgen.trace.rows import UNKNOWN, TraceRows
from tenants.measures.columns import Int64s

OWN_FORMAT = "lmperf"

T = TypeVar("T")


def read_any(path: Path | str, name: str | None = None) -> TraceRows:
    """Rows in arrival order. ``name``: a format (None: by content). Raises TraceError."""
    path = Path(path)
    if name == OWN_FORMAT or (name is None and is_own(path)):
        return rows_of(TraceFile(path))
    return read_public(path, name)


def is_own(path: Path) -> bool:
    """True for a run folder or a parquet file."""
    return (path.is_dir() and not list(path.glob("chunk-*-trace.csv"))) or path.suffix == ".parquet"


def rows_of(trace: TraceFile) -> TraceRows:
    """A trace of ours as a workload: its arrivals as they were, its true or planned lengths, its sessions and prefix blocks."""
    tenants, mode, block_tokens = TenantCodes(), trace.metadata.load_mode, trace.metadata.prefix_block_tokens
    sessions: list[str] = []
    blocks: list[tuple[int, ...]] = []

    def of(part: Trace) -> dict[str, NDArray[Any]]:
        columns = ("arrival_ns", "request_id", "prompt_tokens", "target_output_tokens", "output_tokens", "turn")
        sessions.extend(_or_nothing(part, "session_id", ""))
        blocks.extend(map(tuple, _or_nothing(part, "prefix_blocks", ())))
        return {name: part.ints(name) for name in columns} | {"status": part.statuses(), "tenant": tenants.of(part)}

    found = collected(trace.parts(), len(trace), of)
    if not found:
        none = np.empty(0, dtype=np.int64)
        return TraceRows(
            source=OWN_FORMAT, arrival_ns=none, prompt_tokens=none, output_tokens=none, tenants=(), load_mode=mode
        )
    order = np.lexsort((found.pop("request_id"), found["arrival_ns"]))
    lengths, imputed = lengths_to_replay(
        found.pop("output_tokens"), found.pop("target_output_tokens"), found.pop("status"), found["tenant"]
    )
    lengths = np.where(imputed, UNKNOWN, lengths)
    turns = found.pop("turn")
    return TraceRows(
        source=OWN_FORMAT,
        arrival_ns=found.pop("arrival_ns")[order],
        prompt_tokens=np.maximum(found.pop("prompt_tokens")[order], UNKNOWN),
        output_tokens=lengths[order],
        tenants=tenants.names,
        tenant=found.pop("tenant")[order],
        session=_in(order, sessions),
        turn=np.maximum(turns[order], 0) if any(sessions) else None,
        prefix_blocks=() if block_tokens is None else _in(order, blocks),
        prefix_block_tokens=block_tokens if any(blocks) else None,
        load_mode=mode,
    )


def _or_nothing(part: Trace, column: str, nothing: T) -> Iterable[T]:
    """A column, ``nothing`` for null."""
    if part.table.column(column).null_count == len(part):
        return repeat(nothing, len(part))
    return (nothing if value is None else value for value in part.values(column))


def _in(order: Int64s, values: Sequence[T]) -> tuple[T, ...]:
    """In this order; nothing at all where no row has a value."""
    return tuple(values[row] for row in order) if any(values) else ()
