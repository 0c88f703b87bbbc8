"""What the writing of results costs after the last answer of a long run: peak resident set and seconds, with synthetic rows.

    python -m benchmarks.client_memory --results-only [--requests 100000 | --full]

No server and no clock: a recorder is fed with short requests of two tenants with an SLO as fast as it takes them, then

* *run*: everything that a finished run leaves is written;
* *report*: what a killed run left (its rows only) is merged, summarised and written, as `lmperf report` does;
* *again*: the report of that finished run is made once more.

Each in a process of its own, so that the operating system's peak is that of the stage.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import msgspec
import numpy as np

from benchmarks.client_harness import RSS_UNIT, BenchError, child_environment
from lmperf.wiring.rescue import render_again, rescue
from lmperf.wiring.results import write_results
from loadgen.recorder import Recorder
from loadgen.recording.window import FOREVER_NS
from loadgen.trace.schema import TraceMetadata
from scheduler.request import ArrivalKind, Outcome, Request, Status, TokensSource
from scheduler.server_model.spec import ServerLimits, ServerModelSpec, StepLaw
from tenants.slo import Slo
from tenants.tenant import Tenant

STAGES = ("run", "report", "again")

_TENANTS = tuple(Tenant(name=name, slo=Slo(ttft_ns=500_000_000, attainment=0.99)) for name in ("chat", "batch"))
_SPACING_NS = 600_000
_OFFSETS_US = np.arange(8) * 1000
_USERS = 64
_SERVER = ServerModelSpec(
    name="synthetic",
    law=StepLaw(a_us=1000.0, b_us=1.0),
    limits=ServerLimits(max_num_seqs=20, max_num_batched_tokens=8192),
)
"""What the header says of the server, so that a replay is not overloaded, whose queue would grow with the run."""


class Stage(msgspec.Struct, frozen=True):
    """``before``: MiB when the last row was recorded (0: nothing was); ``peak``: MiB of the whole process."""

    before: float
    peak: float
    seconds: float


def _outcome(number: int, *, after: int | None = None) -> Outcome:
    arrival = number * _SPACING_NS
    first = arrival + 20_000_000 + number * 7919 % 100_003 * 3_000
    last = first + int(_OFFSETS_US[-1]) * 1000
    return Outcome(
        request=Request(
            id=number,
            tenant=_TENANTS[number % len(_TENANTS)].name,
            arrival_ns=arrival,
            prompt_tokens=20,
            max_tokens=8,
            target_output_tokens=8,
            after_request_id=after,
            arrival_kind=ArrivalKind.ABSOLUTE if after is None else ArrivalKind.AFTER,
        ),
        status=Status.OK,
        ended_ns=last,
        backend="synthetic",
        enqueued_ns=arrival + 1_000,
        dispatched_ns=arrival + 2_000,
        connect_ns=0,
        sent_ns=arrival + 50_000,
        first_token_ns=first,
        last_token_ns=last,
        finished_ns=last,
        prompt_tokens=20,
        output_tokens=len(_OFFSETS_US),
        tokens_source=TokensSource.USAGE,
        chunk_offsets_us=_OFFSETS_US,
        max_itl_ns=1_000_000,
    )


def _record(folder: Path, requests: int, *, closed: bool = False) -> Recorder:
    window = (0, FOREVER_NS)
    metadata = TraceMetadata(
        window_ns=window,
        start_utc="2026-01-01T00:00:00.000+00:00",
        load_mode="closed" if closed else "open",
        server_model=msgspec.to_builtins(_SERVER),
    )
    recorder = Recorder(_TENANTS, window, folder, metadata=metadata)
    for number in range(requests):
        recorder.on_outcome(_outcome(number, after=number - _USERS if closed and number >= _USERS else None))
    recorder.flush()
    return recorder


def _finish(recorder: Recorder, folder: Path, requests: int) -> None:
    end_ns = requests * _SPACING_NS + 10**9
    recorder.window_ns = (0, end_ns)
    metadata = msgspec.structs.replace(recorder.metadata, window_ns=recorder.window_ns, end_ns=end_ns)
    write_results(recorder, None, metadata=metadata, directory=folder)


def record_run(folder: Path, requests: int, *, closed: bool = False) -> None:
    """A finished run of synthetic requests; ``closed``: of users who each wait for their answer."""
    _finish(_record(folder, requests, closed=closed), folder, requests)


def _resident_mib() -> float:
    told = subprocess.run(["ps", "-o", "rss=", "-p", str(os.getpid())], capture_output=True, text=True, check=True)
    return float(told.stdout) / 1024


def _stage(name: str, folder: Path, requests: int) -> Stage:
    before = 0.0
    recorder = None
    if name == "run":
        recorder = _record(folder, requests)
        before = _resident_mib()
    began = time.perf_counter()
    if recorder is not None:
        _finish(recorder, folder, requests)
    elif name == "report":
        rescue(folder)
    else:
        render_again(folder)
    seconds = time.perf_counter() - began
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * RSS_UNIT / (1 << 20)
    return Stage(before, peak, seconds)


def _child(name: str, folder: Path, requests: int) -> bytes:
    argv = [sys.executable, "-m", "benchmarks.result_memory", name, str(folder), str(requests)]
    done = subprocess.run(argv, capture_output=True, env=child_environment(), check=False)
    if done.returncode:
        raise BenchError(f"stage {name} ended with {done.returncode}: {done.stderr.decode(errors='replace')[-1500:]}")
    return done.stdout


def measure(requests: int) -> dict[str, Stage]:
    """Every stage, by name."""
    with tempfile.TemporaryDirectory() as name:
        run, killed = Path(name, "run"), Path(name, "killed")
        found = {"run": msgspec.json.decode(_child("run", run, requests), type=Stage)}
        _child("kill", killed, requests)
        for stage in STAGES[1:]:
            found[stage] = msgspec.json.decode(_child(stage, killed, requests), type=Stage)
    return found


def main() -> None:
    name, folder, requests = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
    folder.mkdir(parents=True, exist_ok=True)
    if name == "kill":
        _record(folder, requests)
        # As a killed run ends: nothing is closed.
        os._exit(0)
    print(json.dumps(msgspec.to_builtins(_stage(name, folder, requests))))


if __name__ == "__main__":
    main()
