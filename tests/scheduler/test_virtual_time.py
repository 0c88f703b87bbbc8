"""Virtual time: calls and simpy's own events run in one order, by time and then as they were asked for."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from scheduler.drivers.virtual_time import VirtualTime


@given(st.lists(st.tuples(st.integers(0, 5), st.booleans()), max_size=30))
def test_calls_and_events_run_by_time_and_then_as_asked_for(plan):
    env, ran = VirtualTime(), []

    def note(number):
        ran.append((env.now_ns, number))
        assert env.now == env.now_ns

    for number, (at_ns, is_call) in enumerate(plan):
        if is_call:
            env.call_at(at_ns, note, number)
        else:
            env.timeout(at_ns).callbacks.append(lambda _, number=number: note(number))
    env.run()
    assert ran == sorted((at_ns, number) for number, (at_ns, _) in enumerate(plan))


def test_a_call_may_ask_for_another_at_the_same_instant_and_comes_after_those_that_wait():
    env, ran = VirtualTime(), []
    env.call_at(3, lambda name: (ran.append(name), env.call_at(3, ran.append, "c")), "a")
    env.call_at(3, ran.append, "b")
    env.run()
    assert ran == ["a", "b", "c"]


def test_what_lies_at_or_after_the_end_is_not_run():
    env, ran = VirtualTime(), []
    for at_ns in (1, 2, 3):
        env.call_at(at_ns, ran.append, at_ns)
    env.run(until=2)
    assert (ran, env.now, env.now_ns) == ([1], 2, 2)


def test_processes_of_simpy_run_beside_calls():
    env, seen = VirtualTime(), []

    def process():
        while env.now < 6:
            yield env.timeout(2)
            seen.append(("process", env.now_ns))

    env.process(process())
    env.call_at(3, lambda name: seen.append((name, env.now_ns)), "call")
    env.run()
    assert seen == [("process", 2), ("call", 3), ("process", 4), ("process", 6)]
