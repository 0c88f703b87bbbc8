"""Whether memory grows with a run: the resident set of the whole command after 10% and at 100% of many short requests.

    python -m benchmarks.client_memory [--requests 100000 | --full] [--concurrency 32 | --results-only]

A closed loop of one-token answers against the fast server, as fast as both go. ``--full`` is 1,000,000 requests. The
resident set is sampled while the server counts what it has received; *peak* is the operating system's own figure for
the child and includes the writing of the results after the last answer. ``--results-only`` measures that stage alone,
with synthetic rows (:mod:`benchmarks.result_memory`).
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from benchmarks import result_memory
from benchmarks.client_harness import INVALID, RSS_UNIT, BenchError, FastServer, child_environment, machine

_SAMPLE_S = 0.25


@dataclass(frozen=True, slots=True)
class Memory:
    """MiB; ``at_10`` and ``at_100`` while requests flow, ``peak`` of the whole command."""

    at_10: float
    at_100: float
    peak: float
    requests_per_s: float


def resident_mib(pid: int) -> float:
    """The resident set of a process, 0 once it has ended."""
    told = subprocess.run(["ps", "-o", "rss=", "-p", str(pid)], capture_output=True, text=True, check=False)
    return float(told.stdout.strip() or 0) / 1024


def measure(requests: int, concurrency: int) -> Memory:
    with tempfile.TemporaryDirectory() as name, FastServer("--first-ms", "0", "--gap-ms", "0") as server:
        folder = Path(name)
        argv = [sys.executable, "-m", "lmperf.run", "--model", server.url, "--endpoint", "chat", "--quiet"]
        argv += ["--num-prompts", str(requests), "--concurrency", str(concurrency), "--policy", "fifo"]
        argv += ["--set", f"slots.sequences={concurrency}", "--random-input-len", "16", "--random-output-len", "1"]
        argv += ["--output-dir", str(folder / "run")]
        with (folder / "log.txt").open("wb") as log:
            child = subprocess.Popen(argv, stdout=log, stderr=subprocess.STDOUT, env=child_environment())
            try:
                at_10, at_100, rate = _watch(server, child, requests)
                usage, code = _wait(child)
            finally:
                if child.returncode is None:
                    child.kill()
                    child.wait()
        if code not in (0, INVALID):
            raise BenchError(f"exit code {code}: {(folder / 'log.txt').read_text(errors='replace')[-1500:]}")
        return Memory(at_10, at_100, usage.ru_maxrss * RSS_UNIT / (1 << 20), rate)


def _watch(server: FastServer, child: subprocess.Popen[bytes], requests: int) -> tuple[float, float, float]:
    """(MiB at 10%, the most between then and the last answer, requests/s)."""
    at_10 = at_100 = 0.0
    began = began_ns = 0
    while True:
        stats = server.stats()
        if stats.requests >= requests:
            break
        if not _is_running(child):
            raise BenchError(f"the command ended after {stats.requests} of {requests} requests")
        if stats.requests >= requests * 0.1:
            resident = resident_mib(child.pid)
            if not at_10:
                at_10, began, began_ns = resident, stats.requests, stats.now_ns
            at_100 = max(at_100, resident)
        time.sleep(_SAMPLE_S)
    return at_10, at_100, (stats.requests - began) / max(1e-9, (stats.now_ns - began_ns) / 1e9)


def _is_running(child: subprocess.Popen[bytes]) -> bool:
    """Without reaping it: its resource usage is read when it is."""
    told = os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    return told is None


def _wait(child: subprocess.Popen[bytes]) -> tuple[resource.struct_rusage, int]:
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    return usage, child.returncode


def main() -> None:
    parser = argparse.ArgumentParser(description="Resident memory over a long run.")
    parser.add_argument("--requests", type=int, default=100_000)
    parser.add_argument("--full", action="store_true", help="1,000,000 requests")
    parser.add_argument("--concurrency", type=int, default=32)
    parser.add_argument(
        "--results-only", action="store_true", help="only what follows the last answer, without a server"
    )
    args = parser.parse_args()
    requests = 1_000_000 if args.full else args.requests
    if args.results_only:
        print(f"{requests:,} synthetic requests of 8 tokens, 2 tenants; {machine()}", flush=True)
        for name, stage in result_memory.measure(requests).items():
            before = f", {stage.before:.0f} MiB when the last row was recorded" if stage.before else ""
            print(f"{name}: peak {stage.peak:.0f} MiB{before}, {stage.seconds:.1f} s")
        return
    print(f"{requests:,} one-token requests, {args.concurrency} users; {machine()}", flush=True)
    memory = measure(requests, args.concurrency)
    print(f"{memory.requests_per_s:,.0f} requests/s")
    print(
        f"resident: {memory.at_10:.0f} MiB after 10%, {memory.at_100:.0f} MiB at 100% ({memory.at_100 - memory.at_10:+.0f})"
    )
    print(f"peak with the writing of the results: {memory.peak:.0f} MiB")


if __name__ == "__main__":
    main()
