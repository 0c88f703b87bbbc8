"""The servers behind the gateway: their sockets, their health, what headers they get.

Health is the last word of either a probe (any status below 500 from the health path: up) or a dispatch that was refused.
A probe that times out says "down" only when the one before did, since a busy engine may answer late.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping

import aiohttp
from multidict import CIMultiDict, CIMultiDictProxy

from backends.engine_queue import METRICS_PATH, waiting_of
from backends.gateway.config import ConfigError, GatewayConfig, Resolve, Upstream
from backends.gateway.identity import KEY_HEADERS, TENANT_HEADER
from backends.gateway.relay import Relay
from backends.protocol import BackendError, Clock
from backends.wire.connection import Connection
from backends.wire.dial import Dialer, tls_context
from backends.wire.head import check_header, request_bytes
from backends.wire.options import WireOptions
from backends.wire.pool import Pool
from backends.wire.url import parse_base_url
from scheduler.request import ErrorClass

HOP_BY_HOP = frozenset(
    {
        "connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "proxy-connection", "te", "trailer",
        "transfer-encoding", "upgrade",
    }
)  # fmt: skip
_OURS = frozenset({"host", "content-length", "content-encoding", "expect", TENANT_HEADER})
_TIMEOUTS_BEFORE_DOWN = 2
_GLANCE = aiohttp.ClientTimeout(total=2.0)


class Exchange:
    """A request that is on the wire and the response that comes back; ``close`` frees its socket."""

    __slots__ = ("_connection", "_pool", "connect_ns", "relay", "sent_ns")

    def __init__(self, relay: Relay, connection: Connection, pool: Pool, connect_ns: int) -> None:
        self.relay = relay
        self.connect_ns = connect_ns
        self.sent_ns: int | None = None
        self._connection: Connection | None = connection
        self._pool = pool

    def pause_reading(self) -> None:
        self.relay.paused = True
        if self._connection is not None and self._connection.is_open:
            self._connection.pause_reading()

    def resume_reading(self) -> None:
        self.relay.resumed()
        if self._connection is not None and self._connection.is_open:
            self._connection.resume_reading()

    def close(self) -> None:
        """Give the socket back if the response has ended, else close it, which tells the upstream to stop."""
        connection, self._connection = self._connection, None
        if connection is None:
            return
        self.sent_ns = connection.sent_ns
        reusable = self.relay.reusable and self.relay.done.done() and self.relay.fault is None
        if reusable and connection.is_open:
            connection.resume_reading()
        self.relay.release()
        self._pool.release(connection, reusable=reusable)


class Server:
    """One upstream. ``up`` is what the dispatcher was told last."""

    def __init__(self, config: Upstream, own: Mapping[str, str], wire: WireOptions, clock: Clock) -> None:
        self.config = config
        self.name = config.name
        self.base = parse_base_url(config.url)
        self.up = True
        self.timeouts = 0
        self.set_headers(own)
        self._wire = wire
        self._clock = clock
        self._dialer = Dialer(wire, clock)
        self._pool = Pool(self.base.origin, self._dialer, wire.max_connections)

    def set_headers(self, own: Mapping[str, str]) -> None:
        """What goes upstream in place of the client's headers of these names (in lower case), the key among them."""
        self._own = dict(own)

    def headers(self, client: CIMultiDictProxy[str], tenant: str | None, *, keep_authorization: bool) -> dict[str, str]:
        """What goes upstream of the client's headers: no hop-by-hop ones, and the client's key only if it is not ours
        to judge and there is none of the upstream's own.
        """
        named = {name.strip().lower() for value in client.getall("Connection", ()) for name in value.split(",")}
        dropped = HOP_BY_HOP | _OURS | named | self._own.keys()
        if not keep_authorization or not self._own.keys().isdisjoint(KEY_HEADERS):
            dropped |= KEY_HEADERS
        kept: dict[str, str] = {}
        for name, value in client.items():
            key = name.lower()
            if key not in dropped:
                kept[key] = f"{kept[key]}{'; ' if key == 'cookie' else ', '}{value}" if key in kept else value
        kept |= self._own
        if tenant is not None and TENANT_HEADER not in self._own:
            kept[TENANT_HEADER] = tenant
        return kept

    async def send(
        self, method: str, path: str, headers: Mapping[str, str], body: bytes, connect_timeout_s: float
    ) -> Exchange:
        """Ask, and wait for the head of the answer (or what comes in its place: ``relay.fault``). Raises WireError when
        no connection can be opened, ValueError for a header that HTTP cannot carry.
        """
        data = request_bytes(
            self.base.origin, self.base.target(path), headers, body, self._dialer.proxy(self.base.origin), method
        )
        exchange, reused = await self._send(data, connect_timeout_s, fresh=False)
        fault = exchange.relay.fault
        if reused and fault is not None and fault.error_class is ErrorClass.RESET and not exchange.relay.answered:
            # A kept socket that the server had closed meanwhile: it never began to answer this request.
            exchange.close()
            exchange, _ = await self._send(data, connect_timeout_s, fresh=True)
        return exchange

    async def _send(self, data: bytes, connect_timeout_s: float, *, fresh: bool) -> tuple[Exchange, bool]:
        connection, connect_ns = await self._pool.acquire(fresh=fresh, limit_s=connect_timeout_s)
        relay = Relay(self._wire, self._clock, asyncio.get_running_loop())
        exchange = Exchange(relay, connection, self._pool, connect_ns or 0)
        try:
            connection.send(data, relay)
            await relay.head
        except BaseException:
            exchange.close()
            raise
        return exchange, connect_ns is None

    async def close(self) -> None:
        await self._pool.close()


