"""One socket to a server: an ``asyncio.Protocol`` that carries one request at a time.

Two stamps are taken here. Receipt: the clock is read first thing in ``data_received``, once for all that the segment
holds. ``sent_ns``: when the last byte of the request was handed to the socket, that is when nothing is left in the
transport's buffer: mostly right after the write, else when the transport has drained. The transport's high-water mark
is 0 so that it says when (and so that uvloop writes at once rather than at the end of the loop's turn).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol, cast

from backends.protocol import Clock

_TLS_POLL_S = 0.001


class Receiver(Protocol):
    """Who takes what comes in on a connection."""

    def feed(self, data: bytes, now_ns: int) -> None: ...

    def eof(self, now_ns: int) -> None: ...

    def lost(self, exc: Exception | None) -> None: ...


class Connection(asyncio.Protocol):
    """``on_lost`` is called once, when the socket is gone, whoever closed it."""

    __slots__ = ("_clock", "_closed", "_on_lost", "_raw", "_receiver", "_transport", "is_open", "sent_ns")

    _transport: asyncio.Transport
    _raw: asyncio.Transport

    def __init__(self, clock: Clock, on_lost: Callable[[Connection], None]) -> None:
        self._clock = clock
        self._on_lost = on_lost
        self._receiver: Receiver | None = None
        self._closed = asyncio.get_running_loop().create_future()
        self.is_open = False
        self.sent_ns: int | None = None

    @property
    def transport(self) -> asyncio.Transport:
        return self._transport

    def upgraded(self, transport: asyncio.Transport) -> None:
        """TLS now runs over the raw transport, whose buffer still tells what the socket has not taken."""
        self._transport = transport

    def send(self, data: bytes, receiver: Receiver) -> None:
        """Write a request; all that comes back goes to ``receiver`` until :meth:`detach`."""
        self._receiver = receiver
        self.sent_ns = None
        if not self.is_open or self._transport.is_closing():
            receiver.lost(None)
            return
        self._transport.write(data)
        self._stamp_sent()

    def detach(self) -> None:
        """The exchange is over; whatever comes now was not asked for."""
        self._receiver = None

    def abort(self) -> None:
        """Close at once, without sending what is buffered."""
        self.is_open = False
        self._transport.abort()

    async def wait_closed(self) -> None:
        await self._closed

    def _stamp_sent(self) -> None:
        if self.sent_ns is not None or self._receiver is None or not self.is_open:
            return
        raw = self._raw
        left = raw.get_write_buffer_size()
        if raw is not self._transport:
            left += self._transport.get_write_buffer_size()
        if left == 0:
            self.sent_ns = self._clock()
        elif raw is not self._transport:
            # Under TLS the raw transport's drain is told to the TLS layer, not to us.
            asyncio.get_running_loop().call_later(_TLS_POLL_S, self._stamp_sent)

    # What the event loop calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = self._raw = cast("asyncio.Transport", transport)
        self._raw.set_write_buffer_limits(high=0)
        self.is_open = True

    def data_received(self, data: bytes) -> None:
        now_ns = self._clock()
        receiver = self._receiver
        if receiver is None:
            self.abort()
        else:
            receiver.feed(data, now_ns)

    def eof_received(self) -> bool:
        self.is_open = False
        if self._receiver is not None:
            self._receiver.eof(self._clock())
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_open = False
        receiver, self._receiver = self._receiver, None
        if receiver is not None:
            receiver.lost(exc)
        self._closed.set_result(None)
        self._on_lost(self)

    def resume_writing(self) -> None:
        self._stamp_sent()
