"""Workloads that a known server answers: captures whose truth the tests know."""

from __future__ import annotations

import dataclasses

import numpy as np

from scheduler.calibration.observations import Observations
from scheduler.calibration.replay import replay
from scheduler.server_model.spec import ServerLimits, StepLaw

S = 1_000_000_000

PLAIN_LAW = StepLaw(a_us=6000.0, b_us=25.0, c_us=40.0, d_us=0.05, offset_us=9000.0, stream_us=100.0)
PLAIN_LIMITS = ServerLimits(max_num_seqs=128, max_num_batched_tokens=8192)


def workload(
    seed: int, n: int, *, rate: float | None = None, users: int | None = None, prompt: int = 500, output: int = 100
) -> Observations:
    """Requests with uniform lengths (half to one and a half times the mean), Poisson arrivals or a closed loop; the other
    stamps are still empty."""
    rng = np.random.default_rng(seed)
    nothing = np.zeros(n, dtype=np.int64)
    sent = nothing if rate is None else np.cumsum(rng.exponential(S / rate, n)).astype(np.int64)
    return Observations(
        f"seed {seed}",
        sent,
        nothing,
        nothing,
        rng.integers(prompt // 2, prompt * 3 // 2, n),
        rng.integers(output // 2, output * 3 // 2, n),
        users=users,
    )


def captured(load: Observations, law: StepLaw, limits: ServerLimits) -> Observations:
    """The load as a server of that law answers it, in order of sending."""
    times = replay(load, law, limits).times
    order = np.argsort(times.sent_ns, kind="stable")
    return dataclasses.replace(times.take(order), gaps_ns=times.gaps_ns, gap_counts=times.gap_counts)


def captures(law: StepLaw, limits: ServerLimits) -> list[Observations]:
    """Light, busy and long loads, and a closed loop."""
    loads = (
        workload(1, 60, rate=2.0),
        workload(2, 120, rate=14.0),
        workload(3, 60, rate=3.0, prompt=2000, output=150),
        workload(4, 100, users=24),
    )
    return [captured(load, law, limits) for load in loads]
