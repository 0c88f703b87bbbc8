"""Automatic slots: the rules of each controller, and that a simulation and a live run move D alike."""

from __future__ import annotations

import asyncio
import itertools
from collections import deque

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sched_support import MS, S, dispatcher, request, simulate, tenant
from virtual_loop import run_virtual

from backends.slot_loop import SlotLoop
from scheduler.auto_rule import AutoRule, Follows, control_of, usual_rule
from scheduler.auto_slots import AutoSlots
from scheduler.drivers.live import LiveDriver
from scheduler.drivers.simulated import Simulation
from scheduler.request import Outcome, Status
from scheduler.server_model.batching import ContinuousBatch
from scheduler.server_model.single import SingleServer
from scheduler.server_model.spec import ServerLimits, StepLaw
from scheduler.slot_control import SlotControl
from scheduler.slots import Slots
from scheduler.waiting_slots import WaitingSlots
from tenants.slo import Slo
from tenants.tenant import Tenant

LIMIT_NS = 20 * MS
WITHIN_NS, NEAR_NS = round(0.94 * LIMIT_NS), round(0.96 * LIMIT_NS)


def with_tpot(name: str = "a", limit_ns: int | None = LIMIT_NS) -> Tenant:
    return Tenant(name=name, slo=Slo(tpot_ns=limit_ns, attainment=0.99), expected_output_tokens=10.0)


def ended(at_ns: int, tpot_ns: int, name: str = "a", tokens: int = 11, **more: object) -> Outcome:
    first_ns = at_ns - (tokens - 1) * tpot_ns
    return Outcome(
        request=request(0, name),
        status=more.pop("status", Status.OK),
        ended_ns=at_ns,
        first_token_ns=first_ns,
        last_token_ns=at_ns,
        output_tokens=tokens,
        **more,
    )


# -- by TPOT limits --------------------------------------------------------------------------------------------------


def reference(events, least: int, most: int, start: int) -> list[int]:
    """The rule of the policy study, written once more from its text, with the margin that it has here: what comes within
    5% of its limit counts as broken. ``events``: (s, "end" and kept) or (s, "ask" and queued), a tenant each."""
    size, hold_until, seen, sizes = start, 0, [], []
    for at_s, kind, name, flag in events:
        if kind == "end":
            seen.append((at_s, name, flag))
            continue
        if at_s >= hold_until:
            shares = []
            for who in {n for _, n, _ in seen}:
                kept = [f for t, n, f in seen if n == who and at_s - 6 < t <= at_s]
                if len(kept) >= 8:
                    shares.append(sum(kept) / len(kept))
            if shares and min(shares) < 0.98:
                size, hold_until = max(least, int(0.92 * size)), at_s + 3
            elif flag:
                size = min(most, size + 2)
        sizes.append(size)
    return sizes


@settings(max_examples=100, deadline=None, derandomize=True, database=None)
@given(data=st.data(), start=st.integers(4, 20))
def test_tpot_slots_are_those_of_the_study(data, start):
    """Any outcomes and queues: D is that of an independent reading of the rule, at every second."""
    events = []
    for second in range(1, data.draw(st.integers(1, 25))):
        for name in "ab":
            kept, broken = data.draw(st.integers(0, 12)), data.draw(st.sampled_from([0, 0, 0, 1, 3]))
            events += [(second - 0.5, "end", name, True)] * kept + [(second - 0.5, "end", name, False)] * broken
        events.append((second, "ask", "", data.draw(st.booleans())))
    control = AutoSlots([with_tpot("a"), with_tpot("b")], {"server": Slots(sequences=start, prefill_tokens=77)}, 4, 20)
    found = []
    for at_s, kind, name, flag in events:
        now_ns = round(at_s * S)
        if kind == "end":
            control.observe(ended(now_ns, WITHIN_NS if flag else NEAR_NS, name))
            continue
        for change in control.control(now_ns, queued=flag):
            assert (change.now_ns, change.backend, change.prefill_tokens) == (now_ns, "server", 77)
            assert change.sequences != (found[-1] if found else start), "an event only where D changes"
        found.append(control.sequences("server"))
    assert found == reference(events, 4, 20, start)


def test_only_answers_that_tell_their_tpot_count():
    """Not failed ones, not single tokens, not those that came whole, not those of tenants without a limit."""
    control = AutoSlots([with_tpot("a"), with_tpot("free", None)], {"server": Slots(sequences=60)})
    slow = 5 * LIMIT_NS
    for _ in range(50):
        control.observe(ended(S, slow, status=Status.FAILED))
        control.observe(ended(S, slow, tokens=1))
        control.observe(ended(S, 0))
        control.observe(ended(S, slow, "free"))
    assert [c.sequences for c in control.control(S, queued=True)] == [62]


