"""Rules of one queue for several workers: whatever crosses on the way, slots are never exceeded and never lost.

The workers' drivers and the parent's queue are the real ones; between them, messages wait until the test delivers them.
"""

from __future__ import annotations

import asyncio
from collections import deque

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadgen.workers.queue import SharedQueue
from loadgen.workers.remote import RemoteDriver
from scheduler.dispatcher import Dispatcher
from scheduler.dispatcher_config import DispatcherConfig
from scheduler.drivers.live import NotServed
from scheduler.events import AbortReason, RejectReason, SlotsChanged
from scheduler.request import Request, Status
from scheduler.slots import Slots
from tenants.tenant import QueueLimits, Tenant

MS = 1_000_000


def config(sequences=1, policy="fifo", **limits) -> DispatcherConfig:
    tenants = (Tenant(name="a", limits=QueueLimits(**limits)),)
    return DispatcherConfig(tenants=tenants, policy=policy, backends={"server": Slots(sequences=sequences)})


class Wires:
    """``workers`` drivers and one queue; ``deliver(i)`` brings worker i's next event, ``answer(i)`` its next answer."""

    def __init__(self, settings_: DispatcherConfig, workers: int) -> None:
        self.now_ns = 0
        self.up = [deque() for _ in range(workers)]
        self.down = [deque() for _ in range(workers)]
        self.queue = SharedQueue(
            Dispatcher(settings_), lambda: self.now_ns, lambda i, answer: self.down[i].append(answer)
        )
        self.drivers = [RemoteDriver(settings_, lambda: self.now_ns, up.append) for up in self.up]

    def deliver(self, i):
        if self.up[i]:
            self.queue.take(i, [self.up[i].popleft()])

    def answer(self, i):
        if self.down[i]:
            self.drivers[i].take(self.down[i].popleft())

    def settle(self):
        while any(self.up) or any(self.down):
            for i in range(len(self.up)):
                self.deliver(i)
                self.answer(i)

    def close(self):
        self.queue.close()
        for driver in self.drivers:
            driver.close()

    def submit(self, i, request_id, **more):
        aborts = []
        request = Request(id=request_id, tenant="a", arrival_ns=self.now_ns, prompt_tokens=5, **more)
        ticket = self.drivers[i].submit(request, aborts.append)
        return ticket, aborts


async def test_a_request_goes_up_and_its_grant_comes_down():
    wires = Wires(config(), 2)
    first, _ = wires.submit(0, 1)
    wires.now_ns = 3 * MS
    second, _ = wires.submit(1, 2)
    wires.settle()
    await first.granted()
    assert (first.enqueued_ns, first.dispatched_ns, second.backend) == (0, 0, None)
    wires.now_ns = 9 * MS
    first.finished(Status.OK, 5, 1)
    wires.settle()
    await second.granted()
    assert (second.enqueued_ns, second.dispatched_ns) == (3 * MS, 9 * MS)
    wires.close()


async def test_fifo_is_by_arrival_over_all_workers():
    """The queue is one: who sent a request, and in which order the messages came in, decides nothing among those waiting."""
    wires = Wires(config(), 3)
    running, _ = wires.submit(0, 0)
    wires.settle()
    tickets = {}
    for i in range(1, 10):
        wires.now_ns = i * MS
        tickets[i] = wires.submit(i % 3, i)[0]
    for i in (2, 0, 1):
        while wires.up[i]:
            wires.deliver(i)
    order = []
    last = running
    for _ in range(9):
        wires.now_ns += MS
        last.finished(Status.OK, 5, 1)
        wires.settle()
        (number,) = [i for i, ticket in tickets.items() if ticket.backend is not None]
        order.append(number)
        last = tickets.pop(number)
    assert order == list(range(1, 10))
    wires.close()


async def test_a_late_worker_does_not_turn_time_back():
    """An event stamped before the last one of another worker is taken at that one's time, and its own stamps stay."""
    wires = Wires(config(sequences=2), 2)
    late, _ = wires.submit(0, 1)
    wires.now_ns = 7 * MS
    early, _ = wires.submit(1, 2)
    wires.deliver(1)
    wires.deliver(0)
    wires.settle()
    assert early.dispatched_ns == 7 * MS
    assert (late.enqueued_ns, late.dispatched_ns) == (0, 7 * MS)
    wires.close()


