"""Interval logs, judged by the public library's own reader."""

from __future__ import annotations

import math
from collections import Counter
from datetime import UTC, datetime

import numpy as np
import pytest
from hdrh.histogram import HdrHistogram
from hdrh.log import HistogramLogReader
from hypothesis import given, settings
from hypothesis import strategies as st
from recording_outcomes import MS, S, finished, outcomes, shed, unfinished

from loadgen.hlog import tag_of, write_hlogs
from loadgen.trace.convert import write_trace
from loadgen.trace.parts import TraceFile
from loadgen.trace.reader import read_trace
from loadgen.trace.schema import TraceMetadata
from scheduler.request import Status
from tenants.measures.histogram import Histogram
from tenants.slo import Metric

START = "2026-03-01T12:00:00.250000+00:00"


def intervals(path):
    """(tag, start ms since the epoch, end ms, histogram) of every interval, by the public reader."""
    reader = HistogramLogReader(str(path), HdrHistogram(1, 3_600_000_000, 3))
    found = []
    while (histogram := reader.get_next_interval_histogram()) is not None:
        found.append((histogram.get_tag(), histogram.get_start_time_stamp(), histogram.get_end_time_stamp(), histogram))
    start_s = reader.get_start_time_sec()
    reader.close()
    return start_s, found


@pytest.fixture
def run(tmp_path):
    """60 s of two tenants: chat once a second (TTFT 42 ms + i us), rag every 10 s; one shed; a warm-up row."""
    rows = [finished(i, arrival_ns=i * S, backend_ttft_ns=40 * MS + i * 1000) for i in range(60)]
    rows += [finished(100 + i, "rag, large", arrival_ns=i * 10 * S) for i in range(6)]
    rows += [shed(200, arrival_ns=5 * S), finished(300, arrival_ns=70 * S)]
    metadata = TraceMetadata(start_utc=START, window_ns=(0, 60 * S))
    write_trace(tmp_path / "requests.parquet", rows, metadata)
    return TraceFile(tmp_path)


def test_the_public_reader_finds_every_value_in_its_interval_under_its_tenant(run, tmp_path):
    """Counts by tag and interval of 10 s; the window's rows only; start times on the wall clock."""
    write_hlogs(run, tmp_path)
    start_s, found = intervals(tmp_path / "ttft.hlog")
    epoch_ms = datetime(2026, 3, 1, 12, 0, 0, 250_000, tzinfo=UTC).timestamp() * 1000
    assert start_s * 1000 == pytest.approx(epoch_ms, abs=1)
    chat = [(start, end, h) for tag, start, end, h in found if tag == "chat"]
    assert [h.get_total_count() for _, _, h in chat] == [10] * 6
    assert [start for start, _, _ in chat] == pytest.approx([epoch_ms + 10_000 * i for i in range(6)], abs=1)
    assert all(end - start == pytest.approx(10_000, abs=1) for start, end, _ in chat)
    assert [h.get_total_count() for tag, *_, h in found if tag == "rag__large"] == [1] * 6


def test_intervals_add_up_to_the_percentile_of_the_rows(run, tmp_path):
    """Adding a tenant's intervals gives the percentiles of its values, within the histogram's precision."""
    write_hlogs(run, tmp_path)
    total = HdrHistogram(1, 3_600_000_000, 3)
    for tag, _, _, histogram in intervals(tmp_path / "ttft.hlog")[1]:
        if tag == "chat":
            total.add(histogram)
    values_us = np.arange(60) + 42_000
    for p in (50, 99):
        exact = np.sort(values_us)[math.ceil(p / 100 * 60) - 1]
        assert total.get_value_at_percentile(p) == pytest.approx(exact, rel=1e-3)


def test_gaps_are_logged_with_their_weights(tmp_path):
    """A chunk of 3 tokens after 30 ms is three ITLs of 10 ms and one inter-chunk gap of 30 ms."""
    write_trace(tmp_path / "t.parquet", [finished(1, gaps_us=(30_000,), tokens=(1, 3))], TraceMetadata())
    write_hlogs(TraceFile(tmp_path / "t.parquet"), tmp_path)
    for name, count, value_us in (("itl", 3, 10_000), ("inter_chunk", 1, 30_000)):
        ((_, _, _, histogram),) = intervals(tmp_path / f"{name}.hlog")[1]
        assert (histogram.get_total_count(), histogram.get_count_at_value(value_us)) == (count, count)


def test_what_never_happened_is_said_beside_the_values(run, tmp_path):
    """A histogram cannot hold it: a comment counts it, so that a reader of the log is not fooled."""
    write_hlogs(run, tmp_path)
    lines = (tmp_path / "ttft.hlog").read_text().splitlines()
    assert "#[lmperf: Tag=chat never reached: 1]" in lines


def test_lines_are_those_of_the_format(run, tmp_path):
    """Version, start time, base time, legend; then tag, start, length, maximum in ms, payload; in order of time."""
    write_hlogs(run, tmp_path)
    lines = (tmp_path / "ttft.hlog").read_text().splitlines()
    assert lines[0] == "#[Histogram log format version 1.3]"
    assert lines[1].startswith("#[StartTime: 1772366400.250 (seconds since epoch), ")
    assert lines[2] == "#[BaseTime: 1772366400.250 (seconds since epoch)]"
    data = [line.split(",") for line in lines if line.startswith("Tag=")]
    assert data[0][:4] == ["Tag=chat", "0.000", "10.000", "42.009"]
    assert data[0][4].startswith("HIST")
    starts = [float(fields[1]) for fields in data]
    assert starts == sorted(starts)


