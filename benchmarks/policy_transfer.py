"""Does what the simulator says of policies hold live? Every policy live, beside its prediction from one fifo run.

    python -m benchmarks.policy_transfer [SCENARIO] [--policies fifo,wfq,...] [--jobs 1] [--output DIR]
    python -m benchmarks.policy_transfer --url http://127.0.0.1:8000 --tokenizer DIR   # a real server
    python -m benchmarks.policy_transfer --url ... --runs-only; python -m benchmarks.policy_transfer --judge DIR

Each policy runs live (the whole command, ``lmperf run``) at the scenario's baseline and raised loads, all with the same
requests. A server model is calibrated from the two *fifo* runs' client-side timestamps alone, and the arrivals of those
runs are replayed in the simulator under every policy. Printed: TTFT P99 and attainment of each tenant in contract under the
raised load, P99 decay and rho, live and predicted with signed errors, and how well the ranking agrees: Kendall's tau-b over
the policies, by the worst tenant's attainment, by the victims' mean P99 and by decay. A run that called itself invalid is
marked. ``--url``: a real server in place of the scenario's; its saturation is measured first, by a closed loop.
``--runs-only`` leaves the tables for ``--judge``, which runs nothing: for a server that is there for minutes only.

As it is, 16 runs of 90 s on the embedded server: half an hour, and two cores, without which it is skipped: generator and server
would fall behind in every run.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import numpy as np
from scipy.stats import kendalltau

from lmperf.wiring.captured import CapturedRun, captured_run, known_limits
from lmperf.wiring.observed import observations
from lmperf.wiring.offline import as_captured, policy_choices
from loadgen.offline.cell import record_cell
from loadgen.recorder import record_trace
from loadgen.summary.files import read_summary
from scheduler.calibration.calibrate import calibrate
from scheduler.server_model.spec import ServerModelSpec
from tenants.measures.attainment import attainment
from tenants.measures.columns import Columns
from tenants.measures.interference import growth_by_tenant
from tenants.measures.percentile import metric_percentile
from tenants.measures.shares import percent
from tenants.slo import Metric
from tenants.tenant import Tenant

DEFAULT = Path(__file__).resolve().parents[1] / "scenarios" / "noisy-neighbour-live.yaml"
POLICIES = "fifo,priority,wfq,drr,vtc,edf,slo_aware,committed"
LOADS = ("baseline", "raised")
CORES = 2


class TransferError(RuntimeError):
    """A live run that left nothing to compare; the message says which, and shows its output."""


@dataclass(frozen=True, slots=True)
class Figures:
    """One policy, live or predicted. ``p99_ms`` and ``attained`` by tenant in contract, raised load; means over them."""

    p99_ms: Mapping[str, float]
    attained: Mapping[str, float]
    decay: float
    rho: float

    @property
    def worst(self) -> float:
        return min(self.attained.values())

    @property
    def mean_p99_ms(self) -> float:
        return float(np.exp(np.mean(np.log(list(self.p99_ms.values())))))


def live(args: argparse.Namespace, policy: str, load: str, extra: Sequence[str]) -> Path:
    """One live run; its folder."""
    folder: Path = args.output / f"{policy}-{load}"
    argv = [sys.executable, "-m", "lmperf", "run", str(args.scenario), "--at", load, "--quiet"]
    argv += ["--set", f"policy={policy}", "--output-dir", str(folder), *extra]
    for one in args.set:
        argv += ["--set", one]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    if not (folder / "summary.json").exists():
        raise TransferError(f"{policy} at the {load} load ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    print(f"  {policy} at the {load} load: exit code {done.returncode}", flush=True)
    return folder


def saturation(args: argparse.Namespace) -> float:
    """Cost units/s (prompt + 2 * output tokens) that the server sustains with a never-empty queue."""
    folder = args.output / "saturation"
    argv = [sys.executable, "-m", "lmperf.run", "--model", args.url, "--concurrency", "64", "--quiet"]
    argv += ["--num-prompts", "600", "--random-input-len", str(args.mean_input)]
    argv += ["--random-output-len", str(args.mean_output)]
    argv += ["--output-dir", str(folder), *_tokenizer(args)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    if not (folder / "summary.json").exists():
        raise TransferError(f"measuring the saturation ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    total = read_summary(folder).total.throughput
    return total.total_tokens_per_s + total.output_tokens_per_s


def _tokenizer(args: argparse.Namespace) -> list[str]:
    return [] if args.tokenizer is None else ["--tokenizer", args.tokenizer]


def figures(tenants: Sequence[Tenant], noisy: Sequence[str], baseline: Columns, raised: Columns) -> Figures:
    """Figures of one policy from the judged rows of its two runs."""
    victims = [tenant for tenant in tenants if tenant.name not in noisy]
    growth = growth_by_tenant(baseline, raised)
    p99_ms, attained = {}, {}
    for tenant in victims:
        rows = raised.of(tenant.name)
        p99_ms[tenant.name] = (metric_percentile(rows, Metric.TTFT, 99.0).at_least_ns or 0) / 1e6
        attained[tenant.name] = attainment(rows, tenant.slo).share or 0.0
    names = [tenant.name for tenant in victims]
    return Figures(
        p99_ms,
        attained,
        decay=float(np.mean([growth[name].decay or np.nan for name in names])),
        rho=float(np.mean([growth[name].rho if growth[name].rho is not None else np.nan for name in names])),
    )


def measured(folder: Path, captured: CapturedRun) -> Columns:
    """The judged rows of a live run."""
    own = captured_run(folder, recorded=True)
    return record_trace(own.trace, captured.tenants).columns().judged()


def model(captures: Sequence[CapturedRun]) -> ServerModelSpec:
    """The server, from client-side timestamps of the fifo runs alone."""
    found = calibrate(
        observations([captured.trace for captured in captures]),
        name="from the fifo runs",
        limits=known_limits(list(captures)),
    )
    return found.spec


def tau(live_: Mapping[str, Figures], told: Mapping[str, Figures], of: Callable[[Figures], float]) -> float:
    names = list(live_)
    return float(kendalltau([of(live_[name]) for name in names], [of(told[name]) for name in names]).statistic)


def table(live_: Mapping[str, Figures], told: Mapping[str, Figures], invalid: set[str]) -> str:
    """Markdown: a row a policy, live -> predicted (signed error)."""
    names = list(next(iter(live_.values())).p99_ms)
    head = [
        "policy",
        *(f"{name} TTFT P99, ms" for name in names),
        *(f"{name} kept, %" for name in names),
        "decay",
        "rho",
    ]
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for policy, seen in live_.items():
        guess = told[policy]
        cells = [policy + (" (invalid run)" if policy in invalid else "")]
        for name in names:
            off = guess.p99_ms[name] / seen.p99_ms[name] - 1 if seen.p99_ms[name] else float("nan")
            cells.append(f"{seen.p99_ms[name]:,.0f} / {guess.p99_ms[name]:,.0f} ({off:+.0%})")
        for name in names:
            off = guess.attained[name] - seen.attained[name]
            cells.append(f"{percent(seen.attained[name])} / {percent(guess.attained[name])} ({100 * off:+.1f})")
        cells += [f"{seen.decay:.2f} / {guess.decay:.2f}", f"{seen.rho:.2f} / {guess.rho:.2f}"]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def run_all(args: argparse.Namespace, policies: Sequence[str], extra: Sequence[str]) -> dict[tuple[str, str], Path]:
    jobs = [(policy, load) for policy in policies for load in LOADS]
    with ThreadPoolExecutor(args.jobs) as pool:
        folders = list(pool.map(lambda job: live(args, job[0], job[1], extra), jobs))
    return dict(zip(jobs, folders, strict=True))


def kept_runs(folder: Path) -> dict[tuple[str, str], Path]:
    """The runs that an earlier call left: of each policy that ran at both loads, fifo first. Raises TransferError."""
    names = {path.parent.name for path in folder.glob("*/requests.parquet")}
    policies = [policy for policy in POLICIES.split(",") if {f"{policy}-{load}" for load in LOADS} <= names]
    if "fifo" not in policies:
        raise TransferError(
            f"{folder}: no folders {' and '.join(f'fifo-{load}' for load in LOADS)} with a finished run"
        )
    return {(policy, load): folder / f"{policy}-{load}" for policy in policies for load in LOADS}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("scenario", nargs="?", type=Path, default=DEFAULT)
    parser.add_argument("--policies", default=POLICIES)
    parser.add_argument("--jobs", type=int, default=1, help="live runs at once; each takes two cores")
    parser.add_argument("--url", help="a real server in place of the scenario's")
    parser.add_argument("--mean-input", type=int, default=700, help="prompt tokens of the measurement of saturation")
    parser.add_argument("--mean-output", type=int, default=200, help="its output tokens")
    parser.add_argument("--tokenizer", help="its tokenizer, for exact prompt lengths")
    parser.add_argument("--set", action="append", default=[], metavar="PATH=VALUE")
    parser.add_argument("--output", type=Path, help="a folder without runs; default: a new one in results/")
    parser.add_argument("--runs-only", action="store_true", help="only the live runs; --judge makes the tables")
    parser.add_argument("--judge", type=Path, metavar="DIR", help="only the tables, of the runs that lie in DIR")
    args = parser.parse_args()
    if args.judge is not None:
        try:
            folders = kept_runs(args.judge)
        except TransferError as error:
            parser.error(str(error))
        compare(folders, args.judge)
        return
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if cores < CORES:
        print(
            f"skipped: a live run takes {CORES} cores, for the generator and the embedded server, and there is {cores}"
        )
        return
    if args.output is None:
        args.output = Path("results") / f"policy-transfer-{datetime.now().astimezone():%Y%m%d-%H%M%S}"
    # A run beside another takes a folder of another name, and the tables would be of the old one.
    if any(args.output.glob("*/summary.json")):
        parser.error(
            f"{args.output} holds runs: name another --output, or make their tables with --judge {args.output}"
        )
    args.output.mkdir(parents=True, exist_ok=True)
    extra: list[str] = []
    if args.url is not None:
        rate = saturation(args)
        print(f"saturation: {rate:,.0f} cost units/s", flush=True)
        extra = ["--model", args.url, "--set", f"load.saturation={rate:.0f}", *_tokenizer(args)]
    folders = run_all(args, args.policies.split(","), extra)
    if not args.runs_only:
        compare(folders, args.output)


def compare(folders: Mapping[tuple[str, str], Path], output: Path) -> None:
    """Print, and write to ``output``, the tables of finished runs, by policy and load."""
    policies = list(dict.fromkeys(policy for policy, _ in folders))
    captures = [captured_run(folders["fifo", load], recorded=True) for load in LOADS]
    server = model(captures)
    print("server model:", json.dumps({k: getattr(server.law, k) for k in server.law.__struct_fields__}), flush=True)
    tenants, noisy = captures[1].tenants, captures[1].noisy
    live_: dict[str, Figures] = {}
    told: dict[str, Figures] = {}
    invalid = set()
    for policy in policies:
        live_[policy] = figures(tenants, noisy, *(measured(folders[policy, load], captures[0]) for load in LOADS))
        choice = policy_choices(policy)[0]
        rows = [record_cell(as_captured(captured, server, choice)).columns().judged() for captured in captures]
        told[policy] = figures(tenants, noisy, *rows)
        if any(not read_summary(folders[policy, load]).validity.valid for load in LOADS):
            invalid.add(policy)
    text = table(live_, told, invalid)
    taus = {
        "worst attainment": tau(live_, told, lambda f: round(f.worst, 3)),
        "mean TTFT P99 of the victims": tau(live_, told, lambda f: f.mean_p99_ms),
        "decay": tau(live_, told, lambda f: f.decay),
    }
    print("\nlive / predicted (error), raised load\n")
    print(text)
    print(
        "\nKendall's tau, live against predicted: " + ", ".join(f"{name} {value:.2f}" for name, value in taus.items())
    )
    (output / "policy-transfer.md").write_text(text + "\n", encoding="utf-8")
    (output / "policy-transfer.json").write_text(json.dumps({"tau": taus}, indent=2), encoding="utf-8")


if __name__ == "__main__":
    main()
