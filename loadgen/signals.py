"""The two signals that ask a process to stop, held off where being stopped half-way would leave something behind."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

STOPPING = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def held_off() -> Iterator[None]:
    """Neither is heard inside the block; one that came is delivered at its end. Only the main thread hears signals, so in
    any other nothing is held off.

    A mask would not do: Python runs handlers in the main thread, whichever thread the system gave the signal to.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []
    before = {number: signal.signal(number, lambda number, _: came.append(number)) for number in STOPPING}
    try:
        yield
    finally:
        put_back(before)
        for number in came:
            signal.raise_signal(number)


def put_back(handlers: Mapping[signal.Signals, Any]) -> None:
    """Who heard each signal hears it again."""
    for number, handler in handlers.items():
        signal.signal(number, handler)
