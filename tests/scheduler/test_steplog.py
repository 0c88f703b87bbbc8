"""A tenant's inter-token gaps, counted in bulk, add up to what its requests show from first to last token."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sched_support import MS, dispatcher, request, tenant

from scheduler import gap_log
from scheduler.drivers.simulated import Simulation
from scheduler.server_model.build import build_server
from scheduler.server_model.spec import ServerLimits, StepLaw
from scheduler.steplog import StepLog

_LAW = StepLaw(a_us=5_000.3, b_us=21.7, c_us=0.35, d_us=0.038)


def _gaps(arrivals, limits, flush_steps=1 << 16, **options):
    """Outcomes, and per tenant the number of gaps and their sum in ns."""
    counts: dict[str, int] = defaultdict(int)
    totals: dict[str, int] = defaultdict(int)
    outcomes: list = []

    def on_gaps(name, gaps_ns, times, tokens=1):
        assert (times > 0).all()
        assert 1 <= tokens <= limits.tokens_a_step
        counts[name] += int(times.sum()) * tokens
        totals[name] += int((gaps_ns * times).sum())

    core = dispatcher([tenant("a"), tenant("b")], "wfq", sequences=None, **options)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gap_log, "StepLog", lambda hand_over: StepLog(hand_over, flush_steps))
        patch.setattr(gap_log, "_FLUSH_ENTRIES", flush_steps)
        Simulation(core, {"a": build_server(_LAW, limits)}, arrivals, outcomes.append, on_gaps=on_gaps).run()
    return outcomes, counts, totals


@st.composite
def _workloads(draw, *, cancels: bool):
    seqs = draw(st.integers(1, 6))
    drafts = draw(st.sampled_from([0, 0, 1, 3]))
    limits = ServerLimits(
        max_num_seqs=seqs,
        max_num_batched_tokens=draw(st.integers(seqs * (1 + drafts), 60)),
        kv_tokens=draw(st.sampled_from([None, 67, 67, 100])),
        speculative_tokens=drafts,
        speculative_acceptance=draw(st.sampled_from([0.0, 0.6, 1.0])),
    )
    at_ns, arrivals = 0, []
    for number in range(draw(st.integers(1, 14))):
        at_ns += draw(st.integers(0, 40)) * MS
        cancel = draw(st.integers(0, 150)) * MS + 1 if cancels and draw(st.booleans()) else None
        arrivals.append(
            request(
                number,
                draw(st.sampled_from("ab")),
                at_ns,
                draw(st.integers(1, 40)),
                draw(st.integers(1, 24)),
                cancel_after_ns=cancel,
            )
        )
    return limits, arrivals


@settings(max_examples=200, deadline=None, derandomize=True, database=None)
@given(workload=_workloads(cancels=False), flush_steps=st.sampled_from([1, 3, 1 << 16]))
def test_gaps_add_up_also_over_preemptions(workload, flush_steps):
    """Number of gaps = sum(tokens - 1), sum of gaps = sum(last - first) within a rounding of 1 ns a gap; at any flush size,
    and whether a step gives one token or several."""
    limits, arrivals = workload
    outcomes, counts, totals = _gaps(arrivals, limits, flush_steps)
    assert len(outcomes) == len(arrivals)
    for name in "ab":
        mine = [o for o in outcomes if o.request.tenant == name]
        assert counts[name] == sum(o.output_tokens - 1 for o in mine)
        span_ns = sum(o.last_token_ns - o.first_token_ns for o in mine)
        assert abs(totals[name] - span_ns) <= counts[name] + len(mine)


@settings(max_examples=200, deadline=None, derandomize=True, database=None)
@given(workload=_workloads(cancels=True), flush_steps=st.sampled_from([1, 3, 1 << 16]))
def test_a_cancelled_request_counts_the_gaps_it_saw(workload, flush_steps):
    """An abort in mid-step: the token that never came makes no gap."""
    limits, arrivals = workload
    outcomes, counts, _ = _gaps(arrivals, limits, flush_steps)
    for name in "ab":
        mine = [o for o in outcomes if o.request.tenant == name and o.output_tokens]
        assert counts[name] == sum(o.output_tokens - 1 for o in mine)


def test_a_preempted_sequence_shows_its_pause_as_one_gap():
    """The gap over a preemption is as long as the pause, and it is the longest one."""
    arrivals = [request(n, "a", 0, 20, 24) for n in range(3)]
    seen: list[int] = []
    core = dispatcher([tenant("a"), tenant("b")], sequences=None)
    model = build_server(_LAW, ServerLimits(max_num_seqs=4, max_num_batched_tokens=64, kv_tokens=64))
    outcomes: list = []

    def on_gaps(_, gaps_ns, times):
        seen.extend(np.repeat(gaps_ns, times))

    Simulation(core, {"a": model}, arrivals, outcomes.append, on_gaps=on_gaps).run()
    assert len(seen) == 3 * 23
    assert max(seen) > 1.5 * min(seen)
