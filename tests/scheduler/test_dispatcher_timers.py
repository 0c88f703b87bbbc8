"""Time-outs, TTL, late shedding, cancels and failed dispatches: who ends a request, with which word, and when."""

from __future__ import annotations

import pytest
from sched_support import MS, POLICIES, S, dispatcher, request, tenant

from scheduler.events import (
    Abort,
    AbortReason,
    Arrived,
    BackendState,
    Cancelled,
    Dispatch,
    DispatchFailed,
    Expire,
    Finished,
    FirstToken,
    PolicyChanged,
    Progress,
    RejectReason,
    TenantsChanged,
    Tick,
    WakeAt,
)
from scheduler.policies.build import PolicyError
from scheduler.request import Status
from tenants.tenant import QueueLimits

_T = [tenant("a"), tenant("b")]


def _busy(**options):
    """A dispatcher whose only slot is taken by request 0."""
    core = dispatcher(_T, sequences=1, **options)
    core.handle(Arrived(0, request(0, "b")))
    return core


def test_ttl_expires_a_queued_request_at_its_instant():
    """A wake-up is asked for the instant; not before it, and at it, the request expires."""
    core = _busy()
    assert core.handle(Arrived(5, request(1, "a", 5, ttl_ns=100))) == [WakeAt(105)]
    assert core.handle(Tick(104)) == [WakeAt(105)]
    assert core.handle(Tick(105)) == [Expire(1, RejectReason.TTL)]
    assert core.queued == 0


def test_ttl_of_the_tenant_holds_unless_the_request_has_its_own():
    limited = tenant("a", limits=QueueLimits(ttl_ns=50))
    core = dispatcher([limited], sequences=1)
    core.handle(Arrived(0, request(0, "a")))
    assert core.handle(Arrived(0, request(1, "a"))) == [WakeAt(50)]
    assert core.handle(Arrived(0, request(2, "a", ttl_ns=20))) == [WakeAt(20)]


def test_ttl_is_a_limit_on_waiting_not_on_running():
    """Once dispatched, TTL is over."""
    core = dispatcher(_T, sequences=1)
    core.handle(Arrived(0, request(0, "a", ttl_ns=10)))
    assert core.handle(Tick(50)) == []


def test_a_requeued_request_has_a_ttl_again():
    """A failed dispatch that returns to the queue does not wait for ever."""
    core = dispatcher(_T, sequences=1)
    core.handle(Arrived(0, request(0, "a", ttl_ns=10)))
    core.handle(BackendState(1, "a", up=False))
    assert core.handle(DispatchFailed(3, 0, retryable=True)) == [WakeAt(13)]
    assert core.handle(Tick(12)) == [WakeAt(13)]
    assert core.handle(Tick(13)) == [Expire(0, RejectReason.TTL)]


@pytest.mark.parametrize(
    ("limit", "expiry", "abort"),
    [
        ("first_token_timeout_ns", RejectReason.FIRST_TOKEN_TIMEOUT, AbortReason.FIRST_TOKEN_TIMEOUT),
        ("timeout_ns", RejectReason.TOTAL_TIMEOUT, AbortReason.TOTAL_TIMEOUT),
    ],
)
def test_time_outs_run_from_the_intended_arrival(limit, expiry, abort):
    """Queued: Expire; dispatched: Abort; measured from ``arrival_ns``, not from when it was handed in."""
    core = _busy()
    core.handle(Arrived(40, request(1, "a", 10, **{limit: 100})))
    assert core.handle(Tick(109)) == [WakeAt(110)]
    assert core.handle(Tick(110)) == [Expire(1, expiry)]
    core = dispatcher(_T, sequences=1)
    core.handle(Arrived(40, request(1, "a", 10, **{limit: 100})))
    assert core.handle(Tick(110)) == [Abort(1, abort)]
    assert core.outstanding == 1, "the slot is taken until the driver says it ended"
    core.handle(Finished(111, 1, Status.TIMED_OUT, 10, 0))
    assert core.outstanding == 0


def test_the_first_token_stops_its_time_out_and_not_the_total_one():
    core = dispatcher(_T, sequences=1)
    core.handle(Arrived(0, request(0, "a", first_token_timeout_ns=10, timeout_ns=30)))
    assert core.handle(FirstToken(9, 0)) == [WakeAt(30)]
    assert core.handle(Tick(29)) == [WakeAt(30)]
    assert core.handle(Tick(30)) == [Abort(0, AbortReason.TOTAL_TIMEOUT)]


