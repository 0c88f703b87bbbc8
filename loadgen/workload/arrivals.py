"""Arrival times of the open-loop processes, streamed in chunks.

Gaps are drawn in operational time (:mod:`loadgen.workload.intensity`): 1 for CONSTANT, exponential for POISSON, gamma
of shape b = ``burstiness`` and mean 1 for GAMMA (coefficient of variation 1 / sqrt(b)), and the same gamma for RAMP and
STEPS. BURST draws the epochs of bursts that way (one per ``burst_size`` expected arrivals); inside a burst the gap
is 1 / ``burst_rate`` of the run's own time, and bursts may overlap.

CONSTANT and fixed epochs begin at 0; every other process begins with a gap.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from loadgen.workload.intensity import Floats, Intensity
from tenants.traffic import Arrivals, Process

Int64s = NDArray[np.int64]

CHUNK = 4096
"""Arrivals made at a time: little enough to be made between two deadlines of a live run."""

_RATED = (Process.CONSTANT, Process.POISSON, Process.GAMMA, Process.BURST, Process.RAMP)


def arrival_times(
    spec: Arrivals, duration_s: float, rng: np.random.Generator, *, chunk: int = CHUNK
) -> Iterator[Int64s]:
    """Chunks of arrival times, ns in [0, duration), ascending across and within chunks, memory bounded by ``chunk``.

    ``duration_s`` may be infinite for a process that does not depend on it. Raises ValueError that lists every fault,
    and for CLOSED and TRACE, which have no schedule of their own.
    """
    if spec.process in {Process.CLOSED, Process.TRACE}:
        raise ValueError(f"{spec.process} arrivals have no schedule; an open-loop process would be right")
    faults = faults_of(spec)
    if not duration_s > 0:
        faults.append(f"duration_s is {duration_s}; it is > 0")
    elif math.isinf(duration_s):
        faults.extend(_needs_duration(spec))
    if faults:
        raise ValueError(f"{spec.process} arrivals: " + "; ".join(faults))
    intensity = Intensity(spec, duration_s)
    if not intensity.total > 0:
        raise ValueError(f"{spec.process} arrivals: no active part of the run meets an on phase; widen active or on_s")
    if spec.process is Process.BURST:
        return _bursts(spec, intensity, duration_s, rng, chunk)
    return _singles(spec, intensity, duration_s, rng, chunk)


def expected_arrivals(spec: Arrivals, duration_s: float) -> float:
    """The mean number of arrivals of an open-loop ``spec`` in [0, ``duration_s``)."""
    return Intensity(spec, duration_s).total


def faults_of(spec: Arrivals) -> list[str]:
    """Everything that is wrong with ``spec``, each with what would be right."""
    faults = []
    if spec.process in _RATED and (spec.rate is None or not _positive(spec.rate)):
        faults.append(f"rate is {spec.rate}; {spec.process} arrivals need a rate > 0 in requests/s")
    if not _positive(spec.burstiness):
        faults.append(f"burstiness is {spec.burstiness}; it is > 0, and 1 means Poisson")
    if spec.burst_size < 1:
        faults.append(f"burst_size is {spec.burst_size}; a burst holds at least one request")
    if spec.burst_rate is not None and not _positive(spec.burst_rate):
        faults.append(f"burst_rate is {spec.burst_rate}; requests/s > 0, or none for all at one instant")
    if spec.process is Process.RAMP and not (math.isfinite(spec.ramp_from) and spec.ramp_from >= 0):
        faults.append(f"ramp_from is {spec.ramp_from}; a ramp starts at a rate >= 0")
    if spec.process is Process.STEPS:
        faults.extend(_step_faults(spec))
    if spec.process is Process.CLOSED:
        faults.extend(_closed_faults(spec))
    return faults + _phase_faults(spec)


def _positive(value: float) -> bool:
    return math.isfinite(value) and value > 0


def _step_faults(spec: Arrivals) -> list[str]:
    faults = []
    starts = [start for start, _ in spec.steps]
    rates = [rate for _, rate in spec.steps]
    if not spec.steps:
        faults.append("steps is empty; give (start fraction of the run, requests/s) pairs")
    if any(not 0 <= start < 1 for start in starts):
        faults.append(f"the steps start at {starts}; fractions of the run in [0, 1) would be right")
    if any(b <= a for a, b in pairwise(starts)):
        faults.append(f"the steps start at {starts}; each must start later than the one before")
    if any(not (math.isfinite(rate) and rate >= 0) for rate in rates) or (rates and not max(rates) > 0):
        faults.append(f"the rates of the steps are {rates}; requests/s >= 0, at least one above 0, would be right")
    return faults


def _closed_faults(spec: Arrivals) -> list[str]:
    faults = []
    if spec.users is None or spec.users < 1:
        faults.append(f"users is {spec.users}; a closed loop needs at least one user")
    if spec.rate is not None:
        faults.append(f"rate is {spec.rate}; a closed loop has users in place of a rate")
    for name, value in (("think_s", spec.think_s), ("failure_pause_s", spec.failure_pause_s)):
        if not (math.isfinite(value) and value >= 0):
            faults.append(f"{name} is {value}; seconds >= 0 would be right")
    return faults


def _phase_faults(spec: Arrivals) -> list[str]:
    faults = []
    if (spec.on_s is None) != (spec.period_s is None):
        faults.append("on_s and period_s go together; give both or neither")
    elif spec.on_s is not None and spec.period_s is not None and not 0 < spec.on_s <= spec.period_s < math.inf:
        faults.append(f"on_s is {spec.on_s}, period_s {spec.period_s}; 0 < on_s <= period_s would be right")
    edges = [edge for part in spec.active for edge in part]
    if any(not 0 <= edge <= 1 for edge in edges) or any(end <= start for start, end in spec.active):
        faults.append(f"active is {list(spec.active)}; parts (start, end) with 0 <= start < end <= 1 would be right")
    elif edges != sorted(edges):
        faults.append(f"active is {list(spec.active)}; its parts must follow each other without overlap")
    return faults


def _needs_duration(spec: Arrivals) -> list[str]:
    bound = [
        name
        for name, used in (
            (f"{spec.process} arrivals", spec.process in {Process.RAMP, Process.STEPS}),
            ("active", bool(spec.active)),
            ("on_s", spec.on_s is not None),
        )
        if used
    ]
    return [f"{name} needs a run of known duration; give one" for name in bound]


def _singles(
    spec: Arrivals, intensity: Intensity, duration_s: float, rng: np.random.Generator, chunk: int
) -> Iterator[Int64s]:
    for u in _operational(spec, rng, chunk):
        due = u[: int(np.searchsorted(u, intensity.total, side="left"))]
        yield from _not_empty(_before_end(_to_ns(intensity.time_s(due)), duration_s))
        if len(due) < len(u):
            return


def _operational(spec: Arrivals, rng: np.random.Generator, chunk: int) -> Iterator[Floats]:
    """Endless ascending instants in operational time, one expected per unit."""
    if spec.process is Process.CONSTANT or (spec.process is Process.BURST and spec.fixed_epochs):
        first = 0
        while True:
            yield np.arange(first, first + chunk, dtype=np.float64)
            first += chunk
    last = 0.0
    shape = 1.0 if spec.process in {Process.POISSON, Process.BURST} else spec.burstiness
    while True:
        gaps = rng.standard_exponential(chunk) if shape == 1.0 else rng.standard_gamma(shape, chunk) / shape
        u = last + np.cumsum(gaps)
        last = float(u[-1])
        yield u


def _bursts(
    spec: Arrivals, intensity: Intensity, duration_s: float, rng: np.random.Generator, chunk: int
) -> Iterator[Int64s]:
    spacing_ns = 0.0 if spec.burst_rate is None else 1e9 / spec.burst_rate
    offsets = np.rint(np.arange(spec.burst_size) * spacing_ns).astype(np.int64)
    pending = np.empty(0, dtype=np.int64)
    for unit in _operational(spec, rng, max(1, chunk // spec.burst_size)):
        u = unit * spec.burst_size
        starts = u[: int(np.searchsorted(u, intensity.total, side="left"))]
        epochs = _to_ns(intensity.time_s(starts))
        ended = len(starts) < len(u)
        pending = np.concatenate([pending, (epochs[:, None] + offsets).ravel()])
        pending.sort(kind="stable")
        if ended:
            yield from _not_empty(_before_end(pending, duration_s))
            return
        # A later burst starts after the last epoch, so what lies before it is final.
        final = int(np.searchsorted(pending, epochs[-1], side="right"))
        due, pending = _before_end(pending[:final], duration_s), pending[final:].copy()
        yield from _not_empty(due)


def _to_ns(times_s: Floats) -> Int64s:
    return np.rint(times_s * 1e9).astype(np.int64)


def _before_end(times_ns: Int64s, duration_s: float) -> Int64s:
    if math.isinf(duration_s):
        return times_ns
    return times_ns[: int(np.searchsorted(times_ns, round(duration_s * 1e9), side="left"))]


def _not_empty(times_ns: Int64s) -> Iterator[Int64s]:
    if len(times_ns):
        yield times_ns
