"""Rules of a live run: every request released has one outcome, closed loops stay full, and every run ends."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from live_support import MS, Answer, ListSource, Played, S, play, request

from loadgen.workload.source import Workload
from scheduler.request import ArrivalKind, ErrorClass, Status
from tenants.tenant import QueueLimits, Tenant
from tenants.traffic import Arrivals, Distribution, Lengths, Process, Sessions, Traffic

FIXED = Lengths(distribution=Distribution.FIXED, mean=4)


def closed(users: int, think_s: float = 0.0, **more: object) -> tuple[Tenant, Traffic]:
    arrivals = Arrivals(process=Process.CLOSED, users=users, think_s=think_s)
    return Tenant(name="a"), Traffic(arrivals=arrivals, prompt=FIXED, output=FIXED, **more)


@settings(max_examples=60, deadline=None)
@given(
    arrivals=st.lists(st.integers(0, 300), min_size=1, max_size=30),
    kinds=st.lists(st.sampled_from(["answers", "fails", "stalls", "silent"]), min_size=30, max_size=30),
    sequences=st.sampled_from([None, 1, 3]),
    cancels=st.sets(st.integers(0, 29)),
    stops=st.lists(st.integers(0, 400), max_size=2),
)
def test_every_released_request_has_exactly_one_outcome(arrivals, kinds, sequences, cancels, stops):
    """Whatever answers, fails, stalls, is cancelled, times out or is stopped: released = outcomes, and no id twice."""
    script = {
        "answers": Answer(),
        "fails": Answer(fails=True),
        "stalls": Answer(stalls_after=1),
        "silent": Answer(stalls_after=0),
    }
    requests = [
        request(
            i,
            at_ms,
            first_token_timeout_ns=80 * MS if i % 3 else None,
            timeout_ns=150 * MS if i % 5 == 0 else None,
            cancel_after_ns=20 * MS if i in cancels else None,
        )
        for i, at_ms in enumerate(sorted(arrivals))
    ]
    stop = [(at_ms, lambda _loop, run: run.stop()) for at_ms in stops]
    played = play(
        ListSource(requests),
        lambda i: script[kinds[i]],
        sequences=sequences,
        until_ms=301,
        drain_s=0.5,
        during=stop,
    )
    assert len(played.ids) == len(set(played.ids)) == played.end.released
    if not stops:
        assert sorted(played.ids) == list(range(len(requests)))
    assert played.backend.running == 0
    assert len(played.calls.made) == len(set(played.calls.made)), "a body is made once"


def test_arrivals_are_sent_at_their_deadlines_whatever_the_server_does():
    """Open loop: a server that answers nothing does not slow the schedule down."""
    requests = [request(i, 10 * i) for i in range(20)]
    played = play(ListSource(requests), lambda _: Answer(stalls_after=0), until_ms=200, drain_s=1.0)
    assert [outcome.enqueued_ns for outcome in sorted(played.outcomes, key=lambda o: o.request.id)] == [
        10 * i * MS for i in range(20)
    ]
    assert {outcome.status for outcome in played.outcomes} == {Status.UNFINISHED}


def test_slots_bound_what_runs_and_the_wait_is_queue_time():
    """Two slots, 20 ms of service each: a burst of 6 leaves the queue in pairs, 20 ms apart."""
    played = play(ListSource([request(i) for i in range(6)]), sequences=2)
    assert played.backend.most_running == 2
    assert [played.of(i).dispatched_ns for i in range(6)] == [0, 0, 20 * MS, 20 * MS, 40 * MS, 40 * MS]
    assert all(played.of(i).first_token_ns == played.of(i).dispatched_ns + 10 * MS for i in range(6))


def test_a_closed_loop_keeps_its_users_busy():
    """N users, no think time: N requests run at every moment; each next one is due when the user's last one ended."""
    played = play(Workload([closed(5)], duration_s=1.0), until_ms=1000)
    assert played.backend.most_running == 5
    by_id = {outcome.request.id: outcome for outcome in played.outcomes}
    followers = [o for o in played.outcomes if o.request.after_request_id is not None]
    assert followers
    for outcome in followers:
        assert outcome.request.arrival_kind is ArrivalKind.AFTER
        assert outcome.request.arrival_ns == by_id[outcome.request.after_request_id].finished_ns
        assert outcome.enqueued_ns == outcome.request.arrival_ns, "the virtual loop is never late"
    # 20 ms an answer: 50 rounds of 5 users in 1 s.
    assert len(played.outcomes) == 250


