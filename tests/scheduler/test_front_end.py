"""The front end: when a request that was sent enters the engine's queue, by the rule of its module."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from scheduler.server_model.front_end import FrontEnd
from scheduler.server_model.plan import Plan

MS, PS = 1_000_000, 1_000_000_000
"""A millisecond in ns and in ps."""


def run(start_ms, step_ms, steps, decoders, growth_ms=0):
    return Plan(start_ms * PS, step_ms * PS, growth_ms * PS, steps, decoders)


def test_an_idle_server_takes_a_request_in_after_its_work():
    front_end = FrontEnd(15 * PS, PS)
    front_end.send(1, 100 * MS, None)
    front_end.send(2, 103 * MS, None)
    assert front_end.next_ns(None) == 115 * MS
    assert front_end.entered(114 * MS, None) == []
    assert front_end.entered(118 * MS, None) == [1, 2], "they do not wait for each other"
    assert front_end.next_ns(None) is None


def test_streams_leave_what_a_step_has_beyond_them():
    """10 sequences of 0.5 ms leave 3 ms of a step of 8 ms, at its end: 7 ms of work take two steps and the first ms that is
    free in the third."""
    front_end, plan = FrontEnd(7 * PS, PS // 2), run(0, 8, 100, 10)
    front_end.start(plan)
    front_end.send(1, 0, plan)
    assert front_end.next_ns(plan) == (2 * 8 + 5 + 1) * MS
    assert front_end.entered(21 * MS, plan) == []
    assert front_end.entered(22 * MS, plan) == [1]


def test_a_long_step_lets_in_who_waited_through_short_ones():
    """All that wait advance alike: what was sent during short steps enters with what came before, once there is time."""
    front_end, short = FrontEnd(10 * PS, PS // 10), run(0, 6, 5, 50)
    front_end.start(short)
    for request_id, sent_ms in ((1, 1), (2, 7), (3, 13)):
        front_end.send(request_id, sent_ms * MS, short)
    assert front_end.next_ns(short) is None, "5 steps leave it 1 ms each"
    assert front_end.end(short, 5) == []
    long = run(30, 18, 1, 50)
    front_end.start(long)
    # They had 5, 4 and 3 ms, and the long step's free 13 ms begin 5 ms after its start.
    assert front_end.next_ns(long) == (30 + 5 + 5) * MS
    assert front_end.end(long, 1) == [1, 2, 3]


def test_a_front_end_that_cannot_keep_up_still_takes_requests_in():
    """Whatever the streams need, an eighth of each step is left."""
    front_end, plan = FrontEnd(2 * PS, 5 * PS), run(0, 8, 9, 100)
    front_end.start(plan)
    front_end.send(1, 0, plan)
    assert front_end.next_ns(plan) == 16 * MS


def test_one_that_is_given_up_is_not_waited_for():
    front_end = FrontEnd(10 * PS)
    front_end.send(1, 0, None)
    front_end.send(2, MS, None)
    assert front_end.drop(1)
    assert not front_end.drop(1)
    assert (len(front_end), front_end.next_ns(None)) == (1, 11 * MS)


runs = st.lists(
    st.tuples(st.integers(0, 4), st.integers(1, 9), st.integers(0, 2), st.integers(1, 6), st.integers(0, 12)),
    min_size=1,
    max_size=8,
)
"""(idle ms before, first step ms, growth ms, steps, decoders)."""


@given(
    told=runs, work_ms=st.integers(0, 20), stream_ms=st.integers(0, 2), sent=st.lists(st.integers(0, 150), max_size=8)
)
def test_every_request_has_its_work_of_free_time(told, work_ms, stream_ms, sent):
    """Against a clock of eighths of a ms, each of which is free or not: a request enters at the end of the one that
    completes its work, and ``next_ns`` said so when it was first in line."""
    front_end = FrontEnd(work_ms * PS, stream_ms * PS)
    eighths: list[bool] = []
    entered: dict[int, int] = {}
    waiting = sorted(enumerate(sorted(sent)), reverse=True)

    def send_until(end_ms, plan):
        while waiting and waiting[-1][1] <= end_ms:
            at_ms = waiting[-1][1]
            take(at_ms * MS, plan)
            front_end.send(waiting.pop()[0], at_ms * MS, plan)

    def take(until_ns, plan):
        while (next_ns := front_end.next_ns(plan)) is not None and next_ns <= until_ns:
            found = front_end.entered(next_ns, plan)
            assert found
            entered.update(dict.fromkeys(found, next_ns))

    now_ms = 0
    for idle_ms, first_ms, growth_ms, steps, decoders in told:
        send_until(now_ms + idle_ms, None)
        take((now_ms + idle_ms) * MS, None)
        eighths += [True] * (8 * idle_ms)
        now_ms += idle_ms
        plan = run(now_ms, first_ms, steps, decoders, growth_ms)
        front_end.start(plan)
        for step in range(steps):
            length = 8 * (first_ms + step * growth_ms)
            busy = min(8 * decoders * stream_ms, length - length // 8)
            eighths += [False] * busy + [True] * (length - busy)
        end_ms = plan.end_ps(steps) // PS
        send_until(end_ms, plan)
        take(end_ms * MS, plan)
        assert front_end.end(plan, steps) == []
        now_ms = end_ms
    send_until(150, None)
    take(1000 * MS, None)
    eighths += [True] * (8 * (1000 - now_ms))
    for index, at_ms in enumerate(sorted(sent)):
        at, missing = 8 * at_ms, 8 * work_ms
        while missing:
            missing -= eighths[at]
            at += 1
        enters_ms = entered[index] / MS
        # One that needs nothing more at the end of a free time enters then; a busy time may follow, in which nothing moves.
        assert at / 8 == enters_ms or (not any(eighths[at : round(8 * enters_ms)]) and enters_ms >= at / 8)
