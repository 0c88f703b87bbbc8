"""What ``GET /lmperf/stats`` tells: the server's counts, its own lateness and what it cost."""

from __future__ import annotations

import msgspec

from scheduler.server_model.spec import ServerModelSpec


class EmulatorStats(msgspec.Struct, frozen=True, kw_only=True):
    """Since the server's start. Lateness: from a step's planned end to its last write; percentiles to 3 significant
    digits, None before the first step. ``cpu_s``: of the server's process, start-up included. ``server_model`` is
    what runs, time scale and limits applied.
    """

    uptime_s: float
    cpu_s: float
    steps: int
    lateness_p50_ns: int | None
    lateness_p99_ns: int | None
    lateness_max_ns: int | None
    requests_received: int
    requests_running: int
    requests_waiting: int
    requests_finished: int
    requests_aborted: int
    prompt_tokens: int
    generation_tokens: int
    preemptions: int
    kv_tokens: int
    time_scale: float
    model: str
    server_model: ServerModelSpec
