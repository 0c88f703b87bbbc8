"""Rules of pacing: absolute deadlines, nothing early, nothing lost, nothing re-anchored."""

import asyncio
import heapq
import time

import pytest
import uvloop

from loadgen.pacer import Pacer
from scheduler.request import Request

MS = 1_000_000


def request(i, arrival_ns):
    return Request(id=i, tenant="a", arrival_ns=arrival_ns, prompt_tokens=1)


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop whose time jumps to the next timer when nothing else is ready."""

    def __init__(self):
        super().__init__()
        self.now_ns = 0

    def time(self):
        return self.now_ns / 1e9

    def clock(self):
        return self.now_ns


class VirtualWakeup:
    """An alarm of the virtual loop: when the loop is idle, time jumps to the earliest alarm."""

    def __init__(self, loop, callback):
        self._loop, self._callback, self._at_ns = loop, callback, None

    def arm(self, at_ns):
        self._at_ns = at_ns
        self._loop.call_soon(self._jump, at_ns)

    def _jump(self, at_ns):
        if self._at_ns == at_ns:
            self._loop.now_ns = max(self._loop.now_ns, at_ns)
            self._at_ns = None
            self._callback()

    def disarm(self):
        self._at_ns = None

    def close(self):
        self.disarm()


def virtual(test):
    """Runs ``test(loop, pacer)`` in virtual time."""
    loop = VirtualLoop()
    try:
        return loop.run_until_complete(
            asyncio.wait_for(test(loop, Pacer(loop.clock, loop, wakeup=VirtualWakeup, monotonic=loop.clock)), None)
        )
    finally:
        loop.close()


def test_in_virtual_time_every_request_leaves_at_its_deadline_exactly():
    """With a free loop the lag is zero, bursts leave together, and the order is the schedule's."""
    schedule = [request(i, at) for i, at in enumerate((0, 5, 5, 5, 1_000, 7_000_000_000))]

    async def run(loop, pacer):
        return [(loop.now_ns, [r.id for r in due]) async for due in pacer.pace(schedule)]

    assert virtual(run) == [(0, [0]), (5, [1, 2, 3]), (1_000, [4]), (7_000_000_000, [5])]


def test_after_a_stall_everything_due_leaves_at_once_and_later_deadlines_stand():
    """Never re-anchored: a consumer that takes until 35 makes 10, 20 and 30 late; 40 and 50 are on time."""
    schedule = [request(i, at) for i, at in enumerate((0, 10, 20, 30, 40, 50))]

    async def run(loop, pacer):
        released = []
        async for due in pacer.pace(schedule):
            released.append((loop.now_ns, [r.arrival_ns for r in due]))
            if len(released) == 1:
                loop.now_ns = 35
        return released

    assert virtual(run) == [(0, [0]), (35, [10, 20, 30]), (40, [40]), (50, [50])]


def test_pushed_requests_take_their_place_in_the_schedule():
    """A closed-loop arrival is released at its own deadline, before or after what the schedule holds."""
    schedule = [request(0, 100), request(1, 300)]

    async def run(loop, pacer):
        pacer.push(request(9, 200))
        pacer.push(request(8, 50))
        released = []
        async for due in pacer.pace(schedule, more=True):
            released += [(loop.now_ns, r.id) for r in due]
            if due[0].id == 1:
                pacer.push(request(7, 250))  # due already
                pacer.push(request(6, 400))
                pacer.close()
        return released

    assert virtual(run) == [(50, 8), (100, 0), (200, 9), (300, 1), (300, 7), (400, 6)]


def test_an_arrival_is_admitted_at_once_only_when_it_is_due_and_its_turn():
    """Not before its deadline, not past one that was pushed before it, not when the pacer is stopped; counted with its
    lag like any other."""

    async def test(loop, pacer):
        answers = []

        async def consume():
            async for _ in pacer.pace([request(0, 10 * MS)], more=True):
                answers.append(pacer.admit(request(1, 12 * MS)))
                loop.now_ns += 5 * MS
                answers.append(pacer.admit(request(1, 12 * MS)))
                pacer.push(request(2, 14 * MS))
                answers.append(pacer.admit(request(3, 15 * MS)))
                answers.append(pacer.admit(request(4, 13 * MS)))
                pacer.stop()
                answers.append(pacer.admit(request(5, 13 * MS)))

        assert pacer.admit(request(9, 0)) is False
        await consume()
        assert answers == [False, True, False, True, False]
        assert pacer.released == 3
        assert pacer.lag.max_ns == 3 * MS

    virtual(test)