def test_think_time_separates_a_users_requests():
    """A user who thinks 30 ms and waits 20 ms for an answer sends every 50 ms."""
    played = play(Workload([closed(1, think_s=0.03)], duration_s=0.5), until_ms=500)
    sent = sorted(outcome.request.arrival_ns for outcome in played.outcomes)
    assert sent == [50 * MS * i for i in range(10)]


def test_a_closed_loop_stops_after_num_prompts():
    """Exactly N requests are released, and the run ends with the last answer."""
    played = play(Workload([closed(4)], duration_s=None, num_prompts=10), num_prompts=10)
    assert len(played.outcomes) == played.end.released == 10
    assert played.end.ended_ns == max(outcome.finished_ns for outcome in played.outcomes)


def beside_a_schedule(kind: str, rate: float) -> list[tuple[Tenant, Traffic]]:
    arrivals = Arrivals(process=Process.POISSON, rate=rate)
    if kind == "users":
        return [closed(3), (Tenant(name="open"), Traffic(arrivals=arrivals, prompt=FIXED, output=FIXED))]
    turns = Sessions(turns=Lengths(distribution=Distribution.FIXED, mean=4), think_s=0.03)
    return [(Tenant(name="open"), Traffic(arrivals=arrivals, prompt=FIXED, output=FIXED, sessions=turns))]


@settings(max_examples=40, deadline=None)
@given(
    kind=st.sampled_from(["users", "sessions"]),
    rate=st.sampled_from([2.0, 40.0, 400.0]),
    n=st.integers(1, 40),
    sequences=st.sampled_from([None, 2]),
)
def test_a_number_of_prompts_beside_a_schedule_is_the_first_ones_to_arrive(kind, rate, n, sequences):
    """Exactly N, though the schedule is made ahead: what follows from answers has its place among them. They are the first
    N of the run that goes on; the server answers at once and in order, so the runs are alike until then."""
    tenants = beside_a_schedule(kind, rate)
    played = play(Workload(tenants, duration_s=None, num_prompts=n), num_prompts=n, sequences=sequences)
    assert played.end.released == len(played.outcomes) == n
    longer = play(
        Workload(tenants, duration_s=600, num_prompts=2 * n + 20), num_prompts=2 * n + 20, sequences=sequences
    )

    def arrivals(outcomes):
        return sorted((outcome.request.arrival_ns, outcome.request.id) for outcome in outcomes)

    assert arrivals(played.outcomes) == arrivals(longer.outcomes)[:n]


def test_no_user_sends_after_the_end_of_arrivals():
    """``until`` is the last instant at which anybody may arrive; answers may come later."""
    played = play(Workload([closed(3)], duration_s=0.1), until_ms=100)
    assert max(outcome.request.arrival_ns for outcome in played.outcomes) < 100 * MS
    assert {outcome.status for outcome in played.outcomes} == {Status.OK}


def test_the_turns_of_a_session_follow_their_answers():
    """The next turn is due one think time after the last answer, in the same session, one turn higher."""
    turns = Lengths(distribution=Distribution.FIXED, mean=3)
    arrivals = Arrivals(process=Process.CONSTANT, rate=30.0)
    traffic = Traffic(arrivals=arrivals, prompt=FIXED, output=FIXED, sessions=Sessions(turns=turns, think_s=0.015))
    played = play(Workload([(Tenant(name="a"), traffic)], duration_s=1.0), until_ms=1000)
    by_id = {outcome.request.id: outcome for outcome in played.outcomes}
    later = [outcome for outcome in played.outcomes if outcome.request.turn > 0]
    assert {outcome.request.turn for outcome in later} == {1, 2}
    for outcome in later:
        before = by_id[outcome.request.after_request_id]
        assert outcome.request.session_id == before.request.session_id
        assert outcome.request.turn == before.request.turn + 1
        assert outcome.request.arrival_ns == before.finished_ns + 15 * MS