def test_a_long_run_has_a_bounded_number_of_intervals(tmp_path):
    """Twenty thousand seconds: the interval is widened to a multiple of 10 s."""
    rows = [finished(i, arrival_ns=i * 100 * S) for i in range(200)]
    write_trace(tmp_path / "t.parquet", rows, TraceMetadata())
    write_hlogs(TraceFile(tmp_path / "t.parquet"), tmp_path)
    found = intervals(tmp_path / "ttft.hlog")[1]
    assert len(found) <= 120
    assert sum(h.get_total_count() for *_, h in found) == 200
    width_ms = found[0][2] - found[0][1]
    assert width_ms % 10_000 == pytest.approx(0, abs=1)


def test_gaps_that_a_simulator_counted_in_bulk_are_one_interval(tmp_path):
    """It keeps no stamp of each gap, so the whole run is the interval; it has no wall clock, so the log starts at 0."""
    bulk = Histogram()
    bulk.record(7 * MS, 1000)
    write_trace(tmp_path / "t.parquet", [finished(1, gaps_us=(), arrival_ns=9 * S)], TraceMetadata(kind="simulated"))
    written = write_hlogs(TraceFile(tmp_path / "t.parquet"), tmp_path, bulk={("chat", Metric.ITL): bulk})
    assert tmp_path / "itl.hlog" in written
    start_s, ((tag, start, _, histogram),) = intervals(tmp_path / "itl.hlog")
    assert (start_s, tag, start, histogram.get_total_count()) == (0.0, "chat", 0.0, 1000)


def lines_by_hand(path, metric, width_s):
    """Every line of a log as the format asks, from the whole trace, value by value; None without a value."""
    rows = list(read_trace(path).outcomes())
    tenants = list(dict.fromkeys(outcome.request.tenant for outcome in rows))
    found: dict[tuple[int, int], Histogram] = {}
    never = Counter()
    for outcome in rows:
        if outcome.status is Status.CANCELLED and outcome.request.cancel_after_ns is not None:
            continue
        code = tenants.index(outcome.request.tenant)
        key = (outcome.ended_ns // (width_s * S), code)
        if metric is Metric.TTFT:
            if outcome.first_token_ns is None:
                never[code] += 1
                continue
            values = [(outcome.first_token_ns - outcome.request.arrival_ns, 1)]
        else:
            offsets = [] if outcome.chunk_offsets_us is None else outcome.chunk_offsets_us.tolist()
            tokens = [1] * len(offsets) if outcome.chunk_tokens is None else outcome.chunk_tokens.tolist()
            gaps = [((b - a) * 1000, k) for a, b, k in zip(offsets, offsets[1:], tokens[1:], strict=False)]
            values = [(round(gap / k), k) for gap, k in gaps] if metric is Metric.ITL else [(gap, 1) for gap, _ in gaps]
        for value, count in values:
            found.setdefault(key, Histogram()).record(value, count)
    if not found:
        return None
    text = [f"#[lmperf: Tag={tag_of(tenants[code])} never reached: {never[code]}]" for code in sorted(never)]
    for (slot, code), histogram in sorted(found.items()):
        longest_ms = histogram.max_ns / 1e6
        head = f"Tag={tag_of(tenants[code])},{slot * width_s:.3f},{width_s:.3f},{longest_ms:.3f}"
        text.append(f"{head},{histogram.encode()}")
    return text


@settings(max_examples=25, deadline=None)
@given(data=st.data(), n=st.integers(1, 12), rows_at_once=st.integers(1, 5))
def test_a_log_read_by_parts_is_that_of_all_its_values(tmp_path_factory, data, n, rows_at_once):
    """Rows in any order, as several workers leave them, and parts of any size: the same lines, to the byte."""
    folder = tmp_path_factory.mktemp("logs")
    write_trace(folder / "requests.parquet", [data.draw(outcomes(i)) for i in range(n)], TraceMetadata())
    trace = TraceFile(folder, rows_at_once=rows_at_once)
    write_hlogs(trace, folder)
    seconds = trace.last_end_ns // S + 1
    width_s = 10 * -(-seconds // 1200)
    for metric in (Metric.TTFT, Metric.ITL, Metric.INTER_CHUNK):
        expected = lines_by_hand(folder, metric, width_s)
        path = folder / f"{metric.value}.hlog"
        assert path.exists() == (expected is not None)
        if expected is not None:
            assert path.read_text().splitlines()[5:] == expected


def test_a_metric_without_values_has_no_file(tmp_path):
    write_trace(tmp_path / "t.parquet", [unfinished(1)], TraceMetadata())
    assert write_hlogs(TraceFile(tmp_path / "t.parquet"), tmp_path) == []


@pytest.mark.parametrize(("name", "tag"), [("chat", "chat"), ("a,b c", "a_b_c"), ("büro", "b_ro"), ("x\n", "x_")])
def test_a_tag_ends_neither_at_a_comma_nor_a_line(name, tag):
    assert tag_of(name) == tag
