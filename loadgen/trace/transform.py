"""Pure operations on workload traces: slice, scale, and a plain description; what `lmperf trace` does."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from loadgen.trace.rows import TraceRows, sorted_by_arrival
from tenants.measures.columns import Int64s

_SECOND_NS = 1_000_000_000


def slice_rows(rows: TraceRows, start: int = 0, stop: int | None = None) -> TraceRows:
    """Rows [start, stop) by position, the first arrival moved to 0."""
    return sorted_by_arrival(rows.take(np.arange(len(rows), dtype=np.int64)[start:stop]))


def slice_time(rows: TraceRows, start_s: float = 0.0, end_s: float | None = None) -> TraceRows:
    """Rows that arrive in [start_s, end_s) of the trace; ``start_s`` becomes 0, so that a silence at the front
    stays.
    """
    if end_s is not None and end_s <= start_s:
        raise ValueError(f"a slice must end after it starts, got {start_s} s to {end_s} s")
    start_ns = round(start_s * _SECOND_NS)
    inside = rows.arrival_ns >= start_ns
    if end_s is not None:
        inside &= rows.arrival_ns < round(end_s * _SECOND_NS)
    kept = rows.take(np.flatnonzero(inside).astype(np.int64))
    measured = None if kept.measured is None else kept.measured.shifted(start_ns)
    return replace(kept, arrival_ns=kept.arrival_ns - start_ns, measured=measured)


def scale(rows: TraceRows, speed: float) -> TraceRows:
    """Every gap divided by ``speed`` (2: twice the load in half the time). Measurements are dropped: they belong to the
    load at which they were made. Raises ValueError unless ``speed`` > 0.
    """
    if not speed > 0:
        raise ValueError(f"the speed factor must be above 0, got {speed}")
    if not len(rows):
        return rows
    # From the first arrival, not gap by gap: rounding must not add up.
    origin = rows.arrival_ns[0]
    scaled = np.rint((rows.arrival_ns - origin) / speed).astype(np.int64) + round(int(origin) / speed)
    return replace(rows, arrival_ns=scaled, measured=None)


def describe(rows: TraceRows) -> dict[str, Any]:
    """What a trace holds, as plain data: counts, duration, rate, burstiness, and lengths per tenant."""
    seconds = float(rows.arrival_ns[-1] - rows.arrival_ns[0]) / _SECOND_NS if len(rows) else 0.0
    gaps = np.diff(rows.arrival_ns)
    return {
        "source": rows.source,
        "requests": len(rows),
        "duration_s": seconds,
        "rate_per_s": (len(rows) - 1) / seconds if seconds else None,
        "gap_cv": float(gaps.std() / gaps.mean()) if len(gaps) and gaps.mean() else None,
        "load_mode": rows.load_mode,
        "sessions": len(set(rows.session) - {""}),
        "prefix_block_tokens": rows.prefix_block_tokens,
        "measured": rows.measured is not None,
        "columns": sorted(rows.extra),
        "tenants": [
            {
                "tenant": name,
                "requests": int((rows.tenant == code).sum()),
                "prompt_tokens": _lengths(rows.prompt_tokens[rows.tenant == code]),
                "output_tokens": _lengths(rows.output_tokens[rows.tenant == code]),
            }
            for code, name in enumerate(rows.tenants)
        ],
    }


def _lengths(values: Int64s) -> dict[str, float] | None:
    known = values[values >= 0]
    if not len(known):
        return None
    p50, p99 = np.percentile(known, [50, 99], method="inverted_cdf")
    return {"mean": float(known.mean()), "p50": int(p50), "p99": int(p99), "max": int(known.max())}
