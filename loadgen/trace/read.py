"""Any trace as rows of a workload: our own parquet or run folder, or a public format by content."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loadgen.trace.collect import TenantCodes, collected
from loadgen.trace.lengths import lengths_to_replay
from loadgen.trace.parts import TraceFile
from loadgen.trace.public.detect import read_public
from loadgen.trace.reader import Trace
from loadgen.trace.rows import UNKNOWN, TraceRows

OWN_FORMAT = "lmperf"


def read_any(path: Path | str, name: str | None = None, *, impute: bool = False) -> TraceRows:
    """Rows in arrival order. ``name``: a format (None: by content). ``impute``: give a request of ours whose output
    length nobody saw a likely one, which a replay needs and a description must not. Raises TraceError.
    """
    path = Path(path)
    if name == OWN_FORMAT or (name is None and is_own(path)):
        return rows_of(TraceFile(path), impute=impute)
    return read_public(path, name)


def is_own(path: Path) -> bool:
    """True for a run folder or a parquet file."""
    return (path.is_dir() and not list(path.glob("chunk-*-trace.csv"))) or path.suffix == ".parquet"


def rows_of(trace: TraceFile, *, impute: bool = False) -> TraceRows:
    """A trace of ours as a workload: its arrivals as they were, its true or planned lengths; see :func:`read_any`."""
    tenants, mode = TenantCodes(), trace.metadata.load_mode

    def of(part: Trace) -> dict[str, NDArray[Any]]:
        columns = ("arrival_ns", "request_id", "prompt_tokens", "target_output_tokens", "output_tokens")
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
    if not impute or imputed.all():
        lengths = np.where(imputed, UNKNOWN, lengths)
    return TraceRows(
        source=OWN_FORMAT,
        arrival_ns=found.pop("arrival_ns")[order],
        prompt_tokens=np.maximum(found.pop("prompt_tokens")[order], UNKNOWN),
        output_tokens=lengths[order],
        tenants=tenants.names,
        tenant=found.pop("tenant")[order],
        load_mode=mode,
    )
