"""One call, from a free socket to its :class:`WireResult`.

An exchange may need several requests on the wire: another one on a new socket when a kept one turns out to be closed
before anything of a response came (the server never saw the request, or never began to answer it), and up to three more
after redirects. The stamps are those of the last request; the connect time is the sum.
"""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Callable, Iterator

from backends.protocol import Call, Clock, OnTokens, SoFar, WireResult, leave_so_far
from backends.wire.answer import AnswerFactory
from backends.wire.chunk import error_text
from backends.wire.connection import Connection
from backends.wire.faults import WireError
from backends.wire.head import http_fault, redacted, redirect_target, request_bytes, retry_after_s
from backends.wire.options import WireOptions
from backends.wire.pool import Pool
from backends.wire.proxy import Proxy
from backends.wire.response import Response
from backends.wire.url import Origin
from scheduler.request import ErrorClass, Status

_S = 1_000_000_000


class Exchange:
    """Used once: ``await Exchange(...).run()``."""

    __slots__ = (
        "_answer",
        "_answer_factory",
        "_call",
        "_clock",
        "_connect_limit_s",
        "_connect_ns",
        "_each",
        "_on_tokens",
        "_options",
        "_pool_of",
        "_proxy_of",
        "_response",
        "_sent_ns",
        "_started_ns",
        "_timer",
        "_token_limit_s",
    )

    def __init__(
        self,
        call: Call,
        on_tokens: OnTokens,
        *,
        each: bool,
        clock: Clock,
        options: WireOptions,
        answer_factory: AnswerFactory,
        pool_of: Callable[[Origin], Pool],
        proxy_of: Callable[[Origin], Proxy | None],
    ) -> None:
        self._call = call
        self._on_tokens = on_tokens
        self._each = each
        self._clock = clock
        self._options = options
        own = call.timeouts
        self._connect_limit_s = None if own is None else own.connect_s
        self._token_limit_s = options.token_timeout_s if own is None else own.between_tokens_s
        self._answer_factory = answer_factory
        self._answer = answer_factory(on_tokens)
        self._pool_of = pool_of
        self._proxy_of = proxy_of
        self._started_ns = clock()
        self._connect_ns: int | None = None
        self._sent_ns: int | None = None
        self._response: Response | None = None
        self._timer: asyncio.TimerHandle | None = None

    async def run(self, origin: Origin, target: str) -> WireResult:
        """Never raises for what a server or the network does. Cancelled, it leaves how far it had come."""
        try:
            for _ in range(self._options.max_redirects + 1):
                response = await self._request(origin, target)
                if response.status not in {307, 308} or response.fault is not None:
                    self._judge(response)
                    return self._result(response, None)
                origin, target = redirect_target(origin, target, response.header(b"location"))
            raise WireError(ErrorClass.BAD_STREAM, f"redirected more than {self._options.max_redirects} times")
        except asyncio.CancelledError as cancelled:
            leave_so_far(SoFar(self._connect_ns, self._sent_ns), cancelled)
            raise
        except WireError as fault:
            return self._result(self._response, fault)
        except ValueError as exc:
            return self._result(None, WireError(ErrorClass.INTERNAL, str(exc)))

    async def _request(self, origin: Origin, target: str) -> Response:
        pool = self._pool_of(origin)
        data = request_bytes(origin, target, self._call.headers, self._call.body, self._proxy_of(origin))
        connection, connect_ns = await self._acquire(pool, fresh=False)
        response = await self._on(connection, pool, data)
        if connect_ns is None and self._was_closed(response):
            pool.stats.resent += 1
            connection, connect_ns = await self._acquire(pool, fresh=True)
            response = await self._on(connection, pool, data)
        return response

    @staticmethod
    def _was_closed(response: Response) -> bool:
        fault = response.fault
        return not response.answered and fault is not None and fault.error_class is ErrorClass.RESET

    async def _acquire(self, pool: Pool, *, fresh: bool) -> tuple[Connection, int | None]:
        total_s = self._options.total_timeout_s
        if total_s is None:
            connection, connect_ns = await pool.acquire(fresh=fresh, limit_s=self._connect_limit_s)
        else:
            left_s = total_s - (self._clock() - self._started_ns) / _S
            try:
                async with asyncio.timeout(left_s):
                    connection, connect_ns = await pool.acquire(fresh=fresh, limit_s=self._connect_limit_s)
            except TimeoutError as exc:
                raise WireError(ErrorClass.TOTAL_TIMEOUT, f"no answer within {total_s:g} s: still connecting") from exc
        self._connect_ns = (self._connect_ns or 0) + (connect_ns or 0)
        return connection, connect_ns

    async def _on(self, connection: Connection, pool: Pool, data: bytes) -> Response:
        loop = asyncio.get_running_loop()
        at_once = self._response is None and not self._connect_ns and self._options.max_connections is None
        if self._response is not None:
            self._answer = self._answer_factory(self._on_tokens)
        response = self._response = Response(self._answer, self._options, loop, each=self._each)
        reusable = False
        try:
            connection.send(data, response)
            if at_once:
                self._watch_new(loop)
            else:
                self._watch()
            await response.done
            reusable = response.reusable
        finally:
            self._sent_ns = connection.sent_ns
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
            pool.release(connection, reusable=reusable)
            response.release()
        return response

    def _watch_new(self, loop: asyncio.AbstractEventLoop) -> None:
        """:meth:`_watch` for a request that was sent at once: no limit can have passed yet."""
        options = self._options
        limits_s = (options.total_timeout_s, options.first_token_timeout_s, self._token_limit_s)
        told_s = [limit_s for limit_s in limits_s if limit_s is not None]
        if told_s:
            self._timer = loop.call_later(min(told_s) + 0.001, self._watch)

    def _watch(self) -> None:
        """End the response when a time-out has passed, else look again when the next one could. One timer a request,
        not one a token: the deadline between tokens moves with each, and is only read when the timer fires.
        """
        response = self._response
        if response is None or response.done.done():
            return
        now_ns = self._clock()
        wake_ns: list[int] = []
        for limit_s, from_ns, error_class, what in self._limits():
            deadline_ns = (now_ns if from_ns is None else from_ns) + int(limit_s * _S)
            if now_ns < deadline_ns:
                wake_ns.append(deadline_ns)
            elif self._answer.whole:
                response.lost(None)
                return
            else:
                response.fail(error_class, f"{what} {limit_s:g} s")
                return
        if wake_ns:
            delay_s = (min(wake_ns) - now_ns) / _S
            self._timer = asyncio.get_running_loop().call_later(delay_s + 0.001, self._watch)

    def _limits(self) -> Iterator[tuple[float, int | None, ErrorClass, str]]:
        """(limit, since when, what it breaks, in words); since None: not running yet, look again after as long."""
        options, chunk_ns = self._options, self._answer.chunk_ns
        if options.total_timeout_s is not None:
            yield options.total_timeout_s, self._started_ns, ErrorClass.TOTAL_TIMEOUT, "the answer took more than"
        if options.first_token_timeout_s is not None and not chunk_ns:
            yield options.first_token_timeout_s, self._started_ns, ErrorClass.FIRST_TOKEN_TIMEOUT, "no token within"
        if self._token_limit_s is not None:
            since_ns = chunk_ns[-1] if chunk_ns else None
            what = f"{len(chunk_ns)} chunks came, then no token for"
            yield self._token_limit_s, since_ns, ErrorClass.TOKEN_TIMEOUT, what

    def _judge(self, response: Response) -> None:
        """Raise the fault of a response that ended, if it is one."""
        fault = response.fault or self._answer.fault
        if fault is not None:
            raise fault
        status = response.status or 0
        if not 200 <= status < 300:
            raise http_fault(status, bytes(response.text))
        if not response.stream:
            raise self._not_streamed(response)
        if not self._answer.whole:
            raise WireError(
                ErrorClass.BAD_STREAM,
                f"the stream ended after {len(self._answer.chunk_ns)} chunks with output: neither [DONE] nor a finish "
                "reason came",
            )
        if not self._answer.chunk_ns:
            raise WireError(ErrorClass.BAD_STREAM, "the stream came to its end without a single token")

    @staticmethod
    def _not_streamed(response: Response) -> WireError:
        text = bytes(response.text)
        kind = response.header(b"content-type")
        message = error_text(text)
        if message is not None:
            return WireError(ErrorClass.SERVER_ERROR, f"error inside an HTTP {response.status}: {message[:300]}")
        return WireError(
            ErrorClass.BAD_STREAM, f"server did not stream: content-type {kind!r} in place of text/event-stream"
        )

    def _result(self, response: Response | None, fault: WireError | None) -> WireResult:
        answer = self._answer
        counts = answer.counts()
        now_ns = self._clock()
        status = response.status if response is not None else None
        told_to_wait = response.header(b"retry-after") if response is not None and status in {429, 503} else None
        return WireResult(
            status=Status.OK if fault is None else fault.status,
            ended_ns=now_ns,
            error_class=None if fault is None else fault.error_class,
            detail=None if fault is None else redacted(fault.detail, self._call.headers),
            http_status=status,
            retry_after_s=retry_after_s(told_to_wait),
            connect_ns=self._connect_ns,
            sent_ns=self._sent_ns,
            finished_ns=(response.finished_ns if response is not None else None) if fault is None else None,
            chunk_ns=answer.chunk_ns,
            chunk_tokens=counts.chunk_tokens if answer.chunk_ns else array("i"),
            tokens_known=counts.chunk_tokens is not None,
            prompt_tokens=counts.prompt_tokens,
            cached_prompt_tokens=counts.cached_prompt_tokens,
            output_tokens=counts.output_tokens,
            tokens_source=counts.source,
            finish_reason=answer.finish_reason,
        )
