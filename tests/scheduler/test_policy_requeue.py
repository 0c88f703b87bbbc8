"""``requeue`` undoes ``select``: the order of service afterwards is that of a queue that never selected.

Costs and weights are dyadic here, so that accounts are exact and not merely close.
"""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sched_support import POLICIES, drain, policy, request, tenant

from scheduler.cost import CostModel
from scheduler.lateness import LateRule
from scheduler.policies import build
from scheduler.policies.options import NoOptions

_NAMES = ("a", "b", "c")


def _history(which, data):
    """Two equal policies with requests queued and outstanding, after some service whose cost was mis-estimated."""
    tenants = [tenant(name, weight, ttft_ms=None) for name, weight in zip(_NAMES, (1.0, 2.0, 0.5), strict=True)]
    queues = policy(which, tenants), policy(which, tenants)
    arrivals = data.draw(st.lists(st.tuples(st.sampled_from(_NAMES), st.integers(1, 64)), min_size=1, max_size=12))
    for number, (name, prompt) in enumerate(arrivals):
        for queue in queues:
            queue.enqueue(request(number, name, number, prompt), number)
    running = []
    for _ in range(data.draw(st.integers(0, len(arrivals) - 1))):
        chosen, same = (queue.select(100) for queue in queues)
        assert chosen == same
        running.append(chosen)
        if data.draw(st.booleans()):
            done = running.pop(0)
            prompt = done.prompt_tokens + data.draw(st.integers(0, 8))
            for queue in queues:
                queue.on_finish(done.id, prompt, 10, 100)
    return queues


@pytest.mark.parametrize("which", POLICIES)
@settings(max_examples=40, deadline=None, derandomize=True, database=None)
@given(data=st.data(), generated=st.integers(0, 40))
def test_a_requeue_refunds_the_whole_charge(which, data, generated):
    """After select, some progress, and requeue, service goes on as if nothing had been selected."""
    queue, untouched = _history(which, data)
    chosen = queue.select(100)
    if generated:
        queue.on_progress(((queue.account_of(chosen.id), generated),), 100)
    queue.requeue(chosen, 100, generated)
    assert drain(queue, 100) == drain(untouched, 100)


@pytest.mark.parametrize("which", ["wfq", "drr", "vtc"])
def test_a_requeued_tenant_does_not_count_as_back_from_idle(which):
    """A tenant whose only request was selected and came back is served as far as it was owed, not lifted to the others."""
    tenants = [tenant("owed", ttft_ms=None), tenant("rich", ttft_ms=None)]
    queue = policy(which, tenants)
    for number in range(4):
        queue.enqueue(request(number, "rich", 0, prompt=100), 0)
    queue.enqueue(request(9, "owed", 0, prompt=100), 0)
    while queue.select(0).tenant != "owed":
        pass
    assert queue.select(0).tenant == "rich"
    queue.requeue(request(9, "owed", 0, prompt=100), 0)
    assert queue.select(0).tenant == "owed"


def test_requeue_keeps_the_place_by_arrival():
    """A request that comes back is ahead of its tenant's younger ones."""
    queue = policy("fifo", [tenant("a")])
    for number in range(3):
        queue.enqueue(request(number, "a", number), 5)
    first = queue.select(5)
    queue.select(5)
    queue.requeue(first, 6)
    assert drain(queue, 6) == [0, 2]


@pytest.mark.parametrize("which", POLICIES)
def test_every_policy_can_be_extended(which):
    """By somebody else's class, also where lmperf's own are compiled: what it overrides is asked."""
    made = policy(which, [tenant("a"), tenant("b")])

    class Mine(type(made)):
        seen = 0

        def select(self, now_ns):
            self.seen += 1
            return super().select(now_ns)

    name, own = POLICIES[which]
    kind = build.POLICIES.load(name)
    options = msgspec.convert({key: value for key, value in own.items() if key != "late"}, kind.options)
    more = {} if kind.options is NoOptions else {"options": options}
    queue = Mine(cost=CostModel(), late=LateRule(), **more)
    queue.set_tenants([tenant("a"), tenant("b")], 0)
    for number in range(4):
        queue.enqueue(request(number, "ab"[number % 2], number), number)
    assert sorted(drain(queue, 10)) == [0, 1, 2, 3]
    assert queue.seen == 5
