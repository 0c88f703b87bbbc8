"""The gateway's routes: its own health, metrics and administration; the rest through the queue or past it.

Own paths, which hide an upstream's of the same name: ``/health`` (the process lives), ``/ready`` (it takes work: an upstream is
up and it does not drain; a controller of slots that failed is told there too, and stops no work), ``/metrics``, ``/admin/...``
(404 unless an admin key is configured).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

import msgspec
from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST

from backends.gateway.ask import read_ask
from backends.gateway.config import GatewayConfig
from backends.gateway.dialects.dialect import Dialect
from backends.gateway.gate import Change, Gate
from backends.gateway.identity import API_KEY_HEADER, TENANT_HEADER, bearer
from backends.gateway.listener import Listener
from backends.gateway.logs import event, where
from backends.gateway.metrics import new_registry, render
from backends.gateway.plain import proxy
from backends.gateway.refusal import Reason, Refusal
from backends.gateway.routes import route_of
from backends.gateway.turn import Turn
from tenants.tenant import Tenant

_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
_CLIENT_CLOSED = 499  # never sent: the client is gone; what a log of such a request is known by


class App:
    """``reload``: gives the configuration anew (from its file); None when it has no source but ``POST /admin/reload``."""

    def __init__(self, gate: Gate, reload: Callable[[], GatewayConfig] | None, listener: Listener) -> None:
        self._gate = gate
        self._listener = listener
        self._reload = reload
        self._registry = new_registry(gate.metrics, gate.gauges)

    def application(self) -> web.Application:
        app = web.Application(client_max_size=self._gate.config.limits.max_body_bytes, middlewares=[self._guard])
        app.router.add_get("/health", self._health)
        app.router.add_get("/ready", self._ready)
        app.router.add_get("/metrics", self._metrics)
        app.router.add_post("/admin/reload", self._admin_reload)
        app.router.add_get("/admin/status", self._admin_status)
        app.router.add_route("*", "/{path:.*}", self._other)
        return app

    @web.middleware
    async def _guard(self, request: web.Request, handler: _Handler) -> web.StreamResponse:
        """Every refusal is counted, logged and explained; whatever else goes wrong is a 500 that tells nothing."""
        self._listener.asked(request.protocol)
        try:
            self._check_headers(request)
            return await handler(request)
        except Refusal as refusal:
            return self._refuse(refusal)
        except web.HTTPException as error:
            return self._refuse(Refusal(error.status, Reason.NO_ROUTE, f"{request.method}: {error.reason}"))
        except ConnectionError:
            return web.Response(status=_CLIENT_CLOSED)
        except Exception as error:  # noqa: BLE001 (the last place where a fault of ours can be counted and answered)
            event("internal_error", level=logging.ERROR, exception=type(error).__name__, at=where(error))
            return self._refuse(Refusal(500, Reason.INTERNAL, "the gateway failed on this request"))

    def _refuse(self, refusal: Refusal) -> web.Response:
        self._gate.metrics.refused(refusal.tenant, refusal.reason)
        event("refused", tenant=refusal.tenant or None, reason=refusal.reason, http_status=refusal.status)
        response = refusal.response()
        if refusal.status in {408, 413, 431}:
            response.force_close()  # what is left of such a request is not worth reading
        return response

    def _too_large(self) -> Refusal:
        limit = self._gate.config.limits.max_body_bytes
        return Refusal(413, Reason.BODY_TOO_LARGE, f"the request body is larger than {limit} bytes")

    def _check_headers(self, request: web.Request) -> None:
        limit = self._gate.config.limits.max_header_bytes
        if sum(len(name) + len(value) for name, value in request.raw_headers) > limit:
            raise Refusal(
                431, Reason.HEADERS_TOO_LARGE, f"the request's headers are larger than {limit} bytes together"
            )

    async def _body(self, request: web.Request) -> bytes:
        limits = self._gate.config.limits
        if request.content_length is not None and request.content_length > limits.max_body_bytes:
            raise self._too_large()
        try:
            async with asyncio.timeout(limits.client_stall_s):
                return await request.read()
        except web.HTTPRequestEntityTooLarge as error:
            raise self._too_large() from error
        except TimeoutError as error:
            raise Refusal(
                408, Reason.SLOW_REQUEST, f"the request body was not complete after {limits.client_stall_s:g} s"
            ) from error

    # -- what the upstreams serve --------------------------------------------------------------------------------------

    async def _other(self, request: web.Request) -> web.StreamResponse:
        """Through the queue, or past it as it is (:mod:`backends.gateway.routes`)."""
        route = route_of(request.method, request.path)
        if route.dialect is None:
            return await self._plain(request, route.path)
        with _in_words_of(route.dialect):
            tenant = self._tenant(request)
            with self._gate.at_work(), _known_as(tenant):
                return await self._turn(request, tenant, route.dialect)

    async def _turn(self, request: web.Request, tenant: Tenant, dialect: Dialect) -> web.StreamResponse:
        gate = self._gate
        if gate.draining:
            retry_s = gate.config.limits.retry_after_s
            raise Refusal(503, Reason.DRAINING, "this gateway is stopping", retry_after_s=retry_s)
        if not gate.upstreams.any_up():
            raise Refusal(503, Reason.NO_UPSTREAM, "no upstream is up", retry_after_s=gate.config.probe_interval_s)
        body = await self._body(request)
        arrival_ns = gate.clock()
        takes_priority = any(upstream.takes_priority for upstream in gate.config.upstreams)
        ask = read_ask(
            body,
            dialect=dialect,
            fold=gate.config.fold,
            count_tokens=gate.config.count_tokens,
            priority=tenant.priority if takes_priority else None,
        )
        return await Turn(gate, request, tenant, ask, arrival_ns).serve()

    def _tenant(self, request: web.Request) -> Tenant:
        headers = request.headers
        return self._gate.identities.tenant(
            headers.get("Authorization"), headers.get(TENANT_HEADER), headers.get(API_KEY_HEADER)
        )

    async def _plain(self, request: web.Request, path: str | None) -> web.StreamResponse:
        """With keys configured these paths need one too; without, nobody need say who asks."""
        gate = self._gate
        named = gate.identities.has_keys or TENANT_HEADER in request.headers
        tenant = self._tenant(request).name if named else None
        with gate.at_work():
            return await proxy(gate, request, path, await self._body(request), tenant)

    # -- its own paths -----------------------------------------------------------------------------------------------

    async def _health(self, request: web.Request) -> web.Response:  # noqa: ARG002 (the framework's signature)
        return web.Response()

    async def _ready(self, request: web.Request) -> web.Response:  # noqa: ARG002 (the framework's signature)
        gate = self._gate
        ready = not gate.draining and gate.upstreams.any_up()
        state: dict[str, object] = {
            "ready": ready,
            "draining": gate.draining,
            "upstreams": gate.upstreams.states(),
        }
        if gate.slots.controlled is not None:
            state["slot_control"] = "running" if gate.slots.controlled else "failed"
        return _json(state, status=200 if ready else 503)

    async def _metrics(self, request: web.Request) -> web.Response:  # noqa: ARG002 (the framework's signature)
        return web.Response(body=render(self._registry), headers={"Content-Type": CONTENT_TYPE_LATEST})

    # -- administration ----------------------------------------------------------------------------------------------

    def _check_admin(self, request: web.Request) -> None:
        admin = self._gate.admin
        if admin is None:
            raise Refusal(404, Reason.NO_ROUTE, "no such path")
        if not admin.matches(bearer(request.headers.get("Authorization"))):
            raise Refusal(401, Reason.UNKNOWN_KEY, "the admin key is missing or wrong")

    async def _admin_reload(self, request: web.Request) -> web.Response:
        """An empty body: the configuration is read anew from its source; else a Change of what is configured now."""
        self._check_admin(request)
        body = await self._body(request)
        try:
            changed = self.reload(msgspec.json.decode(body, type=Change) if body.strip() else None)
        except (ValueError, msgspec.MsgspecError) as error:
            raise Refusal(400, Reason.BAD_REQUEST, f"nothing was changed: {error}") from error
        return _json({"changed": changed})

    def reload(self, change: Change | None) -> list[str]:
        """What changed. Raises ValueError (ConfigError, PolicyError, of a file) and changes nothing."""
        gate = self._gate
        try:
            if change is not None:
                config = change.of(gate.config)
            elif self._reload is not None:
                config = self._reload()
            else:
                raise ValueError("this gateway was started without a file to read anew; send what to change as JSON")
            changed = gate.change(config)
        except (ValueError, OSError) as error:
            gate.metrics.reloads["failed"] += 1
            event("reload_failed", level=logging.ERROR, exception=type(error).__name__)
            if isinstance(error, ValueError):
                raise
            raise ValueError(f"the configuration cannot be read: {error.strerror}") from error
        gate.metrics.reloads["ok"] += 1
        event("reloaded", changed=changed)
        return changed

    async def _admin_status(self, request: web.Request) -> web.Response:
        self._check_admin(request)
        gate = self._gate
        config = gate.config
        return _json(
            {
                "policy": config.policy,
                "options": dict(config.options),
                "weights": {tenant.name: tenant.weight for tenant in config.tenants},
                "draining": gate.draining,
                "upstreams": gate.upstreams.states(),
                "auto_slots": gate.slots.status(),
                "queued": dict(gate.gauges().queued),
                "dispatcher": gate.driver.dispatcher.snapshot(),
            }
        )


@contextmanager
def _known_as(tenant: Tenant) -> Iterator[None]:
    """Refusals inside are the tenant's."""
    try:
        yield
    except Refusal as refusal:
        refusal.tenant = tenant.name
        raise


@contextmanager
def _in_words_of(dialect: Dialect) -> Iterator[None]:
    """Refusals inside have the shape that clients of that API read."""
    try:
        yield
    except Refusal as refusal:
        refusal.typed = dialect.typed_errors
        raise


def _json(value: object, status: int = 200) -> web.Response:
    return web.Response(status=status, body=msgspec.json.encode(value), content_type="application/json")
