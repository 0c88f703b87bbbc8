"""A run knows whether its server was still there at the end."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from loadgen.live.outage import OutageWatch
from scheduler.request import ErrorClass, Outcome, Request, Status

OK = (Status.OK, None, 200)
REFUSED = (Status.FAILED, ErrorClass.REFUSED, None)
RESET = (Status.FAILED, ErrorClass.RESET, None)
CUT = (Status.FAILED, ErrorClass.BAD_STREAM, 200)
BUSY = (Status.FAILED, ErrorClass.HTTP_5XX, 503)
NOBODY_BEHIND = (Status.FAILED, ErrorClass.HTTP_5XX, 502)
TIMED_OUT = (Status.TIMED_OUT, ErrorClass.FIRST_TOKEN_TIMEOUT, None)


def after(ends: Iterable[tuple[Status, ErrorClass | None, int | None]]) -> OutageWatch:
    """One request a second, each ending half a second after it came."""
    seen: list[Outcome] = []
    watch = OutageWatch(seen.append)
    for second, (status, error_class, http_status) in enumerate(ends):
        request = Request(id=second, tenant="chat", arrival_ns=second * 10**9, prompt_tokens=1)
        ended_ns = second * 10**9 + 5 * 10**8
        watch(
            Outcome(request=request, status=status, ended_ns=ended_ns, error_class=error_class, http_status=http_status)
        )
    assert len(seen) == len(list(ends))
    return watch


@pytest.mark.parametrize("gone", [REFUSED, RESET, NOBODY_BEHIND])
def test_a_run_that_ends_in_lost_requests_has_lost_its_server(gone):
    watch = after([OK, OK, CUT, gone, TIMED_OUT, gone, gone])
    assert (watch.stopped_ns, watch.lost) == (2_500_000_000, 3)


def test_a_server_that_never_answered_stopped_at_the_start():
    assert after([REFUSED] * 5).stopped_ns == 0


@pytest.mark.parametrize(
    "ends",
    [
        [OK, OK],
        [OK, REFUSED, REFUSED, REFUSED, REFUSED, OK],
        [OK, RESET, BUSY, RESET, RESET, BUSY],
        [OK, BUSY, BUSY, BUSY, BUSY],
        [OK, TIMED_OUT, TIMED_OUT, TIMED_OUT, TIMED_OUT],
        [OK, REFUSED, REFUSED],
    ],
    ids=["all well", "came back", "busy between resets", "busy", "slow", "two are no proof"],
)
def test_a_server_that_still_answers_has_not_stopped(ends):
    """A 503 is an answer; a time-out proves nothing."""
    assert after(ends).stopped_ns is None


def together(*watches: OutageWatch) -> OutageWatch:
    both = OutageWatch(lambda _: None)
    for watch in watches:
        both.add(watch.state())
    return both


def test_several_processes_agree_on_one_server():
    """The last answer that anybody had counts: what one process lost before it is no outage."""
    lost_early, answered = after([REFUSED] * 4), after([TIMED_OUT] * 10 + [OK])
    assert (together(lost_early, answered).stopped_ns, together(lost_early, answered).lost) == (None, 0)
    lost_later = after([REFUSED] * 4 + [TIMED_OUT] * 7 + [REFUSED])
    gone = together(lost_later, after([TIMED_OUT] * 10 + [OK] + [REFUSED] * 3))
    assert (gone.stopped_ns, gone.lost) == (10_500_000_000, 8)
