"""What a token costs lmperf and another client *at the same moment*: pairs of runs, side by side.

    python -m benchmarks.client_pairs [--pairs 8] [--tokens 100,400] [--rounds 8] [--against protocol,vllm,plain]

A shared machine changes from minute to minute by more than two clients differ, so runs one after another say little. Here
both run at once, each against a server of its own. With four cores or more each of the four processes has one to itself;
with two, each client has one and shares it with the *other's* server, and from pair to pair the sides are changed. So what
disturbs the one disturbs the other. lmperf starts when the other has all its users' streams open, so that the start-up of
neither is in the steady part of the other. Costs are those of :mod:`benchmarks.client_cost`: all CPU time of the client's
processes between the 15% and the 90% of its run, over the tokens of that time.

``plain`` is lmperf itself in plain Python, where it is compiled (``lmperf.compiled``) otherwise.

The figure is the ratio of a pair; printed are its median, least and largest over the pairs, and each pair's costs. The longer
the answers, the less of a token's cost is its request's. Ctrl-C and SIGTERM end it with the summary of the pairs
that are finished.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.client_cost import STREAMS, Run, run_once
from benchmarks.client_harness import BenchError, FastServer, machine
from benchmarks.client_peers import AIOHTTP, LMPERF, PROTOCOL, VLLM, Client, NotHere
from benchmarks.plain_copy import copied
from lmperf.cli.stopping import heard_once

PEERS = {"protocol": PROTOCOL, "aiohttp": AIOHTTP, "vllm": VLLM}
PLAIN = "plain"
INTERRUPTED = 130
"""The exit code of a benchmark that was cut short, as of any command that SIGINT ended."""

_POLL_S = 0.1
_OPEN_TIMEOUT_S = 120.0


@dataclass(frozen=True, slots=True)
class Seats:
    """The core of each process of a pair."""

    client: int
    server: int
    other_client: int
    other_server: int


def seats(cores: Sequence[int], pair: int) -> Seats:
    """Who sits where in the ``pair``-th pair: two change sides every time. BenchError for a single core."""
    if len(cores) < 2:
        raise BenchError("a pair needs two cores")
    if len(cores) >= 4:
        one, two = tuple(cores[:2]), tuple(cores[2:4])
    else:
        one, two = (cores[0], cores[1]), (cores[1], cores[0])
    if pair % 2:
        one, two = two, one
    return Seats(*one, *two)


@dataclass(frozen=True, slots=True)
class Pair:
    """Two runs at the same time."""

    lmperf: Run
    other: Run

    @property
    def ratio(self) -> float:
        """What a token costs lmperf, over what it costs the other."""
        return self.lmperf.us_per_token / self.other.us_per_token

    def __str__(self) -> str:
        doubt = "" if self.lmperf.cost.exit_code == 0 else ", lmperf says that it fell behind"
        servers = f"servers {self.lmperf.server_share:.2f} and {self.other.server_share:.2f} of a CPU"
        return (
            f"{self.ratio:.2f} ({self.lmperf.us_per_token:.1f} and {self.other.us_per_token:.1f} us/token, "
            f"{servers}{doubt})"
        )


def _wait_until_open(server: FastServer, over: threading.Event) -> None:
    deadline = time.monotonic() + _OPEN_TIMEOUT_S
    while server.stats().open_streams < STREAMS and not over.is_set():
        if time.monotonic() > deadline:
            raise BenchError(f"fewer than {STREAMS} streams were open after {_OPEN_TIMEOUT_S:.0f} s")
        time.sleep(_POLL_S)


def run_pair(peer: Client, *, rounds: int, tokens: int, number: int) -> Pair:
    """One pair. NotHere or BenchError as a single run raises them."""
    at = seats(sorted(os.sched_getaffinity(0)), number)
    over = threading.Event()
    with FastServer() as server, FastServer() as other_server, ThreadPoolExecutor(1) as beside:
        server.pin(at.server)
        other_server.pin(at.other_server)

        def other_run() -> Run:
            try:
                return run_once(peer, other_server, rounds * STREAMS, tokens=tokens, core=at.other_client)
            finally:
                over.set()

        other = beside.submit(other_run)
        _wait_until_open(other_server, over)
        # A peer that could not be started says so, instead of lmperf running alone.
        if over.is_set():
            other.result()
        run = run_once(LMPERF, server, rounds * STREAMS, tokens=tokens, core=at.client)
        return Pair(run, other.result())


def summary(peer: str, tokens: int, pairs: Sequence[Pair]) -> str:
    """One line for people."""
    ratios = [pair.ratio for pair in pairs]
    ours = statistics.median(pair.lmperf.us_per_token for pair in pairs)
    theirs = statistics.median(pair.other.us_per_token for pair in pairs)
    return (
        f"{peer:22s} {tokens:6d} {statistics.median(ratios):8.2f} {min(ratios):6.2f} {max(ratios):6.2f} "
        f"{len(pairs):6d} {ours:9.1f} {theirs:9.1f}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="CPU per streamed token of lmperf and another client, side by side.")
    parser.add_argument("--pairs", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=8, help="requests per user")
    parser.add_argument("--tokens", default="100,400", help="lengths of an answer, joined by commas")
    parser.add_argument("--against", default="protocol,vllm", help=f"of {', '.join((*PEERS, PLAIN))}")
    args = parser.parse_args()
    unknown = [name for name in args.against.split(",") if name not in {*PEERS, PLAIN}]
    if unknown:
        parser.error(f"--against {unknown[0]}: one of {', '.join((*PEERS, PLAIN))}")
    print(f"{STREAMS} users each, {args.pairs} pairs side by side; {machine()}", flush=True)
    lines: list[str] = []
    interrupted = False
    try:
        with heard_once(), tempfile.TemporaryDirectory(prefix="lmperf-plain-") as folder:
            for name in args.against.split(","):
                peer = _in_plain_python(Path(folder)) if name == PLAIN else PEERS[name]
                for tokens in map(int, args.tokens.split(",")):
                    rounds = max(2, round(args.rounds * 100 / tokens))
                    _against(peer, tokens, pairs=args.pairs, rounds=rounds, lines=lines)
    except KeyboardInterrupt:
        interrupted = True
    head = ("lmperf beside", "tokens", "median", "least", "most", "pairs", "us/token", "the other")
    print("{:22s} {:>6s} {:>8s} {:>6s} {:>6s} {:>6s} {:>9s} {:>9s}".format(*head))
    print("\n".join(lines))
    if interrupted:
        print("interrupted: of the pairs that were finished", flush=True)
        sys.exit(INTERRUPTED)


def _in_plain_python(folder: Path) -> Client:
    path = os.pathsep.join(filter(None, (str(copied(folder)), os.environ.get("PYTHONPATH"))))
    return replace(LMPERF, name="lmperf, plain Python", env={"PYTHONPATH": path})


def _against(peer: Client, tokens: int, *, pairs: int, rounds: int, lines: list[str]) -> None:
    """Adds to ``lines`` what the pairs came to, also when it is interrupted among them."""
    done: list[Pair] = []
    try:
        for number in range(pairs):
            done.append(run_pair(peer, rounds=rounds, tokens=tokens, number=number))
            print(f"  {peer.name}, {tokens} tokens: {done[-1]}", file=sys.stderr, flush=True)
    except (NotHere, BenchError) as reason:
        print(f"  {peer.name}, {tokens} tokens: {reason}", file=sys.stderr, flush=True)
        lines.append(f"{peer.name:22s} skipped: {str(reason).splitlines()[0]}")
    finally:
        if done:
            lines.append(summary(peer.name, tokens, done))


if __name__ == "__main__":
    main()
