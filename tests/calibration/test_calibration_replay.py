"""A replay is the simulation, without the parts that a fit does not need."""

import dataclasses
import gc
from dataclasses import replace

import numpy as np
import pytest
from calibration_loads import S, workload
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.calibration.figures import errors, figures
from scheduler.calibration.observations import Observations
from scheduler.calibration.replay import replay
from scheduler.dispatcher import Dispatcher
from scheduler.dispatcher_config import DispatcherConfig
from scheduler.drivers.simulated import Simulation
from scheduler.request import Request
from scheduler.server_model.build import build_server
from scheduler.server_model.spec import ServerLimits, StepLaw
from scheduler.slots import Slots
from tenants.tenant import Tenant

laws = st.builds(
    StepLaw,
    a_us=st.floats(500, 5000),
    b_us=st.floats(0, 30),
    c_us=st.floats(0, 50),
    d_us=st.floats(0, 0.5),
    offset_us=st.just(0.0) | st.floats(0, 20_000),
    stream_us=st.just(0.0) | st.floats(0, 500),
)
limits_ = st.builds(
    ServerLimits,
    max_num_seqs=st.integers(1, 8),
    max_num_batched_tokens=st.integers(16, 300),
    kv_tokens=st.sampled_from([None, 400, 1000]),
    speculative_tokens=st.sampled_from([0, 0, 1]),
)


def simulated(load: Observations, law: StepLaw, limits: ServerLimits):
    """The same workload through the whole simulator, unlimited slots and first come, first served."""

    def request(index: int, at_ns: int) -> Request:
        return Request(
            id=index,
            tenant="t",
            arrival_ns=at_ns,
            prompt_tokens=int(load.prompt_tokens[index]),
            target_output_tokens=int(load.output_tokens[index]),
        )

    begin = len(load) if load.users is None else min(load.users, len(load))
    following = iter(range(begin, len(load)))
    outcomes, gaps = [], []

    def after(outcome):
        index = next(following, None)
        return [] if index is None else [request(index, outcome.ended_ns + load.turnaround_ns)]

    config = DispatcherConfig(tenants=(Tenant(name="t"),), policy="fifo", backends={"": Slots()})
    Simulation(
        Dispatcher(config),
        {"": build_server(law, limits)},
        [request(i, int(load.sent_ns[i])) for i in range(begin)],
        outcomes.append,
        on_gaps=lambda _tenant, values, counts, _tokens=1: gaps.extend(np.repeat(values, counts).tolist()),
        after=after if load.users is not None else None,
    ).run()
    by_id = sorted(outcomes, key=lambda outcome: outcome.request.id)
    return (
        [o.request.arrival_ns for o in by_id],
        [o.first_token_ns for o in by_id],
        [o.last_token_ns for o in by_id],
        sorted(gaps),
    )


@settings(max_examples=60, deadline=None)
@given(
    law=laws,
    limits=limits_,
    seed=st.integers(0, 10_000),
    users=st.sampled_from([None, 1, 5]),
    by_block=st.booleans(),
)
def test_a_replay_gives_the_simulators_times_to_the_nanosecond(law, limits, seed, users, by_block):
    """Every stamp and every gap is the one that the whole simulator gives, in both loops, with one token a step and
    with several, with and without preemption, counted together or by block."""
    load = workload(seed, 30, rate=None if users else 40.0, users=users, prompt=60, output=20)
    found = replay(load, law, limits, by_block=by_block).times
    assert found.gaps_ns is not None
    assert found.gap_counts is not None
    gaps = sorted(np.repeat(found.gaps_ns, found.gap_counts).tolist())
    assert (found.sent_ns.tolist(), found.first_ns.tolist(), found.last_ns.tolist(), gaps) == simulated(
        load, law, limits
    )


@pytest.mark.parametrize("stream_us", [0.0, 0.001, 100.0])
def test_an_offset_of_nothing_lets_the_first_of_a_burst_begin_alone(stream_us):
    """An idle server writes no streams: what they would take of a step delays nobody who finds it so."""
    law = StepLaw(a_us=1000.0, b_us=10.0, stream_us=stream_us)
    load = workload(0, 5, users=5, prompt=60, output=20)
    times = replay(load, law, ServerLimits()).times
    sent, first, last, _ = simulated(load, law, ServerLimits())
    assert times.first_ns[0] == 1_000_000 + 10_000 * load.prompt_tokens[0]
    assert (times.sent_ns.tolist(), times.first_ns.tolist(), times.last_ns.tolist()) == (sent, first, last)


