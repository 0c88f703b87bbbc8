"""Ctrl-C and SIGTERM while a command works; they mean the same. (A live run hears them itself: lmperf.wiring.interrupts.)"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from loadgen.signals import STOPPING, put_back


@contextmanager
def heard_once(said: str = "stopping; what was found is kept") -> Iterator[None]:
    """The first signal raises KeyboardInterrupt where the block is, and says on stderr that it was heard (``said``). Those
    after it are not heard, until the process is gone: what is left to do is short, and cut off it would leave things
    behind or half written. A signal that this process was started deaf to (``nohup``, ``&`` in a script) stays
    unheard."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def on_signal(*_: object) -> None:
        # Not by a handler: the interpreter would take that down before its own end.
        put_back(dict.fromkeys(before, signal.SIG_IGN))
        # Not by sys.stderr: the signal may have come in the middle of a write to it.
        with suppress(OSError):
            os.write(2, f"\n{said}\n".encode())
        raise KeyboardInterrupt

    before = {number: signal.getsignal(number) for number in STOPPING}
    before = {number: handler for number, handler in before.items() if handler is not signal.SIG_IGN}
    for number in before:
        signal.signal(number, on_signal)
    try:
        yield
    finally:
        # Where none is heard any more, one came, here or in a live run.
        put_back({number: handler for number, handler in before.items() if signal.getsignal(number) is on_signal})
