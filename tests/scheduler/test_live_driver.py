"""The asyncio driver: tickets are granted in the policy's order, refused with a reason, and nobody waits for ever."""

from __future__ import annotations

import asyncio

import pytest
from sched_support import MS, S, dispatcher, request, tenant
from virtual_loop import run_virtual

from scheduler.drivers.live import LiveDriver, NotServed
from scheduler.events import AbortReason, RejectReason
from scheduler.request import Status
from tenants.tenant import QueueLimits

_T = [tenant("a"), tenant("b", limits=QueueLimits(max_queued=0))]


def _driver(loop, **options):
    return LiveDriver(dispatcher(_T, **{"sequences": 1, **options}), lambda: loop.now_ns, loop)


def test_a_slot_is_granted_and_passed_on():
    """The second waits until the first has finished."""

    async def main(loop):
        driver = _driver(loop)
        first, second = driver.submit(request(0, "a")), driver.submit(request(1, "a"))
        await first.granted()
        assert first.backend == "a"
        loop.call_at_ns(S, first.finished, Status.OK, 10, 10)
        await second.granted()
        assert second.dispatched_ns == loop.now_ns == S

    run_virtual(main)


def test_a_refusal_has_its_reason_and_status():
    async def main(loop):
        driver = _driver(loop)
        driver.submit(request(0, "a"))
        with pytest.raises(NotServed) as refused:
            await driver.submit(request(1, "b")).granted()
        assert (refused.value.reason, refused.value.status) == (RejectReason.QUEUE_FULL, Status.SHED)

    run_virtual(main)


def test_time_outs_in_the_queue_are_raised_at_their_instant():
    """The driver sends the Tick that was asked for; a shorter wish replaces a longer one."""

    async def main(loop):
        driver = _driver(loop)
        driver.submit(request(0, "a"))
        slow = driver.submit(request(1, "a", timeout_ns=3 * S))
        quick = driver.submit(request(2, "a", ttl_ns=S))
        for ticket, at_ns, status in ((quick, S, Status.SHED), (slow, 3 * S, Status.TIMED_OUT)):
            with pytest.raises(NotServed) as refused:
                await ticket.granted()
            assert refused.value.at_ns == loop.now_ns == at_ns
            assert refused.value.status is status

    run_virtual(main)


def test_a_time_out_after_the_dispatch_calls_on_abort():
    async def main(loop):
        driver = _driver(loop)
        ended = loop.create_future()
        ticket = driver.submit(request(0, "a", timeout_ns=S), on_abort=ended.set_result)
        assert await ended is AbortReason.TOTAL_TIMEOUT
        assert ticket.abort_reason is AbortReason.TOTAL_TIMEOUT
        ticket.finished(Status.TIMED_OUT, None, None)
        await driver.submit(request(1, "a")).granted()

    run_virtual(main)


def test_a_cancel_in_the_queue_wakes_whoever_waits():
    """``granted`` of a cancelled ticket raises CancelledError; the slot goes to the next."""

    async def main(loop):
        driver = _driver(loop)
        first, second, third = (driver.submit(request(n, "a")) for n in range(3))
        loop.call_at_ns(S, second.cancel)
        with pytest.raises(asyncio.CancelledError):
            await second.granted()
        second.cancel()
        first.finished(Status.OK, 10, 10)
        await third.granted()

    run_virtual(main)


def test_events_that_meet_at_their_time_out_do_not_collide():
    """A cancel or an end handed in when its time-out is due, before the wake-up ran: no crash, no second end."""

    async def main(loop):
        ending, cancelling = _driver(loop), _driver(loop)
        aborted = []
        done = ending.submit(request(0, "a", timeout_ns=S), on_abort=aborted.append)
        cancelling.submit(request(0, "a"))
        given_up = cancelling.submit(request(1, "a", ttl_ns=S))
        loop.now_ns = 2 * S
        done.finished(Status.OK, 10, 10)
        assert aborted == []
        assert ending.dispatcher.outstanding == 0
        given_up.cancel()
        assert cancelling.dispatcher.queued == 0

    run_virtual(main)


def test_a_failed_dispatch_is_queued_again():
    """It waits for another slot, as if never granted, and can be cancelled there."""

    async def main(loop):
        driver = _driver(loop)
        ticket = driver.submit(request(0, "a"))
        await ticket.granted()
        driver.set_backend_state("a", up=False)
        ticket.failed_to_dispatch(retryable=True)
        assert (ticket.backend, ticket.dispatched_ns) == (None, None)
        loop.call_at_ns(S, lambda: driver.set_backend_state("a", up=True))
        await ticket.granted()
        assert (ticket.backend, loop.now_ns) == ("a", S)
        driver.set_backend_state("a", up=False)
        ticket.failed_to_dispatch(retryable=True)
        loop.call_at_ns(2 * S, ticket.cancel)
        with pytest.raises(asyncio.CancelledError):
            await ticket.granted()
        assert driver.dispatcher.queued == 0

    run_virtual(main)


