"""The recorder: who counts, what counts as never, and that nothing is lost between the buffer and the figures."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from recording_outcomes import MS, S, finished, shed, unfinished

from loadgen.recorder import OTHER_TENANTS, Recorder
from loadgen.trace.encode import RowEncoder
from loadgen.trace.reader import read_trace
from loadgen.trace.schema import TraceMetadata
from loadgen.trace.writer import batches_of, merge_rows
from scheduler.request import ErrorClass, Outcome, Request, Status
from tenants.slo import Metric, Objective, Slo
from tenants.tenant import Tenant

CHAT = Tenant(name="chat", slo=Slo(ttft_ns=500 * MS, attainment=0.99))
RAG = Tenant(name="rag")


def recorder_of(*rows: Outcome, tenants=(CHAT, RAG), window=(10 * S, 20 * S), batch_rows=2) -> Recorder:
    recorder = Recorder(tenants, window, batch_rows=batch_rows)
    for row in rows:
        recorder.on_outcome(row)
    return recorder


def test_the_window_is_of_intended_arrivals():
    """[start, end) of arrivals counts, wherever the request ended; the others stay in the columns, marked."""
    times = (10 * S - 1, 10 * S, 20 * S - 1, 20 * S)
    recorder = recorder_of(*(finished(i, arrival_ns=t) for i, t in enumerate(times)))
    assert recorder.histogram(Metric.TTFT).count == 2
    assert recorder.histogram(Metric.ITL).count == recorder.histogram(Metric.INTER_CHUNK).count == 4
    assert recorder.columns().in_window.tolist() == [False, True, True, False]


def test_a_request_that_never_got_there_ranks_above_every_value():
    """One of two never got a first token: P50 is a value, P99 is beyond its age, and the successes stand beside."""
    recorder = recorder_of(finished(1, arrival_ns=11 * S), unfinished(2, arrival_ns=12 * S, age_ns=7 * S))
    histogram = recorder.histogram(Metric.TTFT, "chat")
    assert histogram.percentile(50).value_ns == pytest.approx(42 * MS, rel=1e-3)
    assert histogram.percentile(99).beyond_ns == 7 * S
    assert recorder.successes(Metric.TTFT, "chat").percentile(99).value_ns == pytest.approx(42 * MS, rel=1e-3)


@settings(max_examples=40, deadline=None)
@given(
    ttfts=st.lists(st.integers(1, 10**9), min_size=1, max_size=30),
    n_shed=st.integers(0, 10),
    p=st.sampled_from([50.0, 90.0, 99.0]),
)
def test_shedding_never_improves_a_percentile(ttfts, n_shed, p):
    """Replacing finished requests by shed ones can only raise TTFT's percentile (nearest rank, by brute force)."""
    rows = [finished(i, arrival_ns=11 * S, queue_ns=0, backend_ttft_ns=ns) for i, ns in enumerate(ttfts)]
    n_shed = min(n_shed, len(rows))
    slowest = sorted(rows, key=lambda row: row.first_token_ns)
    kept = slowest[: len(rows) - n_shed]
    found = recorder_of(*kept, *(shed(100 + i, arrival_ns=11 * S) for i in range(n_shed))).histogram(Metric.TTFT)
    rank = max(math.ceil(p / 100 * len(rows)), 1)
    if rank > len(kept):
        assert found.percentile(p).never
    else:
        assert found.percentile(p).value_ns == pytest.approx(sorted(ttfts)[rank - 1], rel=2e-3, abs=1500)


def test_a_stamp_that_goes_back_inside_an_answer_marks_its_row():
    """Also where the answer's first and last stamps are in order."""
    rows = [finished(i, arrival_ns=11 * S, gaps_us=gaps) for i, gaps in enumerate([(9000, 0, 5), (9000, -4000, 5)])]
    recorder = recorder_of(*rows)
    recorder.flush()
    assert recorder.disordered == 1
    written = RowEncoder((), (0, 60 * S)).encode(rows)
    assert written.column("valid").to_pylist() == [True, False]


