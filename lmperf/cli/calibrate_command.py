"""``lmperf calibrate``: a server model from client-side timestamps, with its intervals and its held-out error."""

from __future__ import annotations

import argparse
import shlex
import time
from pathlib import Path

import msgspec

from lmperf.cli.calibration_text import print_calibration, print_ranking
from lmperf.console import Progress, results_console
from lmperf.exit_codes import ExitCode
from lmperf.scenario.faults import ScenarioError
from lmperf.wiring.captured import any_trace, limits_of_headers
from lmperf.wiring.observed import observations
from lmperf.wiring.ranked import rank_policies
from loadgen.signals import beside
from loadgen.whole_file import write_whole
from scheduler.calibration.calibrate import calibrate
from scheduler.calibration.doubts import beyond_use, mostly_left_out
from scheduler.calibration.step_law import CalibrationError
from scheduler.server_model.spec import ServerLimits, encode_server_model


def run(args: argparse.Namespace) -> ExitCode:
    for flag, value in (
        ("--max-num-seqs", args.max_num_seqs),
        ("--max-num-batched-tokens", args.max_num_batched_tokens),
        ("--speculative-tokens", args.speculative_tokens),
    ):
        if value is not None and value < 1:
            raise ScenarioError.single("<flags>", f"{flag} is {value}", "at least 1")
    if not 0 <= args.attended_us < float("inf"):
        raise ScenarioError.single(
            "<flags>", f"--attended-us is {args.attended_us}", "microseconds >= 0, such as 0.0008"
        )
    if args.speculative_acceptance is not None and args.speculative_tokens is None:
        raise ScenarioError.single(
            "<flags>", "--speculative-acceptance is of drafts, and there are none", "add --speculative-tokens N"
        )
    if args.speculative_acceptance is not None and not 0 <= args.speculative_acceptance <= 1:
        raise ScenarioError.single(
            "<flags>", f"--speculative-acceptance is {args.speculative_acceptance}", "a probability, 0 to 1"
        )
    progress = Progress()
    traces = [any_trace(path) for path in args.traces]
    progress.stage(f"reading {sum(map(len, traces)):,} requests of {len(traces)} captures")
    seen = observations(traces)
    progress.stage(f"fitting {sum(map(len, seen)):,} requests of {len(traces)} captures")
    started = time.monotonic()
    found = beside(
        lambda: calibrate(
            seen,
            name=args.name,
            limits=_stated(limits_of_headers(traces), args),
            max_num_seqs=args.max_num_seqs,
            max_num_batched_tokens=args.max_num_batched_tokens,
            drafts=args.speculative_tokens or 0,
            acceptance=args.speculative_acceptance,
            attended_us=args.attended_us,
            on_progress=lambda done, total: progress.counting("fits", done, total, started),
        )
    )
    console = results_console()
    print_calibration(console, found)
    ranking = rank_policies(args.traces, found.spec, found.held_out)
    print_ranking(console, ranking)
    useless = mostly_left_out(seen) or beyond_use([held.errors for held in found.held_out], found.spec.law)
    if useless and not args.force:
        raise CalibrationError(f"{useless} Nothing is written; --force writes it all the same")
    if args.output is None:
        command = shlex.join(["lmperf", "calibrate", *args.traces, "-o", "model.json"])
        console.print(f"not written; to keep it: {command}", soft_wrap=True, highlight=False)
        return ExitCode.OK
    path = Path(args.output)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        fit = {**found.spec.fit, "policy_ranking": ranking.as_data()}
        write_whole(path, encode_server_model(msgspec.structs.replace(found.spec, fit=fit)))
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