def test_other_tenants_bring_other_limits():
    """After a reload the new limits judge, and D stays where it was."""
    control = AutoSlots([with_tpot("a")], {"server": Slots(sequences=100)})
    control.control(S, queued=True)
    control.set_tenants([with_tpot("a", 5 * MS)])
    for _ in range(10):
        control.observe(ended(2 * S, 10 * MS))
    assert [c.sequences for c in control.control(2 * S, queued=True)] == [int(0.92 * 102)]


def test_backends_of_one_queue_have_one_size():
    """They share the TPOT that D leads to; each keeps its own X."""
    slots = {"a": Slots(sequences=50, prefill_tokens=5), "b": Slots(sequences=50)}
    control = AutoSlots([with_tpot()], slots)
    changes = control.control(S, queued=True)
    assert [(c.backend, c.sequences, c.prefill_tokens) for c in changes] == [("a", 52, 5), ("b", 52, None)]
    assert [(m.at_ns, m.backend, m.sequences) for m in control.moves] == [
        (0, "a", 50),
        (0, "b", 50),
        (S, "a", 52),
        (S, "b", 52),
    ]


@pytest.mark.parametrize("follows", list(Follows))
def test_the_start_lies_within_the_bounds(follows):
    """A start outside is moved in; unlimited slots start at 64."""
    rule = AutoRule(follows=follows, least=8, most=80)
    stated = {"a": Slots(sequences=4), "b": Slots(sequences=200), "c": Slots(), "d": Slots(sequences=9)}
    control = control_of(rule, [with_tpot()], stated)
    assert {name: slots.sequences for name, slots in control.slots.items()} == {"a": 8, "b": 80, "c": 64, "d": 9}
    with pytest.raises(ValueError, match="1 <= least <= most"):
        AutoRule(follows=follows, least=9, most=8)


# -- by waiting counts -----------------------------------------------------------------------------------------------


def ask(control: SlotControl, now_ns: int, waiting: int, outstanding: int, *, queued: bool = True) -> int:
    control.observe_waiting("server", waiting=waiting, outstanding=outstanding, now_ns=now_ns)
    control.control(now_ns, queued=queued)
    return control.sequences("server")


def half_seconds():
    now_ns = 0
    while True:
        now_ns += 500 * MS
        yield now_ns


def test_a_standing_queue_in_the_engine_is_taken_back():
    """Three looks with at least 5 waiting: 5 slots fewer, which is what the engine ran; then three looks again."""
    control, at = WaitingSlots({"server": Slots(sequences=20)}), half_seconds()
    assert [ask(control, next(at), waiting, 20) for waiting in (9, 5, 7)] == [20, 20, 15]
    assert [ask(control, next(at), 9, 15) for _ in range(3)] == [15, 15, 7], "at most half at once"


def test_a_moments_queue_is_left_alone():
    """Requests wait for a step now and then: while some look finds none, D never shrinks, and never grows on the others."""
    control, at = WaitingSlots({"server": Slots(sequences=20)}), half_seconds()
    looks = (9, 0, 9, 9, 0, 9, 9)
    assert [ask(control, next(at), waiting, 20, queued=False) for waiting in looks] == [20] * 7


def test_what_waits_for_the_next_step_is_no_queue():
    """Answers of ten tokens: one in ten outstanding requests waits for a step at any moment, so 2 of 20 may always wait."""
    control, at = WaitingSlots({"server": Slots(sequences=20)}), half_seconds()
    for _ in range(300):
        control.observe(ended(S, 10 * MS, tokens=10, dispatched_ns=S - 100 * MS))
        control.observe(ended(S, 10 * MS, tokens=10, dispatched_ns=S - 100 * MS, status=Status.FAILED))
    assert [ask(control, next(at), 2, 20, queued=False) for _ in range(6)] == [20] * 6
    assert ask(control, next(at), 2, 20) == 22, "and it is idle enough for more"
    assert [ask(control, next(at), 3, 22) for _ in range(3)] == [22, 22, 19]


def test_the_pauses_before_it_tries_again_grow():
    """An engine of 20: each time that 22 or so is too much, D rests twice as long at 20, from 2 s up to 16 s; where it runs
    more than before, the pauses are short again."""
    control = WaitingSlots({"server": Slots(sequences=20)})
    capacity = 20
    for tick in range(1, 300):
        if tick == 250:
            capacity = 40
        outstanding = control.sequences("server")
        ask(control, tick * 500 * MS, max(0, outstanding - capacity), outstanding)
    moves = control.moves[1:]
    rests = [
        (after.at_ns - before.at_ns) / S
        for before, after in itertools.pairwise(moves)
        if before.sequences == 20 and after.sequences > 20 and after.at_ns < 125 * S
    ]
    assert rests[:5] == [2.0, 4.0, 8.0, 16.0, 16.0]
    regrown = [move.sequences for move in moves if move.at_ns > 141 * S]
    assert max(regrown) > 40
    assert control.sequences("server") >= 40


