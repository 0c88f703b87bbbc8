"""A policy in the place of vLLM's waiting queue, without vLLM: stub requests, a clock that the test turns."""

import heapq
from dataclasses import dataclass, field

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from backends.vllm_policy.clock import EngineClock
from backends.vllm_policy.queue import PolicyQueue
from scheduler.policies.build import POLICIES, PolicyContext, build_policy
from tenants.slo import Slo
from tenants.tenant import Tenant

WEIGHTS = {"a": 1.0, "b": 3.0}


@dataclass
class Params:
    extra_args: dict | None


@dataclass(eq=False)
class Stub:
    """What the queue reads of an engine's request."""

    request_id: str
    tenant: str | None = "a"
    num_prompt_tokens: int = 10
    max_tokens: int = 20
    arrival_time: float = 0.0
    priority: int = 0
    sampling_params: Params | None = field(init=False)

    def __post_init__(self):
        self.sampling_params = Params(None if self.tenant is None else {"lmperf_tenant": self.tenant})


class Clocks:
    """Both clocks, set by hand, in ns; the wall clock may be moved on its own."""

    def __init__(self):
        self.ns = 0
        self.wall_offset_s = 0.0

    def engine_clock(self):
        return EngineClock(monotonic_ns=lambda: self.ns, wall_s=self.wall_s)

    def wall_s(self):
        return self.ns / 1e9 + self.wall_offset_s


def made(policy="fifo", *, clocks=None, default_tenant=None, slo=None, **options):
    """A queue, its policy and its clocks."""
    clocks = clocks or Clocks()
    object_ = build_policy(policy, options, PolicyContext())
    object_.set_tenants([Tenant(name=n, weight=w, slo=slo or Slo()) for n, w in WEIGHTS.items()], 0)
    queue = PolicyQueue(
        object_,
        tenants=WEIGHTS,
        tenant_key="lmperf_tenant",
        default_tenant=default_tenant,
        resume_first=options.get("late", "keep") != "keep",
        clock=clocks.engine_clock(),
    )
    return queue, object_, clocks


def outstanding(policy):
    return policy.snapshot()["outstanding"]


def in_one_second():
    return Slo(ttft_ns=1_000_000_000, attainment=0.9)


# -- the queue ---------------------------------------------------------------------------------------------------------


def test_what_is_peeked_is_what_is_popped():
    """The engine peeks, allocates memory for what it saw, and pops that; peeking charges nobody."""
    queue, policy, _ = made("wfq")
    for request in (Stub("1", "a"), Stub("2", "b"), Stub("3", "a")):
        queue.add_request(request)
    before = policy.snapshot()
    assert queue.peek_request() is queue.peek_request()
    assert policy.snapshot() == before
    peeked = queue.peek_request()
    assert queue.pop_request() is peeked
    assert outstanding(policy) == 1
    assert len(queue) == 2


def test_an_empty_queue_is_false_and_says_so():
    """The engine asks ``bool`` first; peek and pop of nothing are errors, as in vLLM's own queues."""
    queue, _, _ = made()
    assert not queue
    assert len(queue) == 0
    assert list(queue) == []
    with pytest.raises(IndexError, match="peek from an empty queue"):
        queue.peek_request()
    with pytest.raises(IndexError, match="pop from an empty queue"):
        queue.pop_request()


@pytest.mark.parametrize("policy", POLICIES.names())
def test_preemption_gives_back_the_charge_and_the_place(policy):
    """A preempted request is queued again as if it had not been chosen: it is next, and the accounts are as they were."""
    queue, inner, _ = made(policy)
    first, second = Stub("1", "a"), Stub("2", "b")
    queue.add_request(first)
    queue.add_request(second)
    chosen = queue.pop_request()
    assert outstanding(inner) == 1
    queue.prepend_request(chosen)
    assert outstanding(inner) == 0
    assert len(queue) == 2
    assert queue.pop_request() is chosen


def test_requests_skipped_in_one_pass_come_back_in_their_order():
    """The engine pops what is not ready, serves others, and prepends the skipped ones together, last one first."""
    queue, _, _ = made()
    requests = [Stub(str(i)) for i in range(4)]
    for request in requests:
        queue.add_request(request)
    skipped = [queue.pop_request(), queue.pop_request()]
    assert queue.pop_request() is requests[2]
    queue.prepend_requests(reversed(skipped))
    assert [queue.pop_request() for _ in range(3)] == [requests[0], requests[1], requests[3]]


def test_tokens_before_a_preemption_are_charged_once():
    """vtc charges per token: what was generated before a preemption is refunded with it and charged again when the request
    goes on, so that in the end a request has cost its prompt and its output, once."""
    queue, policy, _ = made("vtc")
    request = Stub("1", "b", num_prompt_tokens=30)
    queue.add_request(request)
    queue.pop_request()
    queue.progressed({"1": 1})
    queue.progressed({"1": 4})
    assert counter(policy) == pytest.approx((30 + 2 * 5) / 3)
    queue.prepend_request(request)
    assert counter(policy) == pytest.approx(0)
    queue.progressed({"1": 1})  # of the step that was in flight when it was preempted
    queue.pop_request()
    queue.progressed({"1": 1})
    assert counter(policy) == pytest.approx((30 + 2 * 7) / 3)
    queue.ended(request)
    assert counter(policy) == pytest.approx((30 + 2 * 7) / 3)