@pytest.mark.parametrize("told", [True, False])
def test_stamps_that_go_back_are_counted_and_no_latency_is_negative(told):
    """The system's clock was set back by 4 ms between the only two chunks: a row out of order, and gaps of nothing."""
    max_itl_ns = -4 * MS if told else None
    recorder = recorder_of(finished(1, arrival_ns=11 * S, gaps_us=(-4000,), max_itl_ns=max_itl_ns))
    for metric in (Metric.MAX_ITL, Metric.ITL, Metric.INTER_CHUNK, Metric.TPOT):
        histogram = recorder.histogram(metric, "chat")
        assert histogram.count_successes == 1
        assert histogram.max_ns <= 1000, "the least that a histogram tells"
    assert recorder.disordered == 1


def test_a_request_that_failed_after_its_first_token_is_no_success():
    """Its TTFT was measured and counts among all; the successes are those that ended OK."""
    recorder = recorder_of(finished(1, arrival_ns=11 * S, status=Status.FAILED, error_class=ErrorClass.RESET))
    assert recorder.histogram(Metric.TTFT).count_successes == 1
    assert recorder.successes(Metric.TTFT).count == 0
    assert recorder.histogram(Metric.TPOT).count_never == 1


def test_a_stream_that_stalled_has_a_gap_that_never_ended():
    """A request timed out 9 s after its last token: leaving the open gap out would flatter the ITL."""
    done = finished(1, arrival_ns=11 * S)
    stalled = finished(
        2, arrival_ns=11 * S, status=Status.TIMED_OUT, finished_ns=None, ended_ns=done.last_token_ns + 9 * S
    )
    itl = recorder_of(stalled).histogram(Metric.ITL)
    assert (itl.count, itl.count_never, itl.longest_age_ns) == (3, 1, 9 * S)


def test_a_planned_cancel_is_counted_and_excluded():
    """It enters no statistic of the SLO, neither as met nor as missed."""
    plan = Request(id=1, tenant="chat", arrival_ns=11 * S, prompt_tokens=1, cancel_after_ns=S)
    cancelled = Outcome(request=plan, status=Status.CANCELLED, error_class=ErrorClass.CANCELLED, ended_ns=12 * S)
    recorder = recorder_of(cancelled, finished(2, arrival_ns=11 * S))
    assert recorder.histogram(Metric.TTFT).count == 1
    assert len(recorder.columns().judged()) == 1
    assert len(recorder.columns()) == 2
    assert recorder.error_classes() == {}


def test_error_classes_are_counted_by_tenant_inside_the_window():
    """A failure outside the window is in the trace and not in the counts."""
    recorder = recorder_of(
        shed(1, arrival_ns=11 * S), shed(2, "rag", arrival_ns=11 * S), shed(3, arrival_ns=12 * S), shed(4, arrival_ns=1)
    )
    assert recorder.error_classes("chat") == {"shed": 2}
    assert recorder.error_classes() == {"shed": 3}


def test_the_total_adds_counts_of_tenants():
    """Percentiles of all tenants come from added counts: one slow request in a hundred is the P99's next, not an
    average."""
    fast = [finished(i, arrival_ns=11 * S, queue_ns=0, backend_ttft_ns=10 * MS) for i in range(99)]
    slow = [finished(i, "rag", arrival_ns=11 * S, queue_ns=0, backend_ttft_ns=900 * MS) for i in range(100, 101)]
    total = recorder_of(*fast, *slow).histogram(Metric.TTFT)
    assert total.percentile(99).value_ns == pytest.approx(10 * MS, rel=1e-3)
    assert total.percentile(99.5).value_ns == pytest.approx(900 * MS, rel=1e-3)


def test_bulk_gaps_of_a_simulator_are_itls_and_inter_chunk_gaps():
    """``counts[i]`` gaps of ``gaps_ns[i]``."""
    recorder = recorder_of()
    recorder.on_gaps("rag", np.array([5 * MS, 9 * MS]), np.array([98, 2]))
    for metric in (Metric.ITL, Metric.INTER_CHUNK):
        assert recorder.histogram(metric, "rag").count == 100
        assert recorder.histogram(metric, "chat").count == 0
        assert recorder.histogram(metric).percentile(98).value_ns == pytest.approx(5 * MS, rel=1e-3)
        assert recorder.histogram(metric).percentile(99).value_ns == pytest.approx(9 * MS, rel=1e-3)


