"""The published measurements of the virtual token counter (Sheng et al., OSDI 2024) on an A10G, simulated.

    python -m benchmarks.vtc_a10g [FOLDER]

FOLDER (default: beside the checkout) holds three result files of the authors' artifact and their cost profile. All requests
have 256 tokens in and 256 out, so a run tells nothing of the law's terms apart: these come from the cost profile, which says
what a decode step of a given batch, and a prompt, cost on that machine. One figure is calibrated, on the FCFS overload run
alone: how much slower a step is in a run than in the profile (sampling, scheduling, the prefill of the others), so that the
last request ends when it did. The seats are the median of how many decoded at once. Then the same arrivals are replayed under
``fifo`` and ``vtc``. The law of the last calibration is kept as ``FITTED``, so that a test needs none.

Service is w_p 1 and w_q 2, a request's spread evenly from its first to its last token; the service difference is the largest
|W_i(0, t) - W_j(0, t)| over seconds t while both are backlogged.
"""

from __future__ import annotations

import argparse
import gzip
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls

from scheduler.dispatcher import Dispatcher
from scheduler.dispatcher_config import DispatcherConfig
from scheduler.drivers.simulated import Simulation
from scheduler.request import Outcome, Request
from scheduler.server_model.build import build_server
from scheduler.server_model.spec import ServerLimits, StepLaw
from scheduler.slots import Slots
from tenants.tenant import Tenant

DEFAULT = Path(__file__).resolve().parents[1].parent / "shared" / "traces" / "vtc-a10g"
FCFS, VTC, MULTI = (
    "FCFS__all_results_overload.jsonl.gz",
    "VTC__all_results_overload.jsonl.gz",
    "FCFS__all_results_overload-multi.jsonl.gz",
)
KV_TOKENS = 10_000
BOUND = 2 * max(256, 2 * KV_TOKENS)
"""2 max(w_p L_in, w_q M), of the paper."""
S = 1_000_000_000
TTFT = ("mean", "P50", "P90", "P99")

FITTED = StepLaw(a_us=18_891.0, b_us=237.73, c_us=247.2, d_us=2.2264)
SEATS = 20

Floats = NDArray[np.float64]


class Run:
    """Requests of one run: client, arrival, first and last token (s), prompt and output tokens; parallel arrays."""

    def __init__(self, client: Sequence[str], sent: Floats, first: Floats, last: Floats, lengths: NDArray[np.int64]):
        self.client = np.array(client)
        self.sent, self.first, self.last, self.lengths = sent, first, last, lengths
        self.clients = tuple(sorted(set(client)))

    def service(self, client: str, until_s: int) -> Floats:
        """W(0, t) at t = 0, 1, ..., until_s."""
        grid = np.arange(until_s + 1, dtype=np.float64)[:, None]
        mine = (self.client == client) & (self.first < until_s)
        first, last = self.first[mine], self.last[mine]
        cost = self.lengths[mine, 0] + 2.0 * self.lengths[mine, 1]
        found: Floats = (np.clip((grid - first) / np.maximum(last - first, 1e-9), 0, 1) * cost).sum(axis=1)
        return found

    def difference(self, until_s: int) -> Floats:
        """Largest less smallest service of the clients, each second."""
        curves = np.array([self.service(client, until_s) for client in self.clients])
        found: Floats = curves.max(axis=0) - curves.min(axis=0)
        return found

    def jain(self, until_s: int) -> float:
        served = np.array([self.service(client, until_s)[-1] for client in self.clients])
        return float(served.sum() ** 2 / (len(served) * (served**2).sum()))

    def ttft(self, client: str) -> dict[str, float]:
        values = (self.first - self.sent)[self.client == client]
        return {"mean": float(values.mean())} | {f"P{p}": float(np.percentile(values, p)) for p in (50, 90, 99)}

    def completed(self, until_s: float) -> int:
        return int((self.last <= until_s).sum())


