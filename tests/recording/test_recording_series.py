"""The series: each second's counts against a count by hand."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from recording_outcomes import MS, S, finished, outcomes, shed

from loadgen.recorder import Recorder
from loadgen.recording.series import MAX_INTERVALS, interval_ns
from scheduler.request import Status
from tenants.measures.columns import NEVER, UNDEFINED
from tenants.tenant import Tenant


def recorder_of(*rows):
    recorder = Recorder([Tenant(name="chat"), Tenant(name="rag")], (0, 10**15))
    for row in rows:
        recorder.on_outcome(row)
    return recorder


def cancelled_as_planned(row):
    return row.status is Status.CANCELLED and row.request.cancel_after_ns is not None


@settings(max_examples=40, deadline=None)
@given(data=st.data(), n=st.integers(1, 20))
def test_counts_agree_with_a_count_by_hand(data, n):
    """Arrivals and ends fall into their interval; in flight and queued are counts at its end."""
    rows = [data.draw(outcomes(i)) for i in range(n)]
    series = recorder_of(*rows).series()
    width = round(series.interval_s * S)
    for i in range(0, len(series.arrivals), max(len(series.arrivals) // 20, 1)):
        begin, end = i * width, (i + 1) * width
        assert series.arrivals[i] == sum(begin <= row.request.arrival_ns < end for row in rows)
        assert series.completions[i] == sum(begin <= r.ended_ns < end and r.status is Status.OK for r in rows)
        failed = [r for r in rows if r.status is not Status.OK and not cancelled_as_planned(r)]
        assert series.failures[i] == sum(begin <= r.ended_ns < end for r in failed)
        out = [row for row in rows if row.dispatched_ns is not None]
        assert series.in_flight[i] == sum(row.dispatched_ns < end <= row.ended_ns for row in out)
        waiting = [row for row in rows if row.request.arrival_ns < end]
        assert series.queued[i] == sum(
            end <= (row.dispatched_ns if row.dispatched_ns is not None else row.ended_ns) for row in waiting
        )


def test_tokens_spread_from_the_first_to_the_last():
    """Five tokens over 2 s from 0.5 s: 1.25 in the first second, 2.5 in the second, 1.25 in the third."""
    row = finished(1, queue_ns=0, backend_ttft_ns=500 * MS, gaps_us=(500_000,) * 4)
    assert recorder_of(row).series("chat").output_tokens == pytest.approx([1.25, 2.5, 1.25], abs=1e-6)


@settings(max_examples=40, deadline=None)
@given(gaps=st.lists(st.lists(st.integers(0, 3_000_000), max_size=5), min_size=1, max_size=10))
def test_no_token_is_lost(gaps):
    """The series of tokens sums to the tokens of all requests."""
    rows = [finished(i, arrival_ns=i * S, gaps_us=tuple(g)) for i, g in enumerate(gaps)]
    total = sum(row.output_tokens for row in rows)
    assert recorder_of(*rows).series().output_tokens.sum() == pytest.approx(total, rel=1e-6)


def test_ttft_of_a_second_is_that_of_its_arrivals():
    """Undefined where none arrived, never where the percentile falls among those that got no token."""
    rows = [finished(1, queue_ns=0, backend_ttft_ns=30 * MS), shed(2), finished(3, arrival_ns=2 * S)]
    series = recorder_of(*rows).series()
    assert series.ttft_p50_ns.tolist() == [30 * MS, UNDEFINED, 42 * MS]
    assert series.ttft_p99_ns.tolist() == [NEVER, UNDEFINED, 42 * MS]


def test_a_planned_cancel_in_the_queue_is_no_failure_and_no_ttft():
    """The workload asked for it: no percentile of its second was never reached because of it."""
    planned = shed(2)
    request = msgspec.structs.replace(planned.request, cancel_after_ns=5 * MS)
    planned = msgspec.structs.replace(planned, request=request, status=Status.CANCELLED)
    series = recorder_of(finished(1, queue_ns=0, backend_ttft_ns=30 * MS), planned).series()
    assert series.ttft_p99_ns.tolist() == [30 * MS]
    assert (series.arrivals.tolist(), series.failures.tolist()) == ([2], [0])


def test_a_tenant_sees_its_own():
    series = recorder_of(shed(1), shed(2, "rag")).series("rag")
    assert (series.tenant, series.arrivals.tolist()) == ("rag", [1])


@pytest.mark.parametrize(("end_s", "interval_s"), [(0, 1), (10, 1), (3600, 1), (3601, 2), (36_000, 10), (36_001, 11)])
def test_the_series_stays_bounded(end_s, interval_s):
    """Whole seconds, the fewest that keep at most 3,600 intervals."""
    assert interval_ns(end_s * S) == interval_s * S
    assert -(-end_s // interval_s) <= MAX_INTERVALS


def test_the_series_of_nothing_is_one_empty_interval():
    series = recorder_of().series()
    assert np.array_equal(series.arrivals, [0])
