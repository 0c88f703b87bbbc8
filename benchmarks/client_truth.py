"""How far a client's figures are from what really happened, lmperf and its peers in one run.

    python -m benchmarks.client_truth [--repeats 3] [--streams 64] [--role-ms 40] [--only NAME,NAME]

The server writes, for every request, when it received it and when it handed each token to the socket, on the clock that
all processes of a host share. Client and truth are joined by ``x-request-id``. The error of one request is what the
client says minus the truth:

* TTFT: the client's, minus (first token - received). lmperf's counts from the intended arrival, so its own lateness is
  inside; the floors' and the peers' count from where they start a request.
* ITL: each gap, minus the same gap of the truth, without its sign; only where the client saw as many chunks as there were.
* E2E: the client's, minus (last token - received).
* seen: the instant of the first token on the shared clock, minus the truth's: how late the bytes were noticed, for
  clients that keep instants.

Beside them the difference of the two P99s, which is what a reader of a summary is misled by. With ``--role-ms`` the
server sends a chunk with only a role that long before the first token: a client that takes it for a token shows a TTFT
that is too short by as much. The runs of one repeat follow each other; the best of the repeats is shown.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.client_harness import BenchError, FastServer, machine, run_measured
from benchmarks.client_peers import CLIENTS, Client, Load, Measured, NotHere
from benchmarks.fast_server import Truth

TOKENS = 100
Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Errors:
    """Client minus truth, ms; ``seen`` is empty for a client that keeps durations only."""

    requests: int
    ttft: Floats
    itl: Floats
    e2e: Floats
    seen: Floats
    ttft_p99_shift: float
    itl_p99_shift: float
    e2e_p99_shift: float

    @property
    def badness(self) -> float:
        """What the best repeat is chosen by."""
        return float(np.percentile(np.abs(self.ttft), 99) + np.percentile(self.itl, 99))


def compare(measured: Sequence[Measured], truths: Sequence[Truth]) -> Errors:
    """Join by request number. BenchError when a request has no truth, or nothing is left to compare."""
    by_key = {key: truth for truth in truths for key in _keys(truth)}
    ttft, e2e, seen, itl = [], [], [], []
    true_ttft, true_e2e, true_gaps, said_gaps = [], [], [], []
    for row in measured:
        truth = by_key.get(row.key) or by_key.get(_last_part(row.key))
        if truth is None:
            raise BenchError(f"request {row.key} of the client is not in the server's truth")
        gaps = np.diff(np.array(truth.token_ns, dtype=np.float64))
        true_ttft.append(truth.token_ns[0] - truth.received_ns)
        true_e2e.append(truth.token_ns[-1] - truth.received_ns)
        ttft.append(row.ttft_ns - true_ttft[-1])
        e2e.append(row.e2e_ns - true_e2e[-1])
        if row.first_ns is not None:
            seen.append(row.first_ns - truth.token_ns[0])
        if len(gaps) == len(row.itl_ns):
            itl.append(np.abs(row.itl_ns - gaps))
        true_gaps.append(gaps)
        said_gaps.append(row.itl_ns)
    if not ttft or not itl:
        raise BenchError("nothing to compare: no request of the client could be joined with its truth")

    def shift(said: Sequence[float] | Floats, true: Sequence[float] | Floats) -> float:
        return float(np.percentile(said, 99) - np.percentile(true, 99)) / 1e6

    return Errors(
        requests=len(ttft),
        ttft=np.array(ttft) / 1e6,
        itl=np.concatenate(itl) / 1e6,
        e2e=np.array(e2e) / 1e6,
        seen=np.array(seen) / 1e6,
        ttft_p99_shift=shift([row.ttft_ns for row in measured], true_ttft),
        itl_p99_shift=shift(np.concatenate(said_gaps), np.concatenate(true_gaps)),
        e2e_p99_shift=shift([row.e2e_ns for row in measured], true_e2e),
    )


def _last_part(client_id: str) -> str:
    return client_id.rpartition("-")[2]


def _keys(truth: Truth) -> tuple[str, ...]:
    """The whole request id, and the number that most clients put at its end."""
    if not truth.finished or truth.client_id is None:
        return ()
    return truth.client_id, _last_part(truth.client_id)


def run_once(client: Client, *, streams: int, requests: int, role_ms: float | None) -> Errors:
    """One client against a server of its own, so that truths cannot be mixed up."""
    assert client.read is not None, "chosen for it"
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        flags = [] if role_ms is None else ["--role-ms", str(role_ms)]
        with FastServer(*flags, truth=folder / "truth.jsonl") as server:
            argv = client.argv(Load(url=server.url, requests=requests, streams=streams, tokens=TOKENS), folder)
            run_measured(argv, log=folder / "log.txt", doubts=client.doubts, env=client.env)
            truths = server.truth()
        return compare(client.read(folder), truths)


def measure(
    clients: Sequence[Client], *, streams: int, rounds: int, repeats: int, role_ms: float | None
) -> dict[str, Errors | str]:
    """The best repeat of each client, or why there is none."""
    best: dict[str, Errors | str] = {}
    for _ in range(repeats):
        for client in clients:
            found = best.get(client.name)
            if isinstance(found, str):
                continue
            try:
                errors = run_once(client, streams=streams, requests=streams * rounds, role_ms=role_ms)
            except (NotHere, BenchError) as reason:
                best[client.name] = str(reason)
                continue
            if found is None or errors.badness < found.badness:
                best[client.name] = errors
            print(f"  {client.name}: done", file=sys.stderr)
    return best


def table(best: dict[str, Errors | str]) -> str:
    def pair(values: Floats) -> str:
        if not len(values):
            return "-"
        return f"{np.percentile(values, 50):.2f} / {np.percentile(values, 99):.2f}"

    head = ("client", "TTFT", "ITL", "E2E", "seen", "TTFT P99", "ITL P99", "E2E P99")
    lines = ["{:22s} {:>16s} {:>14s} {:>16s} {:>14s} {:>9s} {:>9s} {:>9s}".format(*head)]
    for name, errors in best.items():
        if isinstance(errors, str):
            lines.append(f"{name:22s} skipped: {errors.splitlines()[0]}")
            continue
        lines.append(
            f"{name:22s} {pair(errors.ttft):>16s} {pair(errors.itl):>14s} {pair(errors.e2e):>16s} "
            f"{pair(errors.seen):>14s} {errors.ttft_p99_shift:+9.2f} {errors.itl_p99_shift:+9.2f} "
            f"{errors.e2e_p99_shift:+9.2f}"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description="Client minus truth, ms.")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=6, help="requests per stream")
    parser.add_argument("--role-ms", type=float, help="a role chunk, that long before the first token")
    parser.add_argument("--only", help="names of clients, joined by commas")
    args = parser.parse_args()
    wanted = args.only.lower().split(",") if args.only else [""]
    clients = [c for c in CLIENTS if c.read is not None and any(name in c.name.lower() for name in wanted)]
    role = "" if args.role_ms is None else f", a role chunk {args.role_ms:g} ms before the first token"
    print(
        f"client minus truth, ms, P50 / P99 of the errors, then the shift of the P99s; {args.streams} streams x 100 tokens/s"
    )
    print(f"best of {args.repeats} in one run{role}; {machine()}", flush=True)
    streams, rounds, repeats = args.streams, args.rounds, args.repeats
    print(table(measure(clients, streams=streams, rounds=rounds, repeats=repeats, role_ms=args.role_ms)))


if __name__ == "__main__":
    main()
