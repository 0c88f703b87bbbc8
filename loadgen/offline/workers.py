"""Processes that simulate, kept from one batch of runs to the next.

A batch that is left before its end, by an interrupt or a fault, ends them at once: nobody waits for runs in progress.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection, wait
from typing import Self, TypeVar

from loadgen.cores import whole_cores
from loadgen.offline.worker import Worker
from loadgen.signals import held_off

Job = TypeVar("Job")
Result = TypeVar("Result")


class Workers:
    """``processes`` None: one a core. With one, everything runs in this process."""

    def __init__(self, processes: int | None = None) -> None:
        self.processes = processes or whole_cores()
        self._workers: list[Worker] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End them, whatever they do; they are gone when this returns."""
        with held_off():
            while self._workers:
                self._workers.pop().kill()

    def map(
        self,
        function: Callable[[Job], Result],
        jobs: Sequence[Job],
        on_done: Callable[[int, int], None] = lambda _done, _total: None,
    ) -> list[Result]:
        """The results in the order of ``jobs``; ``on_done(done, total)`` as they come. ``function`` must be importable."""
        found: dict[int, Result] = {}
        for index, result in self.results(function, jobs):
            found[index] = result
            on_done(len(found), len(jobs))
        return [found[index] for index in range(len(jobs))]

    def results(self, function: Callable[[Job], Result], jobs: Sequence[Job]) -> Iterator[tuple[int, Result]]:
        """Each result as it comes, with the place of its job. Raises what a job raises, and WorkerDiedError."""
        if self.processes <= 1 or len(jobs) <= 1:
            for index, job in enumerate(jobs):
                yield index, function(job)
            return
        self._start(min(self.processes, len(jobs)))
        busy: dict[Connection, tuple[Worker, int]] = {}
        left = iter(enumerate(jobs))

        def give_next(worker: Worker) -> None:
            for index, job in left:
                busy[worker.link] = worker, index
                worker.give(function, job)
                return

        whole = False
        try:
            for worker in self._workers:
                give_next(worker)
            while busy:
                ready = set(wait(list(busy)))
                for link in [each for each in busy if each in ready]:
                    worker, index = busy.pop(link)
                    result: Result = worker.result()
                    give_next(worker)
                    yield index, result
            whole = True
        finally:
            if not whole:
                self.close()

    def _start(self, wanted: int) -> None:
        while len(self._workers) < wanted:
            with held_off():
                self._workers.append(Worker())
