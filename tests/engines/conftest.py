"""The real engine, once a session: its environment, the tiny model, the server.

A machine that can run it and does not get it fails; only a machine that cannot (no AVX2) skips.
"""

import pytest

from tests.engines.support.environment import ensure
from tests.engines.support.server import engine_server
from tests.engines.support.tiny_model import tiny_llama
from tests.engines.support.vllm_cpu import RECIPE, why_not_here


def say(text: str) -> None:
    """Progress for people: `make test-engines` shows it as it comes."""
    print(f"[engine] {text}", flush=True)


@pytest.fixture(scope="session")
def engine_python():
    reason = why_not_here()
    if reason is not None:
        pytest.skip(reason)
    return ensure(RECIPE, say=say)


@pytest.fixture(scope="session")
def tiny_model(engine_python):
    return tiny_llama(engine_python, say=say)


@pytest.fixture(scope="session")
def running_engine(engine_python, tiny_model, tmp_path_factory):
    with engine_server(engine_python, tiny_model, tmp_path_factory.mktemp("vllm"), say=say) as server:
        yield server


@pytest.fixture
def engine(running_engine, request):
    """The server; when a test fails, its last words are shown."""
    failed = request.session.testsfailed
    yield running_engine
    if request.session.testsfailed > failed:
        print(f"vLLM's last words:\n{running_engine.log_tail()}")