def test_a_planned_cancel_ends_the_request_at_its_time():
    """Cancelled in the queue or while it streams, at arrival + cancel_after; the freed slot goes to the next one."""
    requests = [
        request(0, cancel_after_ns=12 * MS),
        request(1, cancel_after_ns=5 * MS),
        request(2),
    ]
    played = play(ListSource(requests), lambda _: Answer(tokens=100), sequences=1)
    streaming, queued, served = (played.of(i) for i in range(3))
    assert (streaming.status, streaming.ended_ns, streaming.output_tokens) == (Status.CANCELLED, 12 * MS, 1)
    assert streaming.first_token_ns == 10 * MS
    assert (streaming.sent_ns, queued.sent_ns) == (0, None)
    assert (queued.status, queued.ended_ns, queued.dispatched_ns) == (Status.CANCELLED, 5 * MS, None)
    assert (served.status, served.dispatched_ns) == (Status.OK, 12 * MS)


def test_a_users_next_request_does_not_pass_for_a_cancelled_one():
    """It goes on in the task of the one that was given up; structured time-outs of a backend look at the task's count."""
    arrivals = Arrivals(process=Process.CLOSED, users=1, failure_pause_s=0.0)
    traffic = Traffic(arrivals=arrivals, prompt=FIXED, output=FIXED, cancel_share=1.0, cancel_after_s=0.05)
    source = Workload([(Tenant(name="a"), traffic)], duration_s=None, num_prompts=3)
    counts = []
    play(
        source,
        lambda _: counts.append(asyncio.current_task().cancelling()) or Answer(stalls_after=1),
        num_prompts=3,
    )
    assert counts == [0, 0, 0]


def test_a_slot_granted_to_a_request_that_ends_in_the_same_step_is_not_lost():
    """Request 2 gets the slot of request 0, and before it can use it the loop stalls past its time-out: it is aborted in
    the step of its grant. Both slots are free afterwards: a later pair starts at once."""

    def stall(loop, outcome):
        if outcome.request.id == 0:
            loop.now_ns += 50 * MS

    requests = [
        request(0),
        request(1),
        request(2, timeout_ns=40 * MS),
        request(3, 200),
        request(4, 200),
    ]
    played = play(ListSource(requests), sequences=2, until_ms=300, drain_s=1.0, on_end=stall)
    assert (played.of(2).status, played.of(2).dispatched_ns) == (Status.TIMED_OUT, 20 * MS)
    assert 2 not in played.backend.calls
    assert [played.of(i).dispatched_ns for i in (3, 4)] == [200 * MS, 200 * MS]


def test_time_outs_keep_what_was_measured_until_then():
    """No first token in time, or not done in time: timed_out at arrival + limit, with the stamps that were reached."""
    requests = [
        request(0, first_token_timeout_ns=50 * MS),
        request(1, timeout_ns=60 * MS),
        request(2, 5, timeout_ns=100 * MS),
    ]
    script = [Answer(stalls_after=0), Answer(tokens=2, stalls_after=1), Answer()]
    played = play(ListSource(requests), lambda i: script[i])
    silent, stalled, served = (played.of(i) for i in range(3))
    assert (silent.status, silent.error_class, silent.ended_ns) == (
        Status.TIMED_OUT,
        ErrorClass.FIRST_TOKEN_TIMEOUT,
        50 * MS,
    )
    assert (silent.dispatched_ns, silent.first_token_ns) == (0, None)
    assert (stalled.status, stalled.error_class, stalled.ended_ns) == (
        Status.TIMED_OUT,
        ErrorClass.TOTAL_TIMEOUT,
        60 * MS,
    )
    assert (stalled.first_token_ns, stalled.output_tokens, stalled.finished_ns) == (10 * MS, 1, None)
    assert served.status is Status.OK


