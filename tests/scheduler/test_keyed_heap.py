"""Heaps with changeable keys and queues with changeable heads, against plain sorting."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from sched_support import request

from scheduler.keyed_heap import KeyedHeap
from scheduler.policies.awaiting import Awaiting
from scheduler.tenant_queue import TenantQueue

_NAMES = st.sampled_from("abcde")


@given(st.lists(st.tuples(_NAMES, st.one_of(st.none(), st.integers(0, 5))), max_size=200))
def test_the_least_of_a_heap_is_the_least_of_its_present_keys(changes):
    """``None`` discards a name. Names that tie in the first element are told apart by the rest of their keys."""
    heap, present = KeyedHeap(), {}
    for name, first in changes:
        if first is None:
            heap.discard(name)
            present.pop(name, None)
        else:
            present[name] = (first, "edcba".index(name))
            heap.set(name, present[name])
        least = min(present, key=present.__getitem__, default=None)
        assert heap.least() == least
        assert heap.least_value() == (None if least is None else present[least][0])
        for limit in (0, 3):
            assert heap.due(limit) == (least if least is not None and present[least][0] <= limit else None)
        assert sorted(heap) == sorted(present)


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 9)), max_size=100))
def test_ages_are_those_of_all_that_await_in_whatever_order_they_come_and_go(changes):
    """Twenty arrivals of which some tie; an id that left and came back counts once."""
    awaiting, present = Awaiting(), {}
    for comes, number in changes:
        arrival_ns = number // 2
        if comes:
            awaiting.add(arrival_ns, number)
            present[number] = arrival_ns
        else:
            awaiting.discard(number)
            present.pop(number, None)
        assert list(awaiting.ages_ns(100)) == sorted((100 - at for at in present.values()), reverse=True)
        assert len(awaiting) == len(present)


@given(st.lists(st.tuples(st.sampled_from(["push", "remove", "demote"]), st.integers(0, 9)), max_size=100))
def test_the_head_of_a_queue_is_the_oldest_that_is_on_time_else_the_oldest(changes):
    queue, on_time, late = TenantQueue(), {}, {}
    for change, number in changes:
        if change == "push" and number not in on_time and number not in late:
            on_time[number] = request(number, "a", number // 2)
            queue.push(on_time[number])
        elif change == "remove":
            assert queue.remove(number) is (on_time.pop(number, None) or late.pop(number, None))
        elif change == "demote" and number in on_time:
            late[number] = on_time.pop(number)
            queue.demote(late[number])
        oldest = [min(part.values(), key=lambda r: (r.arrival_ns, r.id)) for part in (on_time, late) if part]
        assert queue.head is (oldest[0] if oldest else None)
        assert bool(queue) is bool(oldest)
        assert len(queue) == len(on_time) + len(late)
