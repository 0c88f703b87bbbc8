"""The rules of single policies: what idling does to an account, and what slo_aware observes and whom it boosts."""

from __future__ import annotations

from dataclasses import replace

import pytest
from sched_support import MS, S, policy, request, tenant

from scheduler.policies.build import POLICIES as REGISTRY
from scheduler.policies.build import PolicyContext, PolicyError, build_policy
from tenants.tenant import Contract


def _serve(queue, number, name, cost=100, now_ns=0, output=10):
    """Queue, select and end one request of ``name``, whoever else is queued being served first by no one."""
    queue.enqueue(request(number, name, now_ns, cost), now_ns)
    chosen = queue.select(now_ns)
    queue.on_finish(chosen.id, chosen.prompt_tokens, output, now_ns)
    return chosen


@pytest.mark.parametrize("which", ["wfq", "drr", "vtc", "slo_aware"])
def test_idling_saves_no_credit(which):
    """A tenant that idled while another was served does not make up for it: from its return on they are equals."""
    queue = policy(which, [tenant("busy", ttft_ms=None), tenant("idler", ttft_ms=None)])
    for number in range(50):
        queue.enqueue(request(number, "busy", 0, 100), 0)
    for _ in range(30):
        queue.on_finish(queue.select(0).id, 100, 10, 0)
    for number in range(100, 120):
        queue.enqueue(request(number, "idler", 1, 100), 1)
    served = []
    for _ in range(20):
        chosen = queue.select(1)
        served.append(chosen.tenant)
        queue.on_finish(chosen.id, 100, 10, 1)
    assert abs(served.count("idler") - 10) <= 2


@pytest.mark.parametrize("leave", ["finish", "cancel", "shed"])
def test_wfq_forgives_old_service_when_all_is_quiet(leave):
    """Nothing queued, nothing outstanding: whoever was served before starts level with everybody else."""
    queue = policy("wfq", [tenant("old"), tenant("new")], late="shed")
    for number in range(10):
        _serve(queue, number, "old", 1_000)
    queue.enqueue(request(20, "old", 0, 1_000), 0)
    queue.enqueue(request(21, "new", 0, 10), 0)
    running = [queue.select(0), queue.select(0)]
    queue.enqueue(request(22, "new", 0, 10), 0)
    if leave == "finish":
        running.append(queue.select(0))
    for done in running:
        queue.on_finish(done.id, done.prompt_tokens, 10, 0)
    if leave == "cancel":
        queue.cancel(22, 0)
    elif leave == "shed":
        assert [r.id for r in queue.expired(S)] == [22]
    queue.enqueue(request(30, "old", S, 10), S)
    queue.enqueue(request(31, "new", S, 10), S)
    tags = {name: state["start_tag"] for name, state in queue.snapshot()["tenants"].items()}
    assert tags["old"] == tags["new"]


@pytest.mark.parametrize("leave", ["served", "cancel", "shed"])
def test_vtc_lifts_to_the_last_leaver(leave):
    """With nobody queued, a newcomer is lifted to the counter of the tenant that left the queue last, however it left."""
    queue = policy("vtc", [tenant("first"), tenant("last"), tenant("new")], late="shed")
    for number, name in enumerate(("last", "first")):
        queue.enqueue(request(number, name, 0, 5), 0)
        queue.select(0)
    queue.on_progress(((queue.account_of(0), 2_500),), 0)
    queue.enqueue(request(2, "last", 0, 1), 0)
    if leave == "cancel":
        queue.cancel(2, 0)
    elif leave == "shed":
        assert [r.id for r in queue.expired(S)] == [2]
    else:
        queue.select(0)
    queue.enqueue(request(3, "new", S, 1), S)
    counters = {name: state["counter"] for name, state in queue.snapshot()["tenants"].items()}
    assert counters["new"] == counters["last"] >= 5_000 > counters["first"]


def test_a_correction_uses_the_weight_of_the_charge():
    """A weight that changes while a request runs does not change what it paid."""
    for which in ("wfq", "vtc"):
        account = {"wfq": "finish_tag", "vtc": "counter"}[which]
        queue = policy(which, [tenant("a", 1.0)])
        queue.enqueue(request(0, "a", 0, 100), 0)
        queue.select(0)
        queue.set_tenants([tenant("a", 4.0)], 0)
        queue.on_progress(((queue.account_of(0), 5),), 0)
        queue.on_finish(0, 100, 10, 0, 5)
        assert queue.snapshot()["tenants"]["a"][account] == 100 + 2 * 10


def _priorities(queue):
    return {name: state["priority"] for name, state in queue.snapshot()["tenants"].items()}


def _observe(queue, name, count, ttft_ms, first_id, at_ns=0):
    """``count`` requests of ``name`` whose first tokens come ``ttft_ms`` after their arrival."""
    for number in range(first_id, first_id + count):
        queue.enqueue(request(number, name, at_ns), at_ns)
        while queue.select(at_ns).id != number:
            pass
        then_ns = at_ns + round(ttft_ms * MS)
        queue.on_first_token(number, then_ns)
        queue.on_finish(number, 10, 10, then_ns)


def test_slack_is_what_is_left_of_the_limit():
    """Five samples at 40% of the limit leave 60%; at the next epoch, not before."""
    queue = policy("slo_aware", [tenant("a", ttft_ms=1_000.0)])
    _observe(queue, "a", 5, 400.0, 0)
    held = policy("slo_aware", [tenant("a", ttft_ms=1_000.0)])
    _observe(held, "a", 5, 100.0, 0)
    held.peek(249 * MS)
    assert _priorities(held)["a"] == 1.0, "held between epochs"
    held.peek(250 * MS)
    assert _priorities(held)["a"] == pytest.approx(0.9)
    queue.peek(500 * MS)
    assert _priorities(queue)["a"] == pytest.approx(0.6)


