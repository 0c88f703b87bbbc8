"""A slot must not be kept for ever by an upstream that says nothing: one timer a request looks now and then."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from backends.protocol import Clock

_NS = 1_000_000_000


class Silence:
    """From its making until :meth:`close`: calls ``on_too_long`` once it is ``limit_s`` after ``since()``, an instant of
    ``clock`` in ns that may move on meanwhile; None ends the watch.
    """

    __slots__ = ("_clock", "_limit_ns", "_on_too_long", "_since", "_timer")

    def __init__(
        self, limit_s: float, clock: Clock, since: Callable[[], int | None], on_too_long: Callable[[], object]
    ) -> None:
        self._limit_ns = round(limit_s * _NS)
        self._clock = clock
        self._since = since
        self._on_too_long = on_too_long
        self._timer: asyncio.TimerHandle | None = asyncio.get_running_loop().call_later(limit_s, self._look)

    def close(self) -> None:
        """Stop watching."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        self._timer = None
        since_ns = self._since()
        if since_ns is None:
            return
        left_ns = since_ns + self._limit_ns - self._clock()
        if left_ns > 0:
            self._timer = asyncio.get_running_loop().call_later(left_ns / _NS + 0.001, self._look)
        else:
            self._on_too_long()
