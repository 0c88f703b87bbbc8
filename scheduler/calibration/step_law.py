"""The step law by non-negative least squares, with no simulator in the loop.

Between its first and its last token a request takes part in every step, so for each request::

    last - first = a (n - 1) + b P + c T + d (n - 1) K + attended A

with n its output tokens, P the prompt tokens (less those found in a prefix cache) whose first token falls into the window, T
the tokens that all requests decoded in it, K the mean resident KV, and A the pairs that those P attend to (their cost is
stated, so it goes to the left side). Rows are weighted by 1 / (last - first): relative errors, so that a few long requests do
not decide. The offset before the engine's queue, and what streams take of the front end where it is told, come from quiet
requests (:mod:`scheduler.calibration.quiet`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from scheduler.calibration.observations import Activity, Floats, Observations
from scheduler.calibration.quiet import offset_us, quiet_requests, told_stream_us
from scheduler.server_model.spec import MOST_US, StepLaw

MIN_REQUESTS = 20
TERMS = ("a_us", "b_us", "c_us", "d_us")
_BOOTSTRAP_BLOCKS = 40

TOO_LONG_US = MOST_US / 20
"""From here a search could not go on: it tries laws that are several times slower, and a law's terms have an end."""


class CalibrationError(ValueError):
    """Too little, or nothing that identifies the law; the message says what would help."""


