"""Several backends, one queue: nothing lost or doubled, no room left idle, the least work first, prefixes kept together."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sched_support import dispatcher, request, tenant

from scheduler.cost import CostModel
from scheduler.dispatcher import Dispatcher
from scheduler.dispatcher_config import DispatcherConfig
from scheduler.event_log import LoggedDispatcher, replay
from scheduler.events import (
    Arrived,
    BackendState,
    Cancelled,
    Dispatch,
    DispatchFailed,
    Finished,
    SlotsChanged,
    TenantsChanged,
)
from scheduler.request import Status
from scheduler.routing import Routing, Rule
from scheduler.slots import Slots

NAMES = "abc"
TENANTS = [tenant("x"), tenant("y", 2.0)]


def core_of(slots, *, slack=0.0, rule=Rule.PREFIX, output_weight=0.0) -> Dispatcher:
    """``fifo``; work is the prompt's length alone unless answers weigh too."""
    return Dispatcher(
        DispatcherConfig(
            tenants=tuple(TENANTS),
            policy="fifo",
            cost=CostModel(output_weight=output_weight),
            backends=slots,
            routing=Routing(rule=rule, slack=slack),
        )
    )


class Mirror:
    """The rules again, from the text: where each request is, and where it may go."""

    def __init__(self, sequences: dict[str, int]) -> None:
        self.sequences = dict(sequences)
        self.up = dict.fromkeys(sequences, True)
        self.waiting: list[int] = []
        self.at: dict[str, dict[int, int]] = {name: {} for name in sequences}
        self.dispatched: list[int] = []

    def roomy(self) -> list[str]:
        return [n for n in self.at if self.up[n] and len(self.at[n]) < self.sequences[n]]

    def work(self, name: str) -> int:
        return sum(self.at[name].values())


@settings(max_examples=150, deadline=None, derandomize=True, database=None)
@given(data=st.data(), sequences=st.lists(st.integers(1, 3), min_size=1, max_size=3))
def test_no_loss_no_duplication_no_idle_room_and_fifo(data, sequences):
    """Whatever arrives, ends, fails, is cancelled, goes down, comes back or changes its slots: each request is in one place,
    leaves the queue in the order of arrival, goes to the least work with room, and waits only while there is no room."""
    mirror = Mirror(dict(zip(NAMES, sequences, strict=False)))
    core = core_of({n: Slots(sequences=k) for n, k in mirror.sequences.items()}, rule=Rule.LEAST_WORK)
    prompts: dict[int, int] = {}
    gone: set[int] = set()
    for now_ns in range(1, data.draw(st.integers(2, 40))):
        running = [(n, i) for n in mirror.at for i in mirror.at[n]]
        kinds = ["arrive", "arrive", "arrive", "state", "slots"]
        kinds += ["finish", "finish", "fail"] * bool(running) + ["cancel"] * bool(mirror.waiting)
        kind = data.draw(st.sampled_from(kinds))
        if kind == "arrive":
            number = len(prompts)
            prompts[number] = data.draw(st.integers(1, 50))
            who = data.draw(st.sampled_from("xy"))
            mirror.waiting.append(number)
            event = Arrived(now_ns, request(number, who, now_ns, prompts[number]))
        elif kind == "state":
            name = data.draw(st.sampled_from(list(mirror.at)))
            mirror.up[name] = not mirror.up[name]
            event = BackendState(now_ns, name, up=mirror.up[name])
        elif kind == "slots":
            name = data.draw(st.sampled_from(list(mirror.at)))
            mirror.sequences[name] = data.draw(st.integers(1, 4))
            event = SlotsChanged(now_ns, name, mirror.sequences[name], None)
        elif kind == "cancel":
            number = data.draw(st.sampled_from(mirror.waiting))
            mirror.waiting.remove(number)
            gone.add(number)
            event = Cancelled(now_ns, number)
        else:
            name, number = data.draw(st.sampled_from(running))
            del mirror.at[name][number]
            if kind == "fail":
                mirror.waiting = sorted([number, *mirror.waiting])
                event = DispatchFailed(now_ns, number, retryable=True)
            else:
                gone.add(number)
                event = Finished(now_ns, number, Status.OK, prompts[number], 1)
        for action in core.handle(event):
            assert isinstance(action, Dispatch)
            assert action.request.id == mirror.waiting.pop(0), "fifo, over all backends"
            roomy = mirror.roomy()
            assert action.backend in roomy
            assert mirror.work(action.backend) == min(map(mirror.work, roomy))
            mirror.at[action.backend][action.request.id] = prompts[action.request.id]
        assert not mirror.waiting or not mirror.roomy(), "work-conserving"
        assert core.queued == len(mirror.waiting)
        assert {n: core.outstanding_at(n) for n in mirror.at} == {n: len(mirror.at[n]) for n in mirror.at}
        assert len(gone) + len(mirror.waiting) + core.outstanding == len(prompts), "nothing lost, nothing twice"