def test_a_time_out_in_the_queue_is_timed_out_and_a_ttl_is_shed():
    """Both never reach a server; which of the two it was stays apart in the figures."""
    limits = QueueLimits(max_queued=2)
    source = ListSource(
        [request(0), request(1, timeout_ns=30 * MS), request(2, ttl_ns=20 * MS), request(3)],
        tenants=(Tenant(name="a", limits=limits),),
    )
    played = play(source, lambda _: Answer(first_ms=100), sequences=1)
    assert [played.of(i).status for i in range(4)] == [Status.OK, Status.TIMED_OUT, Status.SHED, Status.SHED]
    assert [played.of(i).error_class for i in (1, 2, 3)] == [
        ErrorClass.TOTAL_TIMEOUT,
        ErrorClass.SHED,
        ErrorClass.SHED,
    ]
    assert [played.of(i).ended_ns for i in (1, 2, 3)] == [30 * MS, 20 * MS, 0]
    assert played.backend.calls == [0]


def test_one_stalled_answer_does_not_hold_the_run_for_ever():
    """After the last arrival the run waits the drain time, then what is left is unfinished; all else is measured."""
    requests = [request(i, 10 * i) for i in range(5)]
    played = play(ListSource(requests), lambda i: Answer(stalls_after=2 if i == 1 else None), until_ms=100, drain_s=2.0)
    assert played.of(1).status is Status.UNFINISHED
    assert (played.of(1).first_token_ns, played.of(1).output_tokens) == (20 * MS, 2)
    assert [played.of(i).status for i in (0, 2, 3, 4)] == [Status.OK] * 4
    assert played.end.unfinished == 1
    assert played.end.ended_ns == 100 * MS + 2 * S


def test_a_stalled_user_does_not_hold_a_run_of_n_requests():
    """Closed loop until N requests are sent: the other users go on, and the stalled answer gets the drain time."""
    source = Workload([closed(3)], duration_s=None, num_prompts=12)
    played = play(source, lambda i: Answer(stalls_after=0 if i == 0 else None), num_prompts=12, drain_s=1.0)
    assert played.end.released == 12
    assert played.of(0).status is Status.UNFINISHED
    assert played.end.ended_ns <= 100 * MS + S


def test_a_stalled_last_request_does_not_hold_a_run_of_n_requests():
    """Of one user, so nothing else ends after the last request is sent: the drain begins with that request."""
    played = play(
        Workload([closed(users=1)], duration_s=None, num_prompts=3),
        lambda i: Answer(stalls_after=1) if i == 2 else Answer(),
        num_prompts=3,
        drain_s=0.2,
    )
    last = played.of(2)
    assert [outcome.status for outcome in played.outcomes] == [Status.OK, Status.OK, Status.UNFINISHED]
    assert played.end.arrivals_ended_ns == last.enqueued_ns
    assert last.ended_ns == last.enqueued_ns + 200 * MS


def test_a_slow_answer_is_waited_for_while_arrivals_may_follow():
    """The drain time runs from the end of arrivals, not from the last one that happened: a long answer is no stall."""
    source = Workload([closed(1)], duration_s=None, num_prompts=3)
    played = play(source, lambda _: Answer(first_ms=5000), num_prompts=3, drain_s=6.0)
    assert [outcome.status for outcome in played.outcomes] == [Status.OK] * 3


def test_stop_makes_no_more_arrivals_and_waits_for_answers():
    """The first stop drains: what runs is measured to its end, nothing new is sent, the run says it was interrupted."""
    requests = [request(i, 10 * i) for i in range(50)]
    played = play(ListSource(requests), during=[(105, lambda _loop, run: run.stop())])
    assert played.end.interrupted
    assert played.end.released == len(played.outcomes) == 11
    assert {outcome.status for outcome in played.outcomes} == {Status.OK}
    assert played.end.ended_ns == 120 * MS


def test_a_second_stop_waits_no_longer():
    """What runs then is unfinished, at that very instant, with what it had."""
    requests = [request(i, 10 * i) for i in range(50)]
    stops = [(105, lambda _loop, run: run.stop()), (140, lambda _loop, run: run.stop())]
    played = play(ListSource(requests), lambda _: Answer(stalls_after=1), during=stops, sequences=3)
    assert played.end.ended_ns == 140 * MS
    assert {outcome.status for outcome in played.outcomes} == {Status.UNFINISHED}
    assert [played.of(i).first_token_ns for i in range(4)] == [10 * MS, 20 * MS, 30 * MS, None]


