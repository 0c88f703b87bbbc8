"""The sockets that clients connect to, and those of clients that never ask.

A framework has a limit on the wait between two requests of a connection, and none on the wait for its first: a client that
sends nothing, or half a head, would keep a socket for ever. What a client leaves unread after its answer was handed to the
kernel is limited by the kernel, where it can be (``TCP_USER_TIMEOUT``).
"""

from __future__ import annotations

import asyncio
import socket

from aiohttp import web
from aiohttp.web_protocol import RequestHandler

_BACKLOG = 4096
_CHECKS = 4
"""How often in a stall limit the newcomers are looked at."""


class Listener:
    """``start`` once; ``asked`` for every request; ``close`` takes no more connections. ``port``: the one that was bound."""

    def __init__(self, stall_s: float) -> None:
        self.port = 0
        self._stall_s = stall_s
        self._newcomers: dict[RequestHandler, float] = {}
        self._server: asyncio.Server | None = None
        self._watch: asyncio.Task[None] | None = None

    async def start(self, handlers: web.Server, host: str, port: int) -> None:
        """Raises OSError when the address cannot be bound."""
        loop = asyncio.get_running_loop()

        def connect() -> RequestHandler:
            handler = handlers()
            self._newcomers[handler] = loop.time() + self._stall_s
            return handler

        self._server = await loop.create_server(connect, host, port, backlog=_BACKLOG, start_serving=False)
        for listening in self._server.sockets:
            if hasattr(socket, "TCP_USER_TIMEOUT"):  # Linux; accepted sockets inherit it
                listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, self._kernel_ms())
        await self._server.start_serving()
        self.port = int(self._server.sockets[0].getsockname()[1])
        self._watch = loop.create_task(self._keep_watching())

    def asked(self, handler: RequestHandler) -> None:
        """A request came on this connection: it is none of the newcomers any more."""
        self._newcomers.pop(handler, None)

    def close(self) -> None:
        if self._server is not None:
            self._server.close()
        if self._watch is not None:
            self._watch.cancel()

    def _kernel_ms(self) -> int:
        """Twice the limit: while a request is at work the gateway itself is to be the first, since it can say why."""
        return min(max(1, round(2000 * self._stall_s)), 2**31 - 1)

    async def _keep_watching(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(self._stall_s / _CHECKS)
            for handler in [h for h, until_s in self._newcomers.items() if until_s <= loop.time()]:
                del self._newcomers[handler]
                if handler.transport is not None:
                    handler.transport.abort()
