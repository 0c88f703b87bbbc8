"""Work that can wait: done in small batches, between the work that cannot.

When many answers end at once, the next requests of their users must be sent before anything else is done; rows,
histograms and the calls of later requests come after. A batch is done ``wait_s`` after the first of those that wait was put
here, or as soon as the batches before it are done, and the loop goes round between two slices. Things of one kind cost least
one after another, while the processor still holds what they use: so those that may wait longer do.
At most ``MOST`` things wait: beyond that the oldest are done as new ones come, so a loop that never rests keeps up, and
memory does not grow with the run.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

MOST = 1024
AT_ONCE = 16
_SLICE_NS = 1_000_000
_PAUSE_S = 0.001

T = TypeVar("T")


class Settling(Generic[T]):
    """``add`` things; ``do`` is called with up to ``AT_ONCE`` of them, in order; :meth:`finish` does what is left. What ``do``
    raises goes to ``on_error``, and costs the rest of its batch."""

    def __init__(
        self, do: Callable[[Sequence[T]], object], on_error: Callable[[BaseException], None], wait_s: float
    ) -> None:
        self._do = do
        self._on_error = on_error
        self._wait_s = wait_s
        self._waiting: deque[T] = deque()
        self._timer: asyncio.TimerHandle | None = None

    def add(self, thing: T) -> None:
        self._waiting.append(thing)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._wait_s, self._slice)
        elif len(self._waiting) >= MOST + AT_ONCE:
            self._batch()

    def finish(self) -> None:
        """Do all that is left, now."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        while self._waiting:
            self._batch()

    def _slice(self) -> None:
        self._timer = None
        until_ns = time.monotonic_ns() + _SLICE_NS
        while self._waiting:
            self._batch()
            if time.monotonic_ns() >= until_ns:
                break
        if self._waiting:
            self._timer = asyncio.get_running_loop().call_later(_PAUSE_S, self._slice)

    def _batch(self) -> None:
        waiting = self._waiting
        batch = [waiting.popleft() for _ in range(min(AT_ONCE, len(waiting)))]
        try:
            self._do(batch)
        except Exception as error:  # noqa: BLE001 (handed to the run, which raises it)
            self._on_error(error)
