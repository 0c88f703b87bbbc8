"""Slots: how much may be outstanding, in sequences and in tokens not yet prefilled, and on which backend."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sched_support import dispatcher, request, tenant

from scheduler.cost import CostModel
from scheduler.events import (
    Arrived,
    BackendState,
    Dispatch,
    Finished,
    FirstToken,
    PrefillProgress,
    Progress,
    SlotsChanged,
)
from scheduler.request import Status
from scheduler.slots import Slots

_T = [tenant("a")]


def _sent(actions) -> list[int]:
    return [a.request.id for a in actions if isinstance(a, Dispatch)]


def _arrive(core, *prompts, first_id=0):
    sent = []
    for offset, prompt in enumerate(prompts):
        sent += _sent(core.handle(Arrived(0, request(first_id + offset, "a", 0, prompt))))
    return sent


def _finish(core, number, now_ns=1):
    return _sent(core.handle(Finished(now_ns, number, Status.OK, 1, 1)))


def test_at_most_d_sequences_are_outstanding():
    """D requests pass; the next one when one of them ends, and never two for one."""
    core = dispatcher(_T, sequences=2)
    assert _arrive(core, 5, 5, 5, 5) == [0, 1]
    assert _finish(core, 1) == [2]
    assert _finish(core, 0) == [3]
    assert core.outstanding == 2


def test_the_head_passes_while_less_than_x_is_outstanding():
    """One request may exceed X, so a long prompt is never stuck; the next waits until less than X is left."""
    core = dispatcher(_T, sequences=None, prefill_tokens=100)
    assert _arrive(core, 99, 5_000, 1) == [0, 1]
    assert _sent(core.handle(FirstToken(1, 0))) == []
    assert _sent(core.handle(PrefillProgress(2, 1, 4_900))) == []
    assert _sent(core.handle(PrefillProgress(3, 1, 1))) == [2]


def test_exactly_x_outstanding_is_full():
    """The head passes while *fewer than* X tokens are outstanding."""
    core = dispatcher(_T, sequences=None, prefill_tokens=100)
    assert _arrive(core, 100, 1) == [0]


def test_a_head_that_waits_for_x_is_never_overtaken():
    """A short prompt behind a long one waits, though it alone would fit."""
    core = dispatcher(_T, sequences=None, prefill_tokens=100)
    assert _arrive(core, 100, 90, 1) == [0]
    assert _sent(core.handle(FirstToken(1, 0))) == [1, 2]


def test_the_first_token_frees_the_whole_prompt_once():
    """Prefill is freed chunk by chunk or at the first token, never twice."""
    core = dispatcher(_T, sequences=None, prefill_tokens=10)
    assert _arrive(core, 10, 10, 10) == [0]
    core.handle(PrefillProgress(1, 0, 4))
    core.handle(FirstToken(2, 0))
    core.handle(FirstToken(3, 0))
    core.handle(PrefillProgress(4, 0, 50))
    assert core.snapshot()["backends"]["a"]["prefill_tokens"] == 10 + 10 * (core.outstanding == 3)


def test_an_end_frees_what_was_not_prefilled():
    """A request that ends before its first token gives back its sequence and its prefill tokens."""
    core = dispatcher(_T, sequences=None, prefill_tokens=10)
    assert _arrive(core, 50, 50) == [0]
    assert _finish(core, 0) == [1]


@settings(max_examples=60, deadline=None, derandomize=True, database=None)
@given(
    data=st.data(),
    sequences=st.one_of(st.none(), st.integers(1, 4)),
    prefill=st.one_of(st.none(), st.integers(1, 60)),
    backends=st.integers(1, 3),
)
def test_slots_hold_at_every_event(data, sequences, prefill, backends):
    """Never more than D sequences; never a dispatch onto X or more tokens; nothing waits while a backend has room; and
    of those with room the one with the least outstanding cost is taken."""
    names = "abc"[:backends]
    slots = {n: Slots(sequences=sequences, prefill_tokens=prefill) for n in names}
    core = dispatcher(_T, backends=slots, cost=CostModel(output_weight=0.0))
    left: dict[str, dict[int, int]] = {n: {} for n in names}
    waiting: list[int] = []
    prompts: dict[int, int] = {}
    number = 0
    for now_ns in range(data.draw(st.integers(1, 40))):
        running = [(n, i) for n in names for i in left[n]]
        kind = data.draw(st.sampled_from(["arrive", "arrive", "prefill", "first", "finish"]))
        if kind == "arrive" or not running:
            prompts[number] = data.draw(st.integers(1, 100))
            waiting.append(number)
            actions = core.handle(Arrived(now_ns, request(number, "a", now_ns, prompts[number])))
            number += 1
        else:
            backend, chosen = data.draw(st.sampled_from(running))
            if kind == "prefill":
                tokens = data.draw(st.integers(1, 50))
                left[backend][chosen] = max(0, left[backend][chosen] - tokens)
                actions = core.handle(PrefillProgress(now_ns, chosen, tokens))
            elif kind == "first":
                left[backend][chosen] = 0
                actions = core.handle(FirstToken(now_ns, chosen))
            else:
                del left[backend][chosen]
                actions = core.handle(Finished(now_ns, chosen, Status.OK, 1, 1))
        for action in actions:
            assert isinstance(action, Dispatch)
            occupied = left[action.backend]
            assert sequences is None or len(occupied) < sequences
            assert prefill is None or sum(occupied.values()) < prefill
            work = {n: sum(prompts[i] for i in left[n]) for n in names if _room(left[n], sequences, prefill)}
            assert work[action.backend] == min(work.values())
            assert action.request.id == waiting.pop(0), "never overtaken"
            occupied[action.request.id] = prompts[action.request.id]
        assert not waiting or not any(_room(left[n], sequences, prefill) for n in names), "work-conserving"


def _room(occupied, sequences, prefill) -> bool:
    return (sequences is None or len(occupied) < sequences) and (prefill is None or sum(occupied.values()) < prefill)


def test_progress_never_dispatches():
    """Progress moves accounts and leads to no action: selections happen at the other events only."""
    core = dispatcher(_T, "vtc", sequences=1)
    sent = core.handle(Arrived(0, request(0, "a", timeout_ns=5)))[0]
    core.handle(Arrived(0, request(1, "a", ttl_ns=5)))
    assert core.handle(Progress(10, ((sent.account, 3),))) == []


def test_more_slots_are_filled_at_once_and_fewer_drain():
    """SlotsChanged takes effect with the event; what is outstanding beyond the new limit runs on."""
    core = dispatcher(_T, sequences=1)
    assert _arrive(core, 5, 5, 5, 5) == [0]
    assert _sent(core.handle(SlotsChanged(1, "a", 3, None))) == [1, 2]
    assert _sent(core.handle(SlotsChanged(2, "a", 1, None))) == []
    assert _finish(core, 0, 3) == []
    assert _finish(core, 1, 4) == []
    assert _finish(core, 2, 5) == [3]


def test_slots_must_allow_one():
    """Zero slots would be a queue that never moves: refused."""
    with pytest.raises(ValueError, match=">= 1"):
        dispatcher(_T).handle(SlotsChanged(0, "a", 0, None))


def test_a_new_backend_comes_with_its_slots():
    """SlotsChanged for an unknown backend adds it."""
    core = dispatcher(_T, sequences=1)
    _arrive(core, 5, 5)
    (action,) = core.handle(SlotsChanged(1, "b", 1, None))
    assert (action.backend, action.request.id) == ("b", 1)


def test_a_backend_that_is_down_gets_nothing_until_it_is_up():
    """Requests wait for it, or go to another; what it runs may still end."""
    core = dispatcher(_T, backends={"a": Slots(sequences=1), "b": Slots(sequences=1)})
    core.handle(BackendState(0, "a", up=False))
    (action,) = core.handle(Arrived(1, request(0, "a")))
    assert action.backend == "b"
    core.handle(BackendState(2, "b", up=False))
    assert core.handle(Arrived(3, request(1, "a"))) == []
    assert _finish(core, 0, 4) == []
    (action,) = core.handle(BackendState(5, "a", up=True))
    assert (action.backend, action.request.id) == ("a", 1)
