"""The embedded server in a process of its own, started and ended by this one.

A process of its own, because a client measured beside the server on one event loop measures the loop. It ends with this
process however that ends: it watches its standard input, which closes with us.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import tempfile
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Self

import aiohttp
import msgspec

from backends.emulator.cli import READY_PREFIX
from backends.emulator.config import EmulatorConfig
from backends.emulator.stats import EmulatorStats
from scheduler.server_model.spec import encode_server_model

_API_KEY_VARIABLE = "LMPERF_EMULATOR_API_KEY"
_STDERR_LINES = 200
_PACKAGE_ROOT = Path(__file__).resolve().parents[2]


class EmulatorProcessError(RuntimeError):
    """The server's process did not become ready; the message holds its exit code and what it wrote to stderr."""


class EmulatorProcess:
    """``async with EmulatorProcess(config) as server``: ready to serve at ``server.url`` until the block ends.

    ``log_level``: the child's; its last lines of stderr are in ``stderr``.
    """

    def __init__(
        self,
        config: EmulatorConfig | None = None,
        *,
        log_level: str = "warning",
        ready_timeout_s: float = 30.0,
        stop_timeout_s: float = 5.0,
    ) -> None:
        self.config = config if config is not None else EmulatorConfig()
        self.url = ""
        self._log_level = log_level
        self._ready_timeout_s = ready_timeout_s
        self._stop_timeout_s = stop_timeout_s
        self._process: asyncio.subprocess.Process | None = None
        self._stderr: deque[str] = deque(maxlen=_STDERR_LINES)
        self._readers: list[asyncio.Task[None]] = []
        self._resources = contextlib.ExitStack()

    @property
    def pid(self) -> int:
        return self._started().pid

    @property
    def returncode(self) -> int | None:
        """None while it runs."""
        return self._started().returncode

    @property
    def stderr(self) -> str:
        """Its last 200 lines of stderr."""
        return "\n".join(self._stderr)

    async def start(self) -> None:
        """Raises EmulatorProcessError when it does not become ready."""
        try:
            await self._spawn()
            await asyncio.wait_for(self._ready(), self._ready_timeout_s)
        except TimeoutError:
            await self.stop()
            raise EmulatorProcessError(
                f"the embedded server was not ready after {self._ready_timeout_s:g} s; its stderr:\n{self.stderr}"
            ) from None
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        """SIGTERM, and SIGKILL if it does not end in time, or if this is cancelled."""
        process = self._process
        try:
            if process is not None and process.returncode is None:
                _signal(process.terminate)
                try:
                    await asyncio.wait_for(process.wait(), self._stop_timeout_s)
                except TimeoutError:
                    _signal(process.kill)
                    await process.wait()
            if process is not None and process.stdin is not None:
                process.stdin.close()
            readers, self._readers = self._readers, []
            await asyncio.gather(*readers)
        finally:
            if process is not None and process.returncode is None:
                _signal(process.kill)
            self._resources.close()

    async def stats(self) -> EmulatorStats:
        async with aiohttp.ClientSession() as session, session.get(f"{self.url}/lmperf/stats") as response:
            response.raise_for_status()
            return msgspec.json.decode(await response.read(), type=EmulatorStats)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    def _started(self) -> asyncio.subprocess.Process:
        if self._process is None:
            raise RuntimeError("the embedded server was not started")
        return self._process

    async def _spawn(self) -> None:
        environment = dict(os.environ)
        # The child must find the very packages that run here, whatever lies in its working directory.
        inherited = environment.get("PYTHONPATH")
        environment["PYTHONPATH"] = os.pathsep.join([str(_PACKAGE_ROOT), *([inherited] if inherited else [])])
        environment["PYTHONSAFEPATH"] = "1"
        if self.config.api_key is not None:
            environment[_API_KEY_VARIABLE] = self.config.api_key
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "backends.emulator",
            *self._arguments(),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=environment,
            # A terminal's Ctrl-C is for the run, which still needs its server while it drains.
            start_new_session=True,
        )
        self._readers = [asyncio.create_task(self._collect_stderr(self._process))]

    def _arguments(self) -> list[str]:
        config = self.config
        folder = Path(self._resources.enter_context(tempfile.TemporaryDirectory(prefix="lmperf-emulator-")))
        model_file = folder / "server-model.json"
        model_file.write_bytes(encode_server_model(config.server_model))
        arguments = {
            "--host": config.host,
            "--port": config.port,
            "--server-model": model_file,
            "--time-scale": config.time_scale,
            "--model-name": config.served_name,
            "--max-model-len": config.max_model_len,
            "--seed": config.seed,
            "--output-mean": config.output.mean,
            "--output-cv": config.output.cv,
            "--log-level": self._log_level,
        }
        if config.truth_path is not None:
            arguments["--truth"] = config.truth_path
        if config.api_key is not None:
            arguments["--api-key-env"] = _API_KEY_VARIABLE
        return ["--exit-with-stdin", *(f"{name}={value}" for name, value in arguments.items())]

    async def _ready(self) -> None:
        process = self._started()
        stdout = _pipe(process.stdout)
        while line := await stdout.readline():
            text = line.decode("utf-8", "replace").strip()
            if text.startswith(READY_PREFIX):
                self.url = text.rpartition(" ")[2]
                self._readers.append(asyncio.create_task(_discard(stdout)))
                return
        code = await process.wait()
        await asyncio.gather(*self._readers)
        raise EmulatorProcessError(f"the embedded server ended with code {code} before it was ready:\n{self.stderr}")

    async def _collect_stderr(self, process: asyncio.subprocess.Process) -> None:
        stream = _pipe(process.stderr)
        while line := await stream.readline():
            self._stderr.append(line.decode("utf-8", "replace").rstrip("\n"))


def _signal(send: Callable[[], None]) -> None:
    # It may end by itself between the look and the signal.
    with contextlib.suppress(ProcessLookupError):
        send()


async def _discard(stream: asyncio.StreamReader) -> None:
    """Keeps the child from blocking on a full pipe."""
    while await stream.read(1 << 16):
        pass


def _pipe(stream: asyncio.StreamReader | None) -> asyncio.StreamReader:
    if stream is None:
        raise RuntimeError("the embedded server was started without a pipe")
    return stream
