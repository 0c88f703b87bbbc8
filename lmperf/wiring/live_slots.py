"""What stands beside the queue of a live run: the controller of its slots, and the watch over several servers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial

from backends.failover import Failover
from backends.failover import LiveQueue as FailoverQueue
from backends.protocol import Clock
from backends.slot_loop import LiveQueue, SlotLoop
from lmperf.scenario.plan import Plan
from lmperf.wiring.targets import Target
from scheduler.auto_rule import Follows
from scheduler.request import Outcome
from scheduler.slot_control import Pace, SlotControl, SlotMove

OnOutcome = Callable[[Outcome], None]
OnFault = Callable[[BaseException], None]


async def check_waiting_counts(plan: Plan, target: Target) -> None:
    """Slots that follow the servers' waiting counts need servers that tell them. Raises BackendError."""
    if plan.slots.auto is Follows.WAITING:
        for backend in target.backends.values():
            await backend.waiting()


def slot_loop_of(control: SlotControl | None, target: Target, queue: LiveQueue, clock: Clock) -> SlotLoop | None:
    """What moves the queue's slots; None where they are fixed."""
    if control is None:
        return None
    return SlotLoop(queue, control, clock, {name: backend.waiting for name, backend in target.backends.items()})


def failover_of(
    target: Target, queue: FailoverQueue, on_state: Callable[[str, bool], object] = lambda _name, _up: None
) -> Failover | None:
    """The watch over several servers; None with one. ``on_state``: as the watch tells it."""
    if len(target.backends) == 1:
        return None
    probes = {name: backend.answers for name, backend in target.backends.items()}
    return Failover(queue, probes, on_state=on_state)


class BesideTheQueue:
    """``async with running(...)`` while the run's clock runs; then ``moves`` and ``notes`` tell what it did. ``slots`` is None
    where they are fixed, ``failover`` with a single server."""

    def __init__(self, slots: SlotLoop | None, failover: Failover | None = None) -> None:
        self._slots = slots
        self._failover = failover
        self._on_fault: OnFault = _nowhere
        self._broken: Exception | None = None

    def watching(self, on_outcome: OnOutcome) -> OnOutcome:
        """``on_outcome``, seen by the controller too."""
        if self._slots is None:
            return on_outcome
        control = self._slots.control

        def both(outcome: Outcome) -> None:
            control.observe(outcome)
            on_outcome(outcome)

        return both

    def take(self, pace: Pace) -> None:
        """An answer of a worker's, for the controller. What breaks it ends the run, and not the worker's connection."""
        if self._slots is None or self._broken is not None:
            return
        try:
            self._slots.control.observe_pace(pace)
        except Exception as error:  # noqa: BLE001 (raised by ``running``)
            self._broken = error
            self._on_fault(error)

    @property
    def moves(self) -> tuple[SlotMove, ...]:
        """How the slots went."""
        return () if self._slots is None else tuple(self._slots.control.moves)

    def notes(self) -> list[str]:
        """What a reader should know."""
        parts = (self._slots, self._failover)
        return [note for part in parts if part is not None for note in part.notes()]

    @asynccontextmanager
    async def running(self, on_fault: OnFault, settle: Callable[[], object] = lambda: None) -> AsyncIterator[None]:
        """``settle`` brings the controller all outcomes so far, before it decides. ``on_fault`` is called at once when a part
        breaks: without it the run would go on as another one than was asked for. Raises what it broke with."""
        self._on_fault = on_fault
        parts = []
        if self._slots is not None:
            parts.append(self._slots.run(settle))
        if self._failover is not None:
            parts.append(self._failover.run())
        tasks = [asyncio.create_task(part) for part in parts]
        for task in tasks:
            task.add_done_callback(partial(_tell, on_fault))
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            ends = await asyncio.gather(*tasks, return_exceptions=True)
        for ended in (*ends, self._broken):
            if isinstance(ended, Exception):
                raise ended


def _nowhere(_: BaseException) -> None: ...


def _tell(on_fault: OnFault, task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        on_fault(error)
