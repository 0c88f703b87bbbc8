"""Rules of the link: every message arrives once, in order, in batches of a turn, however the bytes are cut."""

from __future__ import annotations

import asyncio
import socket
from itertools import pairwise

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from loadgen.workers.link import Link
from loadgen.workers.messages import FromParent, FromWorker, Granted, Ready, Refused, Standing, Stop
from scheduler.events import Arrived, Cancelled, DispatchFailed, Finished, FirstToken, Progress, RejectReason
from scheduler.request import Request, Status

MESSAGES = [
    Ready(),
    Standing(1, 2, 3, 4),
    Arrived(5, Request(id=7, tenant="büro", arrival_ns=3, prompt_tokens=9, prefix_blocks=(2**63 - 1,), ttl_ns=8)),
    FirstToken(6, 7),
    Progress(7, ((7, 3), (8, 1))),
    Finished(8, 7, Status.OK, 9, 4, 3),
    Cancelled(9, 8),
    DispatchFailed(10, 8, retryable=True),
]


class _Wire:
    """A transport that keeps what is written."""

    def __init__(self) -> None:
        self.writes: list[bytes] = []

    def set_write_buffer_limits(self, high: int) -> None:
        pass

    def write(self, data: bytes) -> None:
        self.writes.append(data)


@settings(max_examples=50, deadline=None)
@given(cuts=st.lists(st.integers(1, 400), max_size=12), batches=st.lists(st.integers(1, 8), min_size=1, max_size=6))
def test_messages_survive_any_cut_of_the_bytes(cuts, batches):
    async def main():
        sender = Link(FromWorker, print, print)
        sender.connection_made(_Wire())
        sent = []
        for size in batches:
            for message in MESSAGES[:size]:
                sender.send(message)
                sent.append(message)
            sender.flush()
        data = b"".join(sender._transport.writes)
        assert len(sender._transport.writes) == len(batches)
        received = []
        receiver = Link(FromWorker, received.extend, print)
        edges = sorted({0, len(data), *(c for c in cuts if c < len(data))})
        for start, end in pairwise(edges):
            receiver.data_received(data[start:end])
        assert received == sent

    asyncio.run(main())


async def test_what_is_sent_in_one_turn_is_one_batch_and_the_end_is_told_once():
    ours, theirs = socket.socketpair()
    batches, ends = [], []
    other = await Link.over(theirs, FromParent, batches.append, lambda: ends.append("other"))
    link = await Link.over(ours, FromWorker, print, lambda: ends.append("link"))
    link.send(Stop())
    link.send(Granted(1, "server", 3, 2**62))
    link.send(Refused(3, RejectReason.TTL, None, 4))
    await asyncio.sleep(0)
    link.send(Stop())
    link.close()
    await asyncio.gather(link.closed, other.closed)
    assert [message for batch in batches for message in batch] == [
        Stop(),
        Granted(1, "server", 3, 2**62),
        Refused(3, RejectReason.TTL, None, 4),
        Stop(),
    ]
    assert sorted(ends) == ["link", "other"]
    link.send(Stop())
    link.flush()


def test_a_batch_is_a_length_and_a_msgpack_list():
    """So that anything can read what goes over the socket."""

    async def main():
        link = Link(FromWorker, print, print)
        link.connection_made(_Wire())
        link.send(Standing(1, 2, 3, 4))
        link.flush()
        return link._transport.writes

    (data,) = asyncio.run(main())
    assert int.from_bytes(data[:4], "big") == len(data) - 4
    assert msgspec.msgpack.decode(data[4:]) == [
        {"type": "standing", "done": 1, "queued": 2, "in_flight": 3, "failed": 4}
    ]
