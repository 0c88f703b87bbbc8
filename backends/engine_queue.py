"""How many requests wait in an engine's own queue, from its ``/metrics``.

Engines name the figure differently; the first name that a server has is taken, summed over its series (one an engine of a
server with several). Only these lines are read: an engine's metrics are thousands of lines, asked for twice a second.
"""

from __future__ import annotations

from backends.protocol import BackendError

METRICS_PATH = "/metrics"
WAITING_METRICS = (
    "vllm:num_requests_waiting",
    "tgi_queue_size",
    "sglang:num_queue_reqs",
    "llamacpp:requests_deferred",
    "lmperf_gateway_queued",
)
"""vLLM (and the embedded server), TGI, SGLang, llama.cpp, and this project's gateway."""


def waiting_in(text: bytes) -> int | None:
    """The waiting count in Prometheus text; None when it has no such figure."""
    sums: dict[str, float] = {}
    for line in text.split(b"\n"):
        for name in WAITING_METRICS:
            if line.startswith(name.encode()):
                value = _value(line[len(name) :])
                if value is not None:
                    sums[name] = sums.get(name, 0.0) + value
                break
    return next((round(sums[name]) for name in WAITING_METRICS if name in sums), None)


def _value(rest: bytes) -> float | None:
    """``{labels} 3 1700000000``, after the name; None when the name goes on, or the value is no number."""
    if rest[:1] == b"{":
        rest = rest[rest.rfind(b"}") + 1 :]
    elif rest[:1] not in (b" ", b"\t"):
        return None
    words = rest.split()
    try:
        value = float(words[0])
    except (IndexError, ValueError):
        return None
    return value if 0 <= value < float("inf") else None


def waiting_of(status: int, body: bytes, where: str) -> int:
    """The count in a reply to ``GET /metrics``. Raises BackendError (kind ``no_waiting_count``)."""
    waiting = waiting_in(body) if status == 200 else None
    if waiting is None:
        said = "tells no count of waiting requests" if status == 200 else f"answered HTTP {status}"
        raise BackendError(
            f"{where}{METRICS_PATH} {said}, which slots by waiting need; known are {', '.join(WAITING_METRICS)}: start "
            "the server with its metrics, or give a number of slots, or let them follow TPOT limits (auto: tpot)",
            kind="no_waiting_count",
        )
    return waiting