def published(path: Path) -> Run:
    """One result file, in order of arrival."""
    with gzip.open(path, "rt") as lines:
        rows = json.loads(lines.readline())["result"]["responses"]
    rows.sort(key=lambda row: row["req_time"])
    sent = np.array([row["req_time"] for row in rows])
    return Run(
        [row["adapter_dir"].rpartition("-")[2] for row in rows],
        sent,
        sent + [row["first_token_latency"] for row in rows],
        sent + [row["request_latency"] for row in rows],
        np.array([(row["prompt_len"], row["output_len"]) for row in rows], dtype=np.int64),
    )


def profile_law(path: Path) -> StepLaw:
    """What the cost profile says of a step: (batch, prefill s a request, decode s a request) by prompt and output length."""
    profile: Mapping[str, Mapping[str, Sequence[float]]] = json.loads(path.read_text())
    steps, prefills = [], []
    for prompt, by_output in profile.items():
        for output, (batch, prefill_s, decode_s) in by_output.items():
            prefills.append(prefill_s / int(prompt) * 1e6)
            if int(output) > 1:
                context = batch * (int(prompt) + int(output) / 2)
                steps.append((1.0, batch, context, decode_s * batch / (int(output) - 1) * 1e6))
    table = np.array(steps)
    (a, c, d), _ = nnls(table[:, :3] / table[:, 3:], np.ones(len(table)))
    return StepLaw(a_us=float(a), b_us=float(np.median(prefills)), c_us=float(c), d_us=float(d))


def limits_of(number: int) -> ServerLimits:
    return ServerLimits(max_num_seqs=number, max_num_batched_tokens=2_048, kv_tokens=KV_TOKENS)


def seats_of(run: Run) -> int:
    """The median, over the time in which requests arrive, of how many decode."""
    grid = np.arange(0.0, run.sent.max())[:, None]
    return int(np.median(((run.first <= grid) & (grid < run.last)).sum(axis=1)))


def calibrated(run: Run, profile: StepLaw, number: int) -> StepLaw:
    """The profile's law, slowed down until the run's last request ends when it did (to 0.01%)."""
    law = profile
    for _ in range(10):
        ratio = run.last.max() / again(run, "fifo", law, number).last.max()
        if abs(ratio - 1) < 1e-4:
            break
        law = law.scaled(float(ratio))
    return law


def simulate(
    policy: str,
    law: StepLaw,
    number: int,
    arrivals: Sequence[tuple[float, str]],
    weights: Mapping[str, float] | None = None,
    lengths: tuple[int, int] = (256, 256),
) -> Run:
    """All requests to the end of the last, ``number`` at once; ``arrivals``: (s, client) in order."""
    clients = tuple(dict.fromkeys(client for _, client in arrivals))
    tenants = tuple(Tenant(name=c, weight=(weights or {}).get(c, 1.0), expected_output_tokens=256.0) for c in clients)
    slots = {"a10g": Slots(sequences=number)}
    dispatcher = Dispatcher(DispatcherConfig(tenants=tenants, policy=policy, backends=slots))
    requests = [
        Request(
            id=i,
            tenant=client,
            arrival_ns=round(at_s * S),
            prompt_tokens=lengths[0],
            target_output_tokens=lengths[1],
        )
        for i, (at_s, client) in enumerate(arrivals)
    ]
    done: list[Outcome] = []
    Simulation(dispatcher, {"a10g": build_server(law, limits_of(number))}, requests, done.append).run()
    done.sort(key=lambda outcome: outcome.request.id)
    stamps = np.array([(o.request.arrival_ns, o.first_token_ns, o.last_token_ns) for o in done]) / S
    return Run(
        [client for _, client in arrivals], *stamps.T, np.tile(np.array(lengths, dtype=np.int64), (len(done), 1))
    )