@dataclass(frozen=True, slots=True)
class Interval95:
    """A fitted parameter with its 95% bootstrap interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class LawFit:
    """``law``; ``intervals`` by parameter (us); ``condition``: of the scaled design matrix (large: terms are confounded);
    ``warnings`` for people; ``requests`` used; ``peak_decoding``: most requests that decoded at once."""

    law: StepLaw
    intervals: dict[str, Interval95]
    condition: float
    warnings: tuple[str, ...]
    requests: int
    peak_decoding: int


def design(seen: Observations, attended_us: float = 0.0) -> tuple[Floats, Floats]:
    """The weighted rows (n x 4, in us a unit of each term) and the weighted left side (ones, less what attention takes)."""
    activity = Activity(seen)
    rows = seen.take((seen.output_tokens > 1) & (seen.last_ns > seen.first_ns))
    first, last = rows.first_ns.astype(np.float64), rows.last_ns.astype(np.float64)
    steps = (rows.output_tokens - 1).astype(np.float64)
    duration_us = (last - first) / 1000
    prefilled = activity.prefilled(last) - activity.prefilled(first)
    decoded = activity.tokens(last) - activity.tokens(first)
    mean_kv = (activity.kv_area(last) - activity.kv_area(first)) / (last - first)
    terms = np.column_stack([steps, prefilled, decoded, steps * mean_kv])
    attending_us = attended_us * (activity.attended(last) - activity.attended(first))
    return terms / duration_us[:, None], 1 - attending_us / duration_us


def fit_law(captures: list[Observations], *, attended_us: float = 0.0, bootstrap: int = 200, seed: int = 0) -> LawFit:
    """Fit one law to one or more captures of the same server, with a stated ``attended_us``. Raises CalibrationError."""
    from scipy.optimize import nnls  # noqa: PLC0415 (heavy, and only calibration needs it)

    blocks: list[tuple[Floats, Floats]] = []
    for seen in captures:
        matrix, target = design(seen, attended_us)
        per_block = max(1, len(target) // max(1, _BOOTSTRAP_BLOCKS // len(captures)))
        blocks.extend(
            (matrix[start : start + per_block], target[start : start + per_block])
            for start in range(0, len(target), per_block)
        )
    usable = sum(len(t) for _, t in blocks)
    if usable < MIN_REQUESTS:
        raise CalibrationError(
            f"calibration needs at least {MIN_REQUESTS} successful requests with two or more output tokens, found "
            f"{usable}; capture a longer run"
        )
    matrix = np.concatenate([m for m, _ in blocks])
    target = np.concatenate([t for _, t in blocks])
    scale = np.maximum(np.abs(matrix).max(axis=0), 1e-12)

    def solve(m: Floats, t: Floats) -> Floats:
        solution: Floats = nnls(m / scale, t)[0] / scale
        return solution

    best = solve(matrix, target)
    condition = float(np.linalg.cond(matrix / scale))
    rng = np.random.default_rng(seed)
    replicates = []
    for _ in range(bootstrap):
        chosen = rng.integers(0, len(blocks), len(blocks))
        replicates.append(
            solve(np.concatenate([blocks[i][0] for i in chosen]), np.concatenate([blocks[i][1] for i in chosen]))
        )
    spread = np.percentile(np.array(replicates), [2.5, 97.5], axis=0)
    if attended_us and (best[0] <= 0 or (best[1] <= 0 and matrix[:, 1].any())):
        raise CalibrationError(
            f"attended_us {attended_us} leaves no time for the rest of the captured steps: it is microseconds a pair of a "
            "prompt token and one that it attends to (0.0008 for an 8B model on an H200), or 0"
        )
    if best[0] <= 0:
        raise CalibrationError(
            "the captured requests do not identify the time of a step: vary output lengths and load, and calibrate again"
        )
    quiet = quiet_requests(captures, best, attended_us)
    told_us = told_stream_us(quiet, float(best[0]))
    stream_us = 0.0 if told_us is None else told_us
    work_us = offset_us(quiet, stream_us)
    longest_us = max(*(float(value) for value in best), work_us)
    if longest_us > TOO_LONG_US:
        raise CalibrationError(
            f"no server is so slow: a term of its law would be {longest_us / 1e6:,.4g} s; are the captures' times in the units "
            "that they should be in?"
        )
    law = StepLaw(
        a_us=float(best[0]),
        b_us=float(best[1]),
        c_us=float(best[2]),
        d_us=float(best[3]),
        attended_us=attended_us,
        offset_us=work_us,
        stream_us=stream_us,
    )
    intervals = {
        name: Interval95(float(best[i]), float(spread[0, i]), float(spread[1, i])) for i, name in enumerate(TERMS)
    }
    return LawFit(
        law=law,
        intervals=intervals,
        condition=condition,
        warnings=_warnings(captures, condition),
        requests=len(target),
        peak_decoding=max(Activity(seen).peak_decoding for seen in captures),
    )


def _partly_read(captures: list[Observations]) -> list[str]:
    found = [
        f"{seen.name}: fitted to {len(seen):,} consecutive requests from the middle of its {seen.of:,}"
        for seen in captures
        if seen.of > len(seen)
    ]
    found += [
        f"{seen.name}: {seen.left_out:,} of {seen.left_out + max(seen.of, len(seen)):,} requests are left out: not answered in "
        "full, or a stamp or a length is missing or cannot be"
        for seen in captures
        if seen.left_out
    ]
    cached = sum(int(seen.cached_tokens.sum()) for seen in captures if seen.cached_tokens is not None)
    if cached:
        share = cached / sum(int(seen.prompt_tokens.sum()) for seen in captures)
        found.append(
            f"{share:.1%} of the prompt tokens were found in the server's prefix cache, which cost no prefill: the law is of "
            "computed tokens, so simulate with prefix_cache: true (and a trace with prefix blocks), or prompts take longer "
            "than they did"
        )
    return found


def _warnings(captures: list[Observations], condition: float) -> tuple[str, ...]:
    warnings = _partly_read(captures)
    outputs = np.concatenate([seen.output_tokens for seen in captures])
    prompts = np.concatenate([seen.prompt_tokens for seen in captures])
    if np.std(outputs) < 0.05 * np.mean(outputs) and np.std(prompts) < 0.05 * np.mean(prompts):
        warnings.append("all lengths are nearly equal: the terms of the law cannot be told apart; vary the lengths")
    if condition > 1e3:
        warnings.append(f"the terms are confounded (condition number {condition:.0f}): capture several loads")
    return tuple(warnings)
