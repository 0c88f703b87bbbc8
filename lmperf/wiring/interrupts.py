"""Ctrl-C and SIGTERM during a live run."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def interruptible(stop: Callable[[], None]) -> Iterator[None]:
    """They stop the run in order; a second one stops the waiting too."""
    loop = asyncio.get_running_loop()
    signals = (signal.SIGINT, signal.SIGTERM)

    def on_signal() -> None:
        print("\nstopping: no more arrivals; waiting for answers (again: give up on them)", file=sys.stderr)
        stop()

    for number in signals:
        loop.add_signal_handler(number, on_signal)
    try:
        yield
    finally:
        for number in signals:
            loop.remove_signal_handler(number)