def again(run: Run, policy: str, law: StepLaw, number: int) -> Run:
    """The arrivals of a published run under ``policy``."""
    return simulate(policy, law, number, list(zip(run.sent.tolist(), run.client.tolist(), strict=True)))


def evenly(per_minute: Mapping[str, float], seconds: float) -> list[tuple[float, str]]:
    """Evenly spaced arrivals of each client, merged."""
    return sorted(
        ((k + 0.5) * 60 / rate, client) for client, rate in per_minute.items() for k in range(int(seconds * rate / 60))
    )


def line(what: str, theirs: float, ours: float, digits: int = 0) -> None:
    print(f"{what:58s}{theirs:12,.{digits}f}{ours:12,.{digits}f}{100 * (ours / theirs - 1):+8.1f}%")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", nargs="?", type=Path, default=DEFAULT)
    folder = parser.parse_args().folder
    if not (folder / FCFS).is_file():
        print(f"skipped: {folder / FCFS} is not there")
        return
    runs = {name: published(folder / name) for name in (FCFS, VTC, MULTI)}
    profile, number = profile_law(folder / "cost_profile.json"), seats_of(runs[FCFS])
    law = calibrated(runs[FCFS], profile, number)
    for title, one in (("cost profile", profile), ("calibrated on FCFS overload", law)):
        print(f"{title}: " + ", ".join(f"{n} {getattr(one, n):.5g}" for n in StepLaw.__struct_fields__))
    print(f"seats: {number}; kept law: {msgspec.json.encode(FITTED).decode()}, seats {SEATS}\n")
    ours = {
        (FCFS, "fifo"): again(runs[FCFS], "fifo", law, number),
        (VTC, "vtc"): again(runs[VTC], "vtc", law, number),
        (MULTI, "fifo"): again(runs[MULTI], "fifo", law, number),
        (MULTI, "vtc"): again(runs[MULTI], "vtc", law, number),
    }
    weights = {"1": 1.0, "2": 2.0, "3": 3.0, "4": 4.0}
    weighted = simulate("vtc", law, number, evenly(dict.fromkeys(weights, 90.0), 600), weights)
    served = {client: weighted.service(client, 600)[-1] for client in weights}
    print(f"{'':58s}{'published':>12s}{'ours':>12s}{'error':>9s}")
    line("FCFS overload: requests done by 600 s", runs[FCFS].completed(600), ours[FCFS, "fifo"].completed(600))
    line("FCFS overload: service difference at 600 s", 261_978, ours[FCFS, "fifo"].difference(600)[-1])
    line("VTC overload: largest service difference (bound 40,000)", 7_946, ours[VTC, "vtc"].difference(360).max())
    line("VTC overload: requests done by 360 s", runs[VTC].completed(360), ours[VTC, "vtc"].completed(360))
    for client, theirs in (("2", 2.00), ("3", 3.00), ("4", 4.01)):
        line(f"weights 1:2:3:4 under VTC: client {client} / client 1", theirs, served[client] / served["1"], 2)
    line("eight clients, FCFS: Jain", 0.965, ours[MULTI, "fifo"].jain(360), 3)
    line("eight clients, VTC: Jain", 1.000, ours[MULTI, "vtc"].jain(360), 3)
    print(f"\n{'TTFT, s: published, ours, error':34s}" + "".join(f"{name:>24s}" for name in TTFT))
    for (name, policy), run in ours.items():
        if (name, policy) == (MULTI, "vtc"):
            continue
        for client in runs[name].clients:
            theirs, mine = runs[name].ttft(client), run.ttft(client)
            cells = [f"{theirs[t]:8.1f}{mine[t]:8.1f}{100 * (mine[t] / theirs[t] - 1):+7.1f}%" for t in TTFT]
            title = name.partition(".")[0].replace("__all_results_", " ")
            print(f"{title + ', client ' + client:34s}" + "".join(cells))


if __name__ == "__main__":
    main()
