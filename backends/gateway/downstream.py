"""The client's end of a stream: bytes written straight to its socket, and a client that does not read held to account.

The head goes through aiohttp; the body is written to the transport in HTTP chunks, since a framework's write for each
token costs several times the token. When the transport's buffer is full the source is paused until it has drained, so
what is held for a slow client is bounded; one that does not read for ``stall_s`` is cut off.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from aiohttp import HttpVersion11, web
from aiohttp.web_protocol import RequestHandler
from multidict import CIMultiDict

from backends.gateway.relay import Pausable, Relay
from backends.gateway.upstreams import HOP_BY_HOP


def close(transport: asyncio.WriteTransport, stall_s: float) -> None:
    """Close it once the client has read what was written, at the latest after ``stall_s``."""
    transport.close()
    asyncio.get_running_loop().call_later(stall_s, transport.abort)


def client_headers(relay: Relay, without: tuple[str, ...] = ()) -> CIMultiDict[str]:
    """The upstream's headers as the client gets them."""
    dropped = HOP_BY_HOP | {"content-length", *without}
    kept: CIMultiDict[str] = CIMultiDict()
    for raw_name, value in relay.headers:
        name = raw_name.decode("latin-1")
        if name not in dropped:
            kept.add(name, value.decode("latin-1"))
    return kept


class ClientStalled(ConnectionResetError):  # noqa: N818 (what the client did, as the other ConnectionErrors)
    """A client left its answer unread for too long and was cut off."""


@asynccontextmanager
async def reading(request: web.Request, stall_s: float) -> AsyncIterator[None]:
    """Around writes to a client: one that does not read them for ``stall_s`` is cut off. Raises ClientStalled."""
    try:
        async with asyncio.timeout(stall_s):
            yield
    except TimeoutError as error:
        if request.transport is not None:
            request.transport.abort()
        raise ClientStalled("the client does not read its answer") from error


async def drained(request: web.Request) -> None:
    """Until the client has read what was written to it, but for a buffer's size."""
    await request.protocol._drain_helper()  # noqa: SLF001 (aiohttp has no public wait for a transport to drain)


async def give(request: web.Request, response: web.Response, stall_s: float) -> web.Response:
    """Send a whole answer. Raises ClientStalled."""
    async with reading(request, stall_s):
        await response.prepare(request)
        await response.write_eof()
        await drained(request)
    return response


class Downstream:
    """One response. ``on_stall`` is called before a client that does not read is cut off, which cancels its handler."""

    def __init__(self, request: web.Request, stall_s: float, on_stall: Callable[[], None]) -> None:
        transport = request.transport
        if transport is None:
            raise ConnectionResetError("the client left before its answer began")
        self._request = request
        self._transport: asyncio.Transport = transport
        self._protocol: RequestHandler = request.protocol
        self._stall_s = stall_s
        self._on_stall = on_stall
        self._source: Pausable | None = None
        self._draining: asyncio.Task[None] | None = None
        self._framed = request.version >= HttpVersion11
        self.response: web.StreamResponse | None = None

    async def begin(self, status: int, headers: CIMultiDict[str], source: Pausable) -> None:
        """Send the head. HTTP/1.0 knows no chunks: there the end of the connection ends the body."""
        self._source = source
        self.response = web.StreamResponse(status=status, headers=headers)
        if self._framed:
            self.response.enable_chunked_encoding()
        else:
            self.response.force_close()
        await self.response.prepare(self._request)

    def write(self, data: bytes) -> None:
        transport = self._transport
        if transport.is_closing():
            return  # the handler learns of it as a cancellation
        transport.write(b"%x\r\n%b\r\n" % (len(data), data) if self._framed else data)
        if self._protocol.writing_paused and self._draining is None and self._source is not None:
            self._source.pause_reading()
            self._draining = asyncio.get_running_loop().create_task(self._drain(self._source))

    async def finish(self) -> None:
        """The end of the body."""
        if self._draining is not None:
            await self._draining
        if self.response is None:
            return
        try:
            async with asyncio.timeout(self._stall_s):
                await self.response.write_eof()
        except TimeoutError:
            self._on_stall()
            self._transport.abort()

    def cut(self) -> None:
        """End it so that the client notices: no closing chunk, the connection closed (also for one that never reads)."""
        if self._draining is not None:
            self._draining.cancel()
        close(self._transport, self._stall_s)

    async def _drain(self, source: Pausable) -> None:
        try:
            async with asyncio.timeout(self._stall_s):
                await self._protocol._drain_helper()  # noqa: SLF001 (aiohttp has no public wait for a transport to drain)
        except TimeoutError:
            self._on_stall()
            self._transport.abort()
            return
        except ConnectionError:
            return
        finally:
            self._draining = None
        source.resume_reading()
