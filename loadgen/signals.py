"""The two signals that ask a process to stop, held off where being stopped half-way would leave something behind, and heard
beside what the compiled core computes."""

from __future__ import annotations

import ctypes
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import copy_context
from typing import Any, TypeVar

Result = TypeVar("Result")

STOPPING = (signal.SIGINT, signal.SIGTERM)

_LOOK_S = 1.0
"""Where the system wakes another thread than the one that hears signals, so late are they heard."""


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


def beside(compute: Callable[[], Result]) -> Result:
    """What ``compute`` returns or raises, in a thread of its own, while this one hears signals. What a signal raises here is
    raised when ``compute`` has ended, which it is made to: SystemExit is raised in it, at its next line of Python.

    The compiled core (:mod:`lmperf.compiled`) must not hear signals itself: large integers are multiplied by a function that
    hears them too, and its caller takes whatever they raise for a lack of memory and ends the process on the spot.
    """
    if threading.current_thread() is not threading.main_thread():
        return compute()
    returned: list[Result] = []
    raised: list[BaseException] = []
    over = threading.Event()

    def work() -> None:
        try:
            returned.append(compute())
        except BaseException as error:  # noqa: BLE001 (whatever it is, the caller raises it)
            raised.append(error)
        finally:
            over.set()

    thread = threading.Thread(target=copy_context().run, args=(work,), name="computing", daemon=True)
    try:
        with held_off():
            thread.start()
        while not over.wait(_LOOK_S):
            pass
    except BaseException:
        if thread.ident is not None:
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(SystemExit))
            thread.join()
        raise
    thread.join()
    if raised:
        raise raised[0]
    return returned[0]


def put_back(handlers: Mapping[signal.Signals, Any]) -> None:
    """Who heard each signal hears it again."""
    for number, handler in handlers.items():
        signal.signal(number, handler)
