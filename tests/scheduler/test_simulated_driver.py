"""The simpy driver: every request has exactly one outcome, with the stamps of what happened to it."""

from __future__ import annotations

from itertools import pairwise

import msgspec
import pytest
from sched_support import MS, POLICIES, S, WatchedDispatcher, dispatcher, request, serve, simulate, tenant

from scheduler.drivers.errors import SimulationError
from scheduler.drivers.simulated import Simulation
from scheduler.events import AnyEvent, Arrived, PolicyChanged
from scheduler.request import ErrorClass, Request, Status
from scheduler.server_model.batching import ContinuousBatch
from scheduler.server_model.spec import ServerLimits, StepLaw

_T = [tenant("a")]
_LAW = StepLaw(a_us=10_000.0, b_us=10.0)


def _engine(kv: int | None = None, offset_us: float = 0.0) -> ContinuousBatch:
    law = msgspec.structs.replace(_LAW, offset_us=offset_us)
    return ContinuousBatch(law, ServerLimits(max_num_seqs=4, max_num_batched_tokens=100, kv_tokens=kv))


def _second(_) -> int:
    return S


def test_stamps_of_a_served_request():
    """Prefill of 10 tokens, then two decode steps of 10 ms; the offset lies between dispatch and the engine."""
    (outcome,) = simulate(dispatcher(_T), {"a": _engine(offset_us=1000)}, [request(0, "a", 5 * MS, 10, 3)])
    first_ns = 5 * MS + MS + 10_100_000
    assert (outcome.enqueued_ns, outcome.dispatched_ns, outcome.first_token_ns) == (5 * MS, 5 * MS, first_ns)
    assert (outcome.last_token_ns, outcome.finished_ns, outcome.output_tokens) == (
        first_ns + 20 * MS,
        first_ns + 20 * MS,
        3,
    )
    assert (outcome.status, outcome.backend) == (Status.OK, "a")


@pytest.mark.parametrize("which", POLICIES)
def test_time_outs_happen_whatever_the_policy_counts(which):
    """TTL, total time-out in the queue and while running, at their instants; also with progress reported at that instant."""
    arrivals = [
        request(0, "a", 0, 10, 200),
        request(1, "a", 1, 10, 10, ttl_ns=S),
        request(2, "a", 2, 10, 10, timeout_ns=S),
        request(3, "a", 3 * S, 10, 500, timeout_ns=S),
    ]
    outcomes = {o.request.id: o for o in simulate(dispatcher(_T, which), {"a": _engine()}, arrivals)}
    assert [outcomes[n].status for n in range(4)] == [Status.OK, Status.SHED, Status.TIMED_OUT, Status.TIMED_OUT]
    assert [outcomes[n].ended_ns for n in (1, 2, 3)] == [S + 1, S + 2, 4 * S]
    assert outcomes[3].error_class is ErrorClass.TOTAL_TIMEOUT
    assert outcomes[3].output_tokens == 99, "the first token at 10.1 ms, then one each 10 ms until the second was over"


def test_a_cancel_at_its_time_out_is_one_outcome():
    """Planned cancel and TTL at the same instant: one of them, once."""
    arrivals = [request(0, "a"), request(1, "a", ttl_ns=100, cancel_after_ns=100)]
    outcomes = serve(dispatcher(_T), arrivals, _second)
    assert sorted(o.request.id for o in outcomes) == [0, 1]