async def test_a_grant_that_meets_a_given_up_request_gives_its_slot_back():
    wires = Wires(config(), 2)
    given_up, _ = wires.submit(0, 1)
    waiting, _ = wires.submit(1, 2)
    wires.deliver(0)
    wires.deliver(1)
    given_up.cancel()
    wires.settle()
    await waiting.granted()
    with pytest.raises(asyncio.CancelledError):
        await given_up.granted()
    wires.close()


async def test_a_refusal_says_why_and_when():
    wires = Wires(config(max_queued=1), 1)
    tickets = [wires.submit(0, i)[0] for i in range(3)]
    wires.settle()
    with pytest.raises(NotServed) as refused:
        await tickets[2].granted()
    assert (refused.value.reason, refused.value.status) == (RejectReason.QUEUE_FULL, Status.SHED)
    wires.close()


async def test_limits_of_a_tenant_are_of_all_workers_together():
    """Two requests/s are two, not two a worker."""
    wires = Wires(config(sequences=None, requests_per_s=2.0), 3)
    tickets = [wires.submit(i % 3, i)[0] for i in range(9)]
    wires.settle()
    assert sum(ticket.backend is not None for ticket in tickets) == 2
    for ticket in tickets:
        if ticket.backend is None:
            with pytest.raises(NotServed):
                await ticket.granted()
    wires.close()


async def test_a_time_out_in_the_parent_aborts_in_the_worker():
    wires = Wires(config(), 1)
    ticket, aborts = wires.submit(0, 1, first_token_timeout_ns=20 * MS)
    wires.settle()
    wires.now_ns = 30 * MS
    wires.submit(0, 2)
    wires.settle()
    assert aborts == [AbortReason.FIRST_TOKEN_TIMEOUT]
    assert ticket.abort_reason is AbortReason.FIRST_TOKEN_TIMEOUT
    wires.close()


async def test_a_client_that_gives_up_a_running_request_is_told_to_end_it():
    wires = Wires(config(), 1)
    ticket, aborts = wires.submit(0, 1)
    wires.settle()
    ticket.cancel()
    wires.settle()
    assert aborts == [AbortReason.CANCELLED]
    ticket.finished(Status.CANCELLED, None, None)
    wires.settle()
    assert wires.queue.dispatcher.outstanding == 0
    wires.close()


async def test_slots_that_come_from_the_parent_are_granted_to_whoever_waits():
    """More of them at once, in the order of the queue; fewer take none away that is in use, and are kept from then on. An event
    of the parent's own is never before the last one of a worker."""
    wires = Wires(config(), 2)
    tickets = [wires.submit(i % 2, i)[0] for i in range(6)]
    wires.settle()
    queue = wires.queue

    def granted():
        wires.settle()
        return [ticket.backend is not None for ticket in tickets]

    assert granted() == [True, False, False, False, False, False]
    wires.now_ns = 5 * MS
    queue.handle(SlotsChanged(queue.at(), "server", 3, None))
    assert granted() == [True, True, True, False, False, False]
    assert [ticket.dispatched_ns for ticket in tickets[:3]] == [0, 5 * MS, 5 * MS]
    queue.handle(SlotsChanged(queue.at(), "server", 2, None))
    tickets[1].finished(Status.OK, 5, 1)
    assert granted() == [True, True, True, False, False, False]
    tickets[2].finished(Status.OK, 5, 1)
    assert granted() == [True, True, True, True, False, False]
    wires.now_ns = 4 * MS
    assert queue.at() == 5 * MS
    wires.close()


async def test_a_dropped_worker_frees_its_slots_and_tells_what_it_had():
    """What waited was never dispatched, not even for a moment."""
    wires = Wires(config(), 2)
    wires.submit(0, 1)
    wires.submit(0, 2)
    other, _ = wires.submit(1, 3)
    wires.settle()
    lost = wires.queue.drop(0)
    wires.settle()
    assert [(held.request.id, held.dispatched_ns is None) for held in lost] == [(1, False), (2, True)]
    await other.granted()
    assert wires.queue.dispatcher.queued == 0
    assert wires.queue.dispatcher.outstanding == 1
    wires.close()


