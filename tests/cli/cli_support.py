"""The command as people run it, in a folder of its own, against servers on real sockets.

``lmperf`` is a process of its own, as exact as can be; ``invoke`` calls the same ``main`` here, which saves a second of
imports, for all tests that do not ask about the process itself.
"""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import chdir, contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

from lmperf.__main__ import main

ROOT = Path(__file__).resolve().parents[2]
DEADLINE_S = 60.0

FAST_MODEL = json.dumps(
    {
        "schema": "lmperf.server-model/1.0",
        "name": "fast-model",
        "law": {"a_us": 500.0, "b_us": 1.0, "c_us": 10.0, "d_us": 0.01, "offset_us": 500.0},
        "limits": {"max_num_seqs": 32, "max_num_batched_tokens": 4096},
    }
)
"""Milliseconds where a real engine takes tens of them."""


def environment(**more: str) -> dict[str, str]:
    """The environment of a child that finds the checkout wherever it runs, and prints as wide as into a pipe."""
    inherited = {name: value for name, value in os.environ.items() if name != "COLUMNS"}
    return {**inherited, "PYTHONPATH": str(ROOT), "NO_COLOR": "1", **more}


def lmperf(
    *args: object,
    cwd: Path,
    env: Mapping[str, str] | None = None,
    module: str = "lmperf",
    timeout_s: float = DEADLINE_S,
) -> subprocess.CompletedProcess[str]:
    """``python -m lmperf ARGS`` run to its end."""
    return subprocess.run(
        [sys.executable, "-m", module, *map(str, args)],
        cwd=cwd,
        env=environment(**(env or {})),
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )


@dataclass(frozen=True)
class Done:
    """What a command came to, under the names of ``subprocess``."""

    returncode: int
    stdout: str
    stderr: str


def invoke(*args: object, cwd: Path, env: Mapping[str, str] | None = None) -> Done:
    """``lmperf ARGS`` in this process."""
    out, err = io.StringIO(), io.StringIO()
    with chdir(cwd), mock.patch.dict(os.environ), redirect_stdout(out), redirect_stderr(err):
        os.environ.pop("COLUMNS", None)
        os.environ.update(env or {})
        try:
            code = main([*map(str, args)])
        except SystemExit as ended:
            code = int(ended.code or 0)
    return Done(int(code), out.getvalue(), err.getvalue())


def start(
    *args: object, cwd: Path, env: Mapping[str, str] | None = None, start_new_session: bool = False
) -> subprocess.Popen[str]:
    """``python -m lmperf ARGS``, running; what it prints is kept. ``start_new_session``: leader of a process group."""
    return subprocess.Popen(
        [sys.executable, "-m", "lmperf", *map(str, args)],
        cwd=cwd,
        env=environment(**(env or {})),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=start_new_session,
    )


@contextmanager
def served(folder: Path, *args: str, env: Mapping[str, str] | None = None) -> Iterator[str]:
    """``lmperf emulate`` while the block runs; its URL."""
    model = folder / "server-model.json"
    model.write_text(FAST_MODEL)
    process = subprocess.Popen(
        [sys.executable, "-m", "lmperf", "emulate", "--server-model", str(model), "--exit-with-stdin", *args],
        env=environment(**(env or {})),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield process.stdout.readline().split()[-1]
    finally:
        process.stdin.close()
        process.stdout.close()
        process.wait(DEADLINE_S)


@contextmanager
def fast_server(*flags: str) -> Iterator[str]:
    """A server without limits that answers at set times; its URL."""
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.fast_server", *flags],
        env=environment(),
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield f"http://127.0.0.1:{process.stdout.readline().split()[-1]}"
    finally:
        process.terminate()
        process.communicate(timeout=DEADLINE_S)


def until(found, process: subprocess.Popen[str]) -> None:
    """Poll until ``found()``; the process must live until then."""
    deadline = time.monotonic() + DEADLINE_S
    while not found():
        assert process.poll() is None, f"ended with {process.returncode}: {process.communicate()}"
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)


def two_tenants(url: str, *, duration_s: float = 0.5, policy: str = "fifo", extra: str = "", rate: float = 40) -> str:
    """A scenario of two tenants whose limits are so wide that a busy machine keeps them and stays valid."""
    return f"""\
version: 1
name: two
duration_s: {duration_s}
drain_s: 20
seed: 7
backend: {{kind: openai, url: "{url}"}}
policy: {policy}
slots: {{sequences: 4, prefill_tokens: 2048}}
{extra}
tenants:
  chat:
    rate: {rate}
    prompt: {{mean: 40, cv: 0.5, max: 200}}
    output: {{mean: 8, cv: 0.5, max: 30}}
    slo: {{ttft_ms: 60000, attainment: 0.9}}
  bulk:
    rate: {rate / 2}
    prompt: {{mean: 150, cv: 0.5, max: 500}}
    output: {{mean: 12, cv: 0.5, max: 40}}
    slo: {{ttft_ms: 60000, attainment: 0.9}}
"""


def files_of(folder: Path) -> dict[str, bytes]:
    """Every file below ``folder`` with its bytes."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def summary_of(folder: Path) -> dict:
    return json.loads((folder / "summary.json").read_text())
