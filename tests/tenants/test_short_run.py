"""A run too short for an interval may be called broken, never kept, and rarely when the promise is in truth kept."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenants.slo import Metric, Objective, Slo
from tenants.tenant import Tenant
from tenants.verdict import Verdict, judge
from tests.tenants.rows import MS, S, columns, lost, row

TTFT = Slo(ttft_ns=500 * MS, attainment=0.99)


def run_of(missed: np.ndarray, seconds: float) -> object:
    """A request every ``seconds / n``; where ``missed``, it fails after a second."""
    step = round(seconds * S / len(missed))
    return columns([lost(k * step, S) if bad else row(k * step) for k, bad in enumerate(missed.tolist())])


def verdict(missed: np.ndarray, seconds: float, slo: Slo = TTFT) -> Verdict:
    return judge(Tenant(name="chat", slo=slo), run_of(missed, seconds)).verdict


def objective(p: float, limit_ms: float) -> Slo:
    return Slo(objectives=(Objective(metric=Metric.TTFT, percentile=p, limit_ns=round(limit_ms * MS)),))


@pytest.mark.parametrize("slo", [TTFT, objective(99, 500)])
def test_a_server_that_answers_nothing_has_broken_its_promise_within_seconds(slo):
    assert verdict(np.ones(40, bool), 10, slo) is Verdict.BROKEN


@pytest.mark.parametrize("slo", [Slo(ttft_ns=500 * MS, attainment=0.9), objective(90, 500)])
def test_a_server_that_dies_half_way_has_broken_its_promise(slo):
    assert verdict(np.arange(600) >= 300, 30, slo) is Verdict.BROKEN


def test_one_stall_is_one_event_and_proves_nothing():
    """A second without answers in twenty: 5% of the requests missed a target of 99%, all of them for one cause."""
    stalled = (np.arange(2000) >= 700) & (np.arange(2000) < 800)
    assert verdict(stalled, 20) is Verdict.UNDECIDED


def test_misses_all_over_a_short_run_break_a_promise():
    """5% missed, spread evenly, of 2,000 requests at 99%."""
    assert verdict(np.arange(2000) % 20 == 0, 60) is Verdict.BROKEN


@given(st.integers(1, 400), st.integers(1, 119), st.sampled_from([0.5, 0.9, 0.999]), st.data())
def test_a_short_run_is_never_kept(n, seconds, target, data):
    missed = np.array(data.draw(st.lists(st.booleans(), min_size=n, max_size=n)))
    found = judge(Tenant(name="chat", slo=Slo(ttft_ns=500 * MS, attainment=target)), run_of(missed, seconds))
    assert found.verdict in {Verdict.BROKEN, Verdict.UNDECIDED}
    promise = found.promises[0]
    if found.verdict is Verdict.BROKEN:
        assert promise.value <= promise.interval.high < target
    else:
        assert "too short" in promise.why


def test_fewer_than_five_stretches_with_a_request_prove_nothing():
    """Four requests, or hundreds within half a second of a run, all lost."""
    assert verdict(np.ones(4, bool), 20) is Verdict.UNDECIDED
    clump = columns([row(0, tenant=1), *(lost(S + k, S) for k in range(300)), row(60 * S, tenant=1)])
    assert judge(Tenant(name="chat", slo=TTFT), clump).verdict is Verdict.UNDECIDED


@pytest.mark.parametrize("clump", [1, 20])
def test_a_promise_that_is_kept_in_truth_is_rarely_called_broken(clump):
    """300 short runs whose true attainment is exactly the target, with single misses or stalls of 20 requests: at most
    the 2.5% that an upper end allows, and what chance adds to that in 300 runs."""
    rng = np.random.default_rng(3)
    n, target, broken = 1200, 0.95, 0
    slo = Slo(ttft_ns=500 * MS, attainment=target)
    for _ in range(300):
        starts = rng.random(n + clump) < 1 - target ** (1 / clump)
        missed = np.convolve(starts, np.ones(clump), "full")[clump : clump + n] > 0
        broken += verdict(missed, 60, slo) is Verdict.BROKEN
    assert broken <= 300 * 0.025 + 3 * (300 * 0.025 * 0.975) ** 0.5
