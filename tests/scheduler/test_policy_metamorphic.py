"""What must not change an order of service: names, the scale of weights, the scale of time; and policies that coincide."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from sched_support import MS, POLICIES, S, dispatcher, request, serve, tenant

import scheduler.service_rate
from scheduler.request import Request
from tenants.slo import Slo
from tenants.tenant import Contract, Tenant

_LIMITS_MS = {"a": 400.0, "b": 900.0, "c": 4_000.0}


def _tenants() -> list[Tenant]:
    weights = {"a": 1.0, "b": 2.0, "c": 3.0}
    return [
        tenant(
            n, w, ttft_ms=_LIMITS_MS[n], expected=20.0, priority=int(w), contract=Contract(rate=900.0, burst=4_000.0)
        )
        for n, w in weights.items()
    ]


def _workload(seed: int, names=("a", "b", "c"), count: int = 400) -> list[Request]:
    """About 1.3 times what one server can do, in whole ms, with some instants shared."""
    rng = np.random.default_rng(seed)
    at_ms = np.sort(rng.integers(0, 25_000, count))
    return [
        request(i, names[rng.integers(len(names))], int(t) * MS, int(rng.integers(1, 400)), int(rng.integers(1, 40)))
        for i, t in enumerate(at_ms)
    ]


def _service_ns(r: Request) -> int:
    return r.prompt_tokens * 100_000 + r.target_output_tokens * 3 * MS


def _order(tenants, arrivals, which, *, service_ns=_service_ns, sequences=2, **options) -> list[tuple[int, int]]:
    """(id, dispatch instant) in the order of dispatch."""
    core = dispatcher(tenants, which, sequences=sequences, **{**_periods(which, 1), **options})
    outcomes = serve(core, arrivals, service_ns)
    assert len(outcomes) == len(arrivals)
    return sorted((o.dispatched_ns, o.request.id) for o in outcomes if o.dispatched_ns is not None)


@pytest.mark.parametrize(
    "which", ["wfq", "drr", "vtc", "slo_aware", "committed", "committed-credit", "edf", "priority"]
)
def test_one_tenant_is_served_first_in_first_out(which):
    """With a single tenant every policy is FIFO."""
    arrivals = _workload(1, names=("a",))
    tenants = _tenants()[:1]
    assert _order(tenants, arrivals, which) == _order(tenants, arrivals, "fifo")


def test_equal_limits_make_edf_fifo():
    """With the same TTFT limit for everybody the earliest deadline is the earliest arrival."""
    tenants = [replace(t, slo=Slo(ttft_ns=S, attainment=0.9)) for t in _tenants()]
    arrivals = _workload(2)
    assert _order(tenants, arrivals, "edf") == _order(tenants, arrivals, "fifo")


def test_the_policies_differ_where_they_should():
    """The invariances of this file are not vacuous: on this workload every policy has an order of its own."""
    arrivals = _workload(3)
    orders = {which: tuple(_order(_tenants(), arrivals, which)) for which in POLICIES}
    assert len(set(orders.values())) == len(POLICIES)


@pytest.mark.parametrize("late", ["keep", "demote", "shed"])
@pytest.mark.parametrize("which", POLICIES)
@pytest.mark.parametrize("factor", [0.25, 8.0])
def test_only_the_ratio_of_weights_matters(which, factor, late):
    """All weights times a power of two (so that no rounding changes) leave every dispatch where it was."""
    arrivals = _workload(4)
    scaled = [replace(t, weight=t.weight * factor) for t in _tenants()]
    assert _order(scaled, arrivals, which, late=late) == _order(_tenants(), arrivals, which, late=late)


@pytest.mark.parametrize("which", POLICIES)
def test_names_do_not_matter(which):
    """Renaming the tenants, and listing them in another order, changes nothing: ties fall to (arrival, id)."""
    arrivals = _workload(5)
    to = {"a": "z", "b": "m", "c": "k"}
    renamed = [replace(t, name=to[t.name]) for t in reversed(_tenants())]
    theirs = [request(r.id, to[r.tenant], r.arrival_ns, r.prompt_tokens, r.target_output_tokens) for r in arrivals]
    assert _order(renamed, theirs, which) == _order(_tenants(), arrivals, which)


@pytest.mark.parametrize("late", ["keep", "demote", "shed"])
@pytest.mark.parametrize("which", POLICIES)
@pytest.mark.parametrize("factor", [2, 4])
def test_the_unit_of_time_does_not_matter(which, late, factor, monkeypatch):
    """A slower clock: arrivals, services, limits, rates and every period of the policy scale, and so do the dispatches."""
    arrivals = _workload(6)
    plain = _order(_tenants(), arrivals, which, late=late)
    monkeypatch.setattr(scheduler.service_rate, "WINDOW_NS", factor * scheduler.service_rate.WINDOW_NS)
    slow = [
        replace(
            t,
            slo=Slo(ttft_ns=t.slo.ttft_ns * factor, attainment=t.slo.attainment),
            contract=Contract(rate=t.contract.rate / factor, burst=t.contract.burst),
        )
        for t in _tenants()
    ]
    stretched = [
        request(r.id, r.tenant, r.arrival_ns * factor, r.prompt_tokens, r.target_output_tokens) for r in arrivals
    ]
    order = _order(
        slow, stretched, which, service_ns=lambda r: factor * _service_ns(r), late=late, **_periods(which, factor)
    )
    # A late request is shed one ns after its limit on any clock, so only what is dispatched can be compared.
    assert order == [(at_ns * factor, number) for at_ns, number in plain]


def _periods(which: str, factor: int) -> dict[str, object]:
    own: dict[str, object] = {"margin_ms": 50.0 * factor, "prefill_rate": 40_000.0 / factor}
    if which.startswith("slo_aware"):
        own |= {"window_s": 8.0 * factor, "epoch_s": 0.25 * factor}
    if which.startswith("committed"):
        own |= {"horizon_s": 1.0 * factor, "start_rate": 500.0 / factor}
    return own
