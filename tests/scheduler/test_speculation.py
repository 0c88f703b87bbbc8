"""Speculative decoding: how many tokens a step gives, and that nothing but the request decides it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sched_support import dispatcher, request, simulate, tenant

from scheduler.server_model.build import build_server
from scheduler.server_model.spec import ServerLimits, StepLaw
from scheduler.server_model.speculation import Speculation

_LAW = StepLaw(a_us=5_000.0, b_us=20.0)


@pytest.mark.parametrize(("drafts", "acceptance"), [(1, 0.5), (3, 0.7), (5, 0.9), (4, 0.0), (2, 1.0)])
def test_the_share_of_steps_with_j_drafts_accepted_is_p_to_the_j(drafts, acceptance):
    """P(at least j) = p^j for j up to k, over 40,000 draws: within five standard errors."""
    drawn = Speculation(drafts, acceptance)
    tokens = np.array([drawn.tokens(number, made) for number in range(400) for made in range(1, 101)])
    assert tokens.min() >= 1
    assert tokens.max() <= drafts + 1
    for j in range(1, drafts + 1):
        share = float((tokens >= j + 1).mean())
        expected = acceptance**j
        assert share == pytest.approx(expected, abs=5 * (expected * (1 - expected) / len(tokens)) ** 0.5)


@given(number=st.integers(0, 2**63), made=st.integers(1, 10**6))
def test_a_higher_acceptance_or_more_drafts_never_give_fewer_tokens(number, made):
    """One draw decides all: the tokens of a step grow with p and with k."""
    by_p = [Speculation(4, p).tokens(number, made) for p in (0.0, 0.3, 0.6, 0.9, 1.0)]
    by_k = [Speculation(k, 0.8).tokens(number, made) for k in (1, 2, 3, 4)]
    assert by_p == sorted(by_p)
    assert by_k == sorted(by_k)
    assert (by_p[0], by_p[-1]) == (1, 5)


def _outcomes(drafts, acceptance, outputs, **limits):
    jobs = [request(n, "a", n * 3_000_000, 30, output) for n, output in enumerate(outputs)]
    server = ServerLimits(speculative_tokens=drafts, speculative_acceptance=acceptance, **limits)
    done = simulate(dispatcher([tenant("a")], sequences=None), {"a": build_server(_LAW, server)}, jobs)
    return {o.request.id: o for o in done}


def test_an_answer_takes_one_prefill_and_the_drawn_steps():
    """Steps of 5 ms: with every draft accepted an answer of n tokens takes ceil((n - 1) / (k + 1)) of them after its first."""
    done = _outcomes(3, 1.0, [1, 2, 5, 6, 9, 10])
    steps = [round((o.last_token_ns - o.first_token_ns) / 5_000_000) for _, o in sorted(done.items())]
    assert steps[:3] == [0, 1, 1]
    assert [o.output_tokens for _, o in sorted(done.items())] == [1, 2, 5, 6, 9, 10]


def test_without_an_accepted_draft_it_is_plain_decoding():
    """p = 0: the same times as with no drafts, to the ns."""
    outputs = [7, 1, 30, 12]
    plain, none = _outcomes(0, 0.5, outputs), _outcomes(3, 0.0, outputs)
    assert [(o.first_token_ns, o.last_token_ns) for _, o in sorted(plain.items())] == [
        (o.first_token_ns, o.last_token_ns) for _, o in sorted(none.items())
    ]


def test_what_else_runs_does_not_change_a_requests_draws():
    """The same requests alone and with others take the same number of steps (all steps are equally long here)."""
    law = StepLaw(a_us=5_000.0, b_us=0.0)
    spans = []
    for count in (1, 4):
        jobs = [request(n, "a", 0, 1, 50) for n in range(count)]
        limits = ServerLimits(speculative_tokens=4, speculative_acceptance=0.6)
        done = simulate(dispatcher([tenant("a")], sequences=None), {"a": build_server(law, limits)}, jobs)
        (first,) = [o for o in done if o.request.id == 0]
        spans.append(first.last_token_ns - first.first_token_ns)
    assert spans[0] == spans[1] < 49 * 5_000_000


def test_drafts_take_their_share_of_the_token_budget():
    """A budget of 10 and one sequence with 3 drafts leave 6 tokens of prefill a step."""
    limits = ServerLimits(max_num_seqs=2, max_num_batched_tokens=10, speculative_tokens=3)
    model = build_server(_LAW, limits)
    for number, prompt in enumerate((4, 12)):
        model.admit(request(number, "a", 0, prompt, 40), 0, 40)
    chunks = []
    for _ in range(2):
        model.plan(0)
        chunks.append([(s.id, count) for s, count in model.commit(1).prefilled])
    assert chunks == [[(0, 4), (1, 6)], [(1, 6)]]


def test_limits_that_leave_no_room_for_drafts_are_refused():
    """Each running sequence needs its drafts and one more token of every step's budget; probabilities are 0 to 1."""
    with pytest.raises(ValueError, match=r"must be at least max_num_seqs \(64\) times 4"):
        ServerLimits(max_num_seqs=64, max_num_batched_tokens=128, speculative_tokens=3)
    with pytest.raises(ValueError, match="probability"):
        ServerLimits(speculative_tokens=3, speculative_acceptance=1.5)
    with pytest.raises(ValueError, match="speculative_tokens must be >= 0"):
        ServerLimits(speculative_tokens=-1)
    with pytest.raises(ValueError, match=r"30 \+ 18 \+ 3 drafted tokens can never fit"):
        build_server(_LAW, ServerLimits(kv_tokens=50, speculative_tokens=3)).admit(request(0, "a", 0, 30, 18), 0, 18)
