"""The definitions, applied to stamps: each figure against the arithmetic of the definition, by hand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from recording_outcomes import MS, S, finished, outcomes, shed, unfinished

from loadgen.recorder import Recorder, record_trace
from loadgen.trace.convert import write_trace
from loadgen.trace.reader import read_trace
from loadgen.trace.schema import TraceMetadata
from scheduler.request import Outcome, Request, Status
from tenants.measures.columns import NEVER, UNDEFINED, Columns, StatusCode
from tenants.slo import Metric
from tenants.tenant import Tenant

TENANTS = [Tenant(name="chat"), Tenant(name="rag")]
WINDOW = (0, 100 * S)


def columns_for(*rows: Outcome, window: tuple[int, int] = WINDOW) -> Columns:
    recorder = Recorder(TENANTS, window)
    for row in rows:
        recorder.on_outcome(row)
    return recorder.columns()


def test_every_latency_counts_from_the_intended_arrival():
    """TTFT and E2E start when the request was meant to arrive; backend TTFT and queue time stand apart."""
    row = finished(1, arrival_ns=S, late_ns=3 * MS, queue_ns=20 * MS, backend_ttft_ns=40 * MS, gaps_us=(10_000, 30_000))
    columns = columns_for(row)
    assert columns.ttft_ns.tolist() == [63 * MS]
    assert columns.backend_ttft_ns.tolist() == [40 * MS]
    assert columns.queue_ns.tolist() == [20 * MS]
    assert columns.e2e_ns.tolist() == [103 * MS]
    assert columns.tpot_ns.tolist() == [20 * MS]
    assert columns.max_itl_ns.tolist() == [30 * MS]


def test_what_was_not_reached_is_never_and_what_has_no_meaning_is_undefined():
    """A shed request reached nothing; a one-token answer has no TPOT; a foreign trace has no queue."""
    one_token = finished(2, gaps_us=())
    foreign = finished(3, enqueued_ns=None, dispatched_ns=None)
    columns = columns_for(shed(1), one_token, foreign)
    shed_row = [
        getattr(columns, f"{name}_ns")[0] for name in ("ttft", "backend_ttft", "queue", "tpot", "max_itl", "e2e")
    ]
    assert shed_row == [NEVER] * 6
    assert (columns.tpot_ns[1], columns.max_itl_ns[1]) == (UNDEFINED, UNDEFINED)
    assert columns.queue_ns[2] == UNDEFINED


def test_cached_tokens_that_nobody_states_are_undefined():
    """A stated 0 is 0."""
    columns = columns_for(
        finished(1, cached_prompt_tokens=64), finished(2, cached_prompt_tokens=0), finished(3), shed(4)
    )
    assert columns.cached_prompt_tokens.tolist() == [64, 0, UNDEFINED, UNDEFINED]


def test_a_failed_request_has_its_ttft_but_no_tpot_and_no_e2e():
    """It reached the first token; a time per token or to the end of half an answer would be a lie."""
    columns = columns_for(finished(1, status=Status.FAILED, finished_ns=None))
    assert columns.ttft_ns[0] == 42 * MS
    assert (columns.tpot_ns[0], columns.max_itl_ns[0], columns.e2e_ns[0]) == (NEVER, NEVER, NEVER)


def test_own_lateness_leaves_out_the_queue_and_connecting():
    """(enqueued - arrival) + (sent - dispatched - connect): 3 ms + (9 - 4) ms."""
    base = finished(1, late_ns=3 * MS, queue_ns=50 * MS)
    row = finished(
        1,
        late_ns=3 * MS,
        queue_ns=50 * MS,
        connect_ns=4 * MS,
        sent_ns=base.dispatched_ns + 9 * MS,
    )
    recorder = Recorder(TENANTS, WINDOW)
    recorder.on_outcome(row)
    assert recorder.lateness().max_ns == 8 * MS


def test_only_a_cancel_that_the_workload_planned_has_its_own_status():
    """A client that gives up is a miss; a cancel that was asked for is not."""
    plan = Request(id=1, tenant="chat", arrival_ns=0, prompt_tokens=1, cancel_after_ns=S)
    gave_up = finished(2, status=Status.CANCELLED)
    columns = columns_for(finished(1, status=Status.CANCELLED, request=plan), gave_up)
    assert columns.status.tolist() == [StatusCode.CANCEL_PLANNED, StatusCode.CANCELLED]


@pytest.mark.parametrize(
    ("gaps_us", "tokens", "known", "expected_itl", "expected_chunk"),
    [
        ((10_000, 30_000), None, True, {10 * MS: 1, 30 * MS: 1}, {10 * MS: 1, 30 * MS: 1}),
        ((10_000, 30_000), (5, 2, 3), True, {5 * MS: 2, 10 * MS: 3}, {10 * MS: 1, 30 * MS: 1}),
        ((10_000, 30_000), None, False, {}, {10 * MS: 1, 30 * MS: 1}),
        ((), (4,), True, {}, {}),
    ],
)
def test_a_chunk_of_k_tokens_gives_k_gaps_of_gap_over_k(gaps_us, tokens, known, expected_itl, expected_chunk):
    """The first chunk gives none, however many tokens it holds; with an unknown k there is no ITL, only raw gaps."""
    recorder = Recorder(TENANTS, WINDOW)
    recorder.on_outcome(finished(1, gaps_us=gaps_us, tokens=tokens, tokens_known=known, output_tokens=99))
    for metric, expected in ((Metric.ITL, expected_itl), (Metric.INTER_CHUNK, expected_chunk)):
        histogram = recorder.histogram(metric)
        assert histogram.count == sum(expected.values())
        for value_ns, count in expected.items():
            assert histogram.hdr.get_count_at_value(value_ns // 1000) == count


def test_mean_itl_is_tpot_when_the_first_chunk_holds_one_token():
    """The identity that the definitions state."""
    recorder = Recorder(TENANTS, WINDOW)
    recorder.on_outcome(finished(1, gaps_us=(7_000, 12_000, 5_000), tokens=(1, 2, 3, 1)))
    tpot = recorder.columns().tpot_ns[0]
    assert recorder.histogram(Metric.ITL).mean_successes_ns == pytest.approx(tpot, abs=1000)


@settings(max_examples=50, deadline=None)
@given(data=st.data(), n=st.integers(1, 12))
def test_a_trace_judges_like_the_run_that_wrote_it(tmp_path_factory, data, n):
    """Columns, percentiles and counts from the file equal those of the live recorder, for any outcomes."""
    rows = [data.draw(outcomes(i)) for i in range(n)]
    live = Recorder([], (10**11, 9 * 10**11), batch_rows=3)
    for row in rows:
        live.on_outcome(row)
    path = tmp_path_factory.mktemp("trace") / "t.parquet"
    write_trace(path, rows, TraceMetadata(window_ns=live.window_ns))
    trace = read_trace(path)
    expected, found = live.columns(), trace.columns()
    assert found.tenants == expected.tenants
    for name in Columns.__dataclass_fields__:
        assert np.array_equal(getattr(found, name), getattr(expected, name)), name
    again = record_trace(trace, [])
    for metric in Metric:
        one, other = live.histogram(metric), again.histogram(metric)
        assert (one.count, one.count_never, one.percentile(50.0)) == (
            other.count,
            other.count_never,
            other.percentile(50.0),
        )
    assert live.error_classes() == again.error_classes()


def test_age_of_an_unfinished_request_reaches_the_columns():
    """``end - arrival`` is how long it was watched."""
    columns = columns_for(unfinished(1, arrival_ns=S, age_ns=30 * S))
    assert (columns.end_ns - columns.arrival_ns).tolist() == [30 * S]
