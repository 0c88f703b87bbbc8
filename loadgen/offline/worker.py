"""One process that simulates: a job in, its result out, over a pipe.

It hears neither Ctrl-C nor SIGTERM: its parent does, and kills it. It has no state worth a farewell (rows on disk lie in a
nameless file). It ends with its parent, however that ends.
"""

from __future__ import annotations

import os
import pickle
import signal
import traceback
from collections.abc import Callable
from multiprocessing import forkserver, get_context, parent_process, resource_tracker
from multiprocessing.connection import Connection, wait
from threading import Thread
from typing import Any

from loadgen.signals import STOPPING


class WorkerDiedError(RuntimeError):
    """A worker ended in the middle of a job; most often the system was short of memory."""


class NoWorkerError(RuntimeError):
    """The system starts none; nothing was simulated."""


class Worker:
    """Started at once, or NoWorkerError is raised. One job at a time: ``give``, then ``result`` when ``link`` can be read."""

    def __init__(self) -> None:
        try:
            _start_deaf_server()
            context = get_context("forkserver")
            self.link, theirs = context.Pipe()
            self._process = context.Process(target=_serve, args=(theirs,), daemon=True)
            with theirs:
                self._process.start()
        except OSError as error:
            # A socket's path has 108 characters, and this one lies where temporary files do.
            hint = "set TMPDIR to a shorter path" if "too long" in str(error) else "give it fewer"
            raise NoWorkerError(f"no simulating process can be started: {error}; {hint}, or --processes 1") from error

    def give(self, function: Callable[[Any], object], job: object) -> None:
        """``function`` must be importable. Raises WorkerDiedError."""
        try:
            self.link.send((function, job))
        except ConnectionError as error:
            raise self._died() from error

    def result(self) -> Any:  # noqa: ANN401 (what the function returned)
        """Waits for it. Raises what the job raised, or WorkerDiedError."""
        try:
            value, error = self.link.recv()
        except (EOFError, ConnectionError) as lost:
            raise self._died() from lost
        if error is not None:
            raise error
        return value

    def kill(self) -> None:
        """In the middle of a job or not; returns when it is gone."""
        self._process.kill()
        self._process.join()
        self.link.close()

    def _died(self) -> WorkerDiedError:
        self._process.join()
        return WorkerDiedError(f"a simulating process died (exit code {self._process.exitcode}); is the memory enough?")


def _start_deaf_server() -> None:
    """The server that workers are forked from, with the signals blocked, as it and they then are from their first instant.
    The tracker first: it unblocks them when it starts."""
    resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOPPING)
    try:
        forkserver.ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _serve(link: Connection) -> None:
    parent = parent_process()
    assert parent is not None, "this process was started by another"
    Thread(target=_end_with, args=(parent.sentinel,), daemon=True).start()
    try:
        while True:
            link.send(_outcome(link.recv_bytes()))
    except (EOFError, ConnectionError):
        return


def _end_with(sentinel: int) -> None:
    """A process in the middle of a simulation does not look at its pipe."""
    wait([sentinel])
    os._exit(1)


def _outcome(message: bytes) -> tuple[object, Exception | None]:
    try:
        function, job = pickle.loads(message)  # noqa: S301 (from the parent)
        return function(job), None
    except Exception as error:  # noqa: BLE001 (whatever it is, the parent raises it)
        error.add_note(f"in a worker:\n{traceback.format_exc()}")
        return None, error
