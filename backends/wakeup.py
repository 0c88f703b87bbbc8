"""Wakes an event loop at an absolute time of the monotonic clock, finer than the loop's own timers.

uvloop rounds timers to 1 ms, a fifth of a step of a fast server. On Linux a timerfd (``TFD_TIMER_ABSTIME`` on
``CLOCK_MONOTONIC``, timerfd_create(2)) is watched by the loop like a socket: tens of microseconds, no thread, no
spinning. ``os`` has it from Python 3.13 only, hence ctypes. Elsewhere a thread sleeps for the loop.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Protocol

_CLOCK_MONOTONIC = 1
_TFD_TIMER_ABSTIME = 1
_NS_PER_S = 1_000_000_000


class Wakeup(Protocol):
    """One alarm. ``arm`` replaces the time set before; a time in the past fires as soon as the loop comes round. The
    callback runs on the loop and must look at the clock: an alarm may come early when it was replaced meanwhile.
    """

    def arm(self, at_ns: int) -> None:
        """``at_ns``: on the clock of ``time.monotonic_ns``."""

    def disarm(self) -> None: ...

    def close(self) -> None: ...


class _ItimerSpec(ctypes.Structure):
    _fields_ = (  # the C layout of struct itimerspec: the interval, then the value, each seconds and nanoseconds
        ("interval_s", ctypes.c_long),
        ("interval_ns", ctypes.c_long),
        ("value_s", ctypes.c_long),
        ("value_ns", ctypes.c_long),
    )


class TimerFdWakeup:
    """Linux: a timerfd in the loop's selector."""

    def __init__(self, loop: asyncio.AbstractEventLoop, callback: Callable[[], None]) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        self._settime = libc.timerfd_settime
        self._settime.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
        self._spec = _ItimerSpec()
        self._address = ctypes.addressof(self._spec)
        # TFD_NONBLOCK and TFD_CLOEXEC are defined as the O_ flags of the same names.
        self._fd = int(libc.timerfd_create(_CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC))
        if self._fd < 0:
            error = ctypes.get_errno()
            raise OSError(error, f"timerfd_create: {os.strerror(error)}")
        self._loop = loop
        self._callback = callback
        loop.add_reader(self._fd, self._fired)

    def arm(self, at_ns: int) -> None:
        # An all-zero value would disarm, so a time at or before the clock's zero is the first nanosecond after it.
        self._spec.value_s, self._spec.value_ns = divmod(max(at_ns, 1), _NS_PER_S)
        self._set()

    def disarm(self) -> None:
        self._spec.value_s = self._spec.value_ns = 0
        self._set()

    def close(self) -> None:
        if self._fd >= 0:
            self._loop.remove_reader(self._fd)
            os.close(self._fd)
            self._fd = -1

    def _set(self) -> None:
        if self._settime(self._fd, _TFD_TIMER_ABSTIME, self._address, None) != 0:
            error = ctypes.get_errno()
            raise OSError(error, f"timerfd_settime: {os.strerror(error)}")

    def _fired(self) -> None:
        try:
            os.read(self._fd, 8)
        except BlockingIOError:
            return  # re-armed between the loop's look and this call: the alarm that woke us no longer stands
        self._callback()


class ThreadWakeup:
    """Any platform: a thread waits until the time and then calls into the loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, callback: Callable[[], None]) -> None:
        self._loop = loop
        self._callback = callback
        self._changed = threading.Condition()
        self._at_ns: int | None = None
        self._closed = False
        self._thread = threading.Thread(target=self._wait, name="lmperf-emulator-wakeup", daemon=True)
        self._thread.start()

    def arm(self, at_ns: int) -> None:
        self._change(at_ns)

    def disarm(self) -> None:
        self._change(None)

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join()

    def _change(self, at_ns: int | None) -> None:
        with self._changed:
            self._at_ns = at_ns
            self._changed.notify()

    def _wait(self) -> None:
        with self._changed:
            while not self._closed:
                if self._at_ns is None:
                    self._changed.wait()
                    continue
                left_ns = self._at_ns - time.monotonic_ns()
                if left_ns > 0:
                    self._changed.wait(left_ns / _NS_PER_S)
                    continue
                self._at_ns = None
                if not self._loop.is_closed():
                    self._loop.call_soon_threadsafe(self._fire)

    def _fire(self) -> None:
        if not self._closed:
            self._callback()


def new_wakeup(loop: asyncio.AbstractEventLoop, callback: Callable[[], None]) -> Wakeup:
    """The finest alarm that the platform has."""
    if sys.platform == "linux":
        return TimerFdWakeup(loop, callback)
    return ThreadWakeup(loop, callback)
