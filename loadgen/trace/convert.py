"""Rows of any origin into a trace file of ours; what `lmperf trace convert` and `import` write."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path

import pyarrow.parquet as pq

from loadgen.recording.window import FOREVER_NS
from loadgen.trace.encode import RowEncoder
from loadgen.trace.rows import TraceRows
from loadgen.trace.schema import TRACE_SCHEMA, TraceMetadata, with_metadata
from scheduler.request import Outcome
from tenants.tenant import Tenant

_ROWS_AT_ONCE = 16_384


def write_trace(
    path: Path, outcomes: Iterable[Outcome], metadata: TraceMetadata, tenants: Sequence[Tenant] = ()
) -> int:
    """Write ``outcomes`` as the trace file ``path``, some thousands at a time; how many there were. The window is the
    metadata's, else everything counts.
    """
    schema = with_metadata(TRACE_SCHEMA, metadata)
    encoder = RowEncoder(tenants, metadata.window_ns or (0, FOREVER_NS), schema)
    partial = path.with_name(path.name + ".partial")
    rows = 0
    with pq.ParquetWriter(partial, schema, compression="zstd") as writer:
        for batch in _batched(outcomes, _ROWS_AT_ONCE):
            writer.write_batch(encoder.encode(batch))
            rows += len(batch)
    partial.replace(path)
    return rows


def convert(rows: TraceRows, path: Path) -> int:
    """Write a public trace as one of ours; how many rows it has."""
    return write_trace(path, rows.outcomes(), rows.metadata())


def _batched(outcomes: Iterable[Outcome], size: int) -> Iterator[list[Outcome]]:
    source = iter(outcomes)
    while batch := list(islice(source, size)):
        yield batch
