"""Queueing theory: the simpy driver over single servers, with as many slots as servers, against the closed forms.

A mean agrees with a closed form when it lies within 3.5 standard errors of it, by batch means of the run itself, and the
error is small enough for the test to say something. Where a sample path has an exact oracle (the recursions of Lindley and
of Kiefer and Wolfowitz), the comparison is exact. Seeds are fixed.
"""

from __future__ import annotations

import heapq
import math

import numpy as np
import pytest
from sched_support import POLICIES, S, dispatcher, request, serve, tenant

from scheduler.drivers.simulated import Simulation
from scheduler.request import Request
from scheduler.server_model.single import SingleServer
from scheduler.slots import Slots

_MEAN_S = 0.1
_WARM = 0.05


def _stream(rng, name: str, rate: float, count: int) -> list[tuple[int, str]]:
    return [(int(t * S), name) for t in np.cumsum(rng.exponential(1 / rate, count))]


def _requests(streams: list[tuple[int, str]]) -> list[Request]:
    return [request(i, name, at_ns) for i, (at_ns, name) in enumerate(sorted(streams))]


def _run(tenants, which, requests, service_ns, servers=1):
    backends = {chr(ord("a") + i): Slots(sequences=1) for i in range(servers)}
    outcomes = serve(
        dispatcher(tenants, which, backends=backends, **_OPTIONS.get(which, {})),
        requests,
        lambda r: service_ns[r.id],
        servers,
    )
    warm = int(len(requests) * _WARM)
    return sorted((o for o in outcomes if o.request.id >= warm), key=lambda o: o.request.id)


_OPTIONS = {"committed": {"start_rate": 20.0}, "committed-credit": {"start_rate": 20.0}}


def _waits_s(outcomes) -> np.ndarray:
    return np.array([o.dispatched_ns - o.request.arrival_ns for o in outcomes]) / S


def _sojourns_s(outcomes) -> np.ndarray:
    return np.array([o.ended_ns - o.request.arrival_ns for o in outcomes]) / S


def _agrees(values: np.ndarray, expected: float, *, error: float, statistic=np.mean) -> None:
    """``statistic`` of ``values`` (in order of arrival) is ``expected``; ``error``: the largest relative standard error."""
    batches = np.array([statistic(batch) for batch in np.array_split(values, 20)])
    standard_error = batches.std(ddof=1) / math.sqrt(len(batches))
    assert standard_error <= error * expected, "the run is too short to say anything"
    assert abs(batches.mean() - expected) <= 3.5 * standard_error


def _services_ns(rng, law: str, count: int) -> np.ndarray:
    """Mean 0.1 s: exponential, constant, or hyperexponential (squared coefficient of variation 4)."""
    if law == "M":
        draws = rng.exponential(_MEAN_S, count)
    elif law == "D":
        draws = np.full(count, _MEAN_S)
    else:
        share = (1 + math.sqrt(3 / 5)) / 2
        fast = rng.random(count) < share
        draws = np.where(
            fast, rng.exponential(_MEAN_S / (2 * share), count), rng.exponential(_MEAN_S / (2 - 2 * share), count)
        )
    return np.maximum(1, np.rint(draws * S)).astype(np.int64)


_SECOND_MOMENT = {"M": 2 * _MEAN_S**2, "D": _MEAN_S**2, "G": 5 * _MEAN_S**2}


def test_lindley_exactly():
    """FIFO on one server: W(n+1) = max(0, W(n) + S(n) - A(n)), to the nanosecond, for every request."""
    rng = np.random.default_rng(1)
    requests = _requests(_stream(rng, "a", 8.0, 20_000))
    services = _services_ns(rng, "G", len(requests))
    outcomes = serve(dispatcher([tenant("a")]), requests, lambda r: services[r.id])
    free_ns = 0
    for outcome in sorted(outcomes, key=lambda o: o.request.id):
        begin_ns = max(free_ns, outcome.request.arrival_ns)
        free_ns = begin_ns + services[outcome.request.id]
        assert (outcome.dispatched_ns, outcome.ended_ns) == (begin_ns, free_ns)


def test_kiefer_wolfowitz_exactly():
    """FIFO on four servers: the next request begins when it has arrived and the first server is free."""
    rng = np.random.default_rng(8)
    requests = _requests(_stream(rng, "a", 32.0, 10_000))
    services = _services_ns(rng, "G", len(requests))
    begins = {o.request.id: o.dispatched_ns for o in _run([tenant("a")], "fifo", requests, services, 4)}
    free_ns = [0, 0, 0, 0]
    for r in requests:
        begin_ns = max(free_ns[0], r.arrival_ns)
        heapq.heapreplace(free_ns, begin_ns + services[r.id])
        assert begins.get(r.id, begin_ns) == begin_ns


@pytest.mark.parametrize(("law", "count"), [("M", 40_000), ("D", 20_000), ("G", 60_000)])
def test_pollaczek_khinchine(law, count):
    """M/M/1, M/D/1, M/G/1: mean wait = lambda E[S^2] / (2 (1 - rho))."""
    rng = np.random.default_rng(2)
    rate = 7.0
    requests = _requests(_stream(rng, "a", rate, count))
    waits = _waits_s(_run([tenant("a")], "fifo", requests, _services_ns(rng, law, count)))
    expected = rate * _SECOND_MOMENT[law] / (2 * (1 - rate * _MEAN_S))
    _agrees(waits, expected, error=0.1)