def test_no_user_comes_back_after_a_stop():
    """A closed loop that is stopped ends with the answers in flight."""
    played = play(Workload([closed(3)], duration_s=10.0), until_ms=10_000, during=[(100, lambda _, run: run.stop())])
    assert max(outcome.request.arrival_ns for outcome in played.outcomes) <= 100 * MS
    assert played.end.ended_ns <= 120 * MS


def test_users_refused_at_once_who_come_back_at_once_leave_the_loop_its_turns():
    """Else no answer would be read and no timer kept while one of them is refused."""
    arrivals = Arrivals(process=Process.CLOSED, users=3, failure_pause_s=0.0)
    tenant = Tenant(name="a", limits=QueueLimits(max_queued=1))
    traffic = Traffic(arrivals=arrivals, prompt=FIXED, output=FIXED)
    this_turn, most = [0], [0]

    def count(loop, outcome):
        if outcome.status is Status.SHED:
            if not this_turn[0]:
                loop.call_soon(this_turn.__setitem__, 0, 0)
            this_turn[0] += 1
            most[0] = max(most[0], this_turn[0])

    played = play(
        Workload([(tenant, traffic)], duration_s=None, num_prompts=500),
        sequences=1,
        num_prompts=500,
        on_end=count,
    )
    assert played.end.released == len(played.outcomes) == 500
    assert 1 <= most[0] <= 3


@pytest.mark.parametrize("sequences", [None, 1])
def test_a_bug_in_a_backend_surfaces(sequences):
    """A backend that raises is lmperf's own fault: the run raises it, and all other requests still have an outcome."""
    played = Played([], None, None)
    requests = [request(i, 10 * i) for i in range(10)]
    script = [Answer(raises=ZeroDivisionError("a bug")) if i == 3 else Answer(tokens=50) for i in range(10)]
    with pytest.raises(ZeroDivisionError, match="a bug"):
        play(ListSource(requests), lambda i: script[i], sequences=sequences, played=played)
    assert len(set(played.ids)) == len(played.ids)
    assert 3 not in played.ids
    assert set(played.ids) == {i for i in played.calls.made if i in played.ids}
    assert played.backend.running == 0


def test_a_bug_in_the_schedule_surfaces():
    """A source that raises in the middle: the run raises it once every released request has its outcome."""

    class Broken(ListSource):
        def absolute(self):
            yield request(0)
            yield request(1, 10)
            raise RuntimeError("the schedule broke")

    played = Played([], None, None)
    with pytest.raises(RuntimeError, match="the schedule broke"):
        play(Broken([]), played=played)
    assert len(set(played.ids)) == len(played.ids)


def test_own_lateness_is_recorded_and_the_schedule_is_not_moved():
    """A loop that is blocked for 40 ms releases what was due at once; the lag is in the stamps, and later deadlines
    stay."""

    def block(loop, _run):
        loop.now_ns += 40 * MS

    requests = [request(i, 10 * i) for i in range(12)]
    played = play(ListSource(requests), during=[(35, block)])
    lag_ms = {i: (played.of(i).enqueued_ns - 10 * i * MS) / MS for i in range(12)}
    assert [lag_ms[i] for i in range(12)] == [0, 0, 0, 0, 35, 25, 15, 5, 0, 0, 0, 0]
    assert played.end.lag.max_ns == pytest.approx(35 * MS, rel=1e-3)
    assert np.all(np.array([outcome.request.arrival_ns for outcome in played.outcomes]) % (10 * MS) == 0)


def test_what_ended_is_there_for_whoever_settles():
    """Outcomes may wait a while; who decides by them asks for all that there are."""
    seen: list[tuple[int, int]] = []
    played = Played([], None, None)

    def look(_loop, run):
        run.settle()
        seen.append((run.done, len(played.outcomes)))

    play(ListSource([request(i, 10 * i) for i in range(8)]), during=[(45, look), (75, look)], played=played)
    assert [done == told for done, told in seen] == [True, True]
    assert 0 < seen[0][0] < seen[1][0]
