"""A fast embedded server on a real socket, and clients for it."""

from collections.abc import AsyncIterator

import aiohttp
import openai
import pytest

from backends.emulator.config import EmulatorConfig
from backends.emulator.server import EmulatorServer
from scheduler.server_model.spec import ServerLimits, ServerModelSpec, StepLaw

FAST = ServerModelSpec(
    name="fast-model",
    law=StepLaw(a_us=1000.0, b_us=1.0, c_us=2.0, d_us=0.5, offset_us=3000.0),
    limits=ServerLimits(max_num_seqs=8, max_num_batched_tokens=256, kv_tokens=4096),
)


@pytest.fixture
def config() -> EmulatorConfig:
    """Test modules that need another server override this."""
    return EmulatorConfig(server_model=FAST)


@pytest.fixture
async def server(config) -> AsyncIterator[EmulatorServer]:
    async with EmulatorServer(config) as running:
        yield running


@pytest.fixture
async def http(server) -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(server.url) as session:
        yield session


@pytest.fixture
async def client(server) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="unused", max_retries=0) as made:
        yield made
