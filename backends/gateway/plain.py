"""What makes no server work, proxied as it is to an upstream that is up: models, tokenizer, version, pages.

These requests do not wait in the queue and take no slot; a drain waits for them. Bodies are read whole (the size limit holds)
and answers stream.
"""

from __future__ import annotations

import aiohttp
from aiohttp import web
from multidict import CIMultiDict
from yarl import URL

from backends.gateway.downstream import close, drained, reading
from backends.gateway.gate import Gate
from backends.gateway.refusal import Reason, Refusal
from backends.gateway.upstreams import HOP_BY_HOP
from backends.wire.faults import SWITCHES


async def proxy(
    gate: Gate, request: web.Request, path: str | None, body: bytes, tenant: str | None
) -> web.StreamResponse:
    """``path``: in place of the request's own. Raises Refusal (502, 503)."""
    gate.metrics.plain += 1
    limits = gate.config.limits
    stall_s = limits.client_stall_s
    silence = aiohttp.ClientTimeout(
        total=None, sock_connect=limits.connect_timeout_s, sock_read=limits.upstream_first_token_s
    )
    server = gate.upstreams.first_up()
    if server is None:
        raise Refusal(503, Reason.NO_UPSTREAM, "no upstream is up", retry_after_s=gate.config.probe_interval_s)
    headers = server.headers(request.headers, tenant, keep_authorization=not gate.identities.has_keys)
    # The path and query alone: a request in absolute form must not choose its server.
    query = request.rel_url.raw_query_string
    target = request.rel_url.raw_path_qs if path is None else f"{path}?{query}" if query else path
    url = URL(f"{server.base}{target}", encoded=True)
    response: web.StreamResponse | None = None
    try:
        async with gate.upstreams.session.request(
            request.method, url, headers=headers, data=body or None, allow_redirects=False, timeout=silence
        ) as answer:
            if answer.status == 101:
                raise Refusal(502, Reason.UPSTREAM_FAILED, f"upstream {server.name!r} {SWITCHES}")
            kept: CIMultiDict[str] = CIMultiDict()
            for name, value in answer.headers.items():
                if name.lower() not in HOP_BY_HOP:
                    kept.add(name, value)
            response = web.StreamResponse(status=answer.status, reason=answer.reason, headers=kept)
            await response.prepare(request)
            async for piece in answer.content.iter_any():
                async with reading(request, stall_s):
                    await response.write(piece)
            async with reading(request, stall_s):
                await response.write_eof()
                await drained(request)
            return response
    except (aiohttp.ClientError, TimeoutError) as error:
        if response is not None and response.prepared:
            if request.transport is not None:
                close(request.transport, stall_s)
            return response
        raise Refusal(
            504 if isinstance(error, TimeoutError) else 502,
            Reason.UPSTREAM_FAILED,
            f"upstream {server.name!r} did not answer ({type(error).__name__})",
            retry_after_s=limits.retry_after_s,
        ) from error