def test_more_only_when_all_are_used_and_something_waits_here():
    """An engine without a queue may be idle: slots grow only when ours are the limit."""
    control, at = WaitingSlots({"server": Slots(sequences=32)}), half_seconds()
    assert ask(control, next(at), 0, 32, queued=False) == 32
    assert ask(control, next(at), 0, 31) == 32, "X is the limit, not D"
    assert ask(control, next(at), 1, 32) == 32
    assert ask(control, next(at), 0, 32) == 34
    big, at = WaitingSlots({"server": Slots(sequences=320)}), half_seconds()
    assert [ask(big, next(at), 0, n) for n in (320, 340)] == [340, 361], "by a sixteenth, until it met a queue"


def test_bounds_hold_whatever_the_engine_says():
    """Never below the least, never above the most."""
    control, at = WaitingSlots({"server": Slots(sequences=4)}, 3, 6), half_seconds()
    assert max(ask(control, next(at), 0, control.sequences("server")) for _ in range(9)) == 6
    assert min(ask(control, next(at), 50, 56) for _ in range(30)) == 3


def test_a_count_that_cannot_be_read_changes_nothing():
    """Without a fresh look D stays, and old looks are forgotten."""
    control = WaitingSlots({"server": Slots(sequences=20)})
    for now_ns in (S // 2, S):
        ask(control, now_ns, 9, 20)
    assert control.control(20 * S, queued=True) == []
    assert ask(control, 21 * S, 9, 20) == 20, "the first of three again"


LAW = StepLaw(a_us=8_000, b_us=20, c_us=100, d_us=0.0)


@pytest.mark.parametrize("start", [1, 12, 64])
def test_a_simulated_engine_is_kept_busy_and_its_queue_short(start):
    """An engine that runs 12 at once, overloaded: D settles within 3 of 12 from below and from above, whatever the start."""
    control = WaitingSlots({"a": Slots(sequences=start)})
    core = dispatcher([tenant("x")], backends=dict(control.slots))
    engine = ContinuousBatch(LAW, ServerLimits(max_num_seqs=12, max_num_batched_tokens=512))
    rng = np.random.default_rng(3)
    at_ns = np.cumsum(rng.exponential(S / 60, 3_000)).astype(int)
    arrivals = [request(i, "x", int(t), 50, int(rng.integers(20, 60))) for i, t in enumerate(at_ns)]
    simulate(core, {"a": engine}, arrivals, control=control)
    settled = [move.sequences for move in control.moves if move.at_ns > 20 * S]
    assert settled
    assert min(settled) >= 11
    assert max(settled) <= 15


# -- one controller, two drivers -------------------------------------------------------------------------------------


class Scripted(SlotControl):
    """Says what it was told: D is a hash of all that it has seen, so that any difference between drivers shows."""

    def __init__(self, *, reads_waiting: bool) -> None:
        super().__init__({name: Slots(sequences=2) for name in "ab"}, 1, 4)
        self.reads_waiting = reads_waiting
        self.told: list[tuple] = []

    def observe(self, outcome: Outcome) -> None:
        self.told.append(("end", outcome.ended_ns, outcome.request.id))

    def observe_waiting(self, backend: str, *, waiting: int, outstanding: int, now_ns: int) -> None:
        self.told.append(("look", now_ns, backend, waiting, outstanding))

    def decide(self, now_ns: int, *, queued: bool) -> dict[str, int]:
        self.told.append(("ask", now_ns, queued))
        return {name: 1 + (len(self.told) + position) % 4 for position, name in enumerate("ab")}


def service_ns(r) -> int:
    return 300 * MS + r.prompt_tokens * 900_001 + r.id


def live(core, control: SlotControl, arrivals) -> list[tuple[int, int, str]]:
    """Two servers that work on one request at a time, behind the asyncio driver on a virtual clock."""
    dispatched: list[tuple[int, int, str]] = []
    queues: dict[str, deque] = {name: deque() for name in "ab"}

    async def main(loop):
        driver = LiveDriver(core, lambda: loop.now_ns, loop)
        left = len(arrivals)
        over = loop.create_future()

        waiting_outcomes: deque[Outcome] = deque()

        def settle() -> None:
            """A run hands its outcomes over when somebody looks."""
            while waiting_outcomes:
                control.observe(waiting_outcomes.popleft())

        def begin(name: str) -> None:
            r, ticket = queues[name][0]
            loop.call_at_ns(loop.now_ns + service_ns(r), end, name, r, ticket)

        def end(name: str, r, ticket) -> None:
            nonlocal left
            queues[name].popleft()
            now_ns = loop.now_ns
            ticket.tokens(now_ns, r.target_output_tokens)
            ticket.finished(Status.OK, r.prompt_tokens, r.target_output_tokens)
            stamps = {"first_token_ns": now_ns, "last_token_ns": now_ns, "output_tokens": r.target_output_tokens}
            waiting_outcomes.append(Outcome(request=r, status=Status.OK, ended_ns=now_ns, **stamps))
            if queues[name]:
                begin(name)
            left -= 1
            if not left:
                over.set_result(None)

        async def one(r):
            ticket = driver.submit(r)
            await ticket.granted()
            dispatched.append((ticket.dispatched_ns, r.id, ticket.backend))
            queues[ticket.backend].append((r, ticket))
            if len(queues[ticket.backend]) == 1:
                begin(ticket.backend)

        async def waiting(name: str) -> int:
            return max(0, len(queues[name]) - 1)

        looks = {name: (lambda name=name: waiting(name)) for name in "ab"}
        beside = loop.create_task(SlotLoop(driver, control, lambda: loop.now_ns, looks).run(settle))
        tasks = []
        for r in arrivals:
            due = loop.create_future()
            loop.call_at_ns(r.arrival_ns, due.set_result, None)
            await due
            tasks.append(loop.create_task(one(r)))
        await over
        await asyncio.gather(*tasks)
        settle()  # as a run does at its end
        beside.cancel()
        await asyncio.gather(beside, return_exceptions=True)
        driver.close()

    run_virtual(main)
    return sorted(dispatched)


def _simulated(core, control: SlotControl, arrivals) -> list[tuple[int, int, str]]:
    outcomes: list[Outcome] = []

    def on_outcome(outcome: Outcome) -> None:
        control.observe(outcome)
        outcomes.append(outcome)

    replicas = {name: SingleServer(service_ns) for name in "ab"}
    Simulation(core, replicas, arrivals, on_outcome, control=control).run()
    return sorted((o.dispatched_ns, o.request.id, o.backend) for o in outcomes)


def made(kind: str) -> SlotControl:
    slots = {name: Slots(sequences=2) for name in "ab"}
    if kind.startswith("scripted"):
        return Scripted(reads_waiting=kind == "scripted-waiting")
    rule = AutoRule(follows=Follows(kind), least=1, most=6)
    return control_of(rule, [with_tpot(name) for name in "xy"], slots)


@pytest.mark.parametrize("kind", ["tpot", "waiting", "scripted", "scripted-waiting"])
def test_live_and_simulated_slots_move_alike(kind):
    """Same requests, same services: same dispatches at the same instants, same moves, and the controllers saw the same."""
    rng = np.random.default_rng(5)
    at_ns = np.sort(rng.integers(0, 20 * S, 150))
    arrivals = [
        request(i, "xy"[rng.integers(2)], int(t), int(rng.integers(1, 300)), int(rng.integers(2, 60)))
        for i, t in enumerate(at_ns)
    ]
    runs = []
    for drive in (live, _simulated):
        control = made(kind)
        core = dispatcher([with_tpot(name) for name in "xy"], "wfq", backends=dict(control.slots))
        runs.append((drive(core, control, arrivals), control))
    (live_order, live_control), (simulated_order, simulated_control) = runs
    assert live_order == simulated_order
    last_ns = live_order[-1][0]
    assert [m for m in live_control.moves if m.at_ns <= last_ns] == [
        m for m in simulated_control.moves if m.at_ns <= last_ns
    ]
    assert len(live_control.moves) > 4, "something moved"
    if isinstance(live_control, Scripted):
        told = [[t for t in c.told if t[1] <= last_ns] for c in (live_control, simulated_control)]
        assert told[0] == told[1]


def test_the_usual_bounds():
    """What holds where a scenario or a flag states none."""
    assert usual_rule(Follows.TPOT) == AutoRule(follows=Follows.TPOT, least=40, most=128)
    assert usual_rule(Follows.WAITING) == AutoRule(follows=Follows.WAITING, least=1, most=1024)


def test_a_simulation_asks_until_the_last_request_has_ended():
    """Users who think leave the server empty for a while: the controller is asked again when they are back."""
    control = Scripted(reads_waiting=False)
    core = dispatcher([tenant("x")], backends=dict(control.slots))

    def after(outcome: Outcome):
        if outcome.request.id == 0:
            yield request(1, "x", outcome.ended_ns + 30 * S)

    replicas = {name: SingleServer(service_ns) for name in "ab"}
    Simulation(core, replicas, [request(0, "x")], lambda _: None, after=after, control=control).run()
    assert max(now_ns for kind, now_ns, *_ in control.told if kind == "ask") > 30 * S
