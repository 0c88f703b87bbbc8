"""From an origin to an open connection: names, addresses, proxy, TLS, all within one time-out."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import ssl
from collections.abc import Callable, Coroutine
from typing import Any

from backends.protocol import Clock
from backends.wire.connection import Connection
from backends.wire.faults import WireError, fault_of
from backends.wire.options import WireOptions
from backends.wire.proxy import Proxy, TunnelReply, connect_head, proxy_for
from backends.wire.stream_socket import ReceiptClock, StreamSocket
from backends.wire.tls import Tls
from backends.wire.url import Origin
from scheduler.request import ErrorClass

Lookup = Callable[[str, int], Coroutine[Any, Any, list[str]]]
"""``lookup(host, port)``: addresses, best first; raises OSError or UnicodeError."""


async def system_lookup(host: str, port: int) -> list[str]:
    """What the system's resolver says, without repeats."""
    infos = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(info[4][0]) for info in infos))


class Dialer:
    """Opens connections. A name is looked up once for a whole burst of new sockets, which would otherwise queue behind
    the resolver's threads; its addresses are remembered, the one that worked last first, until none of them works.
    """

    def __init__(self, options: WireOptions, clock: Clock, lookup: Lookup = system_lookup) -> None:
        self._options = options
        self._clock = clock
        self._receipt = ReceiptClock(clock)
        self._lookup = lookup
        self._lookups: dict[tuple[str, int], asyncio.Task[list[str]]] = {}
        self._best: dict[tuple[str, int], str] = {}
        self._proxies: dict[Origin, Proxy | None] = {}
        self._context: ssl.SSLContext | None = None

    def proxy(self, origin: Origin) -> Proxy | None:
        if origin not in self._proxies:
            self._proxies[origin] = proxy_for(origin, self._options.proxy)
        return self._proxies[origin]

    async def open(
        self, origin: Origin, on_lost: Callable[[Connection], None], limit_s: float | None = None
    ) -> tuple[Connection, int]:
        """A connection to ``origin`` and the ns that it took; ``limit_s`` in place of the options' ``connect_timeout_s``.
        Raises WireError: dns, refused, tls, connect_timeout, reset.
        """
        start_ns = self._clock()
        limit_s = self._options.connect_timeout_s if limit_s is None else limit_s
        connection: Connection | None = None
        try:
            async with asyncio.timeout(limit_s):
                proxy = self.proxy(origin)
                first = proxy.origin if proxy is not None else origin
                link = await self._tcp(first, limit_s)
                connection = Connection(link, self._clock, on_lost)
                if origin.scheme == "https":
                    if proxy is not None:
                        await self._tunnel(connection, origin, proxy)
                    connection.upgrade(await self._tls_over(link, origin))
        except TimeoutError as exc:
            if connection is not None:
                connection.abort()
            detail = f"connecting to {origin} took more than {limit_s:g} s"
            raise WireError(ErrorClass.CONNECT_TIMEOUT, detail) from exc
        except BaseException:
            if connection is not None:
                connection.abort()
            raise
        return connection, self._clock() - start_ns

    async def _tcp(self, origin: Origin, limit_s: float) -> StreamSocket:
        key = (origin.host, origin.port)
        addresses = await self._addresses(origin)
        share_s = limit_s / max(1, len(addresses))
        fault = WireError(ErrorClass.DNS, f"cannot resolve {origin}: no address")
        for left, address in zip(range(len(addresses) - 1, -1, -1), addresses, strict=True):
            try:
                # A dead address (an IPv6 route that leads nowhere) must leave time for the others.
                async with asyncio.timeout(share_s if left else None):
                    link = await StreamSocket.connect(
                        address,
                        origin.port,
                        self._clock,
                        system_stamps=self._options.system_stamps,
                        receipt=self._receipt,
                    )
            except OSError as exc:
                fault = fault_of(exc, str(origin))
            else:
                self._best[key] = address
                return link
        self._lookups.pop(key, None)
        raise fault

    async def _addresses(self, origin: Origin) -> list[str]:
        try:
            ipaddress.ip_address(origin.host)
        except ValueError:
            pass
        else:
            return [origin.host]
        key = (origin.host, origin.port)
        lookup = self._lookups.get(key)
        if lookup is None:
            lookup = self._lookups[key] = asyncio.create_task(self._lookup(*key))
            # If every call that waits is cancelled, nobody is left to be told of a failure.
            lookup.add_done_callback(lambda task: task.cancelled() or task.exception())
        try:
            found = await asyncio.shield(lookup)  # cancelling one call must not end the lookup of the others
        except OSError as exc:
            self._lookups.pop(key, None)
            raise fault_of(exc, str(origin)) from exc
        except UnicodeError as exc:
            self._lookups.pop(key, None)
            raise WireError(ErrorClass.DNS, f"cannot resolve {origin}: not a valid host name") from exc
        best = self._best.get(key)
        return sorted(found, key=lambda address: address != best)

    async def _tunnel(self, connection: Connection, origin: Origin, proxy: Proxy) -> None:
        reply = TunnelReply(proxy, asyncio.get_running_loop())
        connection.send(connect_head(origin, proxy), reply)
        await reply.done
        connection.detach()

    async def _tls_over(self, link: StreamSocket, origin: Origin) -> Tls:
        tls = Tls(link, self._tls_context(), origin.host)
        try:
            await tls.handshake()
        except ssl.SSLError as exc:
            raise fault_of(exc, str(origin)) from exc
        except OSError as exc:
            detail = f"TLS with {origin}: the server closed the connection during the handshake"
            raise WireError(ErrorClass.TLS, detail) from exc
        return tls

    def _tls_context(self) -> ssl.SSLContext:
        if self._context is None:
            self._context = tls_context(insecure=self._options.insecure, ca_file=self._options.ca_file)
        return self._context


def tls_context(*, insecure: bool, ca_file: str | None) -> ssl.SSLContext:
    """Verifies against the system's authorities and ``ca_file``; ``insecure`` accepts any certificate."""
    context = ssl.create_default_context()
    context.set_alpn_protocols(["http/1.1"])
    if ca_file is not None:
        context.load_verify_locations(ca_file)
    if insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context