def counter(policy):
    return policy.snapshot()["tenants"]["b"]["counter"]


def test_an_abort_while_queued_is_a_cancel_and_costs_nothing():
    """The engine removes the request from each of its queues, then frees it; nobody is charged."""
    queue, policy, _ = made("wfq")
    stays, goes = Stub("1", "a"), Stub("2", "b")
    queue.add_request(stays)
    queue.add_request(goes)
    before = policy.snapshot()["tenants"]["b"]["finish_tag"]
    queue.remove_requests([goes, Stub("elsewhere")])
    queue.ended(goes)
    assert list(queue) == [stays]
    assert policy.snapshot()["tenants"]["b"]["finish_tag"] == before
    with pytest.raises(ValueError, match="2 is not queued"):
        queue.remove_request(goes)


def test_a_finish_corrects_the_estimate():
    """wfq charges a guess (20 tokens, the limit) and settles by the truth (3): F = (10 + 2 * 3) / 1."""
    queue, policy, _ = made("wfq")
    request = Stub("1", "a")
    queue.add_request(request)
    queue.pop_request()
    assert policy.snapshot()["tenants"]["a"]["finish_tag"] == 10 + 2 * 20
    queue.progressed({"1": 3})
    queue.ended(request)
    assert policy.snapshot()["tenants"]["a"]["finish_tag"] == 10 + 2 * 3
    assert outstanding(policy) == 0


def test_a_streaming_session_queues_each_turn_anew():
    """A request that is out and is added again has ended one turn: that is settled, and the next waits like any other."""
    queue, policy, _ = made("wfq")
    session = Stub("1", "a")
    queue.add_request(session)
    queue.pop_request()
    queue.progressed({"1": 3})
    queue.add_request(session)
    assert (outstanding(policy), len(queue)) == (0, 1)
    with pytest.raises(ValueError, match="1 is already queued"):
        queue.add_request(session)
    assert queue.pop_request() is session
    queue.ended(session)
    assert outstanding(policy) == 0


# -- tenants -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tenant", [None, "c"])
def test_a_request_of_no_known_tenant_is_given_up(tenant):
    """It is never scheduled, keeps the engine awake (``len``) until it is taken, and the reason names what is known."""
    queue, _, _ = made()
    request = Stub("1", tenant)
    queue.add_request(request)
    assert not queue
    assert len(queue) == 1
    (given_up,) = queue.take_given_up()
    assert given_up.request is request
    assert "known: a, b; there is no default_tenant" in given_up.reason
    assert ("'c'" in given_up.reason) == (tenant == "c")
    assert len(queue) == 0
    assert queue.take_given_up() == []


@pytest.mark.parametrize("tenant", [None, "c"])
def test_the_default_tenant_takes_it(tenant):
    """With a default it is served as that tenant's."""
    queue, policy, _ = made(default_tenant="b")
    queue.add_request(Stub("1", tenant))
    assert policy.snapshot()["tenants"]["b"]["queued"] == 1
    assert queue.take_given_up() == []


def test_a_pooling_request_has_no_sampling_parameters():
    """So it names no tenant."""
    queue, policy, _ = made(default_tenant="b")
    request = Stub("1")
    request.sampling_params = None
    queue.add_request(request)
    assert policy.snapshot()["tenants"]["b"]["queued"] == 1


def test_an_aborted_request_is_not_given_up_too():
    """Its client left before it was told."""
    queue, _, _ = made()
    request = Stub("1", "c")
    queue.add_request(request)
    queue.remove_requests([request])
    assert len(queue) == 0
    assert queue.take_given_up() == []


# -- lateness ----------------------------------------------------------------------------------------------------------


def test_a_late_request_is_shed_and_given_up_once():
    """``late: shed``: it leaves the queue, is not scheduled, and is told."""
    queue, _, clocks = made(late="shed", slo=in_one_second())
    late, fresh = Stub("1"), Stub("2")
    queue.add_request(late)
    clocks.ns = 2_000_000_000
    fresh.arrival_time = 2.0
    queue.add_request(fresh)
    assert queue.peek_request() is fresh
    assert len(queue) == 2
    assert [given_up.request for given_up in queue.take_given_up()] == [late]
    assert len(queue) == 1
    queue.ended(late)
    assert queue.pop_request() is fresh


