"""lmperf as a user runs it: a process, its exit code, what it printed, and the folder that it left."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lmperf.exit_codes import ExitCode
from loadgen.trace.reader import Trace, read_trace

ROOT = Path(__file__).resolve().parents[3]
_TIMEOUT_S = 240.0
_ATTEMPTS = 3


@dataclass(frozen=True, slots=True)
class Finished:
    """One command that ended. ``folder``: where it was told to write, if anywhere."""

    code: int
    stdout: str
    stderr: str
    folder: Path

    @property
    def said(self) -> str:
        """All that it printed, line breaks as spaces: a sentence is found wherever the terminal's width broke it."""
        return " ".join(f"{self.stdout} {self.stderr}".split())

    @property
    def summary(self) -> dict[str, Any]:
        summary: dict[str, Any] = json.loads((self.folder / "summary.json").read_text(encoding="utf-8"))
        return summary

    @property
    def trace(self) -> Trace:
        return read_trace(self.folder)


def lmperf(*arguments: str, folder: Path, module: str = "lmperf") -> Finished:
    """``python -m MODULE ARGUMENTS --output-dir FOLDER``."""
    done = subprocess.run(
        [sys.executable, "-m", module, *arguments, "--output-dir", str(folder)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=_TIMEOUT_S,
        check=False,
    )
    return Finished(done.returncode, done.stdout, done.stderr, folder)


def measured(*arguments: str, folder: Path, module: str = "lmperf") -> Finished:
    """A run that must succeed: exit code 0.

    lmperf declares a run invalid (107) when the machine kept the generator itself from its work, as a small and busy
    machine does. Then the summary must say so, and the run is made again; the last attempt may be invalid too, for
    nothing that these tests assert depends on how fast the machine was.
    """
    for attempt in range(_ATTEMPTS):
        run = lmperf(*arguments, folder=folder / f"attempt-{attempt}", module=module)
        assert run.code in {ExitCode.OK, ExitCode.INVALID}, f"exit code {run.code}\n{run.stdout}\n{run.stderr}"
        validity = run.summary["validity"]
        assert validity["valid"] == (run.code == ExitCode.OK), validity
        assert all("fell behind" in reason for reason in validity["reasons"]), validity
        if run.code == ExitCode.OK:
            break
    return run
