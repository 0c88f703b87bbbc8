"""Ctrl-C and SIGTERM while a live run is prepared, lasts and is written down.

Whatever the instant, what was started is ended and what was made for the time of the run is removed: outside the measured
part a signal cancels the run's task, which unwinds through its ``async with`` blocks; inside it the run stops in order.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
from collections.abc import Callable, Coroutine, Iterator
from contextvars import ContextVar
from typing import Any, TypeVar

from loadgen.signals import STOPPING, put_back

Result = TypeVar("Result")

_came: ContextVar[list[signal.Signals]] = ContextVar("signals that came while the task ran")


async def cancelled_by_signals(work: Coroutine[Any, Any, Result]) -> Result:
    """The result of ``work``, which either signal cancels, each time that it comes. The loop's own task. Afterwards whoever
    heard them before hears them again; where one came nobody does: what is left to do is short, and cut off it would leave
    things behind."""
    before = {number: signal.getsignal(number) for number in STOPPING}
    came: list[signal.Signals] = []
    _came.set(came)
    _cancel_this_task()
    try:
        return await work
    finally:
        for number in STOPPING:
            asyncio.get_running_loop().remove_signal_handler(number)
        put_back(dict.fromkeys(STOPPING, signal.SIG_IGN) if came else before)


@contextlib.contextmanager
def interruptible(stop: Callable[[], None]) -> Iterator[None]:
    """They stop the run in order; a second one stops the waiting too. Afterwards they cancel again."""

    def on_signal() -> None:
        print("\nstopping: no more arrivals; waiting for answers (again: give up on them)", file=sys.stderr)
        stop()

    _hear_by(on_signal)
    try:
        yield
    finally:
        _cancel_this_task()


def _cancel_this_task() -> None:
    task = asyncio.current_task()
    assert task is not None, "runs as a task"
    _hear_by(task.cancel)


def _hear_by(act: Callable[[], object]) -> None:
    came = _came.get(None)

    def on_signal(number: signal.Signals) -> None:
        if came is not None:
            came.append(number)
        act()

    for number in STOPPING:
        asyncio.get_running_loop().add_signal_handler(number, on_signal, number)