async def test_a_dropped_worker_had_also_what_ended_in_its_last_seconds():
    """Their rows may have gone with it, and what follows from an answer is known to nobody else."""
    wires = Wires(config(sequences=2, max_queued=1), 2)
    old, _ = wires.submit(0, 1)
    wires.settle()
    old.finished(Status.OK, 5, 1)
    wires.settle()
    wires.now_ns = 20_000 * MS
    recent, _ = wires.submit(0, 2)
    others, _ = wires.submit(1, 3)
    wires.settle()
    for ticket in (recent, others):
        ticket.finished(Status.OK, 5, 1)
    for i in range(4, 8):
        # Two run, one waits, one is refused.
        wires.submit(0, i)
    wires.settle()
    assert [held.request.id for held in wires.queue.drop(0)] == [2, 4, 5, 6, 7]
    assert wires.queue.dispatcher.queued == wires.queue.dispatcher.outstanding == 0
    wires.close()


async def test_progress_reaches_a_policy_that_counts_it():
    wires = Wires(config(policy="vtc"), 2)
    ticket, _ = wires.submit(0, 1)
    wires.settle()
    for _ in range(5):
        ticket.tokens(wires.now_ns, 1)
    ticket.finished(Status.OK, 5, 5)
    kinds = [type(event).__name__ for event in wires.up[0]]
    assert kinds.count("Progress") >= 1
    assert kinds[-1] == "Finished"
    wires.settle()
    wires.close()


async def test_progress_goes_up_also_while_nothing_else_happens_in_the_worker():
    """Other workers' events bring selections, and they must see what this one's streams have cost by then."""
    reported = asyncio.get_running_loop().create_future()
    wires = Wires(config(policy="vtc"), 2)
    ticket, _ = wires.submit(0, 1)
    wires.settle()
    ticket.tokens(wires.now_ns, 1)
    wires.settle()
    driver = wires.drivers[0]
    driver.dispatcher._send = reported.set_result
    ticket.tokens(wires.now_ns, 3)
    progress = await asyncio.wait_for(reported, 30)
    assert progress.counts == ((ticket.account, 3),)
    wires.close()


STEPS = st.lists(
    st.tuples(st.sampled_from(["submit", "deliver", "answer", "finish", "cancel", "fail", "drop"]), st.integers(0, 30)),
    max_size=120,
)


@settings(max_examples=150, deadline=None)
@given(steps=STEPS, workers=st.integers(1, 3), sequences=st.integers(1, 3), max_queued=st.none() | st.integers(1, 3))
def test_slots_are_never_exceeded_and_never_lost(steps, workers, sequences, max_queued):
    """Any crossing of arrivals, grants, ends, give-ups, failed dispatches and deaths; in the end all slots are free."""

    async def main():
        wires = Wires(config(sequences, max_queued=max_queued), workers)
        tickets, gone = [], set()

        def running(i):
            return [t for who, t in tickets if who == i and t.backend is not None]

        def end(ticket, who):
            tickets.remove((who, ticket))

        for number, (step, value) in enumerate(steps):
            wires.now_ns += MS
            i = value % workers
            if i in gone:
                continue
            if step == "submit":
                tickets.append((i, wires.submit(i, number)[0]))
            elif step == "deliver":
                wires.deliver(i)
            elif step == "answer":
                wires.answer(i)
            elif step == "finish" and running(i):
                ticket = running(i)[0]
                ticket.finished(Status.OK, 5, 1)
                end(ticket, i)
            elif step == "cancel":
                queued = [t for who, t in tickets if who == i and t.backend is None]
                if queued:
                    ticket = queued[value % len(queued)]
                    ticket.cancel()
                    end(ticket, i)
            elif step == "fail" and running(i):
                running(i)[0].failed_to_dispatch(retryable=True)
            elif step == "drop" and workers > 1 and len(gone) < workers - 1 and value > 20:
                gone.add(i)
                wires.up[i].clear()
                wires.queue.drop(i)
                wires.down[i].clear()
                tickets[:] = [(who, t) for who, t in tickets if who != i]
            assert wires.queue.dispatcher.outstanding <= sequences
            assert sum(len(running(who)) for who in range(workers) if who not in gone) <= sequences
        for _ in range(len(steps) + 1):
            for i in gone:
                wires.down[i].clear()
            wires.settle()
            for i in range(workers):
                for ticket in running(i):
                    ticket.finished(Status.OK, 5, 1)
                    end(ticket, i)
        wires.settle()
        for _, ticket in tickets:
            # What is left was refused.
            with pytest.raises(NotServed):
                await ticket.granted()
        assert wires.queue.dispatcher.queued == wires.queue.dispatcher.outstanding == 0
        assert not wires.queue._held
        wires.close()

    asyncio.run(main())
