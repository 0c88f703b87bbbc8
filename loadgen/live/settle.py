"""Work that can wait: done in small pieces, between the work that cannot.

When many answers end at once, the next requests of their users must be sent before anything else is done; rows,
histograms and the calls of later requests come after. A piece starts ``wait_s`` after the first of those that wait was put
here, or as soon as the pieces before it are done, and the loop goes round between two slices. Pieces of one kind cost least
one after another, while the processor still holds what they use: so those that may wait longer do.
At most ``MOST`` pieces wait: beyond that the oldest are done as new ones come, so a loop that never rests keeps up, and
memory does not grow with the run.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable

MOST = 1024
_SLICE_NS = 1_000_000
_PAUSE_S = 0.001


class Settling:
    """``add`` pieces; :meth:`finish` does what is left. What a piece raises goes to ``on_error``."""

    def __init__(self, on_error: Callable[[BaseException], None], wait_s: float) -> None:
        self._on_error = on_error
        self._wait_s = wait_s
        self._pieces: deque[Callable[[], None]] = deque()
        self._timer: asyncio.TimerHandle | None = None

    def add(self, piece: Callable[[], None]) -> None:
        self._pieces.append(piece)
        while len(self._pieces) > MOST:
            self._do(self._pieces.popleft())
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._wait_s, self._slice)

    def finish(self) -> None:
        """Do all that is left, now."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        while self._pieces:
            self._do(self._pieces.popleft())

    def _slice(self) -> None:
        self._timer = None
        until_ns = time.monotonic_ns() + _SLICE_NS
        while self._pieces:
            self._do(self._pieces.popleft())
            if time.monotonic_ns() >= until_ns:
                break
        if self._pieces:
            self._timer = asyncio.get_running_loop().call_later(_PAUSE_S, self._slice)

    def _do(self, piece: Callable[[], None]) -> None:
        try:
            piece()
        except Exception as error:  # noqa: BLE001 (handed to the run, which raises it)
            self._on_error(error)