def arrive(core, number, prompt, *, who="x", blocks=(), now_ns=0) -> str:
    (action,) = core.handle(Arrived(now_ns, request(number, who, now_ns, prompt, prefix_blocks=blocks)))
    return action.backend


def test_work_is_cost_and_not_a_count():
    """After one long prompt, short ones go elsewhere until together they cost as much."""
    core = core_of({"a": Slots(), "b": Slots()}, rule=Rule.LEAST_WORK)
    assert [arrive(core, i, prompt) for i, prompt in enumerate([100, 30, 30, 30, 30, 1])] == [
        "a",
        "b",
        "b",
        "b",
        "b",
        "a",
    ]


def test_expected_answers_count_and_are_learnt():
    """The same prompts: a tenant whose answers turned out long weighs more than one whose answers are short."""
    core = core_of({"a": Slots(), "b": Slots()}, rule=Rule.LEAST_WORK, output_weight=2.0)
    for number in range(200):
        who = "xy"[number % 2]
        arrive(core, number, 10, who=who)
        core.handle(Finished(1, number, Status.OK, 10, 500 if who == "x" else 1))
    assert arrive(core, 1000, 10, who="x") == "a"
    assert [arrive(core, 1001 + i, 10, who="y") for i in range(5)] == ["b"] * 5


def test_equal_work_goes_to_fewer_requests_then_to_the_first_configured():
    """Ties are decided, and always alike."""
    core = core_of({"b": Slots(), "a": Slots()}, rule=Rule.LEAST_WORK)
    assert [arrive(core, i, prompt) for i, prompt in enumerate([20, 10, 10, 5])] == ["b", "a", "a", "b"]


def test_a_prefix_returns_to_its_backend_within_the_slack():
    """The backend that was sent a prefix is preferred while its work is at most the slack above the least."""
    core = core_of({"a": Slots(), "b": Slots()}, slack=25)
    assert arrive(core, 0, 20, blocks=(7,)) == "a"
    assert arrive(core, 1, 5, blocks=(7, 8)) == "a", "20 more than the least: within the slack"
    assert arrive(core, 2, 1, blocks=(7,)) == "a", "25 more: still"
    assert arrive(core, 3, 1, blocks=(7,)) == "b", "26 more: not any longer, and now b has it too"
    assert arrive(core, 4, 1, blocks=(7,)) == "b"


def test_other_prefixes_and_none_go_to_the_least_work():
    """A run of blocks counts from the front, and only known ones."""
    core = core_of({"a": Slots(), "b": Slots()}, slack=1_000)
    assert arrive(core, 0, 20, blocks=(7,)) == "a"
    assert arrive(core, 1, 20, blocks=(8, 7)) == "b"
    assert arrive(core, 2, 5) == "a"
    assert arrive(core, 3, 5) == "b"
    assert arrive(core, 4, 5, blocks=(8,)) == "b"


def test_a_prefix_never_waits_for_its_backend():
    """A full backend is not waited for while another has room."""
    core = core_of({"a": Slots(sequences=1), "b": Slots(sequences=1)}, slack=1_000)
    assert arrive(core, 0, 20, blocks=(7,)) == "a"
    assert arrive(core, 1, 20, blocks=(7,)) == "b"


def test_a_backend_that_was_down_has_forgotten_its_prefixes():
    """A server that restarted has an empty cache: nothing prefers it for what it had."""
    core = core_of({"a": Slots(), "b": Slots()}, slack=1_000)
    assert arrive(core, 0, 20, blocks=(7,)) == "a"
    core.handle(BackendState(1, "a", up=False))
    core.handle(BackendState(2, "a", up=True))
    assert arrive(core, 1, 1, blocks=(7,)) == "b"


