"""What a client costs: CPU us per streamed token and per request, lmperf and its peers in one run.

    python -m benchmarks.client_cost [--repeats 3] [--rounds 12] [--only NAME,NAME]

Every client streams the same answers (100 tokens: 50 ms to the first, then one every 10 ms) over 64 users from the same
server. While it runs, the CPU time of its whole process tree and the server's count of tokens are read every 0.2 s; the
cost of a token is the CPU time over the tokens between the 15% and the 90% of the run. So start-up, whose cost varies
by more than a run's tokens cost, is not in it, and neither is the writing of the results: both are in the column
*fixed*, the rest of the whole run's CPU time. The repeats are interleaved (every client once, then every client again),
so that a disturbance of the machine meets all of them, and the least of each figure is taken: what disturbs can only
add; the largest stands beside it. Every client's own result must hold every request with all its tokens, or it is left
out. *us/token* spreads the cost of a request over its tokens; *us/request* is the same per request. The server's own
share of a CPU stands last: it must be far below 1, or the server was the limit.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.client_harness import BenchError, Cost, FastServer, machine, run_measured
from benchmarks.client_peers import CLIENTS, Client, Load, Measured, NotHere
from benchmarks.process_tree import tree_cpu_s

STREAMS = 64
TOKENS = 100
_SAMPLE_S = 0.2
_STEADY = (0.15, 0.9)


@dataclass(frozen=True, slots=True)
class Run:
    """One run: the whole process's cost, CPU us a token in its steady part, and the server's CPU share."""

    cost: Cost
    us_per_token: float
    fixed_s: float
    server_share: float


@dataclass(slots=True)
class Ledger:
    """The runs of one client."""

    runs: list[Run] = field(default_factory=list)

    def us_per_token(self) -> float:
        return min(run.us_per_token for run in self.runs)

    def most_us_per_token(self) -> float:
        return max(run.us_per_token for run in self.runs)

    def fixed_s(self) -> float:
        return min(run.fixed_s for run in self.runs)

    def doubts(self) -> str:
        """How many runs called themselves invalid, in words."""
        doubtful = sum(run.cost.exit_code != 0 for run in self.runs)
        return f"  ({doubtful} of {len(self.runs)} runs say that they fell behind)" if doubtful else ""


class Sampler:
    """Reads a child's CPU time and the server's count of tokens while ``with`` lasts, from its own thread."""

    def __init__(self, server: FastServer) -> None:
        self._server = server
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)
        self._pid = 0
        self.samples: list[tuple[int, float]] = []

    def watch(self, pid: int) -> None:
        """Begin with the child ``pid``."""
        self._pid = pid
        self._thread.start()

    def finish(self) -> None:
        self._over.set()
        if self._pid:
            self._thread.join()

    def _sample(self) -> None:
        while not self._over.wait(_SAMPLE_S):
            try:
                tokens = self._server.stats().streamed
            except OSError:
                # The server has gone, with Ctrl-C for one. Whoever waits for its answers says so.
                return
            self.samples.append((tokens, tree_cpu_s(self._pid)))

    def us_per_token(self, before: int, wanted: int) -> float:
        """CPU us a token in the steady part of a run of ``wanted`` tokens that began at a count of ``before``. BenchError
        when the run was too short to have one.
        """
        least, most = (before + share * wanted for share in _STEADY)
        steady = [(tokens, cpu_s) for tokens, cpu_s in self.samples if least <= tokens <= most and cpu_s > 0]
        if len(steady) < 2 or steady[-1][0] <= steady[0][0]:
            raise BenchError(f"a run of {wanted} tokens was too short to sample")
        (first, from_s), (last, to_s) = steady[0], steady[-1]
        return (to_s - from_s) / (last - first) * 1e6


def require_all(name: str, measured: Sequence[Measured], requests: int, tokens: int = TOKENS) -> None:
    """BenchError unless the client itself says that it received all ``tokens`` of every request."""
    whole = sum(row.gaps == tokens - 1 for row in measured)
    if whole < requests:
        raise BenchError(f"{name} received all {tokens} tokens of {whole} requests where {requests} were asked for")


def run_once(
    client: Client, server: FastServer, requests: int, *, tokens: int = TOKENS, core: int | None = None
) -> Run:
    """One run of ``requests`` answers of ``tokens`` each over STREAMS users, on one ``core`` alone if it is given."""

    def started(pid: int) -> None:
        if core is not None:
            os.sched_setaffinity(pid, {core})
        sampler.watch(pid)

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        argv = client.argv(Load(url=server.url, requests=requests, streams=STREAMS, tokens=tokens), folder)
        before = server.stats()
        sampler = Sampler(server)
        try:
            cost = run_measured(argv, log=folder / "log.txt", doubts=client.doubts, env=client.env, on_start=started)
        finally:
            sampler.finish()
        after = server.stats()
        require_all(client.name, client.read(folder), requests, tokens)
    served = after.tokens - before.tokens
    # A peer may send a few requests of its own first (a ready check, a warm-up).
    if not requests * tokens <= served <= (requests + 2 * STREAMS) * tokens:
        raise BenchError(f"{client.name}: {served} tokens were served where {requests * tokens} were asked for")
    us_per_token = sampler.us_per_token(before.streamed, served)
    return Run(
        cost=cost,
        us_per_token=us_per_token,
        fixed_s=cost.cpu_s - us_per_token * served / 1e6,
        server_share=(after.cpu_s - before.cpu_s) / ((after.now_ns - before.now_ns) / 1e9),
    )


def measure(clients: Sequence[Client], rounds: int, repeats: int) -> tuple[dict[str, Ledger], dict[str, str]]:
    """Ledgers by client, and why the others were left out."""
    ledgers: dict[str, Ledger] = {}
    skipped: dict[str, str] = {}
    with FastServer() as server:
        for _ in range(repeats):
            for client in clients:
                if client.name in skipped:
                    continue
                try:
                    run = run_once(client, server, rounds * STREAMS)
                except (NotHere, BenchError) as reason:
                    skipped[client.name] = str(reason)
                    ledgers.pop(client.name, None)
                    print(f"{client.name}: left out: {reason}", file=sys.stderr)
                    continue
                ledgers.setdefault(client.name, Ledger()).runs.append(run)
                print(f"  {client.name}: {run.us_per_token:.1f} us/token", file=sys.stderr)
    return ledgers, skipped


def table(ledgers: dict[str, Ledger], skipped: dict[str, str]) -> str:
    """Lines for people; the ratio is of lmperf's cost per token to the client's."""
    ours = ledgers["lmperf"].us_per_token() if "lmperf" in ledgers else float("nan")
    head = ("client", "us/token", "to", "us/request", "lmperf is", "fixed, s", "wall, s", "peak, MiB", "server CPU")
    lines = ["{:22s} {:>9s} {:>6s} {:>11s} {:>10s} {:>9s} {:>8s} {:>10s} {:>11s}".format(*head)]
    for name, ledger in ledgers.items():
        least, costs = ledger.us_per_token(), [run.cost for run in ledger.runs]
        lines.append(
            f"{name:22s} {least:9.1f} {ledger.most_us_per_token():6.1f} {least * TOKENS:11.0f} {ours / least:9.2f}x "
            f"{ledger.fixed_s():9.2f} {min(cost.wall_s for cost in costs):8.1f} {max(cost.peak_mib for cost in costs):10.0f} "
            f"{max(run.server_share for run in ledger.runs):11.2f}{ledger.doubts()}"
        )
    lines += [f"{name:22s} skipped: {reason.splitlines()[0]}" for name, reason in skipped.items()]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description="CPU per streamed token, lmperf and peers.")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=12, help="requests per user")
    parser.add_argument("--only", help="names of clients, joined by commas")
    args = parser.parse_args()
    wanted = args.only.split(",") if args.only else None
    clients = [c for c in CLIENTS if wanted is None or any(name.lower() in c.name.lower() for name in wanted)]
    print(f"{STREAMS} users x {TOKENS} tokens, best of {args.repeats} in one run; {machine()}", flush=True)
    print(table(*measure(clients, args.rounds, args.repeats)))


if __name__ == "__main__":
    main()
