"""One connection to a server, which carries one request at a time.

Two stamps come from here. Receipt: when the bytes arrived, as the link says (:mod:`backends.wire.stream_socket`), once
for all that one read holds, and never before the request was sent. ``sent_ns``: when the system took the last byte of
the request: mostly right after the write, else when what had to wait has drained.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from backends.protocol import Clock
from backends.wire.stream_socket import Delivers, Link


class Receiver(Protocol):
    """Who takes what comes in on a connection."""

    def sent(self, link: Delivers) -> None:
        """The request is with the system; until it is detached the receiver may have ``link`` deliver past the connection."""

    def feed(self, data: bytes, now_ns: int) -> None: ...

    def eof(self, now_ns: int) -> None: ...

    def lost(self, exc: Exception | None) -> None: ...


class Connection:
    """``on_lost`` is called once, when the link is gone, whoever closed it."""

    __slots__ = ("_clock", "_closed", "_link", "_on_lost", "_receiver", "is_open", "sent_ns")

    def __init__(self, link: Link, clock: Clock, on_lost: Callable[[Connection], None]) -> None:
        self._clock = clock
        self._on_lost = on_lost
        self._receiver: Receiver | None = None
        self._closed = asyncio.get_running_loop().create_future()
        self.is_open = True
        self.sent_ns: int | None = None
        self._link = link
        link.start(self)

    def upgrade(self, link: Link) -> None:
        """``link`` (TLS) now runs over the one that was used so far, and takes what it says."""
        self._link = link
        link.start(self)

    def send(self, data: bytes, receiver: Receiver) -> None:
        """Write a request; all that comes back goes to ``receiver`` until :meth:`detach`."""
        self._receiver = receiver
        self.sent_ns = None
        if not self.is_open:
            receiver.lost(None)
            return
        self._link.write(data)
        if not self._link.unsent:
            self._sent(receiver)

    def _sent(self, receiver: Receiver) -> None:
        self.sent_ns = self._clock()
        receiver.sent(self._link)

    def detach(self) -> None:
        """The exchange is over; whatever comes now was not asked for."""
        self._receiver = None
        self._link.deliver = self.received

    def abort(self) -> None:
        """Close at once, without sending what is buffered."""
        self.is_open = False
        self._link.abort()

    def pause_reading(self) -> None:
        """Leave what comes with the system, which makes the server wait once its buffers are full."""
        self._link.pause_reading()

    def resume_reading(self) -> None:
        self._link.resume_reading()

    async def wait_closed(self) -> None:
        await asyncio.shield(self._closed)  # one who gives up waiting must not undo it for the others

    # What the link calls.

    def received(self, data: bytes, arrived_ns: int) -> None:
        receiver = self._receiver
        if receiver is None:
            self.abort()
            return
        sent_ns = self.sent_ns
        # A process that was put aside between sending and reading the clock stamps the sending late.
        receiver.feed(data, arrived_ns if sent_ns is None or arrived_ns > sent_ns else sent_ns)

    def drained(self) -> None:
        if self.sent_ns is None and self._receiver is not None:
            self._sent(self._receiver)

    def ended(self) -> None:
        self.is_open = False
        if self._receiver is not None:
            self._receiver.eof(self._clock())

    def lost(self, exc: OSError | None) -> None:
        self.is_open = False
        receiver, self._receiver = self._receiver, None
        if receiver is not None:
            receiver.lost(exc)
        self._closed.set_result(None)
        self._on_lost(self)