def test_by_least_work_prefixes_decide_nothing():
    """The default."""
    core = core_of({"a": Slots(), "b": Slots()}, slack=1_000, rule=Rule.LEAST_WORK)
    assert [arrive(core, i, 10, blocks=(7,)) for i in range(4)] == ["a", "b", "a", "b"]


def test_new_tenants_can_be_routed():
    """A tenant that came while running has an estimate of its own."""
    core = dispatcher([tenant("x")], backends={"a": Slots(), "b": Slots()})
    core.handle(TenantsChanged(0, (tenant("z"),)))
    assert arrive(core, 0, 10, who="z") == "a"


@pytest.mark.parametrize("slack", [-1.0, float("inf"), float("nan")])
def test_the_slack_is_a_finite_number_of_cost_units_or_none(slack):
    """Less than nothing more than the least means nothing; no bound is null, which a log can hold."""
    with pytest.raises(ValueError, match="slack must be >= 0"):
        Routing(slack=slack)


def test_a_log_of_several_backends_replays():
    """Routing, its rule, slots and states are the dispatcher's own: the same events give the same backends."""
    lines: list[bytes] = []
    config = core_of({"a": Slots(sequences=2), "b": Slots(sequences=3)}, slack=30, output_weight=2.0).config
    core = LoggedDispatcher(config, lines.append)
    for number in range(60):
        core.handle(
            Arrived(number, request(number, "xy"[number % 2], number, 1 + number % 17, prefix_blocks=(number % 5,)))
        )
        if number % 7 == 3:
            core.handle(BackendState(number, "ab"[number % 2], up=number % 14 == 3))
        if number >= 6:
            core.handle(Finished(number, number - 6, Status.OK, 10, number % 40))
    assert {action for line in lines for action in (b'"backend":"a"', b'"backend":"b"') if action in line} == {
        b'"backend":"a"',
        b'"backend":"b"',
    }
    assert replay(lines) > 100


def test_a_retry_goes_elsewhere_and_leaves_every_other_prefix_where_it_was():
    """A failure of one request says nothing of a backend's cache: others still return to it, also behind the retry."""
    core = core_of({"a": Slots(), "b": Slots()}, slack=1_000)
    assert arrive(core, 0, 10, blocks=(7,)) == "a"
    assert arrive(core, 1, 1, blocks=(8,)) == "b"
    (action,) = core.handle(DispatchFailed(1, 0, retryable=True, elsewhere=True))
    assert (action.request.id, action.backend) == (0, "b"), "its prefix was at a, and a has less to do"
    assert arrive(core, 2, 10, blocks=(9,)) == "a"
    core.handle(Finished(2, 2, Status.OK, 10, 1))
    assert arrive(core, 3, 1, blocks=(9,)) == "a", "not forgotten for the failure of another"
    (action,) = core.handle(DispatchFailed(3, 0, retryable=True, elsewhere=True))
    assert action.backend == "a"
    (action,) = core.handle(DispatchFailed(4, 0, retryable=True))
    assert action.backend == "a", "what was avoided once is avoided once"


def test_a_retry_does_not_wait_for_another_backend():
    """With room only where it failed, it goes there; nobody waits while a backend has room."""
    core = core_of({"a": Slots(sequences=1), "b": Slots(sequences=1)})
    assert [arrive(core, number, 10) for number in range(2)] == ["a", "b"]
    (action,) = core.handle(DispatchFailed(1, 0, retryable=True, elsewhere=True))
    assert (action.request.id, action.backend) == (0, "a")


def test_a_retry_that_leaves_the_queue_leaves_nothing_behind():
    """Cancelled while it waits: its number, used again, avoids nothing."""
    core = core_of({"a": Slots(sequences=1), "b": Slots(sequences=1)})
    assert [arrive(core, number, 10) for number in range(2)] == ["a", "b"]
    core.handle(Arrived(1, request(2, "x", 0, 10)))
    core.handle(BackendState(1, "a", up=False))
    core.handle(DispatchFailed(2, 0, retryable=True, elsewhere=True))
    core.handle(Cancelled(3, 0))
    core.handle(Cancelled(3, 2))
    core.handle(BackendState(4, "a", up=True))
    assert arrive(core, 0, 10) == "a"
