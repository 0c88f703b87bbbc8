"""From captured runs of one server to its model, with what is known about its error.

Least squares on spans give the start (:mod:`scheduler.calibration.step_law`), the simulator in the loop the rest
(:mod:`scheduler.calibration.refine`). The intervals of what comes out are a jackknife over the captures
(:mod:`scheduler.calibration.jackknife`); for one or two captures a block bootstrap within them
(:mod:`scheduler.calibration.within_run`).

Held-out errors: each capture is predicted from the others; a single capture is split in time, fitted on its first half and
judged on its second.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec
import numpy as np

from scheduler.calibration.by_tenant import tenant_errors
from scheduler.calibration.doubts import contradicted, joined, large_errors, tokens_a_chunk
from scheduler.calibration.doubts_of_law import LEAST_OFFSET_US, at_bounds, moved, wide
from scheduler.calibration.figures import errors, figures, mean_errors
from scheduler.calibration.jackknife import MIN_CAPTURES, jackknife
from scheduler.calibration.observations import BLOCKS, Observations, blocks_of
from scheduler.calibration.quiet import offset_us, quiet_requests
from scheduler.calibration.refine import Refined, refine
from scheduler.calibration.repeated import repeated
from scheduler.calibration.replay import replay
from scheduler.calibration.seats import seats
from scheduler.calibration.step_law import (
    MIN_REQUESTS,
    TERMS,
    CalibrationError,
    Interval95,
    LawFit,
    fit_law,
)
from scheduler.calibration.within_run import REFITS, no_narrower, within_run
from scheduler.server_model.spec import STATED, ServerLimits, ServerModelSpec, StepLaw
from scheduler.server_model.speculation import acceptance_of, tokens_a_step

EVALUATIONS = 140
"""Replays of all captures that a fit may take: some ten seconds for eight captures of a few hundred requests."""

STREAM_GUESS = 0.015
"""Where a search starts with what a stream takes of the front end, if quiet requests do not tell, of a step: little, for all
pay it."""

USUAL_SEQUENCES = 256
USUAL_BATCHED_TOKENS = 8192


@dataclass(frozen=True, slots=True)
class HeldOut:
    """``errors``: simulated / captured - 1 of one capture, by figure, from a law that never saw it (``law``).
    ``tenants``: the same for each tenant (:mod:`scheduler.calibration.by_tenant`)."""

    capture: str
    law: StepLaw
    errors: dict[str, float]
    tenants: dict[str, dict[str, float]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Calibration:
    """``spec``: the server model, with all of this in its ``fit``. ``spans``: the least-squares fit that it started from.
    ``within``: intervals within one run (:mod:`scheduler.calibration.within_run`), where there are too few captures.
    ``untold``: parameters that the captures leave where the fit starts."""

    spec: ServerModelSpec
    spans: LawFit
    loss: float
    held_out: tuple[HeldOut, ...]
    warnings: tuple[str, ...]
    all_held_out: bool = True
    within: dict[str, Interval95] = field(default_factory=dict)
    untold: frozenset[str] = frozenset()

    def mean_absolute(self) -> dict[str, float]:
        """Mean over captures of the absolute held-out error, by figure."""
        return mean_absolute(self.held_out)

    def intervals(self) -> dict[str, Interval95]:
        """Of the law's parameters, 95%: over captures, where there are three or more and each could be held out; of fewer
        within the run."""
        return self.over_captures() or self._told(self.within)

    def over_captures(self) -> dict[str, Interval95]:
        return self._told(_intervals(self.spec.law, self.held_out)) if self.all_held_out else {}

    def _told(self, intervals: dict[str, Interval95]) -> dict[str, Interval95]:
        """An interval would say how little they move, and not how well they are known."""
        return {name: found for name, found in intervals.items() if name not in self.untold}

    def left_out_range(self) -> dict[str, tuple[float, float]]:
        """The least and greatest value of each parameter that is not 0, as captures are left out."""
        return _left_out_range(self.spec.law, self.held_out)


def mean_absolute(held_out: Sequence[HeldOut]) -> dict[str, float]:
    return mean_errors([held.errors for held in held_out])


def calibrate(
    captures: Sequence[Observations],
    *,
    name: str = "calibrated",
    limits: ServerLimits | None = None,
    max_num_seqs: int | None = None,
    max_num_batched_tokens: int | None = None,
    drafts: int = 0,
    acceptance: float | None = None,
    attended_us: float = 0.0,
    evaluations: int = EVALUATIONS,
    bootstrap: int = 200,
    seed: int = 0,
    refits: int = REFITS,
    hold_out: bool = True,
    on_progress: Callable[[int, int], None] = lambda _done, _total: None,
) -> Calibration:
    """Fit one server model to all captures.

    ``limits``: the engine's, where they are known; else ``max_num_seqs`` (default: from a plateau of the captures) and
    ``max_num_batched_tokens`` (default: vLLM's usual 8,192). ``drafts``: of speculative decoding, tokens a step, each accepted
    with ``acceptance`` (None: as the chunks tell). ``attended_us``: of the law, which no fit moves. ``evaluations``: at most so
    many replays a search. ``refits``: of the bootstrap within one or two captures (0: none). Raises CalibrationError when there
    is too little, nothing that identifies the law, or a capture twice."""
    captures = [_sorted(seen) for seen in captures]
    if same := repeated(captures):
        raise CalibrationError(same)
    spans = fit_law(captures, attended_us=attended_us, bootstrap=bootstrap, seed=seed)
    warnings = list(spans.warnings)
    if limits is None:
        limits = limits_seen(captures, warnings, max_num_seqs, max_num_batched_tokens)
    if drafts:
        limits = _speculating(limits, drafts, acceptance, captures)
    folds = max(len(captures), 1) if hold_out else 0
    bounded = refits if hold_out and len(captures) < MIN_CAPTURES else 0
    total = 1 + folds + bounded
    fit = refine(captures, start_of(captures, spans.law, limits), limits, evaluations=evaluations)
    on_progress(1, total)
    held: list[HeldOut] = []
    if hold_out:
        for held_one in _held_out(captures, limits, attended_us, evaluations, warnings):
            held.append(held_one)
            on_progress(1 + len(held), total)
    within = within_run(
        captures,
        fit.law,
        limits,
        refits=bounded,
        seed=seed,
        on_progress=lambda done: on_progress(1 + folds + done, total),
    )
    untold = frozenset() if spans.law.stream_us else frozenset({"stream_us"})
    within = no_narrower(within, spans.intervals)
    intervals = (
        within if len(captures) < MIN_CAPTURES else _intervals(fit.law, held) if len(held) == len(captures) else {}
    )
    warnings += (
        wide({name: found for name, found in intervals.items() if name not in untold})
        + contradicted(captures, limits)
        + joined(captures, limits)
        + at_bounds(captures, fit.law)
        + moved(fit.law, [one.law for one in held])
        + large_errors(mean_absolute(held))
    )
    warnings += _replay_warnings(captures, fit.law, limits)
    data = _as_data(captures, spans, fit, held, within, untold, warnings)
    spec = ServerModelSpec(name=name, law=fit.law, limits=limits, fit=data)
    complete = len(held) >= min(len(captures), folds)
    return Calibration(
        spec, spans, fit.loss, tuple(held), tuple(warnings), all_held_out=complete, within=within, untold=untold
    )


def _sorted(seen: Observations) -> Observations:
    if len(seen) and np.any(np.diff(seen.sent_ns) < 0):
        raise CalibrationError(f"{seen.name}: the requests are not in order of sending; sort them by sent_ns")
    return seen


def limits_seen(
    captures: Sequence[Observations],
    warnings: list[str],
    sequences: int | None = None,
    batched_tokens: int | None = None,
) -> ServerLimits:
    """Limits where nobody states them: from a plateau of the captures, else usual ones. ``warnings`` gains what is assumed."""
    found = [seats(seen) for seen in captures]
    if sequences is None:
        limited = [one.peak for one in found if one.plateau]
        if limited:
            sequences = max(limited)
        else:
            sequences = max(USUAL_SEQUENCES, *(one.peak for one in found))
            warnings.append(
                f"max_num_seqs is not known from these captures (no more than {max(one.peak for one in found)} requests "
                f"decoded at once, with none waiting): {sequences} is assumed; state it, or capture a run past saturation"
            )
    if batched_tokens is None:
        batched_tokens = max(USUAL_BATCHED_TOKENS, sequences)
        warnings.append(f"max_num_batched_tokens was not given: {batched_tokens} is assumed")
    warnings.extend(
        f"{seen.name}: past saturation, so its TTFT says how long the run was rather than how fast the server is"
        for seen, one in zip(captures, found, strict=True)
        if one.saturated
    )
    return ServerLimits(max_num_seqs=sequences, max_num_batched_tokens=batched_tokens)


def start_of(captures: Sequence[Observations], law: StepLaw, limits: ServerLimits) -> StepLaw:
    """Where a refinement starts: a parameter that is 0 could not move. Spans count tokens, and a step that speculates gives
    several."""
    tokens = tokens_a_step(limits.speculative_tokens, limits.speculative_acceptance)
    work_us, stream_us = law.offset_us, law.stream_us
    if not stream_us:
        stream_us = STREAM_GUESS * law.a_us
        terms = np.array([getattr(law, name) for name in TERMS])
        work_us = offset_us(quiet_requests(captures, terms, law.attended_us), stream_us)
    return msgspec.structs.replace(
        law,
        a_us=tokens * law.a_us,
        c_us=tokens * max(law.c_us, 0.001 * law.a_us),
        d_us=tokens * law.d_us,
        offset_us=max(0.9 * work_us, LEAST_OFFSET_US),
        stream_us=tokens * stream_us,
    )


def _speculating(
    limits: ServerLimits, drafts: int, acceptance: float | None, captures: Sequence[Observations]
) -> ServerLimits:
    if acceptance is None:
        told = [each for seen in captures if (each := tokens_a_chunk(seen)) is not None]
        if not told:
            raise CalibrationError(
                "no capture has the gaps between its chunks, so how many drafts are accepted is not known: state it"
            )
        acceptance = acceptance_of(drafts, sum(told) / len(told))
    return msgspec.structs.replace(limits, speculative_tokens=drafts, speculative_acceptance=acceptance)


def fit_engine(
    captures: Sequence[Observations], limits: ServerLimits, evaluations: int = EVALUATIONS, attended_us: float = 0.0
) -> StepLaw:
    """The law of a server whose limits, and what attention costs it, are known."""
    law = fit_law(list(captures), attended_us=attended_us, bootstrap=1).law
    return refine(captures, start_of(captures, law, limits), limits, evaluations=evaluations).law


def _held_out(
    captures: Sequence[Observations],
    limits: ServerLimits,
    attended_us: float,
    evaluations: int,
    warnings: list[str],
) -> list[HeldOut]:
    """A part that the rest says too little to predict is left out, and a warning says so."""
    if len(captures) == 1:
        try:
            return _second_half(captures[0], limits, attended_us, evaluations)
        except CalibrationError as error:
            warnings.append(f"{captures[0].name}: its first half is too little to predict the second ({error})")
            return []
    held = []
    for index, seen in enumerate(captures):
        others = [one for other, one in enumerate(captures) if other != index]
        try:
            law = fit_engine(others, limits, evaluations, attended_us)
        except CalibrationError as error:
            warnings.append(f"{seen.name}: the other captures are too little to predict it ({error})")
            continue
        held.append(_judged(seen.name, law, seen, replay(seen, law, limits).times))
    return held


def _second_half(seen: Observations, limits: ServerLimits, attended_us: float, evaluations: int) -> list[HeldOut]:
    # Halves of whole blocks: each takes its gaps along.
    block = blocks_of(len(seen))
    early, late = np.flatnonzero(block < BLOCKS // 2), np.flatnonzero(block >= BLOCKS // 2)
    if min(len(early), len(late)) < MIN_REQUESTS:
        return []
    law = fit_engine([seen.take(early)], limits, evaluations, attended_us)
    simulated = replay(seen, law, limits, by_block=True).times
    return [_judged(f"{seen.name} (second half)", law, seen.take(late), simulated.take(late))]


def _judged(name: str, law: StepLaw, captured: Observations, simulated: Observations) -> HeldOut:
    return HeldOut(name, law, errors(figures(captured), figures(simulated)), tenants=tenant_errors(captured, simulated))


def _replay_warnings(captures: Sequence[Observations], law: StepLaw, limits: ServerLimits) -> list[str]:
    return [
        f"{seen.name}: the KV cache fills up and sequences are preempted; capture at a lower load for the step law"
        for seen in captures
        if replay(seen, law, limits).preemptions
    ]


def _as_data(
    captures: Sequence[Observations],
    spans: LawFit,
    fit: Refined,
    held: Sequence[HeldOut],
    within: Mapping[str, Interval95],
    untold: frozenset[str],
    warnings: Sequence[str],
) -> dict[str, object]:
    """What the server-model file keeps of its origin."""
    return {
        "captures": [seen.name for seen in captures],
        "requests": spans.requests,
        "spans": {
            "parameters": {term: interval.value for term, interval in spans.intervals.items()},
            "bootstrap_95": {term: [interval.low, interval.high] for term, interval in spans.intervals.items()},
            "condition": spans.condition,
        },
        "loss": fit.loss,
        "jackknife_95": {name: [i.low, i.high] for name, i in _intervals(fit.law, held).items() if name not in untold},
        "within_run_bootstrap_95": {name: [i.low, i.high] for name, i in within.items() if name not in untold},
        "not_told": sorted(untold),
        "left_out_range": {name: list(ends) for name, ends in _left_out_range(fit.law, held).items()},
        "held_out": {one.capture: one.errors for one in held},
        "held_out_tenants": {one.capture: one.tenants for one in held if one.tenants},
        "mean_absolute_error": mean_absolute(held),
        "warnings": list(warnings),
    }


def _intervals(law: StepLaw, held: Sequence[HeldOut]) -> dict[str, Interval95]:
    return jackknife(law, [one.law for one in held])


def _left_out_range(law: StepLaw, held: Sequence[HeldOut]) -> dict[str, tuple[float, float]]:
    laws = [one.law for one in held] or [law]
    names = [name for name in StepLaw.__struct_fields__ if getattr(law, name) > 0 and name not in STATED]
    return {name: (min(getattr(one, name) for one in laws), max(getattr(one, name) for one in laws)) for name in names}