def test_a_chunk_of_k_tokens_in_bulk_is_k_itls_of_a_kth_of_the_gap():
    """5 gaps of 30 ms before chunks of 3 tokens: 15 ITLs of 10 ms, 5 inter-chunk gaps of 30 ms."""
    recorder = recorder_of()
    recorder.on_gaps("chat", np.array([30 * MS]), np.array([5]), 3)
    itl, chunks = recorder.histogram(Metric.ITL), recorder.histogram(Metric.INTER_CHUNK)
    assert (itl.count, chunks.count) == (15, 5)
    assert itl.percentile(50).value_ns == pytest.approx(10 * MS, rel=1e-3)
    assert chunks.percentile(50).value_ns == pytest.approx(30 * MS, rel=1e-3)


def test_scratch_keeps_the_columns_out_of_memory_and_changes_nothing(tmp_path):
    """Three blocks of rows: the same columns as in memory, no file left to see, and no trace written."""
    kept, spilt = (Recorder((CHAT, RAG), (0, 20 * S), batch_rows=4096, scratch=where) for where in (None, tmp_path))
    for number in range(20_000):
        outcome = finished(number, "chat" if number % 3 else "rag", arrival_ns=number * MS)
        kept.on_outcome(outcome)
        spilt.on_outcome(outcome)
    for name in ("tenant", "arrival_ns", "ttft_ns", "e2e_ns", "output_tokens", "status"):
        assert np.array_equal(getattr(kept.columns(), name), getattr(spilt.columns(), name)), name
    assert list(tmp_path.iterdir()) == []
    assert spilt.close() is None


@pytest.mark.parametrize(
    ("tenants", "bound_ms"),
    [
        ((RAG,), 5),
        ((Tenant(name="a", slo=Slo(ttft_ns=60 * MS, attainment=0.9)),), 5),
        ((CHAT, Tenant(name="b", slo=Slo(ttft_ns=1000 * MS, attainment=0.9))), 25),
        (
            (Tenant(name="c", slo=Slo(objectives=(Objective(metric=Metric.TTFT, percentile=99, limit_ns=200 * MS),))),),
            10,
        ),
    ],
)
def test_the_bound_of_own_lateness_is_five_ms_or_five_percent_of_the_tightest_ttft_limit(tenants, bound_ms):
    """max(5 ms, 5% of the tightest TTFT limit)."""
    assert recorder_of(tenants=tenants).lateness().bound_ns == bound_ms * MS


@pytest.mark.parametrize(("n_late", "valid"), [(1, True), (2, False)])
def test_a_run_is_invalid_when_its_own_lateness_p99_exceeds_the_bound(n_late, valid):
    """Of 100 requests one may be later than 25 ms (5% of 500 ms), two may not."""
    rows = [finished(i, arrival_ns=11 * S, late_ns=(26 * MS if i < n_late else MS)) for i in range(100)]
    reasons = recorder_of(*rows).invalid_reasons()
    assert (not reasons) is valid
    if not valid:
        assert "fell behind: own lateness P99 26.0 ms exceeds 25.0 ms" in reasons[0]


def test_a_reason_from_elsewhere_makes_a_run_invalid_once():
    """The embedded server that fell behind says so; twice the same reason is one."""
    recorder = recorder_of()
    recorder.invalidate("the CPU was saturated")
    recorder.invalidate("the CPU was saturated")
    assert recorder.invalid_reasons() == ["the CPU was saturated"]


@pytest.mark.parametrize("batch_rows", [1, 7, 1000])
def test_no_outcome_is_lost_whatever_the_batch(batch_rows):
    """20,000 rows over several blocks: the columns hold each once and in order."""
    n = 20_000
    recorder = Recorder([CHAT], (0, 10**15), batch_rows=batch_rows)
    for i in range(n if batch_rows > 1 else 300):
        recorder.on_outcome(shed(i, arrival_ns=i))
    columns = recorder.columns()
    assert np.array_equal(columns.arrival_ns, np.arange(n if batch_rows > 1 else 300))


def test_unknown_tenants_are_recorded_under_their_names_and_then_together():
    """A gateway's clients may name anything: memory for their names is bounded."""
    recorder = Recorder([CHAT], (0, S), batch_rows=1000)
    for i in range(1500):
        recorder.on_outcome(shed(i, f"t{i}"))
    recorder.flush()
    assert recorder.names[:2] == ("chat", "t0")
    assert recorder.names[-1] == OTHER_TENANTS
    assert len(recorder.names) == 1002
    assert recorder.error_classes(OTHER_TENANTS) == {"shed": 500}


