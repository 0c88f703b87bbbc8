"""Processes that simulate, kept from one batch of runs to the next.

Workers ignore the terminal's interrupt: the parent hears it, keeps what is finished and lets them end.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from types import TracebackType
from typing import Self, TypeVar

from loadgen.cores import whole_cores

Job = TypeVar("Job")
Result = TypeVar("Result")


def ignore_interrupts() -> None:
    """What a worker process does first: the parent alone hears the terminal's Ctrl-C."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


class Workers:
    """``processes`` None: one a core. With one, everything runs in this process."""

    def __init__(self, processes: int | None = None) -> None:
        self.processes = processes or whole_cores()
        self._pool: ProcessPoolExecutor | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=kind is None, cancel_futures=True)
            self._pool = None

    def map(
        self,
        function: Callable[[Job], Result],
        jobs: Sequence[Job],
        on_done: Callable[[int, int], None] = lambda _done, _total: None,
    ) -> list[Result]:
        """The results in the order of ``jobs``; ``on_done(done, total)`` as they come. ``function`` must be importable."""
        if self.processes <= 1 or len(jobs) == 1:
            results = []
            for job in jobs:
                results.append(function(job))
                on_done(len(results), len(jobs))
            return results
        if self._pool is None:
            self._pool = ProcessPoolExecutor(
                self.processes, mp_context=get_context("forkserver"), initializer=ignore_interrupts
            )
        waiting = [self._pool.submit(function, job) for job in jobs]
        try:
            for done, future in enumerate(as_completed(waiting), start=1):
                future.result()
                on_done(done, len(jobs))
        finally:
            for future in waiting:
                future.cancel()
        return [future.result() for future in waiting]
