"""Rules of merging workers' recorders: as if one recorder had seen every outcome."""

from __future__ import annotations

import pickle

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from recording_outcomes import S, outcomes

from loadgen.live.failures import Failures
from loadgen.live.lengths import LengthCheck
from loadgen.recorder import Recorder
from loadgen.recording.store import Store
from loadgen.summary.build import summarise
from scheduler.request import ErrorClass, Outcome, Request, Status
from tenants.measures.histogram import HIGHEST_NS, Histogram
from tenants.slo import Metric
from tenants.tenant import Tenant

TENANTS = (Tenant(name="chat"), Tenant(name="rag"))
WINDOW = (0, 10**12 // 2)
LATENCIES = st.integers(0, 3 * HIGHEST_NS)


def facts(histogram: Histogram) -> tuple:
    return (
        histogram.count,
        histogram.count_never,
        histogram.out_of_range,
        histogram.longest_age_ns,
        histogram.longest_out_of_range_ns,
        histogram.min_ns,
        histogram.max_ns,
        histogram.mean_successes_ns,
        histogram.percentiles((1.0, 50.0, 99.0, 99.9, 100.0)),
        histogram.encode(),
    )


@settings(max_examples=50, deadline=None)
@given(values=st.lists(LATENCIES, max_size=50), never=st.lists(st.integers(0, S), max_size=5), more=LATENCIES)
def test_a_histogram_travels_exactly_and_goes_on_counting(values, never, more):
    there = Histogram()
    for value in values:
        there.record(value)
    for age in never:
        there.record_never(age)
    here = pickle.loads(pickle.dumps(there))
    assert facts(here) == facts(there)
    here.record(more)
    there.record(more)
    assert facts(here) == facts(there)


def test_a_histogram_travels_small():
    """What is not zero, and not the 188 KiB of its counts."""
    histogram = Histogram()
    histogram.record_many(np.arange(1, 100, dtype=np.int64) * 1_000_000)
    assert len(pickle.dumps(histogram)) < 4096


@settings(max_examples=20, deadline=None)
@given(data=st.data(), workers=st.integers(1, 4))
def test_merged_recorders_say_what_one_recorder_of_all_says(data, workers, tmp_path_factory):
    """Whether the figures of each request travel in memory or in a file, of which nothing is left."""
    folder = tmp_path_factory.mktemp("states")
    found = [data.draw(outcomes(i)) for i in range(data.draw(st.integers(0, 20)))]
    owner = [data.draw(st.integers(0, workers - 1)) for _ in found]
    one = Recorder(TENANTS, WINDOW)
    parts = [Recorder(TENANTS, WINDOW) for _ in range(workers)]
    for outcome, worker in zip(found, owner, strict=True):
        one.on_outcome(outcome)
        parts[worker].on_outcome(outcome)
    parts[-1].invalidate("too slow")
    one.invalidate("too slow")
    merged = Recorder(TENANTS, WINDOW)
    for number, part in enumerate(parts):
        state = part.state(folder / f"{number}" if data.draw(st.booleans()) else None)
        merged.absorb(pickle.loads(pickle.dumps(state)))
    assert list(folder.iterdir()) == []
    for name in one.names:
        ends, merged_ends = (sorted(recorder.columns().of(name).end_ns.tolist()) for recorder in (one, merged))
        assert ends == merged_ends
    one.flush()
    assert set(merged.names) == set(one.names)
    for name in (None, *one.names):
        for metric in Metric:
            assert facts(merged.histogram(metric, name)) == facts(one.histogram(metric, name))
            assert facts(merged.successes(metric, name)) == facts(one.successes(metric, name))
        assert merged.error_classes(name) == one.error_classes(name)
        assert merged.sent(name) == one.sent(name)
    assert merged.disordered == one.disordered
    assert merged.lateness() == one.lateness()
    assert merged.invalid_reasons() == one.invalid_reasons()


def test_what_travels_does_not_grow_with_the_requests(tmp_path):
    """20,000 requests more are not a byte more for the process that reads them, but for their counts."""
    sizes = []
    for requests in (20_000, 40_000):
        recorder = Recorder(TENANTS, WINDOW, tmp_path / f"{requests}")
        for i in range(requests):
            request = Request(id=i, tenant="chat", arrival_ns=i, prompt_tokens=1)
            recorder.on_outcome(
                Outcome(request=request, status=Status.OK, ended_ns=i + 7, sent_ns=i, finished_ns=i + 7)
            )
        sizes.append(len(pickle.dumps(recorder.state(tmp_path / "columns"))))
        merged = Recorder(TENANTS, WINDOW)
        merged.absorb(recorder.state(tmp_path / "columns"))
        assert len(merged.columns()) == requests
        recorder.close()
    assert sizes[1] - sizes[0] < 1000


def test_tenants_that_workers_met_in_another_order_are_not_mixed_up():
    """Tenants that no recorder knew beforehand have the code of their first appearance."""
    workers = [Recorder((), WINDOW) for _ in range(2)]
    for recorder, names in zip(workers, (("x", "y", "y"), ("y", "x", "y", "y")), strict=True):
        for i, name in enumerate(names):
            request = Request(id=i, tenant=name, arrival_ns=0, prompt_tokens=1)
            recorder.on_outcome(
                Outcome(request=request, status=Status.FAILED, ended_ns=5, sent_ns=1, error_class=ErrorClass.RESET)
            )
    merged = Recorder((), WINDOW)
    for recorder in workers:
        merged.absorb(recorder.state())
    for name, count in (("x", 2), ("y", 5)):
        assert len(merged.columns().of(name)) == count
        assert merged.histogram(Metric.E2E, name).count == count
        assert merged.error_classes(name) == {"reset": count}
        assert merged.sent(name) == count


@settings(max_examples=8, deadline=None)
@given(data=st.data())
def test_a_summary_does_not_depend_on_who_recorded_what(data):
    """Attainment, verdicts, series and all: rows in another order are the same rows."""
    found = [data.draw(outcomes(i)) for i in range(data.draw(st.integers(1, 12)))]
    known = (*TENANTS, Tenant(name="büro, 3"))
    one, first, second, merged = (Recorder(known, WINDOW) for _ in range(4))
    for i, outcome in enumerate(found):
        one.on_outcome(outcome)
        (first if i % 2 else second).on_outcome(outcome)
    merged.absorb(first.state())
    merged.absorb(second.state())
    assert summarise(merged).tenants == summarise(one).tenants
    assert summarise(merged).total == summarise(one).total
    assert summarise(merged).series == summarise(one).series


def test_columns_are_appended_over_the_edge_of_a_block(tmp_path):
    """Blocks hold 8,192 rows, and full ones lie in a file."""

    def rows(n, start):
        kinds = {name: column.dtype for name, column in Store().rows().items()}
        return {name: (np.arange(start, start + n) % 100).astype(kind) for name, kind in kinds.items()}

    for folder in (None, tmp_path):
        store = Store(folder)
        store.extend(rows(9000, 0))
        store.extend(rows(9000, 9000))
        assert len(store) == 18_000
        assert (store.column("ttft") == np.arange(18_000) % 100).all()


def test_failures_and_lengths_of_workers_are_added():
    def ended(i, **changes):
        request = Request(id=i, tenant="a", arrival_ns=0, prompt_tokens=10, target_output_tokens=10)
        return Outcome(request=request, ended_ns=0, **changes)

    refused = {"status": Status.FAILED, "error_class": ErrorClass.REFUSED}
    workers = []
    for details in (["no room", "still none"], [None, "later"]):
        failures = Failures(lambda _: None)
        lengths = LengthCheck(failures)
        for i, detail in enumerate(details):
            lengths(ended(i, detail=detail, **refused))
        lengths(ended(9, status=Status.OK, output_tokens=9, prompt_tokens=10))
        workers.append((failures.state(), lengths.state()))
    failures = Failures(lambda _: None)
    lengths = LengthCheck(failures)
    for of_failures, of_lengths in workers:
        failures.add(of_failures)
        lengths.add(of_lengths)
    assert failures.notes() == ["4 requests failed with refused; the first: no room"]
    assert "-10.0%" in lengths.warnings()[0]