def test_an_end_at_the_very_limit_is_an_end():
    """What a timer waited for arrives with the event in which it is due: no Abort, no Expire for it."""
    core = dispatcher(_T, sequences=1)
    core.handle(Arrived(0, request(0, "a", timeout_ns=30)))
    assert core.handle(Finished(30, 0, Status.OK, 1, 1)) == []
    core = _busy()
    core.handle(Arrived(0, request(1, "a", ttl_ns=30)))
    assert core.handle(Cancelled(30, 1)) == []


def test_what_is_already_over_on_arrival_is_never_dispatched():
    """Handed in after its total time-out: expired at once, though a slot is free."""
    core = dispatcher(_T, sequences=1)
    assert core.handle(Arrived(500, request(0, "a", 100, timeout_ns=200))) == [Expire(0, RejectReason.TOTAL_TIMEOUT)]


def test_cancel_takes_a_queued_request_out_silently():
    """The driver knows; no action names it again."""
    core = _busy()
    core.handle(Arrived(0, request(1, "a", ttl_ns=10)))
    core.handle(Cancelled(1, 1))
    assert core.queued == 0
    assert core.handle(Finished(50, 0, Status.OK, 1, 1)) == []


def test_cancel_aborts_a_dispatched_request_once():
    """One Abort a dispatch, the first reason stands; events about what is gone are ignored."""
    core = dispatcher(_T, sequences=1)
    core.handle(Arrived(0, request(0, "a", timeout_ns=50)))
    assert core.handle(Cancelled(1, 0)) == [Abort(0, AbortReason.CANCELLED)]
    assert core.handle(Cancelled(2, 0)) == []
    assert core.handle(Tick(60)) == []
    core.handle(Finished(61, 0, Status.CANCELLED, 10, 3))
    assert core.handle(Cancelled(62, 0)) == []
    assert core.handle(Finished(63, 0, Status.OK, 10, 3)) == []
    assert core.outstanding == 0


def test_a_retryable_failure_returns_to_its_place():
    """It is dispatched again before younger ones, and its slot was free meanwhile."""
    core = dispatcher([tenant("a")], sequences=1)
    for number in range(3):
        core.handle(Arrived(number, request(number, "a", number)))
    assert core.handle(DispatchFailed(5, 0, retryable=True)) == [Dispatch(request(0, "a", 0), "a")]
    assert core.queued == 2


def test_a_final_failure_ends_the_request():
    core = _busy()
    core.handle(Arrived(0, request(1, "a")))
    assert core.handle(DispatchFailed(5, 0, retryable=False)) == [Dispatch(request(1, "a"), "a")]
    assert (core.queued, core.outstanding) == (0, 1)


def test_an_aborted_request_is_not_retried():
    """Given up while its dispatch was failing: it ends, with the reason of the time-out; a cancelled one in silence."""
    core = dispatcher(_T, sequences=1)
    core.handle(Arrived(0, request(0, "a", timeout_ns=10)))
    core.handle(Tick(10))
    assert core.handle(DispatchFailed(11, 0, retryable=True)) == [Expire(0, RejectReason.TOTAL_TIMEOUT)]
    core.handle(Arrived(12, request(1, "a", 12)))
    core.handle(Cancelled(13, 1))
    assert core.handle(DispatchFailed(14, 1, retryable=True)) == []
    assert (core.queued, core.outstanding) == (0, 0)


def test_a_failed_dispatch_of_a_removed_tenant_ends():
    """There is no queue to return to."""
    for which in POLICIES:
        core = dispatcher(_T, which, sequences=1)
        core.handle(Arrived(0, request(0, "a")))
        core.handle(TenantsChanged(1, (tenant("b"),)))
        assert core.handle(DispatchFailed(2, 0, retryable=True)) == [Expire(0, RejectReason.UNKNOWN_TENANT)]


