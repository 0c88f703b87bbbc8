"""Rules of the arrival processes, judged by closed forms and by scipy's tests, with fixed seeds."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from loadgen.workload.arrivals import arrival_times, expected_arrivals, faults_of
from loadgen.workload.intensity import next_open_ns, open_parts
from tenants.traffic import Arrivals, Process

P = Process
S = 1_000_000_000


def times(duration_s, *, seed=1, chunk=4096, **spec):
    chunks = list(arrival_times(Arrivals(**spec), duration_s, np.random.default_rng(seed), chunk=chunk))
    assert all(len(chunk) for chunk in chunks)
    return np.concatenate(chunks) if chunks else np.empty(0, dtype=np.int64)


def test_constant_is_constant():
    """CONSTANT: arrival k is at k / rate, to the nanosecond, however long the run (no sum of rounded gaps)."""
    at = times(10_000, process=P.CONSTANT, rate=30)
    assert len(at) == 300_000
    exact = [k * S / 30 for k in range(len(at))]
    assert np.abs(at - np.array(exact)).max() <= 1
    assert set(np.diff(times(100, process=P.CONSTANT, rate=8)).tolist()) == {S // 8}


def test_poisson_gaps_are_exponential():
    """POISSON: gaps follow the exponential law of the rate (KS), and do not depend on each other."""
    gaps = np.diff(times(1000, rate=40)) / S
    assert stats.ks_1samp(gaps, stats.expon(scale=1 / 40).cdf).pvalue > 0.01
    assert abs(np.corrcoef(gaps[1:], gaps[:-1])[0, 1]) < 0.02


def test_arrivals_have_nanosecond_resolution():
    """Times are not rounded to a coarser clock: the last three digits are spread evenly."""
    digits = times(1000, rate=40) % 1000
    assert stats.chisquare(np.histogram(digits, bins=20, range=(0, 1000))[0]).pvalue > 0.01


@pytest.mark.parametrize("burstiness", [0.25, 1.0, 4.0])
def test_gamma_gaps_have_the_burstiness(burstiness):
    """GAMMA: gaps are gamma of shape b and mean 1 / rate (KS), so cv = 1 / sqrt(b)."""
    gaps = np.diff(times(2000, process=P.GAMMA, rate=20, burstiness=burstiness)) / S
    law = stats.gamma(burstiness, scale=1 / (20 * burstiness))
    assert stats.ks_1samp(gaps, law.cdf).pvalue > 0.01
    assert gaps.std() / gaps.mean() == pytest.approx(1 / math.sqrt(burstiness), rel=0.03)


def test_a_burst_of_n_starts_n():
    """BURST without a rate inside: all of a burst arrive at one instant, none is lost or cut."""
    at = times(600, process=P.BURST, rate=5, burst_size=64)
    instants, counts = np.unique(at, return_counts=True)
    assert set(counts.tolist()) == {64}
    assert stats.ks_1samp(np.diff(instants) / S, stats.expon(scale=64 / 5).cdf).pvalue > 0.01


def test_bursts_keep_their_rate_inside_and_the_mean_outside():
    """Fixed epochs: a burst of 100 at 200/s every burst_size / rate seconds."""
    at = times(300, process=P.BURST, rate=20, burst_size=100, burst_rate=200, fixed_epochs=True)
    assert len(at) == 300 * 20
    bursts = at.reshape(60, 100)
    assert bursts[:, 0].tolist() == [5 * S * k for k in range(60)]
    assert set(np.diff(bursts, axis=1).ravel().tolist()) == {S // 200}


def test_overlapping_bursts_are_merged_in_order():
    """Bursts longer than the gap between them interleave: sorted, at the mean rate, each epoch complete."""
    at = times(1000, process=P.BURST, rate=50, burst_size=20, burst_rate=10, chunk=40)
    assert (np.diff(at) >= 0).all()
    assert len(at) / 1000 == pytest.approx(50, rel=0.05)


def test_a_ramp_rises_linearly():
    """RAMP: the number arrived by t is the integral of the rate, so its share is a quadratic law (KS)."""
    at = times(1000, process=P.RAMP, rate=80, ramp_from=20) / S
    assert len(at) == pytest.approx(50_000, abs=5 * math.sqrt(50_000))
    assert stats.ks_1samp(at, lambda t: (20 * t + 0.03 * t**2) / 50_000).pvalue > 0.01


def test_a_ramp_may_start_from_nothing():
    """RAMP from 0: the first arrivals come when they are expected, not all at the start."""
    at = times(1000, process=P.RAMP, rate=10) / S
    assert stats.ks_1samp(at, lambda t: (t / 1000) ** 2).pvalue > 0.01


def test_every_step_is_played_once():
    """STEPS: each step has its own rate, from its start to the next; a rate that comes back is a step of its own."""
    steps = ((0.0, 10.0), (0.25, 40.0), (0.5, 0.0), (0.75, 10.0))
    at = times(1000, process=P.STEPS, steps=steps) / S
    counts = np.histogram(at, bins=[0, 250, 500, 750, 1000])[0]
    for count, expected in zip(counts, (2500, 10_000, 0, 2500), strict=True):
        assert abs(count - expected) <= 5 * math.sqrt(expected)
    uneven = times(100, process=P.STEPS, steps=((0.5, 3.0),)) / S
    assert uneven.min() >= 50


def test_on_off_runs_in_the_on_phase_only_and_keeps_the_mean():
    """on_s / period_s: nothing outside the first on_s of a period; mean rate over the whole run as asked."""
    at = times(2000, rate=20, on_s=10, period_s=50) / S
    assert (at % 50 < 10).all()
    assert len(at) == pytest.approx(40_000, abs=5 * math.sqrt(40_000))
    assert stats.ks_1samp(at % 50, stats.uniform(0, 10).cdf).pvalue > 0.01


def test_on_off_keeps_the_mean_when_the_last_period_is_cut():
    """65 s of (10 on, 50 period) hold 20 s on: still rate x 65 requests are expected."""
    assert expected_arrivals(Arrivals(rate=20, on_s=10, period_s=50), 65) == pytest.approx(20 * 65)


def test_active_parts_hold_the_rate_and_the_rest_nothing():
    """active: the rate holds within the parts, no request outside."""
    at = times(1000, rate=50, active=((0.3, 0.5), (0.7, 0.9))) / S
    inside = ((at >= 300) & (at < 500)) | ((at >= 700) & (at < 900))
    assert inside.all()
    assert len(at) == pytest.approx(20_000, abs=5 * math.sqrt(20_000))


@pytest.mark.parametrize(
    "spec",
    [
        {"rate": 10},
        {"process": P.GAMMA, "rate": 10, "burstiness": 0.5},
        {"process": P.BURST, "rate": 10, "burst_size": 7, "burst_rate": 20},
        {"process": P.RAMP, "rate": 10, "ramp_from": 3},
        {"process": P.CONSTANT, "rate": 10, "on_s": 3, "period_s": 10},
    ],
)
def test_k_times_the_rate_is_the_same_process_k_times_as_fast(spec):
    """grown(k): k times as many expected; the same seed gives the same arrivals, nearer to each other."""
    arrivals = Arrivals(**spec)
    assert expected_arrivals(arrivals.grown(2.5), 100) == pytest.approx(2.5 * expected_arrivals(arrivals, 100))
    if arrivals.process in {P.POISSON, P.GAMMA}:
        slow = times(100, **spec)
        fast = times(40, **(spec | {"rate": 25}))
        assert np.abs(fast - slow[: len(fast)] / 2.5).max() <= 1


rates = st.floats(0.5, 200)
specs = st.one_of(
    st.builds(lambda r: Arrivals(process=P.CONSTANT, rate=r), rates),
    st.builds(lambda r: Arrivals(rate=r), rates),
    st.builds(lambda r, b: Arrivals(process=P.GAMMA, rate=r, burstiness=b), rates, st.floats(0.2, 5)),
    st.builds(
        lambda r, n, b, f: Arrivals(process=P.BURST, rate=r, burst_size=n, burst_rate=b, fixed_epochs=f),
        rates,
        st.integers(1, 50),
        st.one_of(st.none(), rates),
        st.booleans(),
    ),
    st.builds(lambda r, f: Arrivals(process=P.RAMP, rate=r, ramp_from=f), rates, st.floats(0, 100)),
    st.builds(lambda r, on: Arrivals(rate=r, on_s=on, period_s=7), rates, st.floats(0.5, 7)),
)


@settings(max_examples=60, deadline=None)
@given(specs, st.floats(1, 30), st.integers(0, 2**32))
def test_times_ascend_inside_the_run_and_repeat_with_the_seed(spec, duration_s, seed):
    """Every process: int64, ascending across chunks, in [0, duration), the same from the same generator."""
    first = list(arrival_times(spec, duration_s, np.random.default_rng(seed), chunk=64))
    again = list(arrival_times(spec, duration_s, np.random.default_rng(seed), chunk=64))
    at = np.concatenate([*first, np.empty(0, dtype=np.int64)])
    assert at.dtype == np.int64
    assert (np.diff(at) >= 0).all()
    assert len(at) == 0 or (at[0] >= 0 and at[-1] < duration_s * 1e9)
    assert at.tolist() == np.concatenate([*again, np.empty(0, dtype=np.int64)]).tolist()


def test_memory_does_not_grow_with_the_run():
    """Chunks are bounded, also for an endless run: ten million arrivals are never in memory at once."""
    stream = arrival_times(Arrivals(rate=1e6), math.inf, np.random.default_rng(1))
    assert max(len(next(stream)) for _ in range(20)) <= 4096


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({}, "rate is None"),
        ({"rate": -1}, "rate is -1"),
        ({"rate": 1, "burstiness": 0}, "burstiness is 0"),
        ({"process": P.BURST, "rate": 1, "burst_size": 0}, "burst_size is 0"),
        ({"process": P.BURST, "rate": 1, "burst_rate": 0}, "burst_rate is 0"),
        ({"process": P.RAMP, "rate": 1, "ramp_from": -1}, "ramp_from is -1"),
        ({"process": P.STEPS}, "steps is empty"),
        ({"process": P.STEPS, "steps": ((0, 1), (0, 2))}, "later than the one before"),
        ({"process": P.STEPS, "steps": ((0, 0),)}, "at least one above 0"),
        ({"process": P.STEPS, "steps": ((1.5, 1),)}, "fractions"),
        ({"rate": 1, "on_s": 1}, "go together"),
        ({"rate": 1, "on_s": 5, "period_s": 2}, "on_s <= period_s"),
        ({"rate": 1, "active": ((0.5, 0.2),)}, "start < end"),
        ({"rate": 1, "active": ((0.0, 0.6), (0.5, 1.0))}, "overlap"),
    ],
)
def test_a_fault_says_what_is_wrong(spec, words):
    """Faults name the field; the stream refuses at once, not at its first use."""
    assert any(words in fault for fault in faults_of(Arrivals(**spec)))
    with pytest.raises(ValueError, match=words.split(" ", maxsplit=1)[0]):
        arrival_times(Arrivals(**spec), 10, np.random.default_rng(1))


def test_closed_loops_need_users_and_no_rate():
    """CLOSED has no schedule, and its own faults."""
    assert len(faults_of(Arrivals(process=P.CLOSED, rate=3, think_s=-1))) == 3
    with pytest.raises(ValueError, match="no schedule"):
        arrival_times(Arrivals(process=P.CLOSED, users=1), 10, np.random.default_rng(1))


def test_what_depends_on_the_duration_refuses_an_endless_run():
    """Fractions of an unknown duration mean nothing."""
    for spec in (Arrivals(process=P.RAMP, rate=1), Arrivals(rate=1, active=((0, 0.5),))):
        with pytest.raises(ValueError, match="known duration"):
            arrival_times(spec, math.inf, np.random.default_rng(1))


def test_a_run_in_which_nothing_may_arrive_is_refused():
    """An active part that only meets off phases is a mistake, not a silent tenant."""
    with pytest.raises(ValueError, match="on phase"):
        arrival_times(Arrivals(rate=1, on_s=1, period_s=10, active=((0.5, 0.9),)), 10, np.random.default_rng(1))


def test_the_next_open_instant_is_now_or_the_next_part():
    """next_open_ns: inside a part it is the instant itself, before one its start, after the last none."""
    parts = open_parts(Arrivals(process=P.CLOSED, users=1, active=((0.1, 0.2), (0.5, 0.6))), 100)
    assert next_open_ns(parts, 0) == 10 * S
    assert next_open_ns(parts, 15 * S) == 15 * S
    assert next_open_ns(parts, 20 * S) == 50 * S
    assert next_open_ns(parts, 60 * S) is None
