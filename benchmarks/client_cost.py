"""What a client costs: CPU us per streamed token and per request, lmperf and its peers in one run.

    python -m benchmarks.client_cost [--repeats 3] [--rounds 20] [--only NAME,NAME]

Every client streams the same answers (100 tokens: 50 ms to the first, then one every 10 ms) over 64 users from the same
server. Each runs twice per repeat, with few and with many requests; the difference between the two is what the added
requests cost, free of imports and start-up, which are the column *fixed*. The repeats are interleaved (every client once, then
every client again), so that a disturbance of the machine meets all of them, and the least of each figure is taken: what
disturbs can only add. *us/token* spreads all of that cost over the tokens; *us/request* is the same per request.
The server's own share of a CPU stands last: it must be far below 1, or the server was the limit.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.client_harness import BenchError, Cost, FastServer, machine, run_measured
from benchmarks.client_peers import CLIENTS, Client, Load, NotHere

STREAMS = 64
TOKENS = 100
_FEW_ROUNDS = 2


@dataclass(slots=True)
class Ledger:
    """The runs of one client: cost by the number of requests, and the server's CPU share of each run."""

    costs: dict[int, list[Cost]] = field(default_factory=dict)
    server_shares: list[float] = field(default_factory=list)

    def slope_us_per_request(self) -> float:
        """The least of the long runs less the least of the short ones, per added request. Not the least difference of a
        pair, which a disturbed short run would make too small.
        """
        few, many = sorted(self.costs)
        return (self.least_cpu_s(many) - self.least_cpu_s(few)) / (many - few) * 1e6

    def least_cpu_s(self, requests: int) -> float:
        return min(cost.cpu_s for cost in self.costs[requests])

    def fixed_s(self) -> float:
        few = min(self.costs)
        return self.least_cpu_s(few) - self.slope_us_per_request() * few / 1e6

    def doubts(self) -> str:
        """How many runs called themselves invalid, in words."""
        runs = [cost for costs in self.costs.values() for cost in costs]
        doubtful = sum(cost.exit_code != 0 for cost in runs)
        return f"  ({doubtful} of {len(runs)} runs say that they fell behind)" if doubtful else ""

    def longest(self) -> Cost:
        return min(self.costs[max(self.costs)], key=lambda cost: cost.cpu_s)


def run_once(client: Client, server: FastServer, requests: int, ledger: Ledger) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        argv = client.argv(Load(url=server.url, requests=requests, streams=STREAMS, tokens=TOKENS), folder)
        before = server.stats()
        cost = run_measured(argv, log=folder / "log.txt", doubts=client.doubts, env=client.env)
        after = server.stats()
    served = after.tokens - before.tokens
    # A peer may send a few requests of its own first (a ready check, a warm-up).
    if not requests * TOKENS <= served <= (requests + 2 * STREAMS) * TOKENS:
        raise BenchError(f"{client.name}: {served} tokens were served where {requests * TOKENS} were asked for")
    ledger.costs.setdefault(requests, []).append(cost)
    ledger.server_shares.append((after.cpu_s - before.cpu_s) / ((after.now_ns - before.now_ns) / 1e9))


def measure(clients: list[Client], rounds: int, repeats: int) -> tuple[dict[str, Ledger], dict[str, str]]:
    """Ledgers by client, and why the others were left out."""
    ledgers = {client.name: Ledger() for client in clients}
    skipped: dict[str, str] = {}
    with FastServer() as server:
        for _ in range(repeats):
            for client in clients:
                for requests in (_FEW_ROUNDS * STREAMS, rounds * STREAMS):
                    if client.name in skipped:
                        continue
                    try:
                        run_once(client, server, requests, ledgers[client.name])
                    except (NotHere, BenchError) as reason:
                        skipped[client.name] = str(reason)
                        ledgers.pop(client.name)
                        print(f"{client.name}: left out: {reason}", file=sys.stderr)
                print(f"  {client.name}: done", file=sys.stderr)
    return ledgers, skipped


def table(ledgers: dict[str, Ledger], skipped: dict[str, str]) -> str:
    """Lines for people; the ratio is to lmperf's own cost per token."""
    ours = ledgers["lmperf"].slope_us_per_request() if "lmperf" in ledgers else float("nan")
    head = ("client", "us/token", "us/request", "lmperf is", "fixed, s", "wall, s", "peak, MiB", "server CPU")
    lines = ["{:22s} {:>9s} {:>11s} {:>10s} {:>9s} {:>8s} {:>10s} {:>11s}".format(*head)]
    for name, ledger in ledgers.items():
        slope, longest = ledger.slope_us_per_request(), ledger.longest()
        lines.append(
            f"{name:22s} {slope / TOKENS:9.1f} {slope:11.0f} {ours / slope:9.2f}x {ledger.fixed_s():9.2f} "
            f"{longest.wall_s:8.1f} {longest.peak_mib:10.0f} {max(ledger.server_shares):11.2f}{ledger.doubts()}"
        )
    lines += [f"{name:22s} skipped: {reason.splitlines()[0]}" for name, reason in skipped.items()]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description="CPU per streamed token, lmperf and peers.")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=20, help="requests of the long run, per user")
    parser.add_argument("--only", help="names of clients, joined by commas")
    args = parser.parse_args()
    wanted = args.only.split(",") if args.only else None
    clients = [c for c in CLIENTS if wanted is None or any(name.lower() in c.name.lower() for name in wanted)]
    print(f"{STREAMS} users x {TOKENS} tokens, best of {args.repeats} in one run; {machine()}", flush=True)
    print(table(*measure(clients, args.rounds, args.repeats)))


if __name__ == "__main__":
    main()
