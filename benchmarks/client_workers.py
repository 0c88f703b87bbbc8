"""How many streams N workers carry at equal error: ``lmperf run --workers N``, N = 1, 2, 4, 8, as far as there are cores.

    python -m benchmarks.client_workers [--workers 1,2,4,8] [--bound-ms 5] [--duration 8] [--probes 5] [--policy fifo|none]

A stream is a user who asks for 100 tokens, the first after 50 to 550 ms, then one every 10 ms, and asks again at once: 100
tokens/s while it streams. Users are spread over several servers (``benchmarks.fast_server``, one process each, a tenant
each), which write when they handed each token to the socket, on the clock that all processes of a host share.

N workers *carry* S streams when, over all requests that arrive after the first part of the run,

* the P99 of own lateness (what lmperf says of itself: from the intended arrival to the last byte handed to the socket, less
  the queue and connecting) is at most the bound, and
* the P99 of how late tokens were seen (lmperf's stamp less the server's, every token) is at most the bound.

For each N the largest such S is searched, from what one worker carries times N, by steps of a quarter until it is bracketed
and then by bisection, with ``--probes`` runs at most. lmperf runs as users run it: the whole command, trace and histograms on,
and by default one policy's queue before all workers, with as many slots as streams. *x one* is the ratio to one worker.

Servers need cores too: with 16 cores, 8 workers and 6 servers leave two for the queue and the system.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.client_harness import INVALID, BenchError, FastServer, machine, run_measured
from benchmarks.fast_server import Truth
from loadgen.trace.reader import read_trace

TOKENS = 100
_STEP = 1.25
_CLOSE_ENOUGH = 1.08
_SKIPPED_SHARE = 0.3
_OPEN_FILES = 1 << 16
_FLAGS = ("--first-ms", "50", "--gap-ms", "10", "--spread-ms", "500")


@dataclass(frozen=True, slots=True)
class Setting:
    """What all probes share."""

    servers: int
    duration_s: float
    policy: str
    bound_ms: float
    most_streams: int


@dataclass(frozen=True, slots=True)
class Probe:
    """One run. Times in ms; CPU shares of one core: the busiest worker, the process of the queue, the busiest server."""

    workers: int
    streams: int
    tokens_per_s: float
    lateness_p99: float
    seen_p50: float
    seen_p99: float
    worker_cpu: float
    queue_cpu: float
    server_cpu: float
    bound_ms: float

    @property
    def carried(self) -> bool:
        return self.lateness_p99 <= self.bound_ms and self.seen_p99 <= self.bound_ms

    def line(self) -> str:
        said = "carried" if self.carried else "NOT carried"
        return (
            f"  {self.workers} workers, {self.streams} streams: {self.tokens_per_s:,.0f} tokens/s, own lateness P99 "
            f"{self.lateness_p99:.2f} ms, tokens seen {self.seen_p50:.2f} / {self.seen_p99:.2f} ms late (P50 / P99), CPU of "
            f"worker {self.worker_cpu:.2f}, queue {self.queue_cpu:.2f}, server {self.server_cpu:.2f}: {said}"
        )


def scenario(urls: Sequence[str], streams: int, setting: Setting) -> str:
    """A tenant a server; the users are dealt to them."""
    slots = "" if setting.policy == "none" else f"slots: {{sequences: {streams}, prefill_tokens: null}}\n"
    tenants = "".join(
        f"  s{i}: {{users: {streams // len(urls) + (i < streams % len(urls))}, prompt: 50, output: {TOKENS}, "
        f'base_url: "{url}"}}\n'
        for i, url in enumerate(urls)
        if i < streams
    )
    return (
        f"version: 1\nname: workers\nduration_s: {setting.duration_s}\ndrain_s: 20\n"
        f"judge: [{_SKIPPED_SHARE}, 1.0]\n"
        f'backend: {{kind: openai, url: "{urls[0]}"}}\npolicy: {setting.policy}\n{slots}tenants:\n{tenants}'
    )


def probe(workers: int, streams: int, setting: Setting) -> Probe:
    """One run of ``workers`` with ``streams`` users, against servers of its own."""
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        servers = [
            stack.enter_context(FastServer(*_FLAGS, truth=folder / f"truth-{i}.jsonl")) for i in range(setting.servers)
        ]
        (folder / "workers.yaml").write_text(scenario([server.url for server in servers], streams, setting))
        argv = [sys.executable, "-m", "lmperf", "run", "workers.yaml", "--workers", str(workers), "--quiet"]
        before = [server.stats() for server in servers]
        run_measured([*argv, "--output-dir", "out"], log=folder / "log.txt", doubts=INVALID)
        after = [server.stats() for server in servers]
        truths = {_id_of(truth): truth for server in servers for truth in server.truth() if truth.client_id}
        summary = json.loads((folder / "out" / "summary.json").read_text())
        late_ns, tokens = _seen(folder / "out", truths, setting)
        # The servers also idle while the command starts and writes its results.
        cpu_s = max(b.cpu_s - a.cpu_s for a, b in zip(before, after, strict=True))
    shares = summary["server"].get("generator_cpu_shares", {"alone": summary["server"]["generator_cpu_share"]})
    of_workers = [share for process, share in shares.items() if process != "the process of the queue"]
    start_s, end_s = summary["window_s"]
    return Probe(
        workers=workers,
        streams=streams,
        tokens_per_s=tokens / (end_s - start_s),
        lateness_p99=summary["lateness"]["p99_ms"],
        seen_p50=float(np.percentile(late_ns, 50)) / 1e6,
        seen_p99=float(np.percentile(late_ns, 99)) / 1e6,
        worker_cpu=max(of_workers),
        queue_cpu=shares.get("the process of the queue", 0.0),
        server_cpu=cpu_s / summary["duration_s"],
        bound_ms=setting.bound_ms,
    )


def _id_of(truth: Truth) -> int:
    assert truth.client_id is not None, "asked for"
    return int(truth.client_id.rpartition("-")[2])


def _seen(folder: Path, truths: dict[int, Truth], setting: Setting) -> tuple[np.ndarray, int]:
    """(how late each token of the judged requests was seen, ns; how many tokens those are). BenchError when a finished
    request has no truth.
    """
    trace = read_trace(folder)
    start_ns = trace.metadata.start_monotonic_ns or 0
    late, tokens = [], 0
    for outcome in trace.outcomes():
        if outcome.request.arrival_ns < _SKIPPED_SHARE * setting.duration_s * 1e9 or outcome.chunk_offsets_us is None:
            continue
        truth = truths.get(outcome.request.id)
        if truth is None:
            raise BenchError(f"request {outcome.request.id} has no truth of any server")
        tokens += outcome.output_tokens or 0
        sent = np.array(truth.token_ns, dtype=np.int64)
        seen = start_ns + (outcome.first_token_ns or 0) + outcome.chunk_offsets_us * 1000
        if len(seen) == len(sent):
            late.append(seen - sent)
    if not late:
        raise BenchError("no request of the judged part was answered whole: a longer --duration would be right")
    return np.concatenate(late), tokens


def most_carried(workers: int, start: int, setting: Setting, probes: int, until_s: float) -> Probe | None:
    """The best probe that is carried; None when none was. No probe begins after ``until_s`` (monotonic) but the first."""
    best: Probe | None = None
    too_many: int | None = None
    streams = start
    for number in range(probes):
        if number and time.monotonic() > until_s:
            break
        found = probe(workers, streams, setting)
        print(found.line(), flush=True)
        if found.carried:
            best = found
        else:
            too_many = streams
        if best is not None and too_many is not None:
            if too_many / best.streams < _CLOSE_ENOUGH:
                break
            streams = round((best.streams * too_many) ** 0.5)
        else:
            streams = round(streams * _STEP) if best is not None else round(streams / _STEP)
        if not 1 <= streams <= setting.most_streams or (best is not None and streams == best.streams):
            break
    return best


def table(found: dict[int, Probe | None]) -> str:
    head = f"{'workers':>7s} {'streams':>8s} {'x one':>6s} {'tokens/s':>10s} {'lateness P99':>13s} {'seen P50 / P99':>15s} "
    lines = [head + f"{'worker CPU':>11s} {'queue CPU':>10s} {'server CPU':>11s}"]
    one = found.get(1)
    for workers, best in found.items():
        if best is None:
            lines.append(f"{workers:7d} {'none':>8s}")
            continue
        ratio = f"{best.streams / one.streams:6.2f}" if one is not None else "     -"
        lines.append(
            f"{workers:7d} {best.streams:8d} {ratio} {best.tokens_per_s:10,.0f} {best.lateness_p99:13.2f} "
            f"{best.seen_p50:7.2f} / {best.seen_p99:5.2f} {best.worker_cpu:11.2f} {best.queue_cpu:10.2f} "
            f"{best.server_cpu:11.2f}"
        )
    return "\n".join(lines)


def main() -> None:
    cpus = os.cpu_count() or 1
    parser = argparse.ArgumentParser(description="Streams that N workers carry at equal error.")
    parser.add_argument(
        "--workers", help="numbers of workers, joined by commas (default: 1,2,4,8 up to half the cores)"
    )
    parser.add_argument("--servers", type=int, default=max(1, cpus * 3 // 8), help="server processes (%(default)s)")
    parser.add_argument("--start", type=int, default=300, help="streams tried first with one worker (%(default)s)")
    parser.add_argument("--most", type=int, default=20_000, help="streams never exceeded (%(default)s)")
    parser.add_argument("--duration", type=float, default=8.0, metavar="S", help="arrivals of a run, s (%(default)s)")
    parser.add_argument("--probes", type=int, default=5, help="runs for one N at most (%(default)s)")
    parser.add_argument(
        "--budget", type=float, default=330.0, metavar="S", help="for all runs together, s (%(default)s)"
    )
    parser.add_argument("--bound-ms", type=float, default=5.0, help="of both P99s (%(default)s)")
    parser.add_argument("--policy", default="fifo", help="the queue before all workers, or none (%(default)s)")
    args = parser.parse_args()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _OPEN_FILES if hard == resource.RLIM_INFINITY else min(_OPEN_FILES, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    numbers = [n for n in (1, 2, 4, 8) if n == 1 or n <= cpus // 2]
    if args.workers:
        numbers = [int(text) for text in args.workers.split(",")]
    setting = Setting(args.servers, args.duration, args.policy, args.bound_ms, args.most)
    print(f"streams carried with both P99s within {args.bound_ms:g} ms; {setting}; {machine()}", flush=True)
    found: dict[int, Probe | None] = {}
    began_s = time.monotonic()
    for place, workers in enumerate(numbers):
        one = found.get(1)
        start = args.start if one is None else one.streams * workers
        left_s = args.budget - (time.monotonic() - began_s)
        until_s = time.monotonic() + left_s / (len(numbers) - place)
        found[workers] = most_carried(workers, max(1, min(start, args.most)), setting, args.probes, until_s)
    print(table(found))


if __name__ == "__main__":
    main()
