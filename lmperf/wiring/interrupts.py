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
from typing import Any, TypeVar

from loadgen.signals import STOPPING, put_back

Result = TypeVar("Result")


async def cancelled_by_signals(work: Coroutine[Any, Any, Result]) -> Result:
    """The result of ``work``, which either signal cancels, each time that it comes. The loop's own task. Afterwards whoever
    heard them before hears them again."""
    before = {number: signal.getsignal(number) for number in STOPPING}
    _cancel_this_task()
    try:
        return await work
    finally:
        for number in STOPPING:
            asyncio.get_running_loop().remove_signal_handler(number)
        put_back(before)


@contextlib.contextmanager
def interruptible(stop: Callable[[], None]) -> Iterator[None]:
    """They stop the run in order; a second one stops the waiting too. Afterwards they cancel again."""
    loop = asyncio.get_running_loop()

    def on_signal() -> None:
        print("\nstopping: no more arrivals; waiting for answers (again: give up on them)", file=sys.stderr)
        stop()

    for number in STOPPING:
        loop.add_signal_handler(number, on_signal)
    try:
        yield
    finally:
        _cancel_this_task()


def _cancel_this_task() -> None:
    task = asyncio.current_task()
    assert task is not None, "runs as a task"
    for number in STOPPING:
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
