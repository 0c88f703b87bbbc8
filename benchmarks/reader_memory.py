"""What reading a long captured run costs: peak resident set and seconds of `compare`, `calibrate` and `simulate`.

    python -m benchmarks.reader_memory [--requests 100000 | --full] [--policies fifo] [--only compare,calibrate]

A synthetic run of two tenants with short requests (those of `result_memory`; with `--closed` each follows the one 64 before) is
recorded with its results, then each command runs over it as people start it. The peak is the operating system's, of the
command's own process: `simulate` is told to use one.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

from benchmarks.client_harness import RSS_UNIT, BenchError, child_environment
from benchmarks.result_memory import record_run
from loadgen.trace.parts import TraceFile

COMMANDS = ("compare", "calibrate", "simulate")
FULL = 1_000_000


class Cost(msgspec.Struct, frozen=True):
    """``peak``: MiB."""

    peak: float
    seconds: float


def _argv(command: str, run: Path, out: Path, policies: str) -> list[str]:
    if command == "compare":
        return ["compare", str(run), str(run)]
    if command == "calibrate":
        return ["calibrate", str(run), "-o", str(out / "model.json")]
    flags = ["--policies", policies, "--processes", "1", "--quiet", "--output-dir", str(out)]
    return ["simulate", str(run), *flags]


def _child(argv: list[str]) -> Cost:
    """Run in a process of its own, whose children are therefore the command's alone."""
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.reader_memory", "--child", *argv],
        capture_output=True,
        env=child_environment(),
        check=False,
        text=True,
    )
    if done.returncode:
        raise BenchError(f"{argv[0]} ended with {done.returncode}: {done.stderr[-1500:]}")
    return msgspec.json.decode(done.stdout.splitlines()[-1], type=Cost)


def _run(argv: list[str]) -> None:
    began = time.perf_counter()
    done = subprocess.run([sys.executable, "-m", "lmperf", *argv], check=False)
    seconds = time.perf_counter() - began
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * RSS_UNIT / (1 << 20)
    print(json.dumps({"peak": peak, "seconds": seconds}))
    sys.exit(done.returncode)


def measure(run: Path, commands: list[str], policies: str) -> Iterator[tuple[str, Cost]]:
    """Every command, by name, as it ends."""
    with tempfile.TemporaryDirectory() as name:
        for command in commands:
            yield command, _child(_argv(command, run, Path(name, command), policies))


def main() -> None:
    if "--child" in sys.argv[1:2]:
        _run(sys.argv[2:])
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=100_000)
    parser.add_argument("--full", action="store_true", help=f"{FULL:,} requests")
    parser.add_argument("--closed", action="store_true", help="a closed loop of 64 users")
    parser.add_argument("--policies", default="fifo")
    parser.add_argument("--only", default=",".join(COMMANDS))
    parser.add_argument("--run", type=Path, help="a folder that a run was, or is to be, recorded in")
    args = parser.parse_args()
    requests = FULL if args.full else args.requests
    with tempfile.TemporaryDirectory() as name:
        run = args.run or Path(name, "run")
        if not (run / "summary.json").is_file():
            record_run(run, requests, closed=args.closed)
        print(f"{len(TraceFile(run)):,} requests", flush=True)
        for command, cost in measure(run, args.only.split(","), args.policies):
            print(f"{command:10} peak {cost.peak:7.0f} MiB  {cost.seconds:7.1f} s", flush=True)


if __name__ == "__main__":
    main()
