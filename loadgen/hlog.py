"""HdrHistogram V2 interval logs (``<metric>.hlog``, one line a tenant and interval), for the public HdrHistogram tools.

Format (G. Tene, HistogramLogWriter 1.3): comment lines ``#[...]`` with start and base time in seconds since the epoch,
a legend, then ``Tag=<tenant>,<start s>,<length s>,<max>,<payload>`` in order of time, the start relative to the base
time. Values are whole microseconds, the maximum of a line is in milliseconds. The lines are written here around the
library's payload, since the library's own log writer knows no tags and fails on a valid start time.

A value is logged in the interval in which its request ended. What never reached its event has no value: a comment line
counts it. The logs are made from the trace when a run ends, so they cost the run nothing, and can be made again.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from loadgen.trace.reader import Trace
from tenants.measures.columns import NEVER, UNDEFINED, Columns, Int64s, StatusCode
from tenants.measures.histogram import Histogram
from tenants.measures.percentile import has_column, metric_values
from tenants.slo import Metric

DEFAULT_INTERVAL_S = 10
_MAX_INTERVALS = 120
_SECOND_NS = 1_000_000_000


def write_hlogs(
    trace: Trace,
    directory: Path,
    *,
    interval_s: int = DEFAULT_INTERVAL_S,
    bulk: Mapping[tuple[str, Metric], Histogram] | None = None,
) -> list[Path]:
    """Write one log a metric of the measured window of ``trace`` into ``directory``; the paths written.

    The interval is widened to whole multiples of ``interval_s`` so that there are at most 120. ``bulk``: histograms of
    gaps that a simulator counted without keeping them, by (tenant, metric); each becomes one interval over the whole
    run. A metric without any value gets no file. Own lateness is in the summary, not here.
    """
    columns = trace.columns()
    end_ns = int(columns.end_ns.max(initial=0))
    width_s = interval_s * max(-(-(end_ns // _SECOND_NS + 1) // (interval_s * _MAX_INTERVALS)), 1)
    written = []
    for metric in Metric:
        if metric is Metric.OWN_LATENESS:
            continue
        values = _values(trace, columns, metric)
        lines = list(_interval_lines(columns.tenants, values, width_s))
        for (tenant, name), histogram in (bulk or {}).items():
            if name is metric and histogram.count_successes:
                lines.append(_line(tenant, 0.0, end_ns / _SECOND_NS, histogram))
        if not lines:
            continue
        path = directory / f"{metric.value}.hlog"
        never = _never_lines(columns, metric)
        path.write_text("".join([*_head(trace, metric), *never, *lines]), encoding="ascii", errors="replace")
        written.append(path)
    return written


def _head(trace: Trace, metric: Metric) -> Iterator[str]:
    start = trace.metadata.start_utc
    moment = datetime.fromisoformat(start) if start else datetime.fromtimestamp(0, UTC)
    epoch_s = moment.timestamp()
    yield "#[Histogram log format version 1.3]\n"
    yield f"#[StartTime: {epoch_s:.3f} (seconds since epoch), {moment.isoformat()}]\n"
    yield f"#[BaseTime: {epoch_s:.3f} (seconds since epoch)]\n"
    yield f"#[lmperf: {metric.value}; values in us, interval maximum in ms; tags are tenants]\n"
    yield '"StartTimestamp","Interval_Length","Interval_Max","Interval_Compressed_Histogram"\n'


def _never_lines(columns: Columns, metric: Metric) -> Iterator[str]:
    if not has_column(metric):
        return
    judged = columns.judged()
    never = metric_values(judged, metric) == NEVER
    for code in np.unique(judged.tenant[never]):
        count = int((judged.tenant[never] == code).sum())
        yield f"#[lmperf: Tag={tag_of(columns.tenants[code])} never reached: {count}]\n"


_Values = tuple[NDArray[np.int32], Int64s, Int64s, Int64s]
"""Tenant code, end (ns), value (ns), count: one entry a value."""


def _values(trace: Trace, columns: Columns, metric: Metric) -> _Values:
    counted = columns.in_window & (columns.status != StatusCode.CANCEL_PLANNED)
    if has_column(metric):
        values = metric_values(columns, metric)
        rows = counted & (values != NEVER) & (values != UNDEFINED)
        return columns.tenant[rows], columns.end_ns[rows], values[rows], np.ones(int(rows.sum()), dtype=np.int64)
    gaps = trace.gaps()
    if metric is Metric.ITL:
        known, gap_ns, counts = gaps.itl()
        owner = gaps.owner[known]
    else:
        owner, gap_ns, counts = gaps.owner, gaps.gap_ns, np.ones(len(gaps.owner), dtype=np.int64)
    keep = counted[owner]
    owner = owner[keep]
    return columns.tenant[owner], columns.end_ns[owner], np.maximum(gap_ns[keep], 0), counts[keep]


def _interval_lines(tenants: tuple[str, ...], values: _Values, width_s: int) -> Iterator[str]:
    tenant, end_ns, value_ns, counts = values
    if not len(end_ns):
        return
    slot = end_ns // (width_s * _SECOND_NS)
    key = slot * len(tenants) + tenant
    order = np.argsort(key, kind="stable")
    starts = np.flatnonzero(np.concatenate(([True], np.diff(key[order]) > 0)))
    for start, stop in zip(starts, [*starts[1:], len(order)], strict=True):
        rows = order[start:stop]
        histogram = Histogram()
        histogram.record_many(value_ns[rows], counts[rows])
        yield _line(tenants[tenant[rows[0]]], float(slot[rows[0]] * width_s), float(width_s), histogram)


def _line(tenant: str, start_s: float, length_s: float, histogram: Histogram) -> str:
    longest_ms = (histogram.max_ns or 0) / 1e6
    return f"Tag={tag_of(tenant)},{start_s:.3f},{length_s:.3f},{longest_ms:.3f},{histogram.encode()}\n"


def tag_of(tenant: str) -> str:
    """A tenant's name as a tag: the format ends a tag at a comma and a line at white space."""
    return re.sub(r"[^\x21-\x2b\x2d-\x7e]", "_", tenant)
