"""Whole runs of steps come to what single steps come to, behind a queue under every policy."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sched_support import MS, POLICIES, dispatcher, request, simulate, tenant

from scheduler.server_model.build import build_server
from scheduler.server_model.plan import Plan
from scheduler.server_model.spec import ServerLimits, StepLaw

TENANTS = (tenant("a", 2.0, ttft_ms=60.0), tenant("b", ttft_ms=300.0), tenant("c", ttft_ms=None))


class OneStepAtATime:
    """A server model whose runs have one step each, as an engine in real time makes them."""

    def __init__(self, law, limits):
        self._model = build_server(law, limits)

    def __getattr__(self, name):
        return getattr(self._model, name)

    def plan(self, now_ns):
        run = self._model.plan(now_ns)
        return None if run is None else Plan(run.start_ps, run.first_ps, run.growth_ps, 1, run.decoders)


def arrivals():
    """Three tenants, in bursts and alone; on whole milliseconds as often as not, where ends of steps lie too."""
    at_us = st.one_of(st.integers(0, 200).map(lambda ms: ms * 1000), st.integers(0, 200_000))
    one = st.tuples(at_us, st.sampled_from("abc"), st.integers(1, 60), st.integers(1, 12))
    return st.lists(one, min_size=1, max_size=25)


@pytest.mark.parametrize("which", POLICIES)
@settings(max_examples=25, deadline=None)
@given(
    told=arrivals(),
    b_us=st.sampled_from([0.0, 31.7]),
    d_us=st.sampled_from([0.0, 0.5]),
    offset_us=st.sampled_from([0.0, 2000.0, 3333.3]),
    stream_us=st.sampled_from([0.0, 150.0, 700.0]),
    kv=st.sampled_from([None, 90]),
    sequences=st.sampled_from([None, 2, 4]),
)
def test_runs_are_their_steps_under_every_policy(which, told, b_us, d_us, offset_us, stream_us, kv, sequences):
    """Every stamp and every end, with and without a queue of ours, preemption, a front end that streams keep busy (or more
    than busy), and arrivals just as a step ends."""
    law = StepLaw(a_us=1000.0, b_us=b_us, d_us=d_us, offset_us=offset_us, stream_us=stream_us)
    limits = ServerLimits(max_num_seqs=3, max_num_batched_tokens=32, kv_tokens=kv)
    requests = [
        request(number, name, at_us * MS // 1000, prompt, output)
        for number, (at_us, name, prompt, output) in enumerate(sorted(told))
    ]

    def served(server):
        core = dispatcher(TENANTS, which, sequences=sequences)
        return sorted(
            (found.request.id, found.status, found.dispatched_ns, found.first_token_ns, found.last_token_ns)
            for found in simulate(core, {"a": server}, requests)
        )

    assert served(build_server(law, limits)) == served(OneStepAtATime(law, limits))
