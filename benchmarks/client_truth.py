"""How far a client's figures are from what really happened, lmperf and its peers in one run.

    python -m benchmarks.client_truth [--repeats 3] [--streams 64] [--spread-ms 500] [--role-ms 40]
        [--only NAME,NAME]

The server writes, for every request, when it received it and when it handed each token to the socket, on the clock that
all processes of a host share. Client and truth are joined by ``x-request-id``, for a client that sends none by the id of
the answer. The error of one request is what the
client says minus the truth:

* TTFT: the client's, minus (first token - received). lmperf's counts from the intended arrival, so its own lateness is
  inside; the floors' and the peers' count from where they start a request.
* ITL: each gap, minus the same gap of the truth, without its sign; only where the client saw as many tokens as there
  were (``-`` if it never did: it took a chunk without a token for one). A client that keeps only a request's mean gap is
  compared with the true mean, and marked ``m``; the ends' errors are then divided by the number of gaps.
* E2E: the client's, minus (last token - received).
* seen: the instant of the first token on the shared clock, minus the truth's: how late the bytes were noticed, for
  clients that keep instants.

Without ``--spread-ms`` all answers are equally long, so all streams end and begin in step: a burst of requests every
second, the worst case for a client with one thread. With it the server delays each first token by up to that much, and
requests received in the first second, which every client sends as one burst, are left out.

Beside them the difference of the two P99s, which is what a reader of a summary is misled by. With ``--role-ms`` the
server sends a chunk with only a role that long before the first token: a client that takes it for a token shows a TTFT
that is too short by as much. The runs of one repeat follow each other; the best of the repeats is shown.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.client_harness import BenchError, FastServer, machine, run_measured
from benchmarks.client_peers import CLIENTS, Client, Load, Measured, NotHere
from benchmarks.fast_server import Truth

TOKENS = 100
_BURST_NS = 1_000_000_000
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
    itl_is_mean: bool = False

    @property
    def badness(self) -> float:
        """What the best repeat is chosen by."""
        itl = float(np.percentile(self.itl, 99)) if len(self.itl) else 0.0
        return float(np.percentile(np.abs(self.ttft), 99)) + itl


def compare(measured: Sequence[Measured], truths: Sequence[Truth], *, skip_first_ns: int = 0) -> Errors:
    """Join by request id, without those received in the first ``skip_first_ns``. BenchError when a request has no truth,
    or nothing is left to compare.
    """
    by_key = {key: truth for truth in truths for key in _keys(truth)}
    joined = [(row, _truth_of(row, by_key)) for row in measured]
    begin_ns = min((truth.received_ns for _, truth in joined), default=0) + skip_first_ns
    joined = [(row, truth) for row, truth in joined if truth.received_ns >= begin_ns]
    ttft, e2e, seen, itl = [], [], [], []
    true_ttft, true_e2e, true_gaps, said_gaps = [], [], [], []
    for row, truth in joined:
        gaps = np.diff(np.array(truth.token_ns, dtype=np.float64))
        true_ttft.append(truth.token_ns[0] - truth.received_ns)
        true_e2e.append(truth.token_ns[-1] - truth.received_ns)
        ttft.append(row.ttft_ns - true_ttft[-1])
        e2e.append(row.e2e_ns - true_e2e[-1])
        if row.first_ns is not None:
            seen.append(row.first_ns - truth.token_ns[0])
        if len(gaps) == row.gaps:
            itl.append(np.abs(row.itl_ns - (gaps if row.mean_of is None else gaps.mean())))
        true_gaps.append(gaps)
        said_gaps.append(np.broadcast_to(row.itl_ns, row.gaps))
    if not ttft:
        raise BenchError("nothing to compare: no request of the client could be joined with its truth")

    def shift(said: Sequence[float] | Floats, true: Sequence[float] | Floats) -> float:
        return float(np.percentile(said, 99) - np.percentile(true, 99)) / 1e6

    return Errors(
        requests=len(ttft),
        ttft=np.array(ttft) / 1e6,
        itl=np.concatenate([*itl, np.empty(0)]) / 1e6,
        e2e=np.array(e2e) / 1e6,
        seen=np.array(seen) / 1e6,
        ttft_p99_shift=shift([row.ttft_ns for row, _ in joined], true_ttft),
        itl_p99_shift=shift(np.concatenate(said_gaps), np.concatenate(true_gaps)),
        e2e_p99_shift=shift([row.e2e_ns for row, _ in joined], true_e2e),
        itl_is_mean=any(row.mean_of is not None for row, _ in joined),
    )


def _truth_of(row: Measured, by_key: Mapping[str, Truth]) -> Truth:
    truth = by_key.get(row.key) or by_key.get(_last_part(row.key))
    if truth is None:
        raise BenchError(f"request {row.key} of the client is not in the server's truth")
    return truth


def _last_part(client_id: str) -> str:
    return client_id.rpartition("-")[2]


def _keys(truth: Truth) -> tuple[str, ...]:
    """The whole request id, and the number that most clients put at its end; the answer's id where it had none."""
    if not truth.finished:
        return ()
    if truth.client_id is None:
        return (truth.answer_id,)
    return truth.client_id, _last_part(truth.client_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What all clients face: streams, requests per stream, and the server's spread and role chunk, ms (0: none)."""

    streams: int
    rounds: int
    spread_ms: float
    role_ms: float

    def flags(self) -> list[str]:
        role = ["--role-ms", str(self.role_ms)] if self.role_ms else []
        return ["--spread-ms", str(self.spread_ms), *role]

    def __str__(self) -> str:
        step = f"first tokens spread over {self.spread_ms:g} ms" if self.spread_ms else "in step"
        role = f", a role chunk {self.role_ms:g} ms before the first token" if self.role_ms else ""
        return f"{self.streams} streams x 100 tokens/s, {step}{role}"


def run_once(client: Client, setting: Setting) -> Errors:
    """One client against a server of its own, so that truths cannot be mixed up."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with FastServer(*setting.flags(), truth=folder / "truth.jsonl") as server:
            requests = setting.streams * setting.rounds
            load = Load(url=server.url, requests=requests, streams=setting.streams, tokens=TOKENS)
            argv = client.argv(load, folder)
            run_measured(argv, log=folder / "log.txt", doubts=client.doubts, env=client.env)
            truths = server.truth()
        return compare(client.read(folder), truths, skip_first_ns=_BURST_NS if setting.spread_ms else 0)


def measure(clients: Sequence[Client], setting: Setting, repeats: int) -> dict[str, Errors | str]:
    """The best repeat of each client, or why there is none."""
    best: dict[str, Errors | str] = {}
    for _ in range(repeats):
        for client in clients:
            found = best.get(client.name)
            if isinstance(found, str):
                continue
            try:
                errors = run_once(client, setting)
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
        mark = "m" if errors.itl_is_mean else ""
        lines.append(
            f"{name:22s} {pair(errors.ttft):>16s} {pair(errors.itl) + mark:>14s} {pair(errors.e2e):>16s} "
            f"{pair(errors.seen):>14s} {errors.ttft_p99_shift:+9.2f} {errors.itl_p99_shift:+9.2f} "
            f"{errors.e2e_p99_shift:+9.2f}"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description="Client minus truth, ms.")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=6, help="requests per stream")
    parser.add_argument("--spread-ms", type=float, default=0.0, help="spread of the first tokens; 0: all in step")
    parser.add_argument("--role-ms", type=float, default=0.0, help="a role chunk, that long before the first token")
    parser.add_argument("--only", help="names of clients, joined by commas")
    args = parser.parse_args()
    wanted = args.only.lower().split(",") if args.only else [""]
    clients = [c for c in CLIENTS if any(name in c.name.lower() for name in wanted)]
    setting = Setting(streams=args.streams, rounds=args.rounds, spread_ms=args.spread_ms, role_ms=args.role_ms)
    print(f"client minus truth, ms, P50 / P99 of the errors, then the shift of the P99s; {setting}")
    print(f"best of {args.repeats} in one run; {machine()}", flush=True)
    print(table(measure(clients, setting, args.repeats)))


if __name__ == "__main__":
    main()
