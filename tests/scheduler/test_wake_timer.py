"""Rules of a driver's wake-up: once, at its time or just after, never before, whatever the loop's timers round to."""

from __future__ import annotations

from types import SimpleNamespace

from scheduler.drivers.live import WakeTimer

MS = 1_000_000


class RoundingLoop:
    """Like uvloop: timers are whole milliseconds."""

    def __init__(self) -> None:
        self.now_ns = 0
        self.timers = []
        self.fired = 0

    def call_later(self, delay_s, callback):
        entry = (self.now_ns + round(delay_s * 1000) * MS, callback)
        self.timers.append(entry)
        return SimpleNamespace(cancel=lambda: self.timers.remove(entry))

    def run(self, most=1000):
        while self.timers and self.fired < most:
            at_ns, callback = min(self.timers, key=lambda entry: entry[0])
            self.timers.remove((at_ns, callback))
            # A turn of the loop takes some time.
            self.now_ns = max(self.now_ns + 10_000, at_ns)
            self.fired += 1
            callback()


def test_it_wakes_once_and_never_early():
    for at_ns in (0, 1, 700, 300_000, 10 * MS + 400_000, 10 * MS + 600_000):
        loop, woken = RoundingLoop(), []
        timer = WakeTimer(loop, lambda loop=loop: loop.now_ns, lambda loop=loop, woken=woken: woken.append(loop.now_ns))
        timer.set(at_ns)
        loop.run()
        assert len(woken) == 1
        assert at_ns <= woken[0] <= at_ns + MS + 20_000
        assert loop.fired <= 2


def test_another_time_replaces_the_first_and_close_forgets_it():
    loop, woken = RoundingLoop(), []
    timer = WakeTimer(loop, lambda: loop.now_ns, lambda: woken.append(loop.now_ns))
    timer.set(5 * MS)
    timer.set(9 * MS)
    loop.run()
    assert woken == [9 * MS]
    timer.set(20 * MS)
    timer.close()
    timer.close()
    loop.run()
    assert woken == [9 * MS]
