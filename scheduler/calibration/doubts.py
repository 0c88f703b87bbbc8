"""What speaks against a fitted server model, in sentences for people: its own held-out errors, a stated limit that the
captures contradict. Of its parameters: :mod:`scheduler.calibration.doubts_of_law`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from scheduler.calibration.doubts_of_law import NO_DISTANCE_US, no_servers_law
from scheduler.calibration.observations import Observations
from scheduler.calibration.seats import seats
from scheduler.calibration.words import FIGURES
from scheduler.server_model.spec import ServerLimits, StepLaw

LARGE = {
    "ttft_p50": 0.5,
    "ttft_p99": 0.5,
    "tpot_mean": 0.2,
    "e2e_mean": 0.2,
    "throughput": 0.2,
}
"""The mean absolute held-out error, by figure, above which a model is not to be believed: more than twice what captures of
a disturbed host give (TTFT 0.2, TPOT and E2E 0.035)."""

BEYOND_USE = 2.0
"""By what factor a model may err, on average over what was held out, in the pace of a token or in the throughput. What it is
asked for differs by no more: baseline and raised load by 1.2 to 1.6, the slots that a search tries by 2 each way, so a model
that is wrong by 2 tells none of them from the other. Not asked of E2E, nor of TTFT while the law's
offset may be one: near saturation their errors know no bound (a law 27% too slow made TTFT 77 times too long on one sound
capture). With an offset at the end of its range it is no load that TTFT errs by, but the times of sending."""

JOINED = 1.3
"""Tokens a chunk. A busy client that finds two steps in one read makes it a little more than 1 (up to 1.09 on an H200)."""

_BOUNDED = ("tpot_mean", "throughput")

_OVERLAP = 1.1
"""A client sees a sequence begin before it sees the last token of the one that made room."""


def large_errors(mean_absolute: Mapping[str, float]) -> list[str]:
    """``mean_absolute``: held-out errors by figure."""
    named = [
        f"{FIGURES[name]} {mean_absolute[name]:.0%} (at most {most:.0%})"
        for name, most in LARGE.items()
        if mean_absolute.get(name, 0.0) > most
    ]
    if not named:
        return []
    said = f"this model does not predict its own captures, mean absolute held-out error: {', '.join(named)}"
    return [f"{said}; do not decide by it: check the stamps and the stated limits, or capture anew"]


def beyond_use(held_out: Sequence[Mapping[str, float]], law: StepLaw) -> str:
    """Why a model with this law and these held-out errors, by figure, is of no use at all; empty where it may be of some."""
    found = []
    for name in (*_BOUNDED, *(("ttft_p50",) if law.offset_us <= NO_DISTANCE_US else ())):
        ratios = [max(1 + errors[name], 1e-9) for errors in held_out if name in errors]
        factor = math.exp(sum(abs(math.log(ratio)) for ratio in ratios) / max(1, len(ratios)))
        if factor > BEYOND_USE:
            found.append(f"{FIGURES[name]} by a factor of {factor:.1f}")
    if not found:
        return no_servers_law(law)
    return (
        f"what was held out is mispredicted beyond any use: {', '.join(found)}, and {BEYOND_USE:.0f} is the most; are the "
        "captures of one server, and their times in the units that they should be in?"
    )


def mostly_left_out(captures: Sequence[Observations]) -> str:
    """Captures of which the law saw less than half: what else the server did meanwhile is not known. Empty for none."""
    found = []
    for seen in captures:
        sent = max(seen.of, len(seen)) + seen.left_out
        if 2 * seen.left_out > sent:
            found.append(f"{seen.left_out:,} of {sent:,} of {seen.name}")
    if not found:
        return ""
    said = f"most requests are left out ({', '.join(found)})"
    return (
        f"{said}, and what they took of the server is laid on those that were answered; capture a run that is answered."
    )


def tokens_a_chunk(seen: Observations) -> float | None:
    """On average, after the first; None where the gaps between chunks are not known."""
    if seen.gaps_ns is None:
        return None
    gaps = len(seen.gaps_ns) if seen.gap_counts is None else int(seen.gap_counts.sum())
    return float((seen.output_tokens - 1).sum()) / gaps if gaps else None


def joined(captures: Sequence[Observations], limits: ServerLimits) -> list[str]:
    """Captures whose chunks carry another number of tokens than the law's steps, which give each sequence one unless they
    speculate; and fewer than one, which no chunk does."""
    each = {seen.name: tokens for seen in captures if (tokens := tokens_a_chunk(seen)) is not None}
    found: list[str] = []
    several = [f"{name} {tokens:.1f}" for name, tokens in each.items() if tokens > JOINED]
    if several and not limits.speculative_tokens:
        said = f"several tokens came in one chunk (on average: {', '.join(several)})"
        why = (
            "with speculative decoding, or a server that joins them, a, c and d are those of a token and not of a step"
        )
        found.append(
            f"{said}: {why}, and gaps between chunks are mispredicted; is it speculative decoding? State its drafts"
        )
    fewer = [f"{name} {tokens:.1f}" for name, tokens in each.items() if tokens < 1 / JOINED]
    if fewer:
        said = f"there are more chunks than tokens ({', '.join(fewer)} tokens a chunk)"
        found.append(f"{said}: output lengths are not those of the answers, and no parameter can be right")
    return found


def contradicted(captures: Sequence[Observations], limits: ServerLimits) -> list[str]:
    """Captures in which more sequences decoded at once than the engine is said to run."""
    peaks = {seen.name: seats(seen).peak for seen in captures}
    return [
        f"{name}: {peak} requests decoded at once, and max_num_seqs is stated as {limits.max_num_seqs}: a server of that "
        f"limit cannot have done so; state at least {peak}"
        for name, peak in peaks.items()
        if peak > _OVERLAP * limits.max_num_seqs + 1
    ]
