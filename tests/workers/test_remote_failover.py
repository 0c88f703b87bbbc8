"""Rules of several servers under one queue of several workers: the parent alone says which are down; a request goes back once.

The workers' drivers, the parent's queue and its watch are the real ones; between them, messages wait until the test delivers
them.
"""

from __future__ import annotations

from array import array
from collections import deque

import pytest

from backends.failover import Failover
from backends.protocol import WireResult
from loadgen.workers.failover import RemoteFailover
from loadgen.workers.messages import Unreached
from loadgen.workers.queue import SharedQueue
from loadgen.workers.remote import RemoteDriver
from scheduler.dispatcher import Dispatcher
from scheduler.dispatcher_config import DispatcherConfig
from scheduler.events import BackendState
from scheduler.request import ErrorClass, Request, Status
from scheduler.slots import Slots
from tenants.tenant import Tenant


async def answers() -> bool:
    return False


def refused(sent_ns: int | None = None) -> WireResult:
    return WireResult(
        status=Status.FAILED, ended_ns=0, error_class=ErrorClass.REFUSED, sent_ns=sent_ns, chunk_ns=array("q")
    )


class Bed:
    """Two workers, two servers (``a`` and ``b``), slots for all."""

    def __init__(self) -> None:
        config = DispatcherConfig(
            tenants=(Tenant(name="t"),), policy="fifo", backends=dict.fromkeys("ab", Slots(sequences=8))
        )
        self.up, self.down = ([deque(), deque()] for _ in range(2))
        self.queue = SharedQueue(Dispatcher(config), lambda: 0, lambda i, answer: self.down[i].append(answer))
        self.watch = Failover(self.queue, dict.fromkeys("ab", answers), on_state=self._tell)
        self.drivers = [RemoteDriver(config, lambda: 0, up.append) for up in self.up]
        self.failovers = [RemoteFailover("ab", up.append) for up in self.up]
        self._ids = iter(range(1000))

    def _tell(self, name: str, up: bool) -> None:
        for down in self.down:
            down.append(BackendState(0, name, up))

    def settle(self) -> None:
        while any(self.up) or any(self.down):
            for i in range(2):
                while self.up[i]:
                    message = self.up[i].popleft()
                    if isinstance(message, Unreached):
                        self.watch.unreached(message.backend, requeued=message.requeued)
                    else:
                        self.queue.take(i, [message])
                while self.down[i]:
                    message = self.down[i].popleft()
                    if isinstance(message, BackendState):
                        self.failovers[i].state(message)
                    else:
                        self.drivers[i].take(message)

    def granted(self, i: int):
        """A request of worker ``i``, sent to whichever server."""
        request = Request(id=next(self._ids), tenant="t", arrival_ns=0, prompt_tokens=5)
        ticket = self.drivers[i].submit(request)
        self.settle()
        assert ticket.backend is not None
        return ticket

    def close(self) -> None:
        self.queue.close()
        for driver in self.drivers:
            driver.close()


@pytest.fixture
async def bed():
    bed = Bed()
    yield bed
    bed.close()


async def test_one_refusal_takes_a_server_out_for_every_worker(bed):
    """The request goes to the other one, and so does every later one, whoever sends it."""
    ticket = bed.granted(0)
    gone = ticket.backend
    assert bed.failovers[0].takes_back(ticket, refused(), again=False)
    assert ticket.backend is None, "queued"
    bed.settle()
    assert ticket.backend is not None
    assert {ticket.backend, *(bed.granted(i % 2).backend for i in range(6))} == {"a", "b"} - {gone}
    assert not bed.watch.is_up(gone)
    assert bed.watch.requeued == 1
    assert [failover.is_up(gone) for failover in bed.failovers] == [False, False]


async def test_what_was_sent_is_never_sent_again(bed):
    """Its server is out all the same."""
    ticket = bed.granted(1)
    gone = ticket.backend
    assert not bed.failovers[1].takes_back(ticket, refused(sent_ns=5), again=False)
    ticket.finished(Status.FAILED, None, None)
    bed.settle()
    assert (bed.watch.is_up(gone), bed.watch.requeued) == (False, 0)


async def test_the_last_server_stays_whoever_finds_it_gone(bed):
    """Two workers find one server gone each, before either has heard of the other: one server is left, and both requests
    end, after one more try each."""
    tickets = [bed.granted(0), bed.granted(1)]
    assert {ticket.backend for ticket in tickets} == {"a", "b"}
    for failover, ticket in zip(bed.failovers, tickets, strict=True):
        assert failover.takes_back(ticket, refused(), again=False)
    bed.settle()
    (left,) = [name for name in "ab" if bed.watch.is_up(name)]
    assert {ticket.backend for ticket in tickets} == {left}
    for failover, ticket in zip(bed.failovers, tickets, strict=True):
        assert not failover.takes_back(ticket, refused(), again=True)
        ticket.finished(Status.FAILED, None, None)
    bed.settle()
    assert bed.watch.is_up(left)


async def test_a_server_that_is_back_serves_every_worker_again(bed):
    ticket = bed.granted(0)
    gone = ticket.backend
    bed.failovers[0].takes_back(ticket, refused(), again=False)
    bed.settle()
    bed.queue.set_backend_state(gone, up=True)
    bed._tell(gone, up=True)
    bed.settle()
    assert gone in {bed.granted(i % 2).backend for i in range(6)}
    assert all(failover.is_up(gone) for failover in bed.failovers)
