"""The wire client: calls in, results out, over pools of kept-alive sockets."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

from backends.protocol import Call, Clock, OnTokens, WireResult
from backends.wire.answer import AnswerFactory, OpenAiAnswer
from backends.wire.dial import Dialer
from backends.wire.exchange import Exchange
from backends.wire.options import WireOptions
from backends.wire.pool import Pool, PoolStats
from backends.wire.url import BaseUrl, Origin, parse_base_url


class WireClient:
    """``base_url`` serves every call that names none of its own. ``answer`` makes the reader of one stream: another
    dialect of streaming brings another. ValueError for a base URL or proxy that cannot be used.
    """

    def __init__(
        self,
        base_url: str,
        *,
        clock: Clock,
        options: WireOptions | None = None,
        answer: AnswerFactory = OpenAiAnswer,
    ) -> None:
        self._base = parse_base_url(base_url)
        self._clock = clock
        self._options = options or WireOptions()
        self._answer = answer
        self._dialer = Dialer(self._options, clock)
        self._dialer.proxy(self._base.origin)
        self._bases: dict[str, BaseUrl] = {}
        self._pools: dict[Origin, Pool] = {}

    @property
    def base_url(self) -> BaseUrl:
        return self._base

    @property
    def stats(self) -> PoolStats:
        """Sockets opened and reused so far, over all origins."""
        return sum((pool.stats for pool in self._pools.values()), PoolStats())

    @property
    def open_connections(self) -> int:
        return sum(pool.open_connections for pool in self._pools.values())

    def generate(self, call: Call, on_tokens: OnTokens, *, each: bool = True) -> Coroutine[Any, Any, WireResult]:
        """Run one call; see :class:`backends.protocol.ModelBackend`. ValueError for a base URL of the call that
        cannot be used.
        """
        base = self._base if call.base_url is None else self._base_of(call.base_url)
        exchange = Exchange(
            call,
            on_tokens,
            each=each,
            clock=self._clock,
            options=self._options,
            answer_factory=self._answer,
            pool_of=self._pool_of,
            proxy_of=self._dialer.proxy,
        )
        return exchange.run(base.origin, base.target(call.path))

    async def warm_up(self, connections: int, base_url: str | None = None) -> None:
        """Have ``connections`` idle sockets to one origin. Raises WireError when one cannot be opened."""
        base = self._base if base_url is None else self._base_of(base_url)
        await self._pool_of(base.origin).warm_up(connections)

    async def close(self) -> None:
        """Close all sockets; calls still running end as cut streams."""
        for pool in self._pools.values():
            await pool.close()

    def _base_of(self, text: str) -> BaseUrl:
        base = self._bases.get(text)
        if base is None:
            base = self._bases[text] = parse_base_url(text)
        return base

    def _pool_of(self, origin: Origin) -> Pool:
        pool = self._pools.get(origin)
        if pool is None:
            pool = self._pools[origin] = Pool(origin, self._dialer, self._options.max_connections)
        return pool