def test_a_planned_cancel_queued_and_running():
    arrivals = [request(0, "a", 0, 10, 500, cancel_after_ns=S), request(1, "a", 1, 10, 10, cancel_after_ns=S // 2)]
    running, queued = sorted(simulate(dispatcher(_T), {"a": _engine()}, arrivals), key=lambda o: o.request.id)
    assert {running.status, queued.status} == {Status.CANCELLED}
    assert (queued.ended_ns, queued.dispatched_ns) == (1 + S // 2, None)
    assert (running.ended_ns, running.output_tokens) == (S, 99)


def test_what_can_never_fit_fails_and_frees_its_slot():
    arrivals = [request(0, "a", 0, 90, 90), request(1, "a", 0, 10, 10)]
    outcomes = {o.request.id: o for o in simulate(dispatcher(_T), {"a": _engine(kv=100)}, arrivals)}
    assert outcomes[0].status is Status.FAILED
    assert "can never fit" in outcomes[0].detail
    assert outcomes[1].status is Status.OK


def test_until_leaves_the_rest_unfinished():
    """Running, on the way and queued: each reported once, in order of arrival."""
    arrivals = [request(n, "a", n) for n in range(5)]
    outcomes = simulate(dispatcher(_T, sequences=2), {"a": _engine(offset_us=1000)}, arrivals, until_ns=15 * MS)
    assert [o.request.id for o in outcomes] == [0, 1, 2, 3, 4]
    assert {o.status for o in outcomes} == {Status.UNFINISHED}
    assert [o.dispatched_ns is not None for o in outcomes] == [True, True, False, False, False]


def test_what_arrives_because_something_ended():
    """A closed loop of one user with think time: each request is the last one's end plus the think time."""
    done: list = []

    def after(outcome):
        if len(done) < 5:
            yield request(len(done), "a", outcome.ended_ns + 50 * MS)

    core = dispatcher(_T)
    Simulation(core, {"a": _engine()}, [request(0, "a", 0)], done.append, after=after).run()
    assert len(done) == 5
    for before, then in pairwise(done):
        assert then.request.arrival_ns == before.ended_ns + 50 * MS


def test_an_unsorted_trace_is_refused():
    with pytest.raises(SimulationError, match="sort the trace"):
        serve(dispatcher(_T), [request(0, "a", 10), request(1, "a", 5)], _second)


def test_a_request_without_a_length_is_refused():
    unknown = Request(id=0, tenant="a", arrival_ns=0, prompt_tokens=1)
    with pytest.raises(SimulationError, match="target_output_tokens"):
        serve(dispatcher(_T), [unknown], _second)


def test_two_replicas_share_the_load():
    """Each request goes to the backend with the least outstanding."""
    backends = dict.fromkeys("ab", dispatcher(_T).config.backends["a"])
    outcomes = serve(dispatcher(_T, backends=backends), [request(n, "a", n) for n in range(4)], _second, 2)
    assert [(o.request.id, o.backend) for o in outcomes] == [(0, "a"), (1, "b"), (2, "a"), (3, "b")]
    assert outcomes[-1].ended_ns == 2 * S + 1


class _ChangesAt:
    """Another policy at ``at_ns``; asked every half second."""

    period_ns = S // 2
    reads_waiting = False

    def __init__(self, at_ns: int, policy: str) -> None:
        self._change = PolicyChanged(at_ns, policy, {})

    def control(self, now_ns: int, *, queued: bool) -> list[AnyEvent]:
        return [self._change] if now_ns == self._change.now_ns else []


def _charged(before: str, after: str) -> dict[int, float]:
    """The policy's counter for tenant "a" (0: it keeps none) after each second; the policy changes at 2 s. Request 0 runs
    throughout, a token each 10 ms; each second another arrives, of 10 prompt tokens and one token."""
    core = dispatcher(_T, before, sequences=4, kind=WatchedDispatcher)
    counters: dict[int, float] = {}

    def watched(event: AnyEvent) -> None:
        if isinstance(event, Arrived) and event.request.id:
            counters[event.request.id] = core.policy.snapshot()["tenants"]["a"].get("counter", 0)

    core.after = watched
    arrivals = [request(0, "a", 0, 10, 700), *(request(n, "a", n * S, 10, 1) for n in range(1, 5))]
    simulate(core, {"a": _engine()}, arrivals, control=_ChangesAt(2 * S, after), until_ns=4 * S + 1)
    return counters


def test_a_policy_that_comes_is_charged_for_what_it_dispatches():
    """And for nothing that was dispatched before it: at 3 s one prompt, at 4 s two and the token of the first."""
    assert _charged("fifo", "vtc") == {1: 0, 2: 0, 3: 10, 4: 10 + 2 + 10}


def test_a_policy_that_goes_was_charged_as_tokens_came():
    """The prompts so far, and twice the tokens: 99 of request 0 by 1 s (from 10.1 ms on), 199 by 2 s; one of request 1."""
    found = _charged("vtc", "fifo")
    assert (found[1], found[2]) == (20 + 2 * 99, 30 + 2 * (199 + 1))
    assert (found[3], found[4]) == (0, 0)
