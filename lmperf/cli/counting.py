"""A line of progress over a known number of simulated runs."""

from __future__ import annotations

import time

from lmperf.console import Progress
from loadgen.offline.experiment import OnProgress


def counted(progress: Progress, what: str) -> OnProgress:
    """Counts from now on, under the name ``what``."""
    started = time.monotonic()
    return lambda done, total: progress.counting(what, done, total, started)
