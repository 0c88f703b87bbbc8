"""The summary: its figures against counts by hand, its files read back."""

from __future__ import annotations

import csv
import json
import subprocess

import msgspec
import pytest
from recording_outcomes import MS, S, finished, shed, unfinished

from loadgen.recorder import Recorder
from loadgen.summary import SummaryError, read_summary, summarise, write_summary
from loadgen.summary.environment import git_of
from loadgen.trace.schema import TraceMetadata
from scheduler.request import ErrorClass, Outcome, Request, Status
from scheduler.slot_control import SlotMove
from tenants.slo import Metric, Objective, Slo
from tenants.tenant import Tenant

CHAT = Tenant(name="chat", weight=2.0, slo=Slo(ttft_ns=50 * MS, attainment=0.5))
RAG = Tenant(name="rag")
METADATA = TraceMetadata(
    load_mode="open",
    policy="wfq",
    queueing="policy",
    slots={"sequences": 64},
    seed=11,
    start_utc="2026-01-01T00:00:00+00:00",
)


def summary_of(*rows, tenants=(CHAT, RAG), window=(0, 10 * S), metadata=METADATA, **options):
    recorder = Recorder(tenants, window, metadata=metadata)
    for row in rows:
        recorder.on_outcome(row)
    return summarise(recorder, **options)


ROWS = (
    finished(1, arrival_ns=1 * S),
    finished(2, arrival_ns=2 * S, backend_ttft_ns=100 * MS),
    shed(3, arrival_ns=3 * S),
    finished(4, "rag", arrival_ns=4 * S, gaps_us=(1_000_000,) * 9),
    finished(5, arrival_ns=12 * S),
)


def test_requests_are_counted_by_how_they_ended():
    """Inside the window; every status has its count, so that a zero is seen; outside is counted apart."""
    chat = summary_of(*ROWS).tenant("chat")
    assert chat.requests == 3
    assert chat.statuses == {"ok": 2, "failed": 0, "timed_out": 0, "shed": 1, "cancelled": 0, "unfinished": 0}
    assert chat.error_classes == {"shed": 1}
    assert chat.outside_window == 1


def test_attainment_counts_a_shed_request_as_a_miss():
    """One of three met 50 ms: the total is over tenants with limits only."""
    summary = summary_of(*ROWS)
    chat = summary.tenant("chat").attainment
    assert (chat.met, chat.total, chat.target) == (1, 3, 0.5)
    assert chat.share == pytest.approx(1 / 3)
    assert chat.budget_spent == pytest.approx(2 / 1.5)
    assert summary.tenant("rag").attainment is None
    assert summary.tenant("rag").verdict == "no_slo"
    assert (summary.total.attainment.met, summary.total.attainment.total) == (1, 3)


def test_throughput_is_work_done_inside_the_window():
    """rag's 10 tokens flow over 9 s from 4.042 s: those after 10 s are not the window's; chat's late arrival is not
    either."""
    rag = summary_of(*ROWS).tenant("rag").throughput
    first_s, window_end_s = 4.042, 10.0
    assert rag.requests_per_s == 0.0
    assert rag.output_tokens_per_s == pytest.approx(10 * (window_end_s - first_s) / 9 / 10, rel=1e-6)
    assert rag.total_tokens_per_s == pytest.approx(rag.output_tokens_per_s + 101 / 10)
    chat = summary_of(*ROWS).tenant("chat")
    assert chat.throughput.requests_per_s == pytest.approx(0.2)
    assert chat.goodput.requests_per_s == pytest.approx(0.1)
    assert chat.goodput.output_tokens_per_s == pytest.approx(0.3)


def test_percentiles_are_of_all_requests_with_the_successes_beside():
    """P99 of chat falls on the shed request: it prints a bound; the successes' P99 is a value."""
    ttft = summary_of(*ROWS).tenant("chat").metric("ttft")
    assert (ttft.count, ttft.never) == (3, 1)
    assert ttft.at(50.0).value_ms == pytest.approx(102, rel=1e-3)
    assert ttft.at(99.0).value_ms is None
    assert ttft.at(99.0).beyond_ms == pytest.approx(102, rel=1e-3)
    assert ttft.at(99.0).text().startswith("> ")
    assert ttft.successes.percentiles[3].value_ms == pytest.approx(102, rel=1e-3)
    assert ttft.successes.mean_ms == pytest.approx(72)


def test_an_objective_is_told_in_ms_and_attainment_as_a_share():
    """Value and limit of a percentile objective in ms; null where it was never reached. One promise a row."""
    objective = Objective(metric=Metric.TTFT, percentile=50.0, limit_ns=80 * MS)
    tenant = Tenant(name="chat", slo=Slo(ttft_ns=50 * MS, attainment=0.5, objectives=(objective,)))
    attained, median = summary_of(*ROWS, tenants=(tenant, RAG)).tenant("chat").promises
    assert (attained.promise, attained.limit, attained.value) == ("attainment", 0.5, pytest.approx(1 / 3))
    assert (median.promise, median.limit, median.value) == ("ttft_p50", 80.0, pytest.approx(102, rel=1e-3))
    shed_only = summary_of(shed(1), tenants=(tenant,)).tenant("chat").promises[1]
    assert (shed_only.value, shed_only.verdict) == (None, "undecided")


