"""The folder of a run, which is that run's alone.

What a finished, interrupted or killed run left is never written into, and neither is the folder of a run that goes on: two
commands started at the same instant with one ``--output-dir`` take two folders. The claim is a lock (flock) on ``log.txt``,
held while the run lasts: the system lets go of it however the process ends, so a killed run blocks nobody.
"""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from lmperf.scenario.faults import ScenarioError

LOG = "log.txt"

_LEFT_BY_A_RUN = (
    "summary.json",
    "comparison.json",
    "requests.parquet",
    "rows",
    "events.jsonl",
    "capacity.json",
    "tune.json",
    "suite.json",
)
_RUNS_WITHIN = "live-*"
"""Where a command that makes several live runs has each of them."""


@contextmanager
def claimed(wanted: Path, *, flag: str = "--output-dir") -> Iterator[Path]:
    """``wanted``, or the first numbered sibling that no run has; no other process gets it while the block runs. Raises
    ScenarioError, which names ``flag``, where nothing can be written.
    """
    if not wanted.name or wanted.name == "..":
        # Of `.` and the like the numbered sibling is that of the folder itself.
        wanted = wanted.resolve()
    chosen, number = wanted, 1
    while True:
        try:
            lock = _claim(chosen)
        except OSError as error:
            raise ScenarioError.single(
                "<flags>", f"results cannot be written to {chosen} ({error.strerror})", f"name another {flag}"
            ) from error
        if lock is not None:
            break
        if not wanted.name:
            raise ScenarioError.single("<flags>", f"{wanted} holds a run already", f"name another {flag}")
        number += 1
        chosen = wanted.with_name(f"{wanted.name}-{number}")
    with lock:
        yield chosen


def _claim(directory: Path) -> TextIO | None:
    """The lock; None when a run has the folder, or had it."""
    if _holds_a_run(directory):
        return None
    directory.mkdir(parents=True, exist_ok=True)
    lock = (directory / LOG).open("a", encoding="utf-8")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.close()
        return None
    except OSError:
        lock.close()
        raise
    # Looked at again: whoever held the lock until now may have finished its run meanwhile.
    if _holds_a_run(directory):
        lock.close()
        return None
    return lock


def _holds_a_run(directory: Path) -> bool:
    places = (directory, *directory.glob(_RUNS_WITHIN))
    return any((place / name).exists() for place in places for name in _LEFT_BY_A_RUN)
