"""Any trace as rows of a workload: our own parquet or run folder, or a public format by content."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from loadgen.trace.public.detect import read_public
from loadgen.trace.reader import Trace, read_trace
from loadgen.trace.rows import UNKNOWN, TraceRows

OWN_FORMAT = "lmperf"


def read_any(path: Path | str, name: str | None = None, *, impute: bool = False) -> TraceRows:
    """Rows in arrival order. ``name``: a format (None: by content). ``impute``: give a request of ours whose output
    length nobody saw a likely one, which a replay needs and a description must not. Raises TraceError.
    """
    path = Path(path)
    if name == OWN_FORMAT or (name is None and is_own(path)):
        return rows_of(read_trace(path), impute=impute)
    return read_public(path, name)


def is_own(path: Path) -> bool:
    """True for a run folder or a parquet file."""
    return (path.is_dir() and not list(path.glob("chunk-*-trace.csv"))) or path.suffix == ".parquet"


def rows_of(trace: Trace, *, impute: bool = False) -> TraceRows:
    """A trace of ours as a workload: its arrivals as they were, its true or planned lengths; see :func:`read_any`."""
    arrival = trace.ints("arrival_ns")
    order = np.lexsort((trace.ints("request_id"), arrival))
    lengths, imputed = trace.replay_lengths()
    if not impute or imputed.all():
        lengths = np.where(imputed, UNKNOWN, lengths)
    names = tuple(trace.tenants)
    codes = trace.stamps().tenant
    return TraceRows(
        source=OWN_FORMAT,
        arrival_ns=arrival[order],
        prompt_tokens=trace.ints("prompt_tokens")[order],
        output_tokens=lengths[order],
        tenants=names,
        tenant=codes[order].astype(np.int32),
        load_mode=trace.metadata.load_mode,
    )