@pytest.mark.parametrize("reason", [AbortReason.CANCELLED, AbortReason.TOTAL_TIMEOUT])
def test_a_failed_dispatch_after_an_abort_ends(reason):
    """It is not tried again, and ``granted`` says so."""

    async def main(loop):
        driver = _driver(loop)
        ticket = driver.submit(request(0, "a", timeout_ns=S))
        await ticket.granted()
        if reason is AbortReason.CANCELLED:
            ticket.cancel()
        else:
            await asyncio.sleep(2)
        ticket.failed_to_dispatch(retryable=True)
        with pytest.raises((NotServed, asyncio.CancelledError)) as end:
            await ticket.granted()
        assert isinstance(end.value, NotServed) == (reason is AbortReason.TOTAL_TIMEOUT)
        assert driver.dispatcher.outstanding == driver.dispatcher.queued == 0

    run_virtual(main)


def test_a_final_failure_frees_the_slot():
    async def main(loop):
        driver = _driver(loop)
        first, second = driver.submit(request(0, "a")), driver.submit(request(1, "a"))
        first.failed_to_dispatch(retryable=False)
        await second.granted()
        first.cancel()

    run_virtual(main)


def test_tokens_are_reported_before_the_next_selection():
    """Counts wait in the driver and reach the policy, in sum, before an event that may select; there is none while nothing
    waits, but an arrival."""

    async def main(loop):
        driver = _driver(loop, which="vtc", sequences=2)
        first, second = driver.submit(request(0, "a")), driver.submit(request(1, "a"))
        await second.granted()
        second.tokens(loop.now_ns, 3)
        first.tokens(loop.now_ns, None)
        first.tokens(loop.now_ns, 4)

        def counter():
            return driver.dispatcher.policy.snapshot()["tenants"]["a"]["counter"]

        assert counter() == 10 + 10, "nobody has looked yet"
        driver.submit(request(2, "a"))
        assert counter() == 10 + 10 + 2 * (3 + 1 + 4)
        second.tokens(loop.now_ns, 7)
        first.finished(Status.OK, None, 6)
        assert counter() == 10 + 10 + 10 + 2 * (3 + 7 + 6), "before the third was selected"
        second.finished(Status.OK, None, None)
        assert counter() == 10 + 10 + 10 + 2 * (10 + 6)

    run_virtual(main)


def test_a_dispatch_that_failed_after_tokens_is_refunded_and_begins_anew():
    """Both what was reported of it and what was not; then it costs its prompt and its output, once."""

    async def main(loop):
        driver = _driver(loop, which="vtc", sequences=3)
        ticket = driver.submit(request(0, "a"))
        ticket.tokens(loop.now_ns, 3)
        driver.submit(request(1, "a"))

        def counter():
            return driver.dispatcher.policy.snapshot()["tenants"]["a"]["counter"]

        assert counter() == 10 + 10 + 2 * 3
        ticket.tokens(loop.now_ns, 4)
        ticket.failed_to_dispatch(retryable=True)
        await ticket.granted()
        assert counter() == 10 + 10
        ticket.tokens(loop.now_ns, 5)
        driver.submit(request(2, "a"))
        assert counter() == 10 + 10 + 10 + 2 * 5
        ticket.finished(Status.OK, None, 6)
        assert counter() == 10 + 10 + 10 + 2 * 6

    run_virtual(main)


def test_stamps_never_go_back():
    """A chunk stamped before the last event is an event at the last event's time."""

    async def main(loop):
        driver = _driver(loop, which="slo_aware")
        ticket = driver.submit(request(0, "a"))
        await asyncio.sleep(1)
        driver.submit(request(1, "a"))
        ticket.tokens(loop.now_ns - 10 * MS, 1)
        assert driver.at() == S

    run_virtual(main)


def test_close_stops_the_wake_up():
    async def main(loop):
        driver = _driver(loop)
        driver.submit(request(0, "a"))
        driver.submit(request(1, "a", ttl_ns=S))
        driver.close()
        driver.close()
        await asyncio.sleep(2)
        assert driver.dispatcher.queued == 1

    run_virtual(main)
