"""HdrHistogram V2 interval logs (``<metric>.hlog``, one line a tenant and interval), for the public HdrHistogram tools.

Format (G. Tene, HistogramLogWriter 1.3): comment lines ``#[...]`` with start and base time in seconds since the epoch,
a legend, then ``Tag=<tenant>,<start s>,<length s>,<max>,<payload>`` in order of time, the start relative to the base
time. Values are whole microseconds, the maximum of a line is in milliseconds. The lines are written here around the
library's payload, since the library's own log writer knows no tags and fails on a valid start time.

A value is logged in the interval in which its request ended. What never reached its event has no value: a comment line
counts it. The logs are made from the trace when a run ends, so they cost the run nothing, and can be made again. The
trace is read some thousands of rows at a time, in any order; what is kept of it is the buckets that have a count.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from loadgen.trace.parts import TraceFile
from loadgen.trace.reader import Trace
from loadgen.trace.schema import TraceMetadata
from tenants.measures.columns import NEVER, UNDEFINED, Columns, Int64s, StatusCode
from tenants.measures.histogram import Histogram
from tenants.measures.percentile import has_column, metric_values
from tenants.measures.sparse import SparseHistograms
from tenants.slo import Metric

DEFAULT_INTERVAL_S = 10
_MAX_INTERVALS = 120
_SECOND_NS = 1_000_000_000
_TENANTS = 1 << 32
"""More than there are, so that an interval and a tenant make one group."""


def write_hlogs(
    trace: TraceFile,
    directory: Path,
    *,
    interval_s: int = DEFAULT_INTERVAL_S,
    bulk: Mapping[tuple[str, Metric], Histogram] | None = None,
) -> list[Path]:
    """Write one log a metric of the measured window of ``trace`` into ``directory``; the paths written.

    The interval is widened to whole multiples of ``interval_s`` so that there are at most 120. ``bulk``: histograms of
    gaps that a simulator counted without keeping them, by (tenant, metric); each becomes one interval over the whole
    run. A metric without any value gets no file. Own lateness is in the summary, not here. Raises TraceError.
    """
    end_ns = trace.last_end_ns
    width_s = interval_s * max(-(-(end_ns // _SECOND_NS + 1) // (interval_s * _MAX_INTERVALS)), 1)
    tenants: dict[str, int] = {}
    logs = {metric: _Log(metric) for metric in Metric if metric is not Metric.OWN_LATENESS}
    for part in trace.parts():
        codes = np.array([tenants.setdefault(name, len(tenants)) for name in part.tenants], dtype=np.int64)
        columns = part.columns()
        for log in logs.values():
            log.add(part, columns, codes, width_s)
    names = tuple(tenants)
    written = []
    for metric, log in logs.items():
        lines = log.lines(names, width_s)
        first = next(lines, None)
        rest = [
            _line(tenant, 0.0, end_ns / _SECOND_NS, histogram)
            for (tenant, name), histogram in (bulk or {}).items()
            if name is metric and histogram.count_successes
        ]
        if first is None and not rest:
            continue
        path = directory / f"{metric.value}.hlog"
        with path.open("w", encoding="ascii", errors="replace") as file:
            file.writelines(_head(trace.metadata, metric))
            file.writelines(log.never_lines(names))
            file.write(first or "")
            file.writelines(lines)
            file.writelines(rest)
        written.append(path)
    return written


class _Log:
    """The values of one metric by interval and tenant, and how many never got there by tenant."""

    def __init__(self, metric: Metric) -> None:
        self._metric = metric
        self._values = SparseHistograms()
        self._never: Counter[int] = Counter()

    def add(self, part: Trace, columns: Columns, codes: Int64s, width_s: int) -> None:
        """The rows of ``part``, as ``columns``; ``codes`` numbers its tenants."""
        owner, value_ns, counts = _values(part, columns, self._metric)
        slot = columns.end_ns[owner] // (width_s * _SECOND_NS)
        self._values.record_many(slot * _TENANTS + codes[columns.tenant[owner]], value_ns, counts)
        if has_column(self._metric):
            never = _counted(columns) & (metric_values(columns, self._metric) == NEVER)
            self._never.update(codes[columns.tenant[never]].tolist())

    def lines(self, tenants: tuple[str, ...], width_s: int) -> Iterator[str]:
        """In order of time, then of tenants."""
        for group, histogram in self._values.histograms():
            slot, code = divmod(group, _TENANTS)
            yield _line(tenants[code], float(slot * width_s), float(width_s), histogram)

    def never_lines(self, tenants: tuple[str, ...]) -> Iterator[str]:
        for code, count in sorted(self._never.items()):
            yield f"#[lmperf: Tag={tag_of(tenants[code])} never reached: {count}]\n"


def _head(metadata: TraceMetadata, metric: Metric) -> Iterator[str]:
    start = metadata.start_utc
    moment = datetime.fromisoformat(start) if start else datetime.fromtimestamp(0, UTC)
    epoch_s = moment.timestamp()
    yield "#[Histogram log format version 1.3]\n"
    yield f"#[StartTime: {epoch_s:.3f} (seconds since epoch), {moment.isoformat()}]\n"
    yield f"#[BaseTime: {epoch_s:.3f} (seconds since epoch)]\n"
    yield f"#[lmperf: {metric.value}; values in us, interval maximum in ms; tags are tenants]\n"
    yield '"StartTimestamp","Interval_Length","Interval_Max","Interval_Compressed_Histogram"\n'


def _counted(columns: Columns) -> NDArray[np.bool_]:
    counted: NDArray[np.bool_] = columns.in_window & (columns.status != StatusCode.CANCEL_PLANNED)
    return counted


def _values(part: Trace, columns: Columns, metric: Metric) -> tuple[Int64s, Int64s, Int64s]:
    """(row, value in ns, count), one entry a value."""
    counted = _counted(columns)
    if has_column(metric):
        values = metric_values(columns, metric)
        rows = np.flatnonzero(counted & (values != NEVER) & (values != UNDEFINED))
        return rows, values[rows], np.ones(len(rows), dtype=np.int64)
    gaps = part.gaps()
    if metric is Metric.ITL:
        known, gap_ns, counts = gaps.itl()
        owner = gaps.owner[known]
    else:
        owner, gap_ns, counts = gaps.owner, gaps.gap_ns, np.ones(len(gaps.owner), dtype=np.int64)
    keep = counted[owner]
    return owner[keep], np.maximum(gap_ns[keep], 0), counts[keep]


def _line(tenant: str, start_s: float, length_s: float, histogram: Histogram) -> str:
    longest_ms = (histogram.max_ns or 0) / 1e6
    return f"Tag={tag_of(tenant)},{start_s:.3f},{length_s:.3f},{longest_ms:.3f},{histogram.encode()}\n"


def tag_of(tenant: str) -> str:
    """A tenant's name as a tag: the format ends a tag at a comma and a line at white space."""
    return re.sub(r"[^\x21-\x2b\x2d-\x7e]", "_", tenant)
