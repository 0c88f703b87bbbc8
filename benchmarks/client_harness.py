"""What every client benchmark needs: the fast server as a process of its own, and a client as a child whose cost is known.

CPU time and peak memory of a client are the operating system's own figures for the whole child (``wait4``), so nothing
that a client does before, after or beside its streams is left out.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec

from benchmarks.fast_server import Stats, Truth
from lmperf import compiled

ROOT = Path(__file__).resolve().parent.parent
RSS_UNIT = 1 if sys.platform == "darwin" else 1024
INVALID = 107
_READY_TIMEOUT_S = 60.0


class BenchError(RuntimeError):
    """A benchmark could not be run; the message says what failed."""


def child_environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """Children run this checkout (before whatever else is on PYTHONPATH), one thread in numeric libraries, no model hub."""
    found = dict(os.environ)
    path = os.pathsep.join(filter(None, (str(ROOT), found.get("PYTHONPATH"))))
    found.update({"PYTHONPATH": path, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"})
    found.update(extra or {})
    return found


class FastServer:
    """``with FastServer("--role-ms", "40", truth=path) as server``: running while the block does."""

    def __init__(self, *flags: str, truth: Path | None = None) -> None:
        self._argv = [sys.executable, "-m", "benchmarks.fast_server", *flags]
        if truth is not None:
            self._argv += ["--truth", str(truth)]
        self._truth = truth
        self._process: subprocess.Popen[str] | None = None
        self.url = ""

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            self._argv, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=child_environment()
        )
        assert self._process.stdout is not None, "asked for"
        word, _, port = self._process.stdout.readline().partition(" ")
        if word != "ready":
            self._process.kill()
            raise BenchError(f"the fast server did not start: {' '.join(self._argv)}")
        self.url = f"http://127.0.0.1:{int(port)}"
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """End the process; the truth is then complete on disk."""
        process, self._process = self._process, None
        if process is not None:
            process.terminate()
            process.communicate(timeout=_READY_TIMEOUT_S)

    def pin(self, core: int) -> None:
        """From now on the process runs on ``core`` alone."""
        assert self._process is not None, "it is running"
        os.sched_setaffinity(self._process.pid, {core})

    def stats(self) -> Stats:
        with urllib.request.urlopen(f"{self.url}/stats", timeout=_READY_TIMEOUT_S) as reply:
            return msgspec.json.decode(reply.read(), type=Stats)

    def truth(self) -> list[Truth]:
        """All requests that ended, in that order; ends the process first."""
        self.stop()
        assert self._truth is not None, "the server was started with a truth file"
        decoder = msgspec.json.Decoder(Truth)
        return [decoder.decode(line) for line in self._truth.read_bytes().splitlines()]


@dataclass(frozen=True, slots=True)
class Cost:
    """What a child process used, its own children included; ``peak_mib`` is its largest resident set."""

    cpu_s: float
    wall_s: float
    peak_mib: float
    exit_code: int


def run_measured(
    argv: Sequence[str],
    *,
    log: Path,
    env: Mapping[str, str] | None = None,
    doubts: int | None = None,
    on_start: Callable[[int], object] = lambda _: None,
) -> Cost:
    """Run a child to its end, its output in ``log``; ``on_start`` is told its process id. BenchError with the log's end for
    an exit code that is neither 0 nor ``doubts``.
    """
    start = time.monotonic()
    with log.open("wb") as output:
        process = subprocess.Popen(
            argv, stdout=output, stderr=subprocess.STDOUT, cwd=log.parent, env=child_environment(env)
        )
        try:
            on_start(process.pid)
            _, status, usage = os.wait4(process.pid, 0)
        except BaseException:
            process.kill()
            process.wait()
            raise
    # Popen must know that its child is gone, or it would wait for it again.
    process.returncode = code = os.waitstatus_to_exitcode(status)
    wall_s = time.monotonic() - start
    if code not in (0, doubts):
        tail = log.read_text(errors="replace")[-1500:]
        raise BenchError(f"exit code {code} from {' '.join(argv[:4])} ...\n{tail}")
    return Cost(_cpu_s(usage), wall_s, usage.ru_maxrss * RSS_UNIT / (1 << 20), code)


def _cpu_s(usage: resource.struct_rusage) -> float:
    return usage.ru_utime + usage.ru_stime


def machine() -> str:
    """The machine, and what lmperf is on it, as a table's title states it."""
    ours = "compiled" if compiled.state().compiled else "plain Python"
    return f"{os.cpu_count()} cores, load average {os.getloadavg()[0]:.1f} at the start, lmperf is {ours}"