@pytest.mark.parametrize("which", POLICIES)
def test_removing_a_tenant_expires_what_it_has_queued(which):
    """And what it has outstanding ends in peace."""
    core = dispatcher(_T, which, sequences=1)
    for number in range(3):
        core.handle(Arrived(0, request(number, "a")))
    actions = core.handle(TenantsChanged(1, (tenant("b"),)))
    assert actions == [Expire(1, RejectReason.UNKNOWN_TENANT), Expire(2, RejectReason.UNKNOWN_TENANT)]
    core.handle(FirstToken(2, 0))
    assert core.handle(Finished(3, 0, Status.OK, 10, 10)) == []
    assert isinstance(core.handle(Arrived(4, request(4, "b")))[0], Dispatch)


def test_late_shedding_expires_and_asks_to_be_woken():
    """``late: shed``: given up at the first instant at which the limit cannot be met."""
    core = _busy(late="shed")
    prompt_ns = round(10 * 1e9 / 40_000)
    last_ns = 500 * MS - 50 * MS - prompt_ns
    assert core.handle(Arrived(0, request(1, "a"))) == [WakeAt(last_ns + 1)]
    assert core.handle(Tick(last_ns)) == [WakeAt(last_ns + 1)]
    assert core.handle(Tick(last_ns + 1)) == [Expire(1, RejectReason.LATE)]


def test_a_late_request_behind_the_one_dispatched_is_not_left_behind():
    """A long prompt that is late already surfaces when the head goes: it expires with that event, not at some later one."""
    core = dispatcher([tenant("a", ttft_ms=500.0)], sequences=1, late="shed")
    core.handle(Arrived(0, request(0, "a", 0)))
    core.handle(Arrived(0, request(1, "a", 0, prompt=10)))
    core.handle(Arrived(1, request(2, "a", 1, prompt=17_000)))
    actions = core.handle(Finished(40 * MS, 0, Status.OK, 10, 10))
    assert actions[0] == Dispatch(request(1, "a", 0, prompt=10), "a")
    assert Expire(2, RejectReason.LATE) in actions
    assert core.queued == 0


@pytest.mark.parametrize("new", POLICIES)
@pytest.mark.parametrize("old", ["fifo", "wfq", "vtc", "slo_aware", "committed"])
def test_another_policy_takes_over(old, new):
    """Queued requests re-enter in arrival order; what the old policy dispatched ends, fails or reports harmlessly."""
    core = dispatcher([tenant("a")], old, sequences=2)
    first = [action for number in range(6) for action in core.handle(Arrived(number, request(number, "a", number)))]
    name, options = POLICIES[new]
    core.handle(PolicyChanged(10, name, options))
    assert core.policy.snapshot()["policy"] == name
    assert core.queued == 4
    core.handle(FirstToken(11, 0))
    core.handle(Progress(11, tuple((sent.account, 5) for sent in first)))
    (second,) = core.handle(Finished(12, 0, Status.OK, 10, 10))
    (again,) = core.handle(DispatchFailed(13, 1, retryable=True))
    assert (second.request.id, again.request.id) == (2, 1)
    order = []
    while core.outstanding:
        running = min(core._outstanding)
        order += [a.request.id for a in core.handle(Finished(20, running, Status.OK, 10, 10))]
    assert order == [3, 4, 5]


def test_a_policy_that_cannot_be_built_changes_nothing():
    """The error lists what is known; the queue stays as it was."""
    core = _busy()
    core.handle(Arrived(0, request(1, "a")))
    with pytest.raises(PolicyError, match="slo_aware"):
        core.handle(PolicyChanged(1, "slo_awar", {}))
    assert core.queued == 1
    assert core.policy.snapshot()["policy"] == "fifo"


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"late": "maybe"}, "maybe"),
        ({"prefill_rate": 0}, "prefill_rate"),
        ({"margin_ms": -1}, "margin"),
        ({"x": 1}, "x"),
    ],
)
def test_wrong_options_are_named(options, word):
    with pytest.raises(PolicyError, match=word):
        dispatcher(_T, **options)


def test_a_wake_up_is_asked_for_once():
    """The same instant is not asked for again by every event."""
    core = _busy()
    assert core.handle(Arrived(0, request(1, "a", ttl_ns=S))) == [WakeAt(S)]
    assert core.handle(Arrived(1, request(2, "a", 1, ttl_ns=2 * S))) == []
    assert core.handle(Cancelled(2, 1)) == [WakeAt(2 * S + 1)]
