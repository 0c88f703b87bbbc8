"""What stands beside the queue of a live run: the controller of its slots, and the watch over several servers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial

from backends.failover import Failover
from backends.protocol import Clock
from backends.slot_loop import SlotLoop
from lmperf.scenario.plan import Plan
from lmperf.wiring.dispatching import control_of_plan
from lmperf.wiring.targets import Target
from scheduler.auto_rule import Follows
from scheduler.drivers.live import LiveDriver
from scheduler.request import Outcome
from scheduler.slot_control import SlotMove

OnOutcome = Callable[[Outcome], None]
OnFault = Callable[[BaseException], None]


async def check_waiting_counts(plan: Plan, target: Target) -> None:
    """Slots that follow the servers' waiting counts need servers that tell them. Raises BackendError."""
    if plan.slots.auto is Follows.WAITING:
        for backend in target.backends.values():
            await backend.waiting()


class BesideTheQueue:
    """``async with running(...)`` while the run's clock runs; then ``moves`` and ``notes`` tell what it did. ``failover`` is
    None with a single server."""

    def __init__(self, plan: Plan, target: Target, driver: LiveDriver, clock: Clock) -> None:
        control = control_of_plan(plan)
        looks = {name: backend.waiting for name, backend in target.backends.items()}
        self._loop = None if control is None else SlotLoop(driver, control, clock, looks)
        self.failover = None
        if len(target.backends) > 1:
            probes = {name: backend.answers for name, backend in target.backends.items()}
            self.failover = Failover(driver, probes)

    def watching(self, on_outcome: OnOutcome) -> OnOutcome:
        """``on_outcome``, seen by the controller too."""
        if self._loop is None:
            return on_outcome
        control = self._loop.control

        def both(outcome: Outcome) -> None:
            control.observe(outcome)
            on_outcome(outcome)

        return both

    @property
    def moves(self) -> tuple[SlotMove, ...]:
        """How the slots went."""
        return () if self._loop is None else tuple(self._loop.control.moves)

    def notes(self) -> list[str]:
        """What a reader should know."""
        parts = (self._loop, self.failover)
        return [note for part in parts if part is not None for note in part.notes()]

    @asynccontextmanager
    async def running(self, on_fault: OnFault, settle: Callable[[], object]) -> AsyncIterator[None]:
        """``settle`` brings the controller all outcomes so far, before it decides. ``on_fault`` is called at once when a part
        breaks: without it the run would go on as another one than was asked for. Raises what it broke with."""
        parts = []
        if self._loop is not None:
            parts.append(self._loop.run(settle))
        if self.failover is not None:
            parts.append(self.failover.run())
        tasks = [asyncio.create_task(part) for part in parts]
        for task in tasks:
            task.add_done_callback(partial(_tell, on_fault))
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            ends = await asyncio.gather(*tasks, return_exceptions=True)
        for ended in ends:
            if isinstance(ended, Exception):
                raise ended


def _tell(on_fault: OnFault, task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        on_fault(error)
