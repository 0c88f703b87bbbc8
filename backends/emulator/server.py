"""A running embedded server: socket, application and engine, from start to stop."""

from __future__ import annotations

import asyncio
from typing import Self

from aiohttp import web

from backends.emulator.app import Api
from backends.emulator.config import EmulatorConfig
from backends.emulator.core import Core

# Between two requests of a client; longer than usual pauses of a load test, so that a reused socket is not cut under
# it.
_KEEP_ALIVE_S = 300.0
_SHUTDOWN_S = 0.5
_BACKLOG = 4096


class EmulatorServer:
    """``async with EmulatorServer(config) as server``: serves on the running loop until the block ends."""

    def __init__(self, config: EmulatorConfig) -> None:
        self.config = config
        self.port = config.port
        self._core: Core | None = None
        self._runner: web.AppRunner | None = None
        self._failed: asyncio.Future[None] | None = None

    @property
    def url(self) -> str:
        """The base URL, without ``/v1``."""
        host = f"[{self.config.host}]" if ":" in self.config.host else self.config.host
        return f"http://{host}:{self.port}"

    async def start(self) -> None:
        """Listen; raises OSError when the address cannot be bound."""
        self._failed = asyncio.get_running_loop().create_future()
        self._core = Core(self.config, on_failure=self._on_failure)
        api = Api(self.config, self._core)
        self._runner = web.AppRunner(
            api.application(),
            access_log=None,
            handle_signals=False,
            handler_cancellation=True,
            keepalive_timeout=_KEEP_ALIVE_S,
            shutdown_timeout=_SHUTDOWN_S,
        )
        try:
            await self._runner.setup()
            await web.TCPSite(self._runner, self.config.host, self.config.port, backlog=_BACKLOG).start()
        except BaseException:
            await self.stop()
            raise
        self.port = int(self._runner.addresses[0][1])

    async def stop(self) -> None:
        """Cut what still streams and release the port."""
        runner, self._runner = self._runner, None
        if runner is not None:
            await runner.cleanup()
        core, self._core = self._core, None
        if core is not None:
            core.close()

    async def failure(self) -> None:
        """Wait until the engine fails; raises what made it fail. Never returns otherwise."""
        if self._failed is None:
            raise RuntimeError("the server was not started")
        await asyncio.shield(self._failed)

    def _on_failure(self, error: BaseException) -> None:
        if self._failed is not None and not self._failed.done():
            self._failed.set_exception(error)
            # Marks it as seen: a server used inside another program need not wait on failure().
            self._failed.exception()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()
