"""The clock of a live run: ns since a start that lies a moment ahead when it is set."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta

START_AHEAD_NS = 50_000_000


class RunClock:
    """ns since the run's start; before ``start_soon``, ns since it was made.

    The start is set a moment ahead, so that everything that must know it (the header of the rows on disk, which a
    killed run leaves behind) is made before the first arrival and does not delay it."""

    def __init__(self) -> None:
        self.origin_ns = time.monotonic_ns()

    def start_soon(self, ahead_ns: int = START_AHEAD_NS) -> str:
        """Time 0 lies a moment ahead; its instant in UTC."""
        self.origin_ns = time.monotonic_ns() + ahead_ns
        start = datetime.now(UTC) + timedelta(microseconds=ahead_ns // 1000)
        return start.isoformat(timespec="milliseconds")

    def __call__(self) -> int:
        return time.monotonic_ns() - self.origin_ns