def test_too_few_samples_say_nothing_unless_someone_waits_too_long():
    """Four samples: priority 1. A request older than the limit without a first token: the ages alone speak."""
    queue = policy("slo_aware", [tenant("a", ttft_ms=1_000.0)])
    _observe(queue, "a", 4, 900.0, 0)
    queue.peek(S)
    assert _priorities(queue)["a"] == 1.0
    queue.enqueue(request(9, "a", S), S)
    queue.peek(S + 900 * MS)
    assert _priorities(queue)["a"] == 1.0, "old, but not older than the limit"
    queue.peek(2 * S + 250 * MS)
    assert _priorities(queue)["a"] == 0.1


@pytest.mark.parametrize("dispatched", [False, True])
def test_waiting_requests_count_with_their_age(dispatched):
    """A tenant whose requests never come back does not look healthy, be they queued or dispatched."""
    queue = policy("slo_aware", [tenant("a", ttft_ms=1_000.0)])
    _observe(queue, "a", 20, 100.0, 0)
    queue.enqueue(request(50, "a", 250 * MS), 250 * MS)
    if dispatched:
        queue.select(250 * MS)
    queue.peek(1_050 * MS)
    assert _priorities(queue)["a"] == pytest.approx(0.2), "its age of 800 ms is the P99 of 21"


def test_samples_leave_the_window():
    queue = policy("slo_aware", [tenant("a", ttft_ms=1_000.0)], window_s=2.0)
    _observe(queue, "a", 5, 900.0, 0)
    queue.peek(S)
    assert _priorities(queue)["a"] == pytest.approx(0.1)
    queue.peek(3 * S)
    assert _priorities(queue)["a"] == 1.0


def test_a_flooder_earns_no_boost_and_its_victim_does():
    """Beyond 1.05 of its share of the dispatched cost a tenant's slack is not looked at."""
    queue = policy("slo_aware", [tenant("flood", ttft_ms=1_000.0), tenant("victim", ttft_ms=1_000.0)])
    _observe(queue, "flood", 30, 950.0, 0)
    _observe(queue, "victim", 10, 950.0, 100, S)
    queue.peek(2 * S)
    assert _priorities(queue) == {"flood": 1.0, "victim": pytest.approx(0.1)}


def test_a_contract_that_comes_while_requests_wait_is_charged_for_them():
    """A flooder whose queued work is beyond its new contract is out of it: no boost; one within it earns the boost."""
    for burst, priority in ((100.0, 1.0), (10_000.0, pytest.approx(0.1))):
        tenants = [tenant("flood", ttft_ms=1_000.0), tenant("victim", ttft_ms=1_000.0)]
        queue = policy("slo_aware", tenants)
        _observe(queue, "flood", 30, 950.0, 0)
        for number in range(100, 120):
            queue.enqueue(request(number, "flood", S), S)
        queue.set_tenants([replace(tenants[0], contract=Contract(rate=1e-3, burst=burst)), tenants[1]], S)
        queue.peek(2 * S)
        assert _priorities(queue)["flood"] == priority


def test_a_contract_that_comes_while_a_request_runs_has_nothing_to_do_with_it():
    """What was dispatched before it is not corrected on it: 10,000 tokens too many put nobody out of contract."""
    tenants = [tenant("flood", ttft_ms=1_000.0), tenant("victim", ttft_ms=1_000.0)]
    queue = policy("slo_aware", [replace(tenants[0], contract=Contract(rate=1.0, burst=50.0)), tenants[1]])
    queue.enqueue(request(200, "flood", 0), 0)
    queue.select(0)
    queue.set_tenants([replace(tenants[0], contract=Contract(rate=1e-3, burst=5_000.0)), tenants[1]], 0)
    queue.on_finish(200, 10, 10_000, S)
    queue.enqueue(request(201, "flood", S), S)
    queue.peek(4 * S)
    assert _priorities(queue)["flood"] == pytest.approx(0.1), "its age alone speaks, and it is within its contract"


def test_a_boost_is_a_weight():
    """priority 0.1 makes a tenant's requests ten times as cheap: ten of its for one of an equal's."""
    queue = policy("slo_aware", [tenant("calm", ttft_ms=None), tenant("pressed", ttft_ms=1_000.0)])
    _observe(queue, "calm", 10, 950.0, 0)
    _observe(queue, "pressed", 10, 950.0, 100)
    now_ns = 2 * S
    for number in range(200, 310):
        queue.enqueue(request(number, "pressed", now_ns), now_ns)
        queue.enqueue(request(number + 1_000, "calm", now_ns), now_ns)
    assert _priorities(queue)["pressed"] == pytest.approx(0.1)
    served = [queue.select(now_ns).tenant for _ in range(110)]
    assert served.count("calm") == pytest.approx(10, abs=2)


def test_every_registered_policy_can_be_built_by_name():
    for name in REGISTRY.names():
        assert build_policy(name, {}, PolicyContext()).snapshot()["policy"] == name


def test_an_unknown_policy_is_told_what_is_known():
    with pytest.raises(PolicyError, match=r"fifo.*wfq.*did you mean 'committed'"):
        build_policy("comitted", {}, PolicyContext())
