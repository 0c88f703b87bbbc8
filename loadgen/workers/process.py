"""One worker process: started with one end of a socket pair, watched by the other.

It ends with this process however that ends: its end of the socket closes. The terminal's Ctrl-C does not reach it (a session
of its own): the parent says when to stop.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

from loadgen.workers.link import Link
from loadgen.workers.messages import FromParent, FromWorker

_STDERR_LINES = 100
_PACKAGE_ROOT = Path(__file__).resolve().parents[2]


class WorkerProcess:
    """``module``: what runs as ``python -m MODULE FD``. ``on_lost``: its socket is closed."""

    def __init__(self, name: str, module: str) -> None:
        self.name = name
        self._module = module
        self._process: asyncio.subprocess.Process | None = None
        self._link: Link[FromWorker] | None = None
        self._stderr: deque[str] = deque(maxlen=_STDERR_LINES)
        self._reader: asyncio.Task[None] | None = None

    @property
    def pid(self) -> int:
        return self._started().pid

    async def start(self, on_messages: Callable[[Sequence[FromWorker]], object], on_lost: Callable[[], object]) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        with theirs:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                self._module,
                str(theirs.fileno()),
                pass_fds=(theirs.fileno(),),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.DEVNULL,
                stderr=asyncio.subprocess.PIPE,
                env=_environment(),
                start_new_session=True,
            )
        self._reader = asyncio.create_task(self._collect_stderr())
        kind: Any = FromWorker
        self._link = await Link[FromWorker].over(ours, kind, on_messages, on_lost)

    def send(self, message: FromParent) -> None:
        if self._link is not None:
            self._link.send(message)

    def flush(self) -> None:
        if self._link is not None:
            self._link.flush()

    def kill(self) -> None:
        if self._process is not None and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()

    async def gone(self, timeout_s: float) -> str:
        """How it ended, in words. It has closed its socket, so it is ended by force if it still runs after ``timeout_s``."""
        await self._end(timeout_s)
        code = self._started().returncode or 0
        how = f"exit code {code}" if code >= 0 else f"signal {-code} ({_signal_name(-code)})"
        last = self._stderr[-1] if self._stderr else ""
        return f"{how}: {last}" if last else how

    @property
    def stderr(self) -> str:
        return "\n".join(self._stderr)

    async def close(self, timeout_s: float) -> None:
        """Close its socket, at which it ends by itself; kill it if it has not after ``timeout_s``."""
        if self._link is not None:
            self._link.close()
        if self._process is not None:
            await self._end(timeout_s)

    async def _end(self, timeout_s: float) -> None:
        process = self._started()
        try:
            await asyncio.wait_for(process.wait(), timeout_s)
        except TimeoutError:
            self.kill()
            await process.wait()
        if self._reader is not None:
            await self._reader

    def _started(self) -> asyncio.subprocess.Process:
        if self._process is None:
            raise RuntimeError(f"worker {self.name} was not started")
        return self._process

    async def _collect_stderr(self) -> None:
        stream = cast("asyncio.StreamReader", self._started().stderr)
        while line := await stream.readline():
            self._stderr.append(line.decode("utf-8", "replace").rstrip("\n"))


def _environment() -> dict[str, str]:
    """The child must find the very packages that run here, whatever lies in its working directory."""
    found = dict(os.environ)
    inherited = found.get("PYTHONPATH")
    found["PYTHONPATH"] = os.pathsep.join([str(_PACKAGE_ROOT), *([inherited] if inherited else [])])
    found["PYTHONSAFEPATH"] = "1"
    return found


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return "unknown"
