"""A real engine's server that does not come up is an error that shows why, at once."""

import sys

import pytest

from backends.protocol import BackendError
from tests.engines.support.server import engine_server


def test_a_server_that_ends_before_it_is_ready_is_an_error_with_its_last_words(tmp_path):
    """Not a wait until the time-out: this python has no vLLM, so the process ends right away."""
    started = engine_server(sys.executable, tmp_path, tmp_path, say=lambda _: None)
    with pytest.raises(BackendError, match=r"(?s)ended with 1 before it was ready.*last words.*vllm"), started:
        raise AssertionError("a server without vLLM cannot be ready")
