"""A controller of slots beside a live queue: asked every period of the run's clock, its word handed to the queue.

The same controllers run in simulations (:mod:`scheduler.slot_control`). Where one follows the engines' waiting counts, each
is looked at before every decision; one that cannot be read this time is left out, counted, and its D stays.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from typing import Protocol

from backends.protocol import BackendError, Clock
from scheduler.dispatcher import Dispatcher
from scheduler.events import SlotsChanged
from scheduler.slot_control import SlotControl

Look = Callable[[], Awaitable[int]]
"""Reads one engine's waiting count. Raises BackendError."""


class LiveQueue(Protocol):
    """A dispatcher on the run's clock, whoever's requests it has: a live driver, or the one queue of several workers."""

    dispatcher: Dispatcher

    def at(self) -> int:
        """A time for the next event, ns since the run's start: now, never before the last event's."""

    def handle(self, event: SlotsChanged) -> None:
        """Hand the event over and carry out what is decided."""


def _nothing() -> None: ...


class SlotLoop:
    """``run`` until it is cancelled. ``looks`` by backend; needed only where the control reads waiting counts."""

    def __init__(
        self, queue: LiveQueue, control: SlotControl, clock: Clock, looks: Mapping[str, Look] | None = None
    ) -> None:
        self.control = control
        self.unread: Counter[str] = Counter()
        self._queue = queue
        self._clock = clock
        self._looks = dict(looks or {}) if control.reads_waiting else {}

    async def run(self, settle: Callable[[], object] = _nothing) -> None:
        """``settle`` brings the control what it may not have been told of yet."""
        period_ns = self.control.period_ns
        due_ns = period_ns
        while True:
            await asyncio.sleep(max(0, due_ns - self._clock()) / 1e9)
            settle()
            await asyncio.gather(*(self._look(name, look, period_ns / 1e9) for name, look in self._looks.items()))
            settle()
            self.decide()
            due_ns += period_ns
            if due_ns <= self._clock():
                due_ns = (self._clock() // period_ns + 1) * period_ns

    def decide(self) -> None:
        """Ask the controller once."""
        now_ns = self._queue.at()
        for event in self.control.control(now_ns, queued=self._queue.dispatcher.queued > 0):
            self._queue.handle(event)

    async def _look(self, name: str, look: Look, timeout_s: float) -> None:
        try:
            async with asyncio.timeout(timeout_s):
                waiting = await look()
        except (BackendError, TimeoutError):
            self.unread[name] += 1
            return
        outstanding = self._queue.dispatcher.outstanding_at(name)
        self.control.observe_waiting(name, waiting=waiting, outstanding=outstanding, now_ns=self._queue.at())

    def notes(self) -> list[str]:
        """What a reader should know."""
        return [
            f"slots: the waiting count of {name} could not be read {times} times; its slots stayed as they were then"
            for name, times in sorted(self.unread.items())
        ]
