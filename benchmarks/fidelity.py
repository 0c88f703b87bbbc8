"""How well the simulator predicts captured runs: ``python benchmarks/fidelity.py [FOLDER]``.

Each capture of FOLDER (default: the measured captures of one vLLM server beside the checkout) is predicted by a server model
calibrated on the others, leave one capture out. Printed: signed error of each figure and capture, the mean absolute error
beside the bar, the fitted law and how far its parameters move when a capture is left out, and the same of runs that were only
published as a range of repeats. ``--preset`` judges the shipped preset instead (it was fitted on these captures, so its
errors are of runs that it has seen).
"""

from __future__ import annotations

import argparse
import dataclasses
import gzip
import json
import time
from pathlib import Path

import msgspec
import numpy as np

from scheduler.calibration.calibrate import EVALUATIONS, HeldOut, calibrate, mean_absolute
from scheduler.calibration.figures import errors, figures
from scheduler.calibration.observations import Observations
from scheduler.calibration.replay import replay
from scheduler.server_model.spec import PRESETS, ServerLimits, StepLaw, encode_server_model

DEFAULT = Path(__file__).resolve().parents[1].parent / "shared" / "traces" / "h200-vllm-0.24-llama-8b"
LIMITS = ServerLimits(max_num_seqs=64, max_num_batched_tokens=8192, kv_tokens=841_888)
"""What that server was started with."""

BARS = {
    "ttft_p50": (0.10, 0.06),
    "ttft_p99": (0.09, 0.06),
    "tpot_mean": (0.026, 0.02),
    "tpot_p99": (0.036, 0.03),
    "itl_p99": (0.22, 0.10),
    "e2e_mean": (0.034, 0.025),
    "throughput": (0.01, 0.01),
}
"""Mean absolute error over unseen captures: (must, aim)."""

REPEATS = (
    ("24 requests/s", "open_r30", 30, 24, {"ttft_p50": (39, 45), "ttft_p99": (75, 87), "tpot_mean": (7.2, 7.7)}),
    ("36 requests/s", "open_r30", 30, 36, {"ttft_p50": (49, 70), "ttft_p99": (108, 215), "tpot_mean": (9.2, 10.4)}),
    (
        "long, 10 requests/s",
        "long_r6",
        6,
        10,
        {"ttft_p50": (113, 115), "ttft_p99": (309, 348), "tpot_mean": (13.5, 13.7)},
    ),
)
"""What four repeats of one run, same seed and same host, ranged over (ms); the load is the named capture's at another rate
(the client draws the same lengths and scales the same gaps)."""


def load_capture(path: Path) -> Observations:
    """One capture: a header line, then a line a request (``sent_s``, ``ttft_s``, ``itl_ms``, token counts)."""
    with gzip.open(path, "rt") as lines:
        meta = json.loads(next(lines))["meta"]
        rows = [json.loads(line) for line in lines]
    sent = _ns([row["sent_s"] for row in rows])
    first = sent + _ns([row["ttft_s"] for row in rows])
    last = first + _ns([sum(row["itl_ms"]) / 1e3 for row in rows])
    users = meta["concurrency"]
    turnaround_ns = 0
    if users is not None:
        turnaround_ns = max(0, int(np.median(sent[users:] - np.sort(last)[: len(rows) - users])))
    return Observations(
        meta["capture"],
        sent,
        first,
        last,
        np.array([row["prompt_tokens"] for row in rows], dtype=np.int64),
        np.array([row["output_tokens"] for row in rows], dtype=np.int64),
        users=users,
        turnaround_ns=turnaround_ns,
        gaps_ns=_ns(np.concatenate([row["itl_ms"] for row in rows]) / 1e3),
    )


def load_captures(folder: Path = DEFAULT) -> list[Observations]:
    """All captures of a folder, by name."""
    return [load_capture(path) for path in sorted(folder.glob("*.jsonl.gz"))]


def _ns(seconds: object) -> np.ndarray:
    return np.rint(np.asarray(seconds, dtype=np.float64) * 1e9).astype(np.int64)


def print_errors(held: list[HeldOut]) -> None:
    print(f"{'signed error, %':14s}" + "".join(f"{name:>12s}" for name in BARS))
    for one in held:
        print(f"{one.capture:14s}" + "".join(f"{100 * one.errors[name]:+12.1f}" for name in BARS))
    means = mean_absolute(held)
    print(f"{'mean absolute':14s}" + "".join(f"{100 * means[name]:12.1f}" for name in BARS))
    print(f"{'must':14s}" + "".join(f"{100 * must:12.1f}" for must, _ in BARS.values()))
    print(f"{'aim':14s}" + "".join(f"{100 * aim:12.1f}" for _, aim in BARS.values()))


def print_repeats(captures: list[Observations], law: StepLaw, limits: ServerLimits) -> None:
    print("\nruns that are known by the range of four repeats only: simulated, ms (range; error to its nearest end)")
    by_name = {seen.name: seen for seen in captures}
    for title, source, rate, wanted, ranges in REPEATS:
        if source not in by_name:
            continue
        seen = by_name[source]
        found = figures(replay(dataclasses.replace(seen, sent_ns=seen.sent_ns * rate // wanted), law, limits).times)
        cells = []
        for name, (low, high) in ranges.items():
            value = found[name] / 1e6
            off = value / high - 1 if value > high else min(0.0, value / low - 1)
            cells.append(f"{name} {value:.1f} ({low} to {high}; {100 * off:+.1f}%)")
        print(f"  {title:20s} " + ", ".join(cells))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", nargs="?", type=Path, default=DEFAULT)
    parser.add_argument("--preset", action="store_true", help="judge the shipped preset instead of fitting")
    parser.add_argument("--evaluations", type=int, default=EVALUATIONS, help="replays a fit")
    parser.add_argument("--output", type=Path, help="write the fitted server model here")
    parser.add_argument("--laws", type=Path, help="write the law that each capture was predicted from here (JSON)")
    args = parser.parse_args()
    captures = load_captures(args.folder)
    if not captures:
        parser.error(f"{args.folder}: no *.jsonl.gz captures there")
    if args.preset:
        spec = PRESETS["h200-llama-8b"]
        held = [
            HeldOut(s.name, spec.law, errors(figures(s), figures(replay(s, spec.law, spec.limits).times)))
            for s in captures
        ]
        print("the shipped preset, on the captures that it was fitted to")
    else:
        started = time.monotonic()
        done = calibrate(
            captures,
            name="h200-llama-8b",
            limits=LIMITS,
            evaluations=args.evaluations,
            on_progress=lambda step, total: print(
                f"fit {step} of {total}, {time.monotonic() - started:.0f} s", flush=True
            ),
        )
        spec, held = done.spec, list(done.held_out)
        print("each capture predicted from the others (leave one capture out)")
    print_errors(held)
    print_repeats(captures, spec.law, spec.limits)
    print("\n" + ", ".join(f"{name} {getattr(spec.law, name):.5g}" for name in StepLaw.__struct_fields__))
    if not args.preset:
        for name, (low, high) in done.left_out_range().items():
            print(f"  {name}: {low:.5g} to {high:.5g} as captures are left out")
        for warning in done.warnings:
            print(f"warning: {warning}")
    if args.laws is not None:
        args.laws.write_bytes(msgspec.json.format(msgspec.json.encode({one.capture: one.law for one in held})) + b"\n")
        print(f"written: {args.laws}")
    if args.output is not None:
        args.output.write_bytes(encode_server_model(spec))
        print(f"written: {args.output}")


if __name__ == "__main__":
    main()
