"""Processes that simulate: results in order, faults as the job raised them, and an end that waits for nobody."""

from __future__ import annotations

import os
import time

import pytest

from loadgen.offline.worker import WorkerDiedError
from loadgen.offline.workers import Workers


def squared(number):
    return number * number


def refuses(number):
    raise ValueError(f"no {number}")


def dies(number):
    os._exit(number)


def test_results_are_in_the_order_of_the_jobs_and_counted_as_they_come():
    told = []
    with Workers(2) as workers:
        for _ in range(2):
            assert workers.map(squared, range(7), lambda *counts: told.append(counts)) == [n * n for n in range(7)]
    assert told == [(done, 7) for done in range(1, 8)] * 2


def test_what_a_job_raises_is_raised_and_the_workers_serve_the_next_batch():
    """With the worker's own traceback as a note."""
    with Workers(2) as workers:
        with pytest.raises(ValueError, match=r"no [12]") as caught:
            workers.map(refuses, [1, 2])
        assert "in refuses" in caught.value.__notes__[0]
        assert workers.map(squared, [1, 2, 3]) == [1, 4, 9]


def test_a_worker_that_dies_is_said_and_nobody_waits_for_its_result():
    with Workers(2) as workers, pytest.raises(WorkerDiedError, match="exit code 3"):
        workers.map(dies, [3, 3])


def test_what_is_left_in_the_middle_is_not_waited_for():
    """An interrupt between two results: the job in progress is ended, not joined."""

    def stop(done, total):
        raise KeyboardInterrupt

    started = time.monotonic()
    with Workers(2) as workers, pytest.raises(KeyboardInterrupt):
        workers.map(time.sleep, [0, 600, 600], stop)
    assert time.monotonic() - started < 300