def upstream_headers(config: GatewayConfig, resolve: Resolve) -> dict[str, dict[str, str]]:
    """Each upstream's own headers by their names in lower case, its key among them. Raises ConfigError for one that cannot be
    sent, and what ``resolve`` raises.
    """
    found: dict[str, dict[str, str]] = {}
    for upstream in config.upstreams:
        own = {} if upstream.api_key is None else {"authorization": f"Bearer {resolve(upstream.api_key)}"}
        for name, value in upstream.headers.items():
            own[name.lower()] = resolve(value)
        for name, value in own.items():
            try:
                check_header(name, value)
            except ValueError as error:
                raise ConfigError(f"upstream {upstream.name!r}: {error}") from error
        found[upstream.name] = own
    return found


class Upstreams:
    """All of them. ``on_state(name, up)`` is called when one goes down or comes up."""

    def __init__(
        self, config: GatewayConfig, resolve: Resolve, clock: Clock, on_state: Callable[[str, bool], None]
    ) -> None:
        self._config = config
        self._on_state = on_state
        own = upstream_headers(config, resolve)
        self._servers = {
            upstream.name: Server(upstream, own[upstream.name], config.wire, clock) for upstream in config.upstreams
        }
        secure = any(server.base.origin.scheme == "https" for server in self._servers.values())
        tls = tls_context(insecure=config.wire.insecure, ca_file=config.wire.ca_file) if secure else True
        self.session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(ssl=tls, limit=0),
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            skip_auto_headers=("Accept", "Accept-Encoding", "Content-Type", "User-Agent"),
            timeout=aiohttp.ClientTimeout(total=None),
        )
        self._prober: asyncio.Task[None] | None = None

    def __getitem__(self, name: str) -> Server:
        return self._servers[name]

    def __iter__(self) -> Iterator[Server]:
        return iter(self._servers.values())

    def set_headers(self, own: Mapping[str, Mapping[str, str]]) -> None:
        """Keys and headers that were read anew, by upstream."""
        for name, headers in own.items():
            self._servers[name].set_headers(headers)

    def any_up(self, *, but: Server | None = None) -> bool:
        return any(server.up for server in self._servers.values() if server is not but)

    def first_up(self) -> Server | None:
        return next((server for server in self._servers.values() if server.up), None)

    def states(self) -> dict[str, bool]:
        return {name: server.up for name, server in self._servers.items()}

    async def waiting(self, name: str) -> int:
        """Requests in an upstream's own queue. Raises BackendError."""
        server = self._servers[name]
        headers = server.headers(CIMultiDictProxy(CIMultiDict()), None, keep_authorization=False)
        url = f"{server.base}{METRICS_PATH}"
        try:
            async with self.session.get(url, headers=headers, timeout=_GLANCE, allow_redirects=False) as response:
                return waiting_of(response.status, await response.read(), str(server.base))
        except (aiohttp.ClientError, OSError) as error:
            raise BackendError(f"{url} did not answer ({type(error).__name__})") from error

    async def start(self) -> None:
        """One round of probes, then one each interval."""
        await self._probe_all()
        self._prober = asyncio.create_task(self._keep_probing())

    async def close(self) -> None:
        if self._prober is not None:
            self._prober.cancel()
            await asyncio.gather(self._prober, return_exceptions=True)
        await self.session.close()
        for server in self._servers.values():
            await server.close()

    def refused(self, server: Server) -> None:
        """A dispatch could not connect: down until a probe says otherwise."""
        self._set(server, up=False)

    def _set(self, server: Server, *, up: bool) -> None:
        if server.up != up:
            server.up = up
            self._on_state(server.name, up)

    async def _keep_probing(self) -> None:
        while True:
            await asyncio.sleep(self._config.probe_interval_s)
            await self._probe_all()

    async def _probe_all(self) -> None:
        await asyncio.gather(*(self._probe(server) for server in self._servers.values()))

    async def _probe(self, server: Server) -> None:
        timeout = aiohttp.ClientTimeout(total=max(1.0, self._config.probe_interval_s))
        headers = server.headers(CIMultiDictProxy(CIMultiDict()), None, keep_authorization=False)
        url = f"{server.base}{server.config.health_path}"
        try:
            async with self.session.get(url, headers=headers, timeout=timeout, allow_redirects=False) as response:
                up = response.status < 500
        except TimeoutError:
            server.timeouts += 1
            if server.timeouts >= _TIMEOUTS_BEFORE_DOWN:
                self._set(server, up=False)
            return
        except (aiohttp.ClientError, OSError):
            up = False
        server.timeouts = 0
        self._set(server, up=up)
