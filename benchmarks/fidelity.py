"""How well the simulator predicts captured runs: ``python -m benchmarks.fidelity [FOLDER] [--judge FOLDER]``.

Each capture of FOLDER (default: the measured captures of one vLLM server beside the checkout) is predicted by a server model
calibrated on the others, leave one capture out. With ``--judge`` the model is calibrated on all of FOLDER and predicts the
captures of the other folder, which it has never seen. A capture is a ``*.jsonl.gz`` file of that server's own benchmark, or
the folder of an ``lmperf run`` (``benchmarks/live_captures.py`` makes some). ``--preset`` judges the shipped preset instead
of a fit (on FOLDER it was fitted to these captures, so its errors are of runs that it has seen).

Printed: signed error of each figure and capture, the mean absolute error beside the bar, the same of the design's prototype (a
simple law fitted once, by hand: what a simple law leaves on these captures), where captures repeat one load the distance to
the nearest of the repeats, the fitted law and how far its parameters move when a capture is left out, and runs that were only
published as a range of repeats.
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

from lmperf.wiring.observed import observations
from loadgen.trace.parts import TraceFile
from scheduler.calibration.calibrate import EVALUATIONS, HeldOut, calibrate, mean_absolute
from scheduler.calibration.figures import errors, figures
from scheduler.calibration.observations import Observations
from scheduler.calibration.replay import replay
from scheduler.server_model.spec import PRESETS, ServerLimits, StepLaw, encode_server_model

DEFAULT = Path(__file__).resolve().parents[1].parent / "shared" / "traces" / "h200-vllm-0.24-llama-8b"
LIMITS = ServerLimits(max_num_seqs=64, max_num_batched_tokens=8192, kv_tokens=841_888)
"""What that server was started with."""

ATTENDED_US = 0.0008
"""What a pair of attended tokens costs it, from counting operations: 4 * 32 layers * 4096 of them, at the rate at which the
fitted b_us (21 to 22) does the 2 * 6.98e9 of a prefilled token. It is not searched for on any capture."""

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

PROTOTYPE = StepLaw(a_us=4990.0, b_us=21.7, c_us=0.35, d_us=0.038, offset_us=24_000.0)
"""The law of the design's prototype, fitted to the same eight captures."""

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


_NO_CAPTURES = "no captures there: *.jsonl.gz files, or folders of lmperf runs (each with a requests.parquet)"


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
    """All captures of a folder, by name: files of the benchmark, then folders of lmperf's runs."""
    files = [load_capture(path) for path in sorted(folder.glob("*.jsonl.gz"))]
    return files + observations([TraceFile(path.parent) for path in sorted(folder.glob("*/requests.parquet"))])


def _ns(seconds: object) -> np.ndarray:
    return np.rint(np.asarray(seconds, dtype=np.float64) * 1e9).astype(np.int64)


def print_errors(held: list[HeldOut], *, markdown: bool = False) -> None:
    means = mean_absolute(held)
    rows = [(one.capture, [f"{100 * one.errors[name]:+.1f}" for name in BARS]) for one in held]
    rows.append(("mean absolute", [f"{100 * means[name]:.1f}" for name in BARS]))
    rows.append(("must", [f"{100 * must:.1f}" for must, _ in BARS.values()]))
    rows.append(("aim", [f"{100 * aim:.1f}" for _, aim in BARS.values()]))
    print_rows("signed error, %", rows, markdown=markdown)


def print_rows(what: str, rows: list[tuple[str, list[str]]], *, markdown: bool) -> None:
    """A column a figure of BARS, a row a capture."""
    for title, cells in [(what, list(BARS)), *rows]:
        print(
            f"| {title} | {' | '.join(cells)} |" if markdown else f"{title:16s}" + "".join(f"{c:>12s}" for c in cells)
        )
        if markdown and title == what:
            print("|---" * (len(cells) + 1) + "|")