@settings(max_examples=60, deadline=None)
@given(
    a_us=st.sampled_from([500.0, 1000.0]),
    b_us=st.sampled_from([0.0, 500.0]),
    offset_us=st.sampled_from([0.0, 500.0, 3000.0, 7000.0]),
    limits=limits_,
    seed=st.integers(0, 10_000),
    users=st.sampled_from([None, 5]),
)
def test_what_comes_in_as_a_step_ends_joins_the_next(a_us, b_us, offset_us, limits, seed, users):
    """On a grid of half milliseconds arrivals and ends of steps meet all the time; a replay and the simulator decide alike."""
    law = StepLaw(a_us=a_us, b_us=b_us, offset_us=offset_us)
    load = workload(seed, 30, rate=None if users else 40.0, users=users, prompt=60, output=20)
    load = replace(load, sent_ns=load.sent_ns // 500_000 * 500_000)
    times = replay(load, law, limits).times
    sent, first, last, _ = simulated(load, law, limits)
    assert (times.sent_ns.tolist(), times.first_ns.tolist(), times.last_ns.tolist()) == (sent, first, last)


def test_a_half_of_a_replay_has_the_gaps_of_its_requests():
    """One token a step: a gap for each token of these requests but the first, and together as long as their answers took."""
    load = workload(4, 50, rate=20.0)
    times = replay(load, StepLaw(a_us=1000.0, b_us=1.0), ServerLimits(), by_block=True).times
    half = times.take(np.arange(30, 50))  # of 20 blocks, ten have three requests and ten have two
    assert half.gaps_ns is not None
    assert half.gap_counts.sum() == (half.output_tokens - 1).sum()
    assert (half.gaps_ns * half.gap_counts).sum() == pytest.approx((half.last_ns - half.first_ns).sum(), rel=1e-6)
    assert times.take(np.arange(29, 50)).gaps_ns is None


def test_a_replay_leaves_nothing_for_the_collector_of_cycles():
    """A fit makes hundreds: what each holds must go with it."""
    load = workload(1, 50, rate=20.0)
    gc.collect()
    gc.disable()
    try:
        for _ in range(10):
            replay(load, StepLaw(a_us=1000.0, b_us=1.0), ServerLimits())
        # Other tests' histograms may leave a class of ctypes behind, once.
        assert gc.collect() < 10
    finally:
        gc.enable()


def test_known_hits_cost_what_a_prefix_cache_saves():
    """Prompts of four families served by a simulated engine with a prefix cache: what it says it found, told to a replay
    without one, gives every stamp back."""
    law, limits = StepLaw(a_us=2000.0, b_us=30.0, c_us=10.0, offset_us=500.0), ServerLimits(prefix_cache=True)
    load = workload(3, 60, rate=30.0, prompt=400, output=15)
    requests = [
        Request(
            id=index,
            tenant="t",
            arrival_ns=int(load.sent_ns[index]),
            prompt_tokens=int(load.prompt_tokens[index]),
            target_output_tokens=int(load.output_tokens[index]),
            prefix_blocks=tuple(100 * (index % 4) + block for block in range(int(load.prompt_tokens[index]) // 16)),
        )
        for index in range(len(load))
    ]
    outcomes = []
    config = DispatcherConfig(tenants=(Tenant(name="t"),), policy="fifo", backends={"": Slots()})
    server = build_server(law, limits, 16)
    Simulation(Dispatcher(config), {"": server}, requests, outcomes.append).run()
    by_id = sorted(outcomes, key=lambda outcome: outcome.request.id)
    cached = np.array([outcome.cached_prompt_tokens for outcome in by_id])
    assert 0.5 < cached.sum() / load.prompt_tokens.sum() < 1
    told = dataclasses.replace(load, cached_tokens=cached)
    times = replay(told, law, ServerLimits()).times
    assert times.first_ns.tolist() == [outcome.first_token_ns for outcome in by_id]
    assert times.last_ns.tolist() == [outcome.last_token_ns for outcome in by_id]
    assert times.first_ns.sum() < replay(load, law, ServerLimits()).times.first_ns.sum()


def test_a_request_that_can_never_fit_is_an_error():
    """A KV cache smaller than a request's tokens cannot have produced the capture."""
    with pytest.raises(ValueError, match="never fit"):
        replay(workload(1, 5, rate=1.0), StepLaw(a_us=1.0, b_us=1.0), ServerLimits(kv_tokens=100))


def test_figures_are_the_percentiles_of_the_stamps():
    """TTFT and E2E count from sending, TPOT is the span over its gaps, throughput ends with the last token."""
    seen = Observations(
        "two",
        np.array([0, S]),
        np.array([S // 10, S + S // 5]),
        np.array([S, 2 * S]),
        np.array([5, 5]),
        np.array([10, 1]),
        gaps_ns=np.array([3, 1]),
        gap_counts=np.array([1, 99]),
    )
    found = figures(seen)
    assert found["ttft_p50"] == pytest.approx(0.15 * S)
    assert found["tpot_mean"] == pytest.approx(0.1 * S)
    assert found["e2e_p99"] == pytest.approx(S)
    assert found["throughput"] == pytest.approx(5.5)
    assert (found["itl_p50"], found["itl_p99"]) == (1, 1)


def test_an_error_is_signed_and_relative_to_the_measured():
    """Simulated over measured, less one; figures that only one side has are left out."""
    assert errors({"a": 2.0, "b": 1.0, "zero": 0.0}, {"a": 3.0, "zero": 1.0, "c": 1.0}) == {"a": 0.5}
