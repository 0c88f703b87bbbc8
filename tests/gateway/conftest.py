"""Gateways on real sockets, in front of scripted upstreams and the embedded server; closed at a test's end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field

import aiohttp
import openai
import pytest
from gateway_upstream import DEADLINE_S, Script, ScriptedUpstream

from backends.emulator.config import EmulatorConfig
from backends.emulator.server import EmulatorServer
from backends.gateway.config import GatewayConfig, GatewayLimits, Upstream
from backends.gateway.server import GatewayServer
from scheduler.request import Outcome
from scheduler.server_model.spec import ServerLimits, ServerModelSpec, StepLaw
from scheduler.slots import Slots
from tenants.tenant import Tenant

FAST = ServerModelSpec(
    name="fast-model",
    law=StepLaw(a_us=1000.0, b_us=1.0, c_us=2.0, d_us=0.5, offset_us=1000.0),
    limits=ServerLimits(max_num_seqs=8, max_num_batched_tokens=256, kv_tokens=4096),
)


@dataclass
class Bench:
    """What one test runs. ``outcomes``: those of its gateway, in the order in which requests ended."""

    stack: AsyncExitStack
    outcomes: list[Outcome] = field(default_factory=list)
    _ended: asyncio.Event = field(default_factory=asyncio.Event)

    async def upstream(self, script: Script, **more: object) -> ScriptedUpstream:
        made = ScriptedUpstream(script, **more)
        await made.start()
        self.stack.push_async_callback(made.stop)
        return made

    async def emulator(self) -> EmulatorServer:
        return await self.stack.enter_async_context(EmulatorServer(EmulatorConfig(server_model=FAST)))

    async def gateway(
        self,
        *urls: str,
        slots: Slots | None = None,
        limits: dict[str, object] | None = None,
        key: str | None = None,
        headers: dict[str, str] | None = None,
        resolve=None,
        reload=None,
        **more: object,
    ) -> GatewayServer:
        upstreams = tuple(
            Upstream(name=f"u{number}", url=url, slots=slots or Slots(), api_key=key, headers=headers or {})
            for number, url in enumerate(urls, 1)
        )
        more.setdefault("tenants", (Tenant(name="chat"), Tenant(name="batch")))
        config = GatewayConfig(
            upstreams=upstreams, limits=GatewayLimits(**{"retry_backoff_s": 0.01, **(limits or {})}), **more
        )
        extra = {} if resolve is None else {"resolve": resolve}
        made = GatewayServer(config, on_outcome=self._keep, reload=reload, **extra)
        return await self.stack.enter_async_context(made)

    def _keep(self, outcome: Outcome) -> None:
        self.outcomes.append(outcome)
        self._ended.set()

    async def outcome(self, number: int = 1) -> Outcome:
        """The ``number``-th outcome, once it is there."""
        async with asyncio.timeout(DEADLINE_S):
            while len(self.outcomes) < number:
                self._ended.clear()
                await self._ended.wait()
        return self.outcomes[number - 1]

    async def http(self, url: str) -> aiohttp.ClientSession:
        timeout = aiohttp.ClientTimeout(total=DEADLINE_S)
        return await self.stack.enter_async_context(aiohttp.ClientSession(url, timeout=timeout))

    async def openai(self, gateway: GatewayServer, tenant: str = "chat", key: str = "unused") -> openai.AsyncOpenAI:
        client = openai.AsyncOpenAI(
            base_url=f"{gateway.url}/v1", api_key=key, max_retries=0, default_headers={"x-lmperf-tenant": tenant}
        )
        return await self.stack.enter_async_context(client)

    async def raw(self, gateway: GatewayServer) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port, limit=1 << 26)
        self.stack.push_async_callback(_closed, writer)
        return reader, writer


async def _closed(writer: asyncio.StreamWriter) -> None:
    writer.transport.abort()
    with suppress(ConnectionError):  # how an aborted connection ends
        await writer.wait_closed()


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    async with AsyncExitStack() as stack:
        yield Bench(stack)