def test_the_cache_hit_share_is_over_the_requests_that_state_it(tmp_path):
    """chat: 60 of 2 x 101 tokens, its third request says nothing; rag says nothing at all: null, and null in the file."""
    rows = [finished(1, cached_prompt_tokens=60), finished(2, cached_prompt_tokens=0), finished(3), finished(4, "rag")]
    summary = summary_of(*rows)
    write_summary(summary, tmp_path)
    chat, rag = json.loads((tmp_path / "summary.json").read_text())["tenants"]
    share = pytest.approx(60 / 202)
    assert chat["prefix_cache"] == {
        "requests": 2,
        "prompt_tokens": 202,
        "cached_prompt_tokens": 60,
        "hit_share": share,
    }
    assert rag["prefix_cache"] is None
    assert (summary.total.hit_share, summary.tenant("rag").hit_share) == (share, None)


def test_a_summary_from_before_the_hit_share_is_read(tmp_path):
    """It says nothing of it: null."""
    path, _ = write_summary(summary_of(finished(1, cached_prompt_tokens=60)), tmp_path)
    data = json.loads(path.read_text()) | {"schema": "lmperf.summary/1.1"}
    for tenant in (*data["tenants"], data["total"]):
        del tenant["prefix_cache"]
    path.write_text(json.dumps(data))
    assert read_summary(path).total.hit_share is None


def test_chosen_percentiles_are_those_computed():
    summary = summary_of(*ROWS, percentiles=(75.0, 50.0, 75.0))
    assert summary.percentiles == [50.0, 75.0]
    assert [q.p for q in summary.total.metric("e2e").percentiles] == [50.0, 75.0]


def test_waiting_is_shared_between_our_queue_the_server_and_the_generator():
    """2 ms in our queue, 40 ms at the server, 8 ms of our own: of 50 ms."""
    waiting = summary_of(finished(1, late_ns=8 * MS)).tenant("chat").waiting
    assert (waiting.our_queue, waiting.server, waiting.generator) == pytest.approx((0.04, 0.8, 0.16))


def test_delivered_load_below_the_plan_is_said():
    """Five arrivals were planned and three entered: a warning names the difference."""
    summary = summary_of(*ROWS, planned={"chat": 5, "rag": 1}, offered_per_s={"chat": 0.5, "rag": 0.1})
    assert "chat: 2 of 5 planned arrivals in the window never entered" in summary.warnings
    assert summary.tenant("chat").load.arrived_per_s == pytest.approx(0.3)
    assert summary.tenant("chat").load.sent == 2
    assert summary.total.load.offered_per_s == pytest.approx(0.6)
    assert not [w for w in summary.warnings if w.startswith("rag")]


def test_a_tenant_without_requests_is_said():
    assert "rag: no request arrived in the window" in summary_of(shed(1)).warnings


def test_an_invalid_run_says_why():
    summary = summary_of(*(finished(i, late_ns=30 * MS) for i in range(10)))
    assert not summary.validity.valid
    assert "fell behind" in summary.validity.reasons[0]
    assert summary.lateness.p99_ms == pytest.approx(30)
    assert summary.lateness.bound_ms == 5


def test_planned_cancels_are_counted_apart():
    plan = Request(id=1, tenant="chat", arrival_ns=S, prompt_tokens=1, cancel_after_ns=S)
    row = Outcome(request=plan, status=Status.CANCELLED, error_class=ErrorClass.CANCELLED, ended_ns=2 * S)
    chat = summary_of(row, finished(2)).tenant("chat")
    assert (chat.requests, chat.planned_cancels, chat.statuses["cancelled"]) == (1, 1, 0)


