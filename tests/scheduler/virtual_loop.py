"""An asyncio event loop on a virtual clock: a sleep takes no time, and everything due at one instant runs in order.

The selector below waits for nothing; when the loop would sleep, the clock jumps to the next timer instead. The clock is an
int in ns, and timers are rounded to whole ns, so that instants computed in ns are met exactly.
"""

from __future__ import annotations

import asyncio
import selectors


class _JumpingSelector(selectors.DefaultSelector):
    """``select`` never blocks: it moves the clock by the time that the loop was ready to wait."""

    def __init__(self) -> None:
        super().__init__()
        self.loop: VirtualLoop | None = None

    def select(self, timeout=None):
        events = super().select(0)
        if not events and (timeout is None or timeout > 0) and self.loop is not None:
            self.loop.jump()
        return events


class VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        selector = _JumpingSelector()
        self.now_ns = 0
        super().__init__(selector)
        selector.loop = self
        # Due is what lies before now plus this: what is due at this very ns, and nothing of the next.
        self._clock_resolution = 5e-10

    def time(self) -> float:
        return self.now_ns / 1e9

    def jump(self) -> None:
        """To the next timer; a loop with none would wait for ever."""
        due = [handle.when() for handle in self._scheduled if not handle.cancelled()]
        if not due:
            raise RuntimeError("deadlock: every task waits and no timer is set")
        self.now_ns = max(self.now_ns, round(min(due) * 1e9))

    def call_at_ns(self, at_ns: int, callback, *args) -> asyncio.TimerHandle:
        return self.call_at(at_ns / 1e9, callback, *args)


def run_virtual(main) -> None:
    """Run the coroutine function ``main(loop)`` to its end on a virtual clock."""
    loop = VirtualLoop()
    try:
        loop.run_until_complete(main(loop))
    finally:
        loop.close()
