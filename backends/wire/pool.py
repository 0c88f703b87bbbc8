"""The sockets of one origin: kept alive, reused last in first out, as many as are needed unless a limit is told.

Last in first out keeps the working set small, so sockets that are no longer needed go idle and the server may close
them. A limit is exact: idle ones and those in use never exceed it, and who waits for one is served in order.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass

from backends.wire.connection import Connection
from backends.wire.dial import Dialer
from backends.wire.url import Origin

_DIALS_AT_ONCE = 64


@dataclass(slots=True)
class PoolStats:
    """``resent``: requests repeated on a new socket because a kept one turned out to be closed by the server."""

    opened: int = 0
    reused: int = 0
    resent: int = 0

    def __add__(self, other: PoolStats) -> PoolStats:
        return PoolStats(self.opened + other.opened, self.reused + other.reused, self.resent + other.resent)


class Pool:
    """Leases connections: every ``acquire`` is followed by one ``release``."""

    def __init__(self, origin: Origin, dialer: Dialer, limit: int | None) -> None:
        self._origin = origin
        self._dialer = dialer
        self._limit = limit
        self._idle: list[Connection] = []
        self._open: set[Connection] = set()
        self._leased = 0
        self._waiters: deque[asyncio.Future[Connection | None]] = deque()
        self.stats = PoolStats()

    @property
    def open_connections(self) -> int:
        return len(self._open)

    async def acquire(self, *, fresh: bool = False, limit_s: float | None = None) -> tuple[Connection, int | None]:
        """A connection and the ns spent connecting, None for a reused one. ``fresh`` insists on a new socket, which ``limit_s``
        is for (None: the dialer's own). Raises WireError.
        """
        if not fresh:
            connection = self._pop_idle()
            if connection is not None:
                self._leased += 1
                return self._reuse(connection)
        if self._limit is not None and self._leased >= self._limit:
            handed = await self._wait()
            if handed is not None and handed.is_open:
                return self._reuse(handed)
        else:
            self._leased += 1
        if self._limit is not None and self._idle and self._leased + len(self._idle) > self._limit:
            self._idle.pop().abort()
        try:
            return await self._dial(limit_s)
        except BaseException:
            self._free_lease(None)
            raise

    def release(self, connection: Connection, *, reusable: bool) -> None:
        """Give a leased connection back; one that is not ``reusable`` is closed."""
        connection.detach()
        if reusable and connection.is_open:
            self._free_lease(connection)
        else:
            connection.abort()
            self._free_lease(None)

    async def warm_up(self, count: int) -> None:
        """Open sockets until ``count`` are idle (the limit permitting). Raises WireError if one cannot be opened."""
        if self._limit is not None:
            count = min(count, self._limit - self._leased)
        gate = asyncio.Semaphore(_DIALS_AT_ONCE)  # a larger burst overflows a server's accept backlog: 1 s retries

        async def open_one() -> None:
            async with gate:
                connection, _ = await self._dial()
            self._idle.append(connection)

        results = await asyncio.gather(*(open_one() for _ in range(count - len(self._idle))), return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException):
                raise result

    async def close(self) -> None:
        """Close every socket, also those in use."""
        connections = list(self._open)
        for connection in connections:
            connection.abort()
        for connection in connections:
            await connection.wait_closed()

    def _pop_idle(self) -> Connection | None:
        while self._idle:
            connection = self._idle.pop()
            if connection.is_open:
                return connection
        return None

    def _reuse(self, connection: Connection) -> tuple[Connection, None]:
        self.stats.reused += 1
        return connection, None

    async def _dial(self, limit_s: float | None = None) -> tuple[Connection, int]:
        connection, took_ns = await self._dialer.open(self._origin, self._lost, limit_s)
        if connection.is_open:
            self._open.add(connection)
        self.stats.opened += 1
        return connection, took_ns

    async def _wait(self) -> Connection | None:
        """Wait for a lease; it comes with a connection, or with None and the right to open one."""
        waiter: asyncio.Future[Connection | None] = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        try:
            return await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled():
                self._free_lease(waiter.result())
            raise

    def _free_lease(self, connection: Connection | None) -> None:
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(connection)
                return
        self._leased -= 1
        if connection is not None:
            self._idle.append(connection)

    def _lost(self, connection: Connection) -> None:
        self._open.discard(connection)
        if connection in self._idle:
            self._idle.remove(connection)