def test_equal_service_is_fair_and_one_tenant_has_no_fairness():
    """Two tenants of equal weight and equal work: Jain's index is 1; alone there is nothing to compare."""
    equal = [Tenant(name="a"), Tenant(name="b")]
    rows = [finished(i, "ab"[i % 2], arrival_ns=i // 2 * 100 * MS) for i in range(100)]
    assert summary_of(*rows, tenants=equal).fairness.jain_mean == pytest.approx(1.0)
    assert summary_of(finished(1)).fairness.jain_mean is None


def test_the_same_figures_come_back_from_the_file(tmp_path):
    """summary.json holds everything: what is read equals what was written."""
    summary = summary_of(*ROWS, plan={"tenants": [{"api_key": "${env:KEY}"}]}, server={"models": ["m"]})
    write_summary(summary, tmp_path)
    again = read_summary(tmp_path)
    assert again == summary
    assert (again.schema, again.seed, again.policy, again.queueing) == ("lmperf.summary/1.2", 11, "wfq", "policy")
    assert again.versions["python"]
    assert again.plan == {"tenants": [{"api_key": "${env:KEY}"}]}


def test_the_csv_has_one_row_a_tenant_and_metric(tmp_path):
    """And the total; a percentile that was never reached is no number in it."""
    _, path = write_summary(summary_of(*ROWS), tmp_path)
    rows = list(csv.DictReader(path.read_text().splitlines()))
    assert len(rows) == 3 * 9
    chat = next(row for row in rows if (row["tenant"], row["metric"]) == ("chat", "ttft"))
    assert (chat["count"], chat["never"]) == ("3", "1")
    assert float(chat["success_p50_ms"]) == pytest.approx(42, rel=1e-3)
    assert chat["p99_ms"].startswith(">")


def test_the_json_holds_no_nan_or_infinity(tmp_path):
    """Strict JSON, also for a run in which nothing succeeded."""
    path, _ = write_summary(summary_of(shed(1), unfinished(2)), tmp_path)

    def refuse(text):
        raise AssertionError(text)

    json.loads(path.read_text(), parse_constant=refuse)


def test_an_empty_run_has_a_summary(tmp_path):
    """Zero requests: no division by zero, no percentile, nothing kept."""
    summary = summary_of()
    write_summary(summary, tmp_path)
    assert read_summary(tmp_path).total.requests == 0
    assert summary.total.metric("ttft").at(50.0).text() == "-"


@pytest.mark.parametrize(
    ("version", "message"),
    [("lmperf.summary/2.0", "written as lmperf.summary/2.0"), ("other/1.0", "is not one of lmperf.summary")],
)
def test_a_newer_major_is_refused_by_name(tmp_path, version, message):
    path, _ = write_summary(summary_of(), tmp_path)
    path.write_bytes(msgspec.json.encode(msgspec.json.decode(path.read_bytes()) | {"schema": version}))
    with pytest.raises(SummaryError, match=message):
        read_summary(path)


def test_a_newer_minor_is_read(tmp_path):
    """Its new fields are ignored."""
    path, _ = write_summary(summary_of(), tmp_path)
    path.write_bytes(
        msgspec.json.encode(msgspec.json.decode(path.read_bytes()) | {"schema": "lmperf.summary/1.9", "new": 1})
    )
    assert read_summary(path).schema == "lmperf.summary/1.9"


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"{}", b'{"schema": "lmperf.summary/1.0"}'])
def test_what_is_no_summary_is_refused_by_name(tmp_path, content):
    (tmp_path / "summary.json").write_bytes(content)
    with pytest.raises(SummaryError, match=r"summary\.json"):
        read_summary(tmp_path)
    with pytest.raises(SummaryError, match="cannot be read"):
        read_summary(tmp_path / "nowhere")


def test_the_commit_is_that_of_the_checkout(tmp_path):
    """None outside a checkout and before the first commit; dirty once a tracked file differs."""
    assert git_of(tmp_path) is None

    def git(*arguments):
        command = ["git", "-C", str(tmp_path), "-c", "user.name=t", "-c", "user.email=t@localhost", *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    git("init")
    assert git_of(tmp_path) is None
    (tmp_path / "a").write_text("1")
    git("add", "a")
    git("commit", "-m", "one")
    assert git_of(tmp_path).commit == git("rev-parse", "HEAD")
    assert not git_of(tmp_path).dirty
    (tmp_path / "a").write_text("2")
    assert git_of(tmp_path).dirty


def moved(*steps, backend="server"):
    return tuple(SlotMove(at_ns=round(s * S), backend=backend, sequences=d) for s, d in steps)


def test_slots_over_time_are_figures_of_every_move():
    """Least, most and last as counted by hand; the mean weighs each D by how long it held, until the run's end."""
    moves = moved((0, 40), (2, 60), (5, 50)) + moved((0, 7), backend="other")
    summary = summary_of(*ROWS, metadata=msgspec.structs.replace(METADATA, slot_moves=moves, end_ns=10 * S))
    first, second = summary.slots_over_time
    assert (first.backend, first.time_s, first.sequences) == ("server", [0.0, 2.0, 5.0], [40, 60, 50])
    assert (first.least_sequences, first.most_sequences, first.final_sequences) == (40, 60, 50)
    assert first.mean_sequences == pytest.approx((2 * 40 + 3 * 60 + 5 * 50) / 10)
    assert (second.backend, second.mean_sequences) == ("other", 7.0)
    assert summary_of(*ROWS).slots_over_time == []


def test_a_long_series_of_slots_is_thinned_and_keeps_its_ends():
    """At most 600 steps, in order, the first and the last among them; the figures still see what is left out."""
    steps = [(k, 40 + k % 7) for k in range(1, 5001)]
    moves = moved((0, 100), *steps, (5001, 1))
    (found,) = summary_of(*ROWS, metadata=msgspec.structs.replace(METADATA, slot_moves=moves)).slots_over_time
    assert 100 < len(found.sequences) <= 600
    assert found.time_s == sorted(found.time_s)
    assert (found.sequences[0], found.sequences[-1], found.final_sequences) == (100, 1, 1)
    assert (found.least_sequences, found.most_sequences) == (1, 100)