def print_repeats(captures: list[Observations], laws: dict[str, StepLaw], limits: ServerLimits) -> None:
    print("\nruns that are known by the range of four repeats only: simulated, ms (range; error to its nearest end)")
    by_name = {seen.name: seen for seen in captures}
    for title, source, rate, wanted, ranges in REPEATS:
        if source not in by_name:
            continue
        seen = by_name[source]
        load = dataclasses.replace(seen, sent_ns=seen.sent_ns * rate // wanted)
        for whose, law in laws.items():
            found = figures(replay(load, law, limits).times)
            cells = []
            for name, (low, high) in ranges.items():
                value = found[name] / 1e6
                off = value / high - 1 if value > high else min(0.0, value / low - 1)
                cells.append(f"{name} {value:.1f} ({low} to {high}; {100 * off:+.1f}%)")
            print(f"  {title:20s} {whose:10s} " + ", ".join(cells))


def print_repeated(captures: list[Observations], held: list[HeldOut], *, markdown: bool = False) -> None:
    """For loads that were captured more than once: each prediction's distance to the range of its repeats."""
    groups: dict[tuple[bytes, bytes, int | None, int], list[str]] = {}
    for seen in captures:
        # The same lengths in the same order at the same rate (to 5%: clients pace alike, never equally) are one load.
        rate = 0 if seen.users else round(np.log(max(1, int(np.ptp(seen.sent_ns)))) / 0.05)
        load = (seen.prompt_tokens.tobytes(), seen.output_tokens.tobytes(), seen.users, rate)
        groups.setdefault(load, []).append(seen.name)
    by_name = {seen.name: figures(seen) for seen in captures}
    errors_of = {one.capture: one.errors for one in held}
    repeated = [names for names in groups.values() if len(names) > 1]
    if not repeated:
        return
    print("\nsigned distance to the range of the repeats of the same load, %")
    rows = []
    for names in repeated:
        for name in names:
            cells = []
            for figure in BARS:
                values = [by_name[one][figure] for one in names]
                predicted = by_name[name][figure] * (1 + errors_of[name][figure])
                nearest = min(max(predicted, min(values)), max(values))
                cells.append(f"{100 * (predicted / nearest - 1):+.1f}")
            rows.append((name, cells))
    print_rows("distance, %", rows, markdown=markdown)


def itl_rank(seen: Observations, law: StepLaw, limits: ServerLimits) -> float:
    """Which percentile (0 to 100) of the simulated gaps the captured ITL P99 is: how far the prediction is off along the
    distribution, whatever the cliff that it stands on."""
    times = replay(seen, law, limits).times
    assert times.gaps_ns is not None, "a replay has gaps"
    assert times.gap_counts is not None, "and says how often"
    below = times.gap_counts[times.gaps_ns <= figures(seen)["itl_p99"]].sum()
    return 100.0 * float(below / times.gap_counts.sum())


def print_itl_ranks(captures: list[Observations], held: list[HeldOut], limits: ServerLimits) -> None:
    laws = {one.capture: one.law for one in held}
    ranks = [f"{s.name} P{itl_rank(s, laws[s.name], limits):.2f}" for s in captures if s.name in laws]
    print(f"\nthe captured ITL P99 among the simulated gaps: {', '.join(ranks)}")


def judged(captures: list[Observations], law: StepLaw, limits: ServerLimits) -> list[HeldOut]:
    """The errors of one law on every capture."""
    return [HeldOut(s.name, law, errors(figures(s), figures(replay(s, law, limits).times))) for s in captures]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", nargs="?", type=Path, default=DEFAULT)
    parser.add_argument("--judge", type=Path, metavar="FOLDER", help="fit on the first folder, judge on this one")
    parser.add_argument("--preset", action="store_true", help="judge the shipped preset instead of fitting")
    parser.add_argument("--markdown", action="store_true", help="print the tables of errors as Markdown")
    parser.add_argument(
        "--attended-us",
        type=float,
        default=ATTENDED_US,
        metavar="US",
        help="the law's attended_us, which no fit moves (%(default)s)",
    )
    parser.add_argument("--evaluations", type=int, default=EVALUATIONS, help="replays a fit")
    parser.add_argument("--output", type=Path, help="write the fitted server model here")
    parser.add_argument("--laws", type=Path, help="write the law that each capture was predicted from here (JSON)")
    args = parser.parse_args()
    captures = load_captures(args.folder)
    if not captures:
        parser.error(f"{args.folder}: {_NO_CAPTURES}")
    judge = load_captures(args.judge) if args.judge is not None else captures
    if not judge:
        parser.error(f"{args.judge}: {_NO_CAPTURES}")
    spec = PRESETS["h200-llama-8b"]
    if not args.preset:
        started = time.monotonic()
        done = calibrate(
            captures,
            name="h200-llama-8b",
            limits=LIMITS,
            attended_us=args.attended_us,
            evaluations=args.evaluations,
            hold_out=args.judge is None,
            on_progress=lambda step, total: print(
                f"fit {step} of {total}, {time.monotonic() - started:.0f} s", flush=True
            ),
        )
        spec = done.spec
    whose = "the shipped preset" if args.preset else f"a law fitted to the captures of {args.folder.name}"
    if args.judge is not None:
        held = judged(judge, spec.law, spec.limits)
        print(f"{whose}, on the captures of {args.judge.name}")
    elif args.preset:
        held = judged(judge, spec.law, spec.limits)
        print(f"{whose}, on the captures that it was fitted to")
    else:
        held = list(done.held_out)
        print("each capture predicted from the others (leave one capture out)")
    print_errors(held, markdown=args.markdown)
    print_repeated(judge, held, markdown=args.markdown)
    print_itl_ranks(judge, held, spec.limits)
    print("\nthe design's prototype law on the same captures")
    print_errors(judged(judge, PROTOTYPE, LIMITS), markdown=args.markdown)
    print_repeats(captures, {"fit" if not args.preset else "preset": spec.law, "prototype": PROTOTYPE}, spec.limits)
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
