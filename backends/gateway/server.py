"""A running gateway: sockets, from start through drain to stop.

Stopping is graceful: new requests are refused with 503, readiness says so, those accepted (also those still queued) get
``drain_s`` to end; what is left then is cut and recorded as unfinished.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Self

from aiohttp import web

from backends.gateway.app import App
from backends.gateway.config import GatewayConfig, Resolve
from backends.gateway.gate import Change, Gate, OnOutcome
from backends.gateway.listener import Listener
from backends.gateway.logs import event
from backends.gateway.metrics import GatewayMetrics
from backends.reference import resolve_references
from scheduler.slot_control import SlotMove

_KEEP_ALIVE_S = 75.0
_SHUTDOWN_S = 0.5


class GatewayServer:
    """``async with GatewayServer(config) as gateway``: serves on the running loop until the block ends.

    ``resolve`` turns references into keys; ``on_outcome`` is called with every request's Outcome; ``reload`` reads the
    configuration anew. Raises ConfigError (of ``resolve`` too) and OSError (the address cannot be bound) from ``start``.
    """

    def __init__(
        self,
        config: GatewayConfig,
        *,
        resolve: Resolve = resolve_references,
        on_outcome: OnOutcome | None = None,
        reload: Callable[[], GatewayConfig] | None = None,
    ) -> None:
        self.config = config
        self.port = config.port
        self._resolve = resolve
        self._on_outcome = on_outcome
        self._reload = reload
        self._gate: Gate | None = None
        self._app: App | None = None
        self._runner: web.AppRunner | None = None
        self._listener: Listener | None = None
        self._slot_moves: tuple[SlotMove, ...] = ()

    @property
    def slot_moves(self) -> tuple[SlotMove, ...]:
        """How a controller moved the slots; also after the end."""
        return self._slot_moves if self._gate is None else self._gate.slots.moves

    @property
    def url(self) -> str:
        """The base URL, without ``/v1``."""
        host = f"[{self.config.host}]" if ":" in self.config.host else self.config.host
        return f"http://{host}:{self.port}"

    @property
    def gate(self) -> Gate:
        if self._gate is None:
            raise RuntimeError("the gateway was not started")
        return self._gate

    @property
    def started_ns(self) -> int:
        """The monotonic clock at the start: what the stamps of outcomes count from."""
        return self.gate.started_ns

    @property
    def metrics(self) -> GatewayMetrics:
        return self.gate.metrics

    async def start(self) -> None:
        gate = self._gate = Gate(self.config, self._resolve, self._on_outcome)
        listener = self._listener = Listener(self.config.limits.client_stall_s)
        self._app = App(gate, self._reload, listener)
        header_bytes = 2 * self.config.limits.max_header_bytes  # so that the App's own check answers first
        self._runner = web.AppRunner(
            self._app.application(),
            access_log=None,
            handle_signals=False,
            handler_cancellation=True,
            keepalive_timeout=_KEEP_ALIVE_S,
            shutdown_timeout=_SHUTDOWN_S,
            max_line_size=header_bytes,
            max_field_size=header_bytes,
        )
        try:
            await gate.start()
            await self._runner.setup()
            assert self._runner.server is not None, "set up"
            await listener.start(self._runner.server, self.config.host, self.config.port)
        except BaseException:
            await self.stop(drain=False)
            raise
        self.port = listener.port
        event("serving", policy=self.config.policy, upstreams=gate.upstreams.states())

    @property
    def connections(self) -> int:
        """Sockets of clients that are open."""
        server = None if self._runner is None else self._runner.server
        return 0 if server is None else len(server.connections)

    def reload(self, change: Change | None = None) -> list[str]:
        """Apply ``change``, or the configuration read anew; what changed. Raises ValueError and changes nothing."""
        if self._app is None:
            raise RuntimeError("the gateway was not started")
        return self._app.reload(change)

    async def drain(self) -> bool:
        """Refuse new requests and wait for the accepted ones, at most ``drain_s``; True when none is left."""
        gate = self.gate
        gate.draining = True
        event("draining")
        try:
            async with asyncio.timeout(gate.config.limits.drain_s):
                await gate.idle.wait()
        except TimeoutError:
            event("drain_incomplete", level=logging.WARNING, left=gate.working)
            return False
        return True

    async def stop(self, *, drain: bool = True) -> None:
        """Stop serving and release the port; with ``drain``, gracefully."""
        gate, runner = self._gate, self._runner
        if gate is None:
            return
        if drain and runner is not None:
            await self.drain()
        gate.stopping = True
        self._runner = None
        if self._listener is not None:
            self._listener.close()
        if runner is not None:
            await runner.cleanup()
        self._gate = None
        self._slot_moves = gate.slots.moves
        await gate.close()
        event("stopped")

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop(drain=False)
