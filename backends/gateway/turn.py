"""One generation request: through the queue, to an upstream, and its answer back.

    queued --granted--> sent --head--> answered (pass, fold, whole or as is) --> ended
       |                  |
       refused            failed before any byte: once more, elsewhere if possible

It ends once, in ``_end``, whatever happens: the slot is freed, the account corrected, one Outcome handed on. A client that
leaves cancels the handler, which closes the upstream's socket, which is how the upstream learns of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import NoReturn

from aiohttp import web

from backends.gateway.as_is import reader_of
from backends.gateway.ask import Ask, Mode
from backends.gateway.dialects.dialect import Whole
from backends.gateway.downstream import ClientStalled, Downstream, client_headers, give
from backends.gateway.fold import FoldError
from backends.gateway.gate import Gate
from backends.gateway.logs import request_ended
from backends.gateway.passing import EventReader, Passing, Reader, Unread, UsageStrip
from backends.gateway.reach import reach
from backends.gateway.refusal import Reason, Refusal, from_abort, from_queue
from backends.gateway.relay import Relay
from backends.gateway.result import judge_stream, judge_whole, wire_result
from backends.gateway.silence import Silence
from backends.gateway.upstreams import Exchange
from backends.outcome import outcome_of
from backends.wire.faults import WireError
from scheduler.drivers.live import NotServed
from scheduler.events import AbortReason
from scheduler.request import ErrorClass, Request, Status
from tenants.tenant import Tenant

_NS = 1_000_000_000


class Turn:
    """``await Turn(...).serve()`` once. Raises Refusal when there is no answer to give."""

    def __init__(self, gate: Gate, http: web.Request, tenant: Tenant, ask: Ask, arrival_ns: int) -> None:
        limits = self._limits = gate.config.limits_of(tenant.name)
        self._gate = gate
        self._http = http
        self._tenant = tenant
        self._ask = ask
        self._estimate = gate.estimate(tenant.name, ask.dialect.name)
        self._exchange: Exchange | None = None
        self._answer = ask.dialect.answer(self._tokens)
        self._whole: Whole | None = None
        self._down: Downstream | None = None
        self._passing: Passing | None = None
        self._task = asyncio.current_task()
        self._abort: AbortReason | None = None
        self._stalled = False
        self._ended = False
        self._silence: Silence | None = None
        first_s = limits.first_token_timeout_s if ask.mode.shows_tokens else None
        ttl_s = limits.queue_timeout_s if tenant.limits.ttl_ns is None else None
        self._request = Request(
            id=next(gate.ids),
            tenant=tenant.name,
            arrival_ns=arrival_ns,
            prompt_tokens=ask.prompt_tokens or self._estimate.tokens(ask.prompt_bytes),
            max_tokens=ask.max_tokens,
            priority=tenant.priority,
            ttl_ns=None if ttl_s is None else round(ttl_s * _NS),
            first_token_timeout_ns=None if first_s is None else round(first_s * _NS),
            timeout_ns=None if limits.total_timeout_s is None else round(limits.total_timeout_s * _NS),
            prefix_blocks=gate.prefix_blocks(ask.prefix),
        )
        self._ticket = gate.driver.submit(self._request, on_abort=self._on_abort)

    async def serve(self) -> web.StreamResponse:
        try:
            await self._ticket.granted()
            self._silence = self._watch()
            self._exchange = await self._reach()
            return await self._respond(self._exchange.relay, self._exchange)
        except NotServed as refusal:
            return self._not_served(refusal)
        except (asyncio.CancelledError, ConnectionError):
            if self._abort is None or self._task is None or self._task.uncancel() > 0:
                self._client_left()
                raise
            return self._timed_out(self._abort)
        except Refusal as refusal:
            # One that was raised before anything was judged: a header that cannot be sent.
            self._end(WireError(ErrorClass.HTTP_4XX, refusal.reason), http_status=refusal.status, reason=refusal.reason)
            raise
        finally:
            self._end(WireError(ErrorClass.INTERNAL, "the gateway failed"), reason=Reason.INTERNAL)

    async def _reach(self) -> Exchange:
        try:
            return await reach(self._gate, self._http, self._tenant, self._ask, self._ticket)
        except WireError as fault:
            self._failed(fault, Reason.UPSTREAM_FAILED)

    def _watch(self) -> Silence | None:
        if self._ask.mode.shows_tokens:
            limit_s = self._limits.upstream_first_token_s if self._limits.first_token_timeout_s is None else None
            reason = AbortReason.FIRST_TOKEN_TIMEOUT
        else:
            limit_s = self._limits.upstream_answer_s if self._limits.total_timeout_s is None else None
            reason = AbortReason.TOTAL_TIMEOUT
        if limit_s is None:
            return None
        return Silence(limit_s, self._gate.clock, self._silent_since, lambda: self._on_abort(reason))

    def _silent_since(self) -> int | None:
        """Since when the upstream has owed a sign of its work, None when it owes none any more."""
        exchange, dispatched_ns = self._exchange, self._ticket.dispatched_ns
        if self._ended or (exchange is not None and exchange.relay.done.done()):
            return None
        if dispatched_ns is None:  # in the queue again, for a second attempt
            return self._gate.clock()
        if self._ask.mode.shows_tokens:
            return dispatched_ns if self._ticket.first_ns is None else None
        if self._ask.mode is Mode.AS_IS and exchange is not None:
            return max(dispatched_ns, exchange.relay.heard_ns())
        return dispatched_ns

    # -- the answer --------------------------------------------------------------------------------------------------

    async def _respond(self, relay: Relay, exchange: Exchange) -> web.StreamResponse:
        if relay.is_stream and self._ask.mode is Mode.PASS:
            return await self._pass(relay, exchange)
        if relay.is_stream and self._ask.mode is Mode.FOLD:
            return await self._fold(relay)
        if self._ask.mode is Mode.AS_IS and 200 <= relay.status < 300 and relay.status != 204:
            return await self._hand_on(relay, exchange)
        return await self._collect(relay)

    async def _pass(self, relay: Relay, exchange: Exchange) -> web.StreamResponse:
        wire = self._gate.config.wire
        self._gate.metrics.modes["pass"] += 1
        events = (
            None if relay.is_encoded else EventReader(self._answer, wire.max_event_bytes, on_whole=relay.is_told_whole)
        )
        strip = UsageStrip(wire.max_event_bytes) if self._ask.strip_usage and not relay.is_encoded else None

        def judge() -> WireError | None:
            return None if events is None else judge_stream(self._answer, events.unreadable)

        return await self._through(relay, exchange, events or Unread(self._begun), strip, judge)

    async def _hand_on(self, relay: Relay, exchange: Exchange) -> web.StreamResponse:
        """An answer of an unknown API: whether it is a good one only its client can judge."""
        self._gate.metrics.modes["as_is"] += 1
        reader = reader_of(relay, self._answer, self._gate.config.wire.max_event_bytes)

        def judge() -> None:
            self._whole = None if reader is None else reader.whole

        return await self._through(relay, exchange, reader or Unread(self._begun), None, judge)

    async def _through(
        self,
        relay: Relay,
        exchange: Exchange,
        reader: Reader,
        strip: UsageStrip | None,
        judge: Callable[[], WireError | None],
    ) -> web.StreamResponse:
        down = self._down = Downstream(self._http, self._limits.client_stall_s, self._on_stall)
        await down.begin(relay.status, client_headers(relay), exchange)
        passing = self._passing = Passing(reader, strip, down.write)
        last_output = None if isinstance(reader, Unread) else self._last_output
        relay.start(passing.take, last_output, self._limits.token_timeout_s)
        await relay.done
        if relay.fault is None:
            passing.close(self._gate.clock())
            self._end(judge())
            await down.finish()
        else:
            self._end(relay.fault, reason=Reason.UPSTREAM_CUT)
            self._cut(Refusal(_status_of(relay.fault), Reason.UPSTREAM_CUT, relay.fault.detail))
        assert down.response is not None, "begun"
        return down.response

    async def _fold(self, relay: Relay) -> web.StreamResponse:
        folding = self._ask.dialect.folding
        assert folding is not None, "asked so"
        self._gate.metrics.modes["fold"] += 1
        events: list[bytes] = []
        most = self._gate.config.wire.max_event_bytes
        reader = EventReader(self._answer, most, keep=events, on_whole=relay.is_told_whole)
        if relay.is_encoded:
            self._failed(
                WireError(ErrorClass.BAD_STREAM, "the upstream compressed a stream unasked"), Reason.UPSTREAM_FAILED
            )

        def take(body: bytes, now_ns: int) -> None:
            reader.read(body, now_ns)
            self._bound(relay)

        relay.start(take, self._last_output, self._limits.token_timeout_s)
        await relay.done
        if relay.fault is not None:
            self._failed(relay.fault, Reason.UPSTREAM_CUT)
        reader.close(self._gate.clock())
        fault = judge_stream(self._answer, reader.unreadable)
        if fault is not None:
            self._failed(fault, Reason.UPSTREAM_FAILED)
        try:
            body = folding.body(events)
        except FoldError as error:
            self._failed(WireError(ErrorClass.BAD_STREAM, str(error)), Reason.UPSTREAM_FAILED)
        self._end(None)
        headers = client_headers(relay, without=("content-type",))
        return await self._give(
            web.Response(status=relay.status, body=body, headers=headers, content_type="application/json")
        )

    async def _collect(self, relay: Relay) -> web.StreamResponse:
        """An answer that is no stream (whole, or an error) goes on as it is, once it is here."""
        if relay.status < 400:
            self._gate.metrics.modes["whole"] += 1
        parts: list[bytes] = []

        def take(body: bytes, now_ns: int) -> None:  # noqa: ARG001 (the relay's signature)
            parts.append(body)
            self._bound(relay)

        relay.start(take)
        await relay.done
        if relay.fault is not None:
            self._failed(relay.fault, Reason.UPSTREAM_CUT)
        body = b"".join(parts)
        self._whole = self._ask.dialect.whole(body) if relay.status < 300 and not relay.is_encoded else None
        fault = judge_whole(relay.status)
        reason = None if fault is None else Reason.UPSTREAM_FAILED if relay.status >= 500 else Reason.UPSTREAM_REFUSED
        if reason is not None:
            self._gate.metrics.refused(self._tenant.name, reason)
        self._end(fault, reason=reason)
        return await self._give(web.Response(status=relay.status, body=body, headers=client_headers(relay)))

    async def _give(self, response: web.Response) -> web.Response:
        try:
            return await give(self._http, response, self._limits.client_stall_s)
        except ClientStalled:
            self._gate.metrics.refused(self._tenant.name, Reason.CLIENT_STALLED)
            raise

    def _bound(self, relay: Relay) -> None:
        limit = self._limits.max_folded_bytes
        if relay.received > limit:
            relay.fail(ErrorClass.BAD_STREAM, f"the upstream's answer is larger than {limit} bytes")

    # -- the end -----------------------------------------------------------------------------------------------------

    def _tokens(self, received_ns: int, count: int | None) -> None:
        self._ticket.tokens(received_ns, count)

    def _begun(self, received_ns: int) -> None:
        """The answer's first bytes came, of nobody knows how many tokens: what stood before them is done."""
        self._ticket.tokens(received_ns, 0)

    def _last_output(self) -> int | None:
        return self._ticket.last_ns

    def _on_abort(self, reason: AbortReason) -> None:
        if reason is not AbortReason.CANCELLED and self._task is not None:
            self._abort = reason
            self._task.cancel()

    def _on_stall(self) -> None:
        self._stalled = True

    def _not_served(self, refused: NotServed) -> web.StreamResponse:
        retry_s = self._limits.retry_after_s
        refusal = from_queue(refused.reason, self._tenant.name, refused.retry_after_ns, retry_s)
        timed_out = refused.status is Status.TIMED_OUT
        error_class = ErrorClass(refused.reason) if timed_out else ErrorClass.SHED
        self._end(WireError(error_class, str(refused.reason)), http_status=refusal.status, status=refused.status)
        raise refusal

    def _client_left(self) -> None:
        error_class = ErrorClass.UNFINISHED if self._gate.stopping else ErrorClass.CANCELLED
        status = Status.UNFINISHED if self._gate.stopping else Status.CANCELLED
        reason = Reason.CLIENT_STALLED if self._stalled else None
        if reason is not None:
            self._gate.metrics.refused(self._tenant.name, reason)
        self._end(WireError(error_class, reason or "the client left"), status=status, reason=reason)

    def _timed_out(self, reason: AbortReason) -> web.StreamResponse:
        refusal = from_abort(reason)
        self._end(WireError(ErrorClass(reason), refusal.reason), http_status=504, reason=Reason(reason))
        if self._down is None or self._down.response is None or not self._down.response.prepared:
            raise refusal
        self._cut(refusal)
        return self._down.response

    def _cut(self, refusal: Refusal) -> None:
        """Say in the stream why it ends, where an event may stand; then end it so that it cannot be taken for whole."""
        assert self._down is not None, "a stream is open"
        self._gate.metrics.refused(self._tenant.name, refusal.reason)
        of_events = self._ask.mode is not Mode.AS_IS or (self._exchange is not None and self._exchange.relay.is_events)
        if of_events and (self._passing is None or self._passing.at_boundary):
            self._down.write(self._ask.dialect.error(refusal))
        self._down.cut()

    def _failed(self, fault: WireError, reason: Reason) -> NoReturn:
        """End with a fault of the upstream. Always raises."""
        status = _status_of(fault)
        self._end(fault, http_status=status, reason=reason)
        detail = f"upstream: {fault.detail}" if fault.error_class is not ErrorClass.SERVER_ERROR else fault.detail
        raise Refusal(status, reason, detail, retry_after_s=self._limits.retry_after_s)

    def _end(
        self,
        fault: WireError | None,
        *,
        status: Status | None = None,
        http_status: int | None = None,
        reason: str | None = None,
    ) -> None:
        """Free the slot, correct the account, hand on the outcome; only the first call counts."""
        if self._ended:
            return
        self._ended = True
        if self._silence is not None:
            self._silence.close()
        gate, ticket, exchange = self._gate, self._ticket, self._exchange
        if exchange is not None:
            exchange.close()
            http_status = http_status or exchange.relay.status or None
        backend, dispatched_ns = ticket.backend, ticket.dispatched_ns
        result = wire_result(
            exchange, self._answer, self._whole, fault, status=status, http_status=http_status, now_ns=gate.clock()
        )
        if backend is None or result.status is Status.CANCELLED:
            ticket.cancel()
        if backend is not None:
            sent = exchange is not None
            ticket.finished(result.status, result.prompt_tokens if sent else 0, result.output_tokens if sent else 0)
            if result.prompt_tokens is not None and self._ask.prompt_tokens is None:
                self._estimate.learn(self._ask.prompt_bytes, result.prompt_tokens)
        outcome = outcome_of(
            self._request, result, backend=backend, enqueued_ns=ticket.enqueued_ns, dispatched_ns=dispatched_ns
        )
        gate.ended(outcome)
        request_ended(
            outcome,
            api=self._ask.dialect.name,
            mode=self._ask.mode.name.lower(),
            reason=reason,
            http_status=http_status,
        )


def _status_of(fault: WireError) -> int:
    """What a client is told of an upstream's fault: it was late (504), or it failed."""
    return 504 if fault.status is Status.TIMED_OUT else 502
