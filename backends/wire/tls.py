"""TLS over a stream socket: OpenSSL between two buffers in memory, so that receipt keeps the socket's own stamps."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable

from backends.wire.stream_socket import Sink, StreamSocket

_READ_MOST = 256 << 10


class Tls:
    """The client's end. ``await handshake()`` first; it raises OSError (ssl.SSLError among them) when it fails, and then
    the socket is closed."""

    def __init__(self, socket: StreamSocket, context: ssl.SSLContext, server_hostname: str) -> None:
        self._socket = socket
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._ssl = context.wrap_bio(self._incoming, self._outgoing, server_hostname=server_hostname)
        self._shaken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._sink: Sink | None = None
        self.deliver: Callable[[bytes, int], None]
        self._over = False
        self._lost: OSError | None = None
        self._arrived_ns = 0

    @property
    def unsent(self) -> int:
        return self._socket.unsent

    async def handshake(self) -> None:
        self._socket.start(self)
        self._shake()
        try:
            await self._shaken
        except asyncio.CancelledError:
            self.abort()
            raise
        if self._over:  # lost between the end of the handshake and this task's turn: nobody else was there to be told
            raise self._lost or ConnectionAbortedError("closed at the end of the handshake")

    def start(self, sink: Sink) -> None:
        """``sink`` takes what is decrypted from now on."""
        self._sink = sink
        self.deliver = sink.received
        # What came with the end of the handshake waits undecrypted until somebody is there to take it.
        asyncio.get_running_loop().call_soon(self._decrypt_waiting)

    def write(self, data: bytes) -> None:
        if self._over:
            return
        try:
            self._ssl.write(data)
        except OSError as exc:
            self._fail(exc)
            return
        self._flush()

    def abort(self) -> None:
        self._over = True
        self._socket.abort()

    def pause_reading(self) -> None:
        self._socket.pause_reading()

    def resume_reading(self) -> None:
        self._socket.resume_reading()

    # What the socket calls.

    def received(self, data: bytes, arrived_ns: int) -> None:
        if self._over:
            return
        self._incoming.write(data)
        self._arrived_ns = arrived_ns
        if not self._shaken.done():
            self._shake()
        if self._sink is not None:
            self._decrypt(arrived_ns)

    def _decrypt_waiting(self) -> None:
        try:
            self._decrypt(self._arrived_ns)
        except BaseException:
            self.abort()  # as the socket does where bytes come from it
            raise

    def _decrypt(self, arrived_ns: int) -> None:
        while not self._over:
            text = self._read()
            if text is None:
                return
            self.deliver(text, arrived_ns)

    def _read(self) -> bytes | None:
        """What can be decrypted now; None when there is no more, or the connection ended."""
        try:
            text = self._ssl.read(_READ_MOST)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            self._flush()
        except (ssl.SSLZeroReturnError, ssl.SSLEOFError):
            self._closed_by_peer()
        except OSError as exc:
            self._fail(exc)
        else:
            if text:
                return text
            self._closed_by_peer()
        return None

    def ended(self) -> None:
        """The socket's end without TLS's own closing message: servers do that; HTTP tells whether anything is missing."""
        if not self._over and self._sink is not None:
            self._over = True
            self._sink.ended()

    def drained(self) -> None:
        if self._sink is not None:
            self._sink.drained()

    def lost(self, exc: OSError | None) -> None:
        self._over = True
        self._lost = exc
        if not self._shaken.done():
            self._shaken.set_exception(exc or ConnectionAbortedError("closed during the handshake"))
        if self._sink is not None:
            self._sink.lost(exc)

    def _shake(self) -> None:
        try:
            self._ssl.do_handshake()
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            self._flush()
        except OSError as exc:
            self._flush()  # the alert that tells the server why
            self._shaken.set_exception(exc)
            self.abort()
        else:
            self._flush()
            self._shaken.set_result(None)

    def _closed_by_peer(self) -> None:
        self.ended()
        self._socket.abort()

    def _fail(self, exc: OSError) -> None:
        """Broken TLS: the sink hears of it, and the socket goes."""
        self._over = True
        sink, self._sink = self._sink, None
        self._socket.abort()
        if sink is not None:
            asyncio.get_running_loop().call_soon(sink.lost, exc)

    def _flush(self) -> None:
        if self._outgoing.pending:
            self._socket.write(self._outgoing.read())