def test_mm1_sojourn_mean_and_p99():
    """M/M/1: sojourn is exponential: mean 1/(mu - lambda), P99 ln(100)/(mu - lambda)."""
    rng = np.random.default_rng(3)
    count, rate = 50_000, 6.0
    requests = _requests(_stream(rng, "a", rate, count))
    sojourns = _sojourns_s(_run([tenant("a")], "fifo", requests, _services_ns(rng, "M", count)))
    mean_s = 1 / (1 / _MEAN_S - rate)
    _agrees(sojourns, mean_s, error=0.04)
    _agrees(sojourns, math.log(100) * mean_s, error=0.06, statistic=lambda batch: np.percentile(batch, 99))


def test_mmc_erlang_c():
    """Four single servers behind one queue: mean wait = ErlangC / (c mu - lambda); and the share that waits at all."""
    rng = np.random.default_rng(4)
    count, servers, rate = 40_000, 4, 28.0
    requests = _requests(_stream(rng, "a", rate, count))
    waits = _waits_s(_run([tenant("a")], "fifo", requests, _services_ns(rng, "M", count), servers))
    load = rate * _MEAN_S
    last = load**servers / math.factorial(servers) / (1 - load / servers)
    erlang_c = last / (sum(load**k / math.factorial(k) for k in range(servers)) + last)
    _agrees(waits > 0, erlang_c, error=0.03)
    _agrees(waits, erlang_c / (servers / _MEAN_S - rate), error=0.08)


_MIX = {"a": (3.0, 0.04), "b": (2.0, 0.15), "c": (1.0, 0.3)}
"""Rate (requests/s) and mean service (s): together a load of 0.72."""


def _mix(seed: int, seconds: float):
    rng = np.random.default_rng(seed)
    requests = _requests(
        [item for name, (rate, _) in _MIX.items() for item in _stream(rng, name, rate, int(rate * seconds))]
    )
    services = np.array([max(1, int(rng.exponential(_MIX[r.tenant][1]) * S)) for r in requests])
    return requests, services


def _by_tenant_s(outcomes) -> dict[str, np.ndarray]:
    waits = _waits_s(outcomes)
    names = np.array([o.request.tenant for o in outcomes])
    return {name: waits[names == name] for name in _MIX}


def test_cobham():
    """Strict priority without preemption: W_k = W_0 / ((1 - s_(k-1)) (1 - s_k)), s_k the load of classes up to k."""
    requests, services = _mix(5, 8_000.0)
    tenants = [tenant(name, priority=k) for k, name in enumerate(_MIX)]
    waits = _by_tenant_s(_run(tenants, "priority", requests, services))
    residual = sum(rate * 2 * mean**2 / 2 for rate, mean in _MIX.values())
    load = 0.0
    for name, (rate, mean) in _MIX.items():
        above, load = load, load + rate * mean
        _agrees(waits[name], residual / ((1 - above) * (1 - load)), error=0.08)


@pytest.mark.slow
def test_kleinrock_conservation():
    """sum rho_i W_i is the same, on one sample path, for every work-conserving policy that does not see sizes."""
    requests, services = _mix(6, 2_500.0)
    tenants = [tenant(n, w, ttft_ms=300.0 * w, priority=3 - int(w)) for n, w in zip(_MIX, (1.0, 2.0, 3.0), strict=True)]
    sums, waits = {}, {}
    for which in POLICIES:
        by_tenant = _by_tenant_s(_run(tenants, which, requests, services))
        waits[which] = {name: w.mean() for name, w in by_tenant.items()}
        sums[which] = sum(rate * mean * waits[which][name] for name, (rate, mean) in _MIX.items())
    for which in POLICIES:
        assert sums[which] == pytest.approx(sums["fifo"], rel=0.05), which
    assert max(w["a"] for w in waits.values()) > 1.5 * min(w["a"] for w in waits.values()), "the policies do differ"


@pytest.mark.parametrize("which", ["fifo", "wfq", "edf"])
def test_little(which):
    """L = lambda W: the number in the system, sampled by an observer of its own, against the requests' own sojourns."""
    requests, services = _mix(7, 1_500.0)
    core = dispatcher([tenant(name) for name in _MIX], which)
    outcomes: list = []
    run = Simulation(core, {"a": SingleServer(lambda r: int(services[r.id]))}, requests, outcomes.append)
    horizon_ns = requests[-1].arrival_ns
    seen: list[int] = []

    def observe():
        while run.env.now < horizon_ns:
            yield run.env.timeout(20_000_000)
            seen.append(core.queued + core.outstanding)

    run.env.process(observe())
    run.run()
    in_system = len(requests) / (horizon_ns / S) * _sojourns_s(outcomes).mean()
    assert np.mean(seen) == pytest.approx(in_system, rel=0.01)
