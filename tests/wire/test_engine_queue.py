"""The waiting count of an engine, whatever it calls it, from Prometheus text."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Gauge, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from backends.emulator.config import EmulatorConfig
from backends.emulator.server import EmulatorServer
from backends.engine_queue import WAITING_METRICS, waiting_in, waiting_of
from backends.openai import OpenAIBackend
from backends.protocol import BackendError

VLLM = b"""\
# HELP vllm:num_requests_waiting Number of requests waiting to be processed.
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{engine="0",model_name="m {x} y"} 3.0
vllm:num_requests_waiting{engine="1",model_name="m {x} y"} 4.0 1700000000000
vllm:num_requests_waiting_by_reason{engine="0",reason="capacity"} 90.0
vllm:num_requests_running{engine="0",model_name="m"} 50.0
"""


@pytest.mark.parametrize(
    ("text", "count"),
    [
        (VLLM, 7),
        (b"# TYPE tgi_queue_size gauge\ntgi_queue_size 2\ntgi_batch_current_size 5\n", 2),
        (b'sglang:num_queue_reqs{model_name="m"} 11.0\n', 11),
        (b"llamacpp:requests_deferred 0\n", 0),
        (b'lmperf_gateway_queued{tenant="a"} 1\nlmperf_gateway_queued{tenant="b"} 2\n', 3),
        (b'vllm:num_requests_waiting{label="a } 5 "} 8\r\n', 8),
        (b"tgi_queue_size NaN\n", None),
        (b"tgi_queue_size_max 9\n# tgi_queue_size 9\n", None),
        (b"tgi_queue_size\n", None),
        (b"", None),
        (b"<html>not metrics</html>", None),
    ],
)
def test_each_engines_figure_is_found(text, count):
    """Summed over an engine's series; a longer name, a comment or no number is none."""
    assert waiting_in(text) == count


@settings(max_examples=60, deadline=None, derandomize=True, database=None)
@given(
    name=st.sampled_from(WAITING_METRICS),
    values=st.dictionaries(st.text(max_size=12), st.integers(0, 10_000), min_size=1, max_size=5),
)
def test_it_reads_what_the_standard_library_of_metrics_writes(name, values):
    """Labels of any text: the sum that prometheus_client's own parser finds."""
    registry = CollectorRegistry()
    gauge = Gauge(name, "any", ["label"], registry=registry)
    for label, value in values.items():
        gauge.labels(label).set(value)
    text = generate_latest(registry)
    samples = [s for family in text_string_to_metric_families(text.decode()) for s in family.samples]
    assert waiting_in(text) == sum(s.value for s in samples if s.name == name) == sum(values.values())


@pytest.mark.parametrize(("status", "says"), [(200, "tells no count of waiting requests"), (404, "answered HTTP 404")])
def test_a_server_without_the_figure_is_told_apart(status, says):
    """The error names the server, what is missing, what is known, and what else would do."""
    with pytest.raises(BackendError, match=says) as caught:
        waiting_of(status, b"up 1\n", "http://gpu-1:8000")
    assert caught.value.kind == "no_waiting_count"
    for part in ("http://gpu-1:8000/metrics", "vllm:num_requests_waiting", "a number of slots", "auto: tpot"):
        assert part in str(caught.value)


async def test_the_embedded_server_tells_its_queue():
    """Over a socket, and it is well; once it is gone, neither."""
    async with EmulatorServer(EmulatorConfig()) as server:
        backend = OpenAIBackend(server.url)
        assert await backend.waiting() == 0
        assert await backend.answers()
    with pytest.raises(BackendError):
        await backend.waiting()
    assert not await backend.answers()
    await backend.close()