def test_a_peeked_request_is_not_shed_before_it_is_popped():
    """Between peek and pop the engine allocates memory for it; time passes, its limit too: it is popped all the same."""
    queue, _, clocks = made(late="shed", slo=in_one_second())
    first, second = Stub("1"), Stub("2")
    queue.add_request(first)
    queue.add_request(second)
    assert queue
    assert queue.peek_request() is first
    clocks.ns = 5_000_000_000
    assert queue
    assert queue.pop_request() is first
    assert not queue
    assert [given_up.request for given_up in queue.take_given_up()] == [second]


@pytest.mark.parametrize("late", ["shed", "demote"])
def test_a_stream_that_has_begun_is_never_late(late):
    """Preempted after its first token, long past its limit: it resumes before all others, and is neither shed nor put
    behind. Its charge stays, so that its end is settled like any other."""
    queue, policy, clocks = made(late=late, slo=in_one_second())
    begun = Stub("1")
    queue.add_request(begun)
    queue.pop_request()
    queue.progressed({"1": 1})
    clocks.ns = 3_000_000_000
    fresh = Stub("2", arrival_time=3.0)
    queue.add_request(fresh)
    queue.prepend_request(begun)
    assert list(queue) == [begun, fresh]
    assert len(queue) == 2
    assert queue.peek_request() is begun
    assert queue.pop_request() is begun
    assert queue.take_given_up() == []
    queue.prepend_request(begun)
    queue.remove_requests([begun])
    queue.ended(begun)
    assert outstanding(policy) == 0
    assert queue.pop_request() is fresh


# -- time --------------------------------------------------------------------------------------------------------------


def test_an_arrival_is_counted_from_when_the_server_got_it():
    """vLLM stamps it with the wall clock in another process; here it is an age before now."""
    clocks = Clocks()
    clocks.wall_offset_s = 1_700_000_000.0
    clock = clocks.engine_clock()
    clocks.ns = 5_000_000_000
    assert clock.arrival_ns(clocks.wall_s() - 2.0) == pytest.approx(3_000_000_000, abs=1000)


def test_arrivals_never_go_back_nor_lie_ahead():
    """Whatever the wall clock does, requests keep the order in which the engine got them, and none arrives after now."""
    clocks = Clocks()
    clock = clocks.engine_clock()
    given = []
    for jump_s in (0.0, -3600.0, 7200.0, -5.0, 0.5):
        stamp_s = clocks.wall_s()
        clocks.ns += 1_000_000_000
        clocks.wall_offset_s += jump_s
        given.append(clock.arrival_ns(stamp_s))
        assert 0 <= given[-1] <= clocks.ns
    assert given == sorted(given)


# -- any sequence of calls ---------------------------------------------------------------------------------------------


class AnyCalls(RuleBasedStateMachine):
    """fifo against a heap of arrival numbers; and for every queue: nothing is lost, nothing served twice."""

    def __init__(self):
        super().__init__()
        self.queue, self.policy, self.clocks = made("fifo")
        self.waiting = []
        self.out = {}
        self.number = 0

    @rule(tenant=st.sampled_from("ab"))
    def add(self, tenant):
        request = Stub(str(self.number), tenant, arrival_time=self.clocks.wall_s())
        heapq.heappush(self.waiting, (self.number, request))
        self.number += 1
        self.queue.add_request(request)

    @rule(ms=st.integers(1, 1000))
    def time_passes(self, ms):
        self.clocks.ns += ms * 1_000_000

    @precondition(lambda self: self.waiting)
    @rule()
    def pop(self):
        number, expected = heapq.heappop(self.waiting)
        assert self.queue.peek_request() is expected
        assert self.queue.pop_request() is expected
        self.out[number] = expected

    @precondition(lambda self: self.out)
    @rule(data=st.data())
    def preempt(self, data):
        number = data.draw(st.sampled_from(sorted(self.out)))
        heapq.heappush(self.waiting, (number, self.out[number]))
        self.queue.prepend_request(self.out.pop(number))

    @precondition(lambda self: self.out)
    @rule(data=st.data(), tokens=st.integers(1, 5))
    def step(self, data, tokens):
        chosen = data.draw(st.sets(st.sampled_from(sorted(self.out))))
        self.queue.progressed({str(number): tokens for number in chosen})

    @precondition(lambda self: self.out)
    @rule(data=st.data())
    def finish(self, data):
        self.queue.ended(self.out.pop(data.draw(st.sampled_from(sorted(self.out)))))

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def abort_queued(self, data):
        entry = data.draw(st.sampled_from(sorted(self.waiting)))
        self.waiting.remove(entry)
        heapq.heapify(self.waiting)
        self.queue.remove_requests([entry[1]])
        self.queue.ended(entry[1])

    @invariant()
    def agrees(self):
        assert len(self.queue) == len(self.waiting)
        assert bool(self.queue) == bool(self.waiting)
        assert {request.request_id for request in self.queue} == {request.request_id for _, request in self.waiting}
        assert outstanding(self.policy) == len(self.out)


TestAnyCalls = AnyCalls.TestCase
TestAnyCalls.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
