"""An alarm rings once, on the loop, never before its time, and the last time set is the one that counts."""

import asyncio
import sys
import time

import pytest
import uvloop

from backends.wakeup import ThreadWakeup, TimerFdWakeup, new_wakeup

KINDS = [ThreadWakeup, pytest.param(TimerFdWakeup, marks=pytest.mark.skipif(sys.platform != "linux", reason="timerfd"))]
LOOPS = [asyncio.new_event_loop, uvloop.new_event_loop]


class Bell:
    """Remembers when it rang and lets a test wait for it."""

    def __init__(self, kind):
        self.rang_ns = []
        self._waiting = asyncio.Event()
        self.wakeup = kind(asyncio.get_running_loop(), self._ring)

    def _ring(self):
        self.rang_ns.append(time.monotonic_ns())
        self._waiting.set()

    async def next(self):
        await asyncio.wait_for(self._waiting.wait(), 20)
        self._waiting.clear()
        return self.rang_ns[-1]


def run(loop_factory, main):
    with asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.run(main)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("loop_factory", LOOPS)
def test_it_never_rings_before_its_time(kind, loop_factory):
    """Also for times that are no whole number of milliseconds."""

    async def main():
        bell = Bell(kind)
        for ahead_us in (137, 2_643, 5_001, 12_345):
            at_ns = time.monotonic_ns() + ahead_us * 1000
            bell.wakeup.arm(at_ns)
            assert await bell.next() >= at_ns
        assert len(bell.rang_ns) == 4
        bell.wakeup.close()

    run(loop_factory, main())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("loop_factory", LOOPS)
def test_a_time_in_the_past_rings_at_once(kind, loop_factory):
    """Work that is late is done, not dropped; the clock's very beginning included."""

    async def main():
        bell = Bell(kind)
        for at_ns in (time.monotonic_ns() - 1, 0):
            bell.wakeup.arm(at_ns)
            await bell.next()
        bell.wakeup.close()

    run(loop_factory, main())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("loop_factory", LOOPS)
def test_the_last_time_set_replaces_the_one_before(kind, loop_factory):
    """An hour away, then soon: it rings soon. Disarmed, then another alarm: only that one rings."""

    async def main():
        bell, other = Bell(kind), Bell(kind)
        soon_ns = time.monotonic_ns() + 3_000_000
        bell.wakeup.arm(soon_ns + 3_600 * 10**9)
        bell.wakeup.arm(soon_ns)
        assert await bell.next() >= soon_ns
        bell.wakeup.arm(time.monotonic_ns() + 5_000_000)
        bell.wakeup.disarm()
        other.wakeup.arm(time.monotonic_ns() + 15_000_000)
        await other.next()
        assert len(bell.rang_ns) == 1
        bell.wakeup.close()
        other.wakeup.close()

    run(loop_factory, main())


async def test_the_platforms_finest_is_chosen():
    """timerfd on Linux, else a thread."""
    made = new_wakeup(asyncio.get_running_loop(), lambda: None)
    assert isinstance(made, TimerFdWakeup if sys.platform == "linux" else ThreadWakeup)
    made.close()
    made.close()