def test_stop_ends_the_schedule_where_it_is():
    """After stop nothing more is released."""

    async def run(loop, pacer):
        released = []
        async for due in pacer.pace([request(i, 10 * i) for i in range(100)]):
            released += [r.id for r in due]
            if due[0].id == 3:
                pacer.stop()
        return released

    assert virtual(run) == [0, 1, 2, 3]


def test_lag_and_count_are_recorded_for_every_request():
    """lag holds release - deadline of each request, also of many at once."""

    async def run(loop, pacer):
        loop.now_ns = 5 * MS
        async for _ in pacer.pace([request(i, 0) for i in range(3000)]):
            pass
        return pacer

    pacer = virtual(run)
    assert (pacer.released, pacer.lag.count) == (3000, 3000)
    assert pacer.lag.percentile(50).value_ns == pytest.approx(5 * MS, rel=0.001)


def run_on(factory, main):
    with asyncio.Runner(loop_factory=factory) as runner:
        return runner.run(main)


LOOPS = [asyncio.new_event_loop, uvloop.new_event_loop]


@pytest.mark.parametrize("factory", LOOPS)
def test_on_a_real_loop_nothing_is_early_lost_or_out_of_order(factory):
    """2,000 requests at 10,000/s: all released, in order, none before its deadline."""

    async def main():
        start = time.monotonic_ns()
        pacer = Pacer(lambda: time.monotonic_ns() - start)
        early, ids = 0, []
        async for due in pacer.pace(request(i, i * MS // 10) for i in range(2000)):
            now = time.monotonic_ns() - start
            early += sum(r.arrival_ns > now for r in due)
            ids += [r.id for r in due]
        return early, ids

    assert run_on(factory, main()) == (0, list(range(2000)))


@pytest.mark.parametrize("factory", LOOPS)
def test_a_blocked_loop_shows_as_lag_and_moves_no_deadline(factory):
    """A loop blocked for 200 ms releases at once what became due, and still nothing after it before its time."""

    async def main():
        start = time.monotonic_ns()
        pacer = Pacer(lambda: time.monotonic_ns() - start)
        released = []
        async for due in pacer.pace([request(i, i * 10 * MS) for i in range(40)]):
            released.append((time.monotonic_ns() - start, [r.arrival_ns for r in due]))
            if len(released) == 1:
                time.sleep(0.2)  # noqa: ASYNC251 (blocking the loop is the point)
        return released, pacer

    released, pacer = run_on(factory, main())
    assert released[1][1][:20] == [i * 10 * MS for i in range(1, 21)]
    assert [at for _, due in released for at in due] == [i * 10 * MS for i in range(40)]
    assert all(now >= at for now, due in released for at in due)
    assert pacer.lag.max_ns >= 180 * MS


@pytest.mark.parametrize("factory", LOOPS)
def test_a_push_wakes_a_sleeping_pacer(factory):
    """A pacer that waits for a far deadline, or for nothing at all, releases what is pushed."""

    async def main():
        start = time.monotonic_ns()
        pacer = Pacer(lambda: time.monotonic_ns() - start)
        loop = asyncio.get_running_loop()
        loop.call_soon(pacer.push, request(5, 0))
        released = []
        async for due in pacer.pace([request(0, 3600 * 1000 * MS)], more=True):
            released += [r.id for r in due]
            pacer.stop()
        pacer = Pacer(lambda: time.monotonic_ns() - start)
        loop.call_soon(pacer.push, request(6, 0))
        loop.call_soon(pacer.close)
        async for due in pacer.pace([], more=True):
            released += [r.id for r in due]
        return released

    assert run_on(factory, main()) == [5, 6]


def test_a_pacer_that_is_always_late_lets_the_loop_breathe():
    """Between two releases other callbacks of the loop run, however far behind the schedule is."""

    async def main():
        pacer = Pacer(lambda: 10**15)
        turns = []
        loop = asyncio.get_running_loop()
        async for _ in pacer.pace(request(i, i) for i in range(5000)):
            loop.call_soon(turns.append, pacer.released)
        return turns

    turns = run_on(asyncio.new_event_loop, main())
    assert turns == sorted(turns)
    assert len(set(turns)) >= 4


def test_pushed_requests_of_one_instant_leave_by_id():
    """Ties are broken by (arrival, id), as everywhere."""

    async def run(loop, pacer):
        for i in (4, 2, 9):
            pacer.push(request(i, 10))
        return [r.id async for due in pacer.pace([request(3, 10)]) for r in due]

    expected = [(10, i) for i in (4, 2, 9, 3)]
    heapq.heapify(expected)
    assert virtual(run) == [heapq.heappop(expected)[1] for _ in range(4)]
