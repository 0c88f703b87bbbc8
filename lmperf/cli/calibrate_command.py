"""``lmperf calibrate``: a server model from client-side timestamps, with its intervals and its held-out error."""

from __future__ import annotations

import argparse
import shlex
import time
from pathlib import Path

import msgspec
from rich import box
from rich.console import Console
from rich.table import Table

from lmperf.console import Progress, results_console
from lmperf.exit_codes import ExitCode
from lmperf.scenario.faults import ScenarioError
from lmperf.wiring.captured import any_trace, limits_of_headers
from lmperf.wiring.observed import observations
from scheduler.calibration.calibrate import Calibration, calibrate
from scheduler.calibration.jackknife import MIN_CAPTURES
from scheduler.calibration.within_run import MOST_REQUESTS
from scheduler.server_model.spec import ServerLimits, encode_server_model

_UNITS = {
    "a_us": "us a step",
    "b_us": "us a prefilled token",
    "c_us": "us a sequence",
    "d_us": "us a KV token",
    "attended_us": "us a pair of attended tokens (stated)",
    "offset_us": "us before the engine's queue",
}
_FIGURES = {
    "ttft_p50": "TTFT P50",
    "ttft_p90": "TTFT P90",
    "ttft_p99": "TTFT P99",
    "tpot_mean": "TPOT mean",
    "tpot_p90": "TPOT P90",
    "tpot_p99": "TPOT P99",
    "itl_p99": "ITL P99",
    "e2e_mean": "E2E mean",
    "e2e_p99": "E2E P99",
    "throughput": "throughput",
}


def run(args: argparse.Namespace) -> ExitCode:
    for flag, value in (
        ("--max-num-seqs", args.max_num_seqs),
        ("--max-num-batched-tokens", args.max_num_batched_tokens),
    ):
        if value is not None and value < 1:
            raise ScenarioError.single("<flags>", f"{flag} is {value}", "at least 1")
    if not 0 <= args.attended_us < float("inf"):
        raise ScenarioError.single(
            "<flags>", f"--attended-us is {args.attended_us}", "microseconds >= 0, such as 0.0008"
        )
    progress = Progress()
    traces = [any_trace(path) for path in args.traces]
    progress.stage(f"reading {sum(map(len, traces)):,} requests of {len(traces)} captures")
    seen = observations(traces)
    progress.stage(f"fitting {sum(map(len, seen)):,} requests of {len(traces)} captures")
    started = time.monotonic()
    found = calibrate(
        seen,
        name=args.name,
        limits=_stated(limits_of_headers(traces), args),
        max_num_seqs=args.max_num_seqs,
        max_num_batched_tokens=args.max_num_batched_tokens,
        attended_us=args.attended_us,
        on_progress=lambda done, total: progress.counting("fits", done, total, started),
    )
    console = results_console()
    _say(console, found)
    if args.output is None:
        command = shlex.join(["lmperf", "calibrate", *args.traces, "-o", "model.json"])
        console.print(f"not written; to keep it: {command}", soft_wrap=True, highlight=False)
        return ExitCode.OK
    path = Path(args.output)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(encode_server_model(found.spec))
    except OSError as error:
        raise ScenarioError.single(
            "<flags>", f"{path} cannot be written ({error.strerror})", "name another -o"
        ) from error
    console.print(f"written: {path}", soft_wrap=True, highlight=False)
    return ExitCode.OK


def _stated(limits: ServerLimits | None, args: argparse.Namespace) -> ServerLimits | None:
    """Limits that the captures' headers know, with what the flags say in their place."""
    if limits is None:
        return None
    stated = {"max_num_seqs": args.max_num_seqs, "max_num_batched_tokens": args.max_num_batched_tokens}
    return msgspec.structs.replace(limits, **{key: value for key, value in stated.items() if value is not None})


def _say(console: Console, found: Calibration) -> None:
    law, limits, spans = found.spec.law, found.spec.limits, found.spans
    attended = " + attended * pairs of attended tokens" if law.attended_us else ""
    console.print(
        f"step = a + b * prefilled tokens + c * decoding sequences + d * resident KV tokens{attended}", soft_wrap=True
    )
    table = _table()
    intervals = found.intervals()
    kind = "95%, jackknife over captures" if found.over_captures() else "95%, bootstrap within the run"
    for column in ("parameter", "value", *([kind] if intervals else []), "unit"):
        table.add_column(column, justify="left" if column in {"parameter", "unit"} else "right", no_wrap=True)
    for term in law.__struct_fields__:
        value = getattr(law, term)
        if not value and term not in spans.intervals:
            continue
        interval = intervals.get(term)
        table.add_row(
            term.removesuffix("_us"),
            f"{value:,.4g}",
            *([] if not intervals else ["" if interval is None else f"[{interval.low:,.4g}, {interval.high:,.4g}]"]),
            _UNITS.get(term, "us"),
        )
    console.print(table)
    if not intervals:
        console.print(
            f"no intervals of the parameters: they take {MIN_CAPTURES} captures or more, each of which is left out once, or at "
            f"most {MOST_REQUESTS:,} requests to refit within the run",
            soft_wrap=True,
        )
    elif found.within:
        console.print(
            "the intervals are within the run: how far its own requests leave the law open, not how the next run may differ; "
            f"for that, give {MIN_CAPTURES} captures or more",
            soft_wrap=True,
        )
    console.print(
        f"max_num_seqs {limits.max_num_seqs}, max_num_batched_tokens {limits.max_num_batched_tokens}; fitted to "
        f"{spans.requests:,} requests, condition number {spans.condition:.0f}",
        soft_wrap=True,
    )
    for warning in found.warnings:
        console.print(f"warning: {warning}", soft_wrap=True)
    _say_errors(console, found)


def _say_errors(console: Console, found: Calibration) -> None:
    if not found.held_out:
        console.print("no held-out error: the capture is too short to be split in two", soft_wrap=True)
        return
    console.print(
        "held out: each capture predicted by a model that never saw it (of one capture, its second half by its first); "
        "simulated / captured - 1",
        soft_wrap=True,
    )
    means = found.mean_absolute()
    shown = {key: title for key, title in _FIGURES.items() if key in means}
    table = _table()
    table.add_column("capture", overflow="fold")
    for title in shown.values():
        table.add_column(title, justify="right")
    for held in found.held_out:
        table.add_row(held.capture, *(_signed(held.errors.get(key)) for key in shown))
    if len(found.held_out) > 1:
        table.add_section()
        table.add_row("mean absolute", *(f"{means[key]:.1%}" for key in shown))
    console.print(table)


def _signed(error: float | None) -> str:
    return "-" if error is None else f"{error:+.1%}"


def _table() -> Table:
    return Table(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