def test_close_leaves_a_trace_with_the_last_header(tmp_path):
    """A run folder gets requests.parquet; without one the recorder works in memory; an empty run has an empty trace."""
    recorder = Recorder([CHAT], (0, S), tmp_path / "run", metadata=TraceMetadata(policy="fifo"))
    recorder.on_outcome(finished(1))
    assert recorder.close(TraceMetadata(policy="wfq", end_ns=5)).rows == 1
    assert read_trace(tmp_path / "run").metadata == TraceMetadata(policy="wfq", end_ns=5)
    assert Recorder([CHAT], (0, S)).close() is None
    empty = Recorder([CHAT], (0, S), tmp_path / "empty")
    assert empty.close().rows == 0
    assert len(read_trace(tmp_path / "empty").columns()) == 0


def test_rows_are_on_disk_after_a_flush(tmp_path):
    """What the run loop's timer flushes survives a kill."""
    recorder = Recorder([CHAT], (0, S), tmp_path)
    recorder.on_outcome(finished(1))
    assert not list(tmp_path.glob("rows/*.arrow"))
    recorder.flush()
    (stream,) = tmp_path.glob("rows/*.arrow")
    copy = tmp_path / "killed"
    (copy / "rows").mkdir(parents=True)
    (copy / "rows" / stream.name).write_bytes(stream.read_bytes())
    assert merge_rows(copy).rows == 1
    recorder.close()


def test_a_live_run_hands_its_rows_over_every_two_seconds(tmp_path):
    """By the outcomes' own clock; in a simulation that clock says nothing about memory, so only the count does."""
    for kind, streams in (("live", 1), ("simulated", 0)):
        recorder = Recorder([CHAT], (0, S), tmp_path / kind, metadata=TraceMetadata(kind=kind))
        recorder.on_outcome(shed(1, arrival_ns=2 * S - 1))
        assert not list((tmp_path / kind).glob("rows/*.arrow"))
        recorder.on_outcome(shed(2, arrival_ns=2 * S))
        assert len(list((tmp_path / kind).glob("rows/*.arrow"))) == streams
        recorder.close()


def test_a_window_must_have_a_length():
    with pytest.raises(ValueError, match="must start before it ends"):
        Recorder([CHAT], (S, S))


def test_a_flush_in_steps_comes_to_the_same(tmp_path):
    """A full buffer is flushed a step an outcome: whenever it is asked, the recorder has taken everything, in order, and the
    rows on disk are those of a recorder that flushes at once."""
    rows = [finished(number, arrival_ns=10 * S + number * MS, backend_ttft_ns=number * MS) for number in range(1000)]
    stepped = Recorder([CHAT], (10 * S, 20 * S), tmp_path / "stepped", batch_rows=64)
    whole = Recorder([CHAT], (10 * S, 20 * S), tmp_path / "whole", batch_rows=10**6)
    for number, row in enumerate(rows, 1):
        stepped.on_outcome(row)
        whole.on_outcome(row)
        if number in (70, 400, 401, 999):
            assert len(stepped.columns()) == number
    for metric in (Metric.TTFT, Metric.ITL):
        found, expected = stepped.histogram(metric), whole.histogram(metric)
        assert found.count == expected.count
        assert [found.percentile(p) for p in (1, 50, 99, 100)] == [expected.percentile(p) for p in (1, 50, 99, 100)]
    for recorder in (stepped, whole):
        recorder.close()
    ids = [read_trace(tmp_path / name).values("request_id") for name in ("stepped", "whole")]
    assert ids[0] == ids[1] == list(range(1000))


def test_rows_that_come_slowly_are_on_disk_at_once_when_they_are_due(tmp_path):
    """A step an outcome would leave a few rows a minute in memory for long: when their time comes they are written whole."""
    recorder = Recorder([CHAT], (0, 1000 * S), tmp_path)
    for number in range(4):
        recorder.on_outcome(finished(number, arrival_ns=number * 3 * S))
    (stream,) = (tmp_path / "rows").glob("*.arrow")
    dropped = []
    assert sum(batch.num_rows for batch in batches_of(stream, dropped)) >= 3
    recorder.close()
