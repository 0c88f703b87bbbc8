"""Rules of the look-ahead: the same calls as without it, in order, in bounded memory, and no error is lost."""

from __future__ import annotations

import threading

import pytest
from live_support import PlainCalls, request

from backends.protocol import Call
from loadgen.live.calls import CallMaker, LookAhead, TenantWire
from loadgen.workload.prompts import WordPrompts

DEADLINE_S = 20.0


def sized(i: int, tokens: int = 100):
    return request(i, i, prompt_tokens=tokens)


@pytest.mark.parametrize("threaded", [False, True])
@pytest.mark.parametrize("filled", [False, True])
def test_calls_are_those_that_inline_building_makes(threaded, filled):
    """Whoever makes a call, the thread, the filling or the iterator: the same bytes for the same request, in order."""
    wires = {"a": TenantWire(model="m", endpoint="chat", api_key="k", extra_body={"top_k": 3})}
    requests = [sized(i, 5 + i) for i in range(200)]
    inline = CallMaker(wires, WordPrompts(seed=3))
    ahead = LookAhead(iter(requests), CallMaker(wires, WordPrompts(seed=3)).make, limit_bytes=4000)
    if filled:
        ahead.fill()
    if threaded:
        ahead.start()
    given = list(ahead)
    ahead.close()
    assert given == requests
    calls = [ahead.take(each.id) for each in given]
    expected = [inline.make(each) for each in requests]
    assert [(call.request_id, call.path, call.body) for call in calls] == [
        (call.request_id, call.path, call.body) for call in expected
    ]


def test_a_call_is_taken_once():
    """A second take finds nothing, nor does one of a request that came from elsewhere."""
    ahead = LookAhead(iter([sized(0)]), PlainCalls().make)
    list(ahead)
    assert ahead.take(0) is not None
    assert ahead.take(0) is None
    assert ahead.take(99) is None


def test_calls_of_users_are_held_up_to_the_limit():
    """The first requests of closed-loop users are made before the clock starts, as far as memory allows."""
    calls = PlainCalls()
    ahead = LookAhead(iter(()), calls.make, limit_bytes=1000)
    ahead.hold(sized(i) for i in range(50))
    assert calls.made == list(range(10))
    assert ahead.take(9) is not None
    assert ahead.take(10) is None


def test_a_call_that_is_held_already_is_not_made_again_nor_counted_twice():
    """A request that was foreseen is held before its arrival is known, and asked for once more when it is."""
    calls = PlainCalls()
    ahead = LookAhead(iter(()), calls.make, limit_bytes=1000)
    for i in range(30):
        ahead.hold([sized(i)])
        ahead.hold([sized(i)])
        assert ahead.take(i) is not None
    assert calls.made == list(range(30))


def test_filling_stops_at_the_limit():
    """No more than the limit and the one call that crosses it."""
    calls = PlainCalls()
    ahead = LookAhead(iter([sized(i) for i in range(100)]), calls.make, limit_bytes=1000)
    ahead.fill()
    assert ahead.bytes_ahead == 1000
    assert calls.made == list(range(10))


def test_the_thread_keeps_within_the_limit():
    """While the run reads on, never more than limit + one call lies ready; all are given out."""
    most = 0
    made = threading.Semaphore(0)

    def make(each) -> Call:
        nonlocal most
        most = max(most, ahead.bytes_ahead)
        made.release()
        return PlainCalls().make(each)

    ahead = LookAhead((sized(i) for i in range(2000)), make, limit_bytes=1500)
    ahead.start()
    for _ in range(15):
        assert made.acquire(timeout=DEADLINE_S), "the thread fills the look-ahead by itself"
    assert not made.acquire(timeout=0.2), "and stops at the limit"
    given = [each.id for each in ahead]
    ahead.close()
    assert given == list(range(2000))
    assert most <= 1500
    assert ahead.bytes_ahead == 0, "what was given out is accounted for, whichever thread made it"


def test_an_error_in_the_thread_reaches_the_run():
    """A prompt that cannot be made ends the iteration with that error, after the calls before it."""
    failed = threading.Event()

    def make(each) -> Call:
        if each.id == 3:
            failed.set()
            raise KeyError("no such tenant")
        return PlainCalls().make(each)

    ahead = LookAhead((sized(i) for i in range(10)), make)
    ahead.start()
    assert failed.wait(DEADLINE_S)
    given = []
    with pytest.raises(KeyError, match="no such tenant"):
        given.extend(each.id for each in ahead)
    ahead.close()
    assert given == [0, 1, 2]


def test_closing_ends_a_thread_that_waits_for_room():
    """A run that stops early leaves no thread behind."""
    before = threading.active_count()
    ahead = LookAhead((sized(i) for i in range(10_000)), PlainCalls().make, limit_bytes=500)
    ahead.start()
    ahead.close()
    assert threading.active_count() == before
