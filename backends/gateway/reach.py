"""A granted request on its way to an upstream: sent, and once more if that failed before a byte of the answer."""

from __future__ import annotations

import asyncio

from aiohttp import web

from backends.gateway.ask import Ask, Mode
from backends.gateway.gate import Gate
from backends.gateway.logs import event
from backends.gateway.refusal import Reason, Refusal
from backends.gateway.upstreams import Exchange, Server
from backends.wire.faults import WireError
from scheduler.drivers.live import Ticket
from scheduler.request import ErrorClass
from tenants.tenant import Tenant

_UNREACHABLE = frozenset({ErrorClass.REFUSED, ErrorClass.DNS, ErrorClass.TLS, ErrorClass.CONNECT_TIMEOUT})


async def reach(gate: Gate, http: web.Request, tenant: Tenant, ask: Ask, ticket: Ticket) -> Exchange:
    """The exchange whose head came; the second attempt may take another upstream. A request of an unknown API is not
    repeated once it was sent (RFC 9110, 9.2.2). Raises WireError for the last failure, NotServed when the queue gives the
    second attempt up, Refusal for a header that cannot be sent.
    """
    target = _target(http, ask)
    connect_timeout_s = gate.config.limits_of(tenant.name).connect_timeout_s
    for is_last in (False, True):
        assert ticket.backend is not None, "granted"
        server = gate.upstreams[ticket.backend]
        headers = server.headers(http.headers, tenant.name, keep_authorization=not gate.identities.has_keys)
        if ask.mode is not Mode.AS_IS:
            headers["content-type"] = "application/json"
        gives_up = is_last
        try:
            exchange = await server.send(http.method, target, headers, ask.body, connect_timeout_s)
        except WireError as error:
            fault = error
        except ValueError as error:
            raise Refusal(400, Reason.BAD_REQUEST, str(error)) from error
        else:
            relay = exchange.relay
            gives_up = is_last or not ask.dialect.repeats
            if relay.fault is None and (relay.status < 500 or gives_up):
                return exchange
            fault = relay.fault or WireError(ErrorClass.HTTP_5XX, f"HTTP {relay.status}")
            exchange.close()
        if gives_up:
            if fault.error_class in _UNREACHABLE:
                gate.upstreams.refused(server)
            raise fault
        await _again(gate, server, fault, ticket)
    raise AssertionError("the last attempt returns or raises")


def _target(http: web.Request, ask: Ask) -> str:
    """The path as it was judged, or as it came where the judgement did not hang on it; the query as it came. A request in
    absolute form does not choose its server.
    """
    url, path = http.rel_url, ask.dialect.path
    if path is None:
        return url.raw_path_qs
    return f"{path}?{url.raw_query_string}" if url.raw_query_string else path


async def _again(gate: Gate, server: Server, fault: WireError, ticket: Ticket) -> None:
    """Back into the queue; to another upstream if one is up, else to the same one after a pause."""
    gate.metrics.retries[server.name] += 1
    event("retry", id=ticket.request.id, upstream=server.name, error=fault.error_class)
    if not gate.upstreams.any_up(but=server):
        await asyncio.sleep(gate.config.limits.retry_backoff_s)
    elif fault.error_class in _UNREACHABLE:
        gate.upstreams.refused(server)
    # The dispatcher picks the least loaded, which may be the one that just failed.
    ticket.failed_to_dispatch(retryable=True, elsewhere=True)
    await ticket.granted()
