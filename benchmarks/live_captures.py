"""Captures of a real server at loads of many kinds: ``python -m benchmarks.live_captures --url URL --tokenizer DIR``.

Each load is one ``lmperf run`` without a queue in front (policy ``none``), in a folder of its own under ``--output``, the most
telling first: below saturation, near it and past it for an 8B model on one H200, with a second seed and a repeat of the same
seed; long prompts, bursts, one request at a time, prompts or answers that dominate. How well a server model predicts them:
``python -m benchmarks.fidelity --judge OUTPUT``. ``--budget``: begin no run that would end later than so many seconds from
now. Loads whose run is there are not run again.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

MARGIN_S = 12.0
"""What a run takes beyond its arrivals: start, the last answers, results."""


@dataclass(frozen=True, slots=True)
class Load:
    """``rate`` in requests/s or ``users`` of a closed loop; lengths in tokens, uniform over mean * (1 +- spread)."""

    name: str
    rate: float | None = None
    users: int | None = None
    prompt: tuple[int, float] = (512, 0.5)
    output: tuple[int, float] = (128, 0.5)
    burst: int | None = None
    duration_s: float = 25.0
    seed: int = 0

    def scenario(self) -> dict[str, Any]:
        """As a scenario file's content; the server is left to the command line."""
        tenant: dict[str, Any] = {"prompt": _between(*self.prompt), "output": _between(*self.output)}
        if self.users is not None:
            tenant["users"] = self.users
        else:
            tenant["rate"] = self.rate
        if self.burst is not None:
            tenant["arrivals"] = {"process": "burst", "burst_size": self.burst, "burst_rate": 400, "fixed_epochs": True}
        return {
            "version": 1,
            "name": self.name,
            "duration_s": self.duration_s,
            "seed": self.seed,
            "backend": {"endpoint": "completions"},
            "policy": "none",
            "tenants": {"load": tenant},
        }


def _between(mean: int, spread: float) -> dict[str, int]:
    return {"min": max(1, round(mean * (1 - spread))), "max": round(mean * (1 + spread))}


LOADS = (
    Load("open_r24", rate=24),
    Load("open_r36", rate=36),
    Load("long_r8", rate=8, prompt=(2048, 0.95), output=(256, 0.95)),
    Load("open_r48", rate=48, duration_s=20),
    Load("bursts_r16", rate=16, burst=32),
    Load("open_r36-again", rate=36),
    Load("one_at_a_time", users=1, prompt=(1024, 0.5)),
    Load("prompts_r8", rate=8, prompt=(4096, 0.5), output=(16, 0.5)),
    Load("answers_r18", rate=18, prompt=(128, 0.5), output=(384, 0.5)),
    Load("closed_c32", users=32),
    Load("closed_c64", users=64, duration_s=20),
    Load("open_r8", rate=8),
    Load("open_r24-seed-1", rate=24, seed=1),
    Load("open_r36-seed-1", rate=36, seed=1),
)


def capture(load: Load, args: argparse.Namespace) -> str:
    """One run into its folder; how it ended."""
    scenario = args.output / f"{load.name}.yaml"
    scenario.write_bytes(msgspec.json.format(msgspec.json.encode(load.scenario())))
    argv = [sys.executable, "-m", "lmperf", "run", str(scenario), "--model", args.url, "--quiet"]
    argv += ["--output-dir", str(args.output / load.name)]
    if args.tokenizer is not None:
        argv += ["--tokenizer", args.tokenizer]
    if args.duration is not None:
        argv += ["--set", f"duration_s={args.duration:g}"]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    if not _done(args.output / load.name):
        return f"FAILED with exit code {done.returncode}:\n{done.stdout}{done.stderr}"
    return f"exit code {done.returncode}"


def _done(folder: Path) -> bool:
    return (folder / "summary.json").exists()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--url", required=True, help="an OpenAI-compatible server with nothing else to do")
    parser.add_argument("--tokenizer", help="its tokenizer, for exact prompt lengths")
    parser.add_argument("--only", help="loads by name, in this order (default: all)")
    parser.add_argument(
        "--duration", type=float, metavar="S", help="arrivals of every run, s (default: each load's own)"
    )
    parser.add_argument("--budget", type=float, metavar="S", help="begin no run that would end later than this")
    parser.add_argument("--output", type=Path, default=Path("results/live-captures"))
    args = parser.parse_args()
    by_name = {load.name: load for load in LOADS}
    names = list(by_name) if args.only is None else args.only.split(",")
    unknown = [name for name in names if name not in by_name]
    if unknown:
        parser.error(f"--only: no load is called {', '.join(unknown)}; there are {', '.join(by_name)}")
    args.output.mkdir(parents=True, exist_ok=True)
    started = time.monotonic()
    for name in names:
        load = by_name[name]
        if _done(args.output / name):
            print(f"{name}: is there already", flush=True)
            continue
        begin_s = time.monotonic() - started
        needed_s = (load.duration_s if args.duration is None else args.duration) + MARGIN_S
        if args.budget is not None and begin_s + needed_s > args.budget:
            print(f"{name}: left out, {args.budget - begin_s:.0f} s are left", flush=True)
            continue
        ended = capture(load, args)
        print(f"{name}: {ended}, {time.monotonic() - started - begin_s:.0f} s", flush=True)


if __name__ == "__main__":
    main()
