"""From captured runs of one server to its model, with what is known about its error.

Least squares on spans give the start (:mod:`scheduler.calibration.step_law`), the simulator in the loop the rest
(:mod:`scheduler.calibration.refine`). Two engines are tried: one that plans a step when the step before has ended, and one
that plans a step ahead; the second has more parameters, so it must fit clearly better to be taken. The intervals of what
comes out are a jackknife over the captures (:mod:`scheduler.calibration.jackknife`).

Held-out errors: each capture is predicted from the others; a single capture is split in time, fitted on its first half and
judged on its second.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np

from scheduler.calibration.figures import errors, figures
from scheduler.calibration.jackknife import jackknife
from scheduler.calibration.observations import Observations
from scheduler.calibration.refine import Refined, refine
from scheduler.calibration.replay import replay
from scheduler.calibration.seats import seats
from scheduler.calibration.step_law import MIN_REQUESTS, CalibrationError, Interval95, LawFit, fit_law
from scheduler.server_model.spec import ServerLimits, ServerModelSpec, StepLaw

PLAIN = ("a_us", "b_us", "c_us", "d_us", "offset_us", "offset_per_sequence_us")
AHEAD = (*PLAIN, "e_us", "launch_us", "launch_idle_us")
MUST_GAIN = 0.05
"""Planning ahead is believed when it takes away more than this share of the loss, and more than this much of it."""

EVALUATIONS = 140
"""Replays of all captures that a fit may take: some ten seconds for eight captures of a few hundred requests."""

USUAL_SEQUENCES = 256
USUAL_BATCHED_TOKENS = 8192


@dataclass(frozen=True, slots=True)
class HeldOut:
    """``errors``: simulated / captured - 1 of one capture, by figure, from a law that never saw it (``law``)."""

    capture: str
    law: StepLaw
    errors: dict[str, float]


@dataclass(frozen=True, slots=True)
class Calibration:
    """``spec``: the server model, with all of this in its ``fit``. ``spans``: the least-squares fit that it started from."""

    spec: ServerModelSpec
    spans: LawFit
    loss: float
    held_out: tuple[HeldOut, ...]
    warnings: tuple[str, ...]

    def mean_absolute(self) -> dict[str, float]:
        """Mean over captures of the absolute held-out error, by figure."""
        return mean_absolute(self.held_out)

    def intervals(self) -> dict[str, Interval95]:
        """Of the law's parameters, 95%; empty for fewer than three captures."""
        return _intervals(self.spec.law, self.held_out)

    def left_out_range(self) -> dict[str, tuple[float, float]]:
        """The least and greatest value of each parameter that is not 0, as captures are left out."""
        return _left_out_range(self.spec.law, self.held_out)


def mean_absolute(held_out: Sequence[HeldOut]) -> dict[str, float]:
    names = dict.fromkeys(name for held in held_out for name in held.errors)
    return {n: float(np.mean([abs(h.errors[n]) for h in held_out if n in h.errors])) for n in names}


def calibrate(
    captures: Sequence[Observations],
    *,
    name: str = "calibrated",
    limits: ServerLimits | None = None,
    max_num_seqs: int | None = None,
    max_num_batched_tokens: int | None = None,
    evaluations: int = EVALUATIONS,
    bootstrap: int = 200,
    seed: int = 0,
    hold_out: bool = True,
    on_progress: Callable[[int, int], None] = lambda _done, _total: None,
) -> Calibration:
    """Fit one server model to all captures. ``limits``: the engine's, where they are known; else ``max_num_seqs`` (default:
    from a plateau of the captures) and ``max_num_batched_tokens`` (default: vLLM's usual 8,192). ``evaluations``: at most so
    many replays a fit. Raises CalibrationError when there is too little, or nothing that identifies the law."""
    captures = [_sorted(seen) for seen in captures]
    spans = fit_law(captures, bootstrap=bootstrap, seed=seed)
    warnings = list(spans.warnings)
    if limits is None:
        limits = _limits(captures, max_num_seqs, max_num_batched_tokens, warnings)
    total = 1 + (max(len(captures), 1) if hold_out else 0)
    limits, free, fit = _better_engine(captures, spans, limits, evaluations)
    on_progress(1, total)
    held: list[HeldOut] = []
    if hold_out:
        for held_one in _held_out(captures, limits, free, evaluations):
            held.append(held_one)
            on_progress(1 + len(held), total)
    warnings += _replay_warnings(captures, fit.law, limits)
    data = _as_data(captures, spans, fit, held, warnings)
    spec = ServerModelSpec(name=name, law=fit.law, limits=limits, fit=data)
    return Calibration(spec, spans, fit.loss, tuple(held), tuple(warnings))


def _sorted(seen: Observations) -> Observations:
    if len(seen) and np.any(np.diff(seen.sent_ns) < 0):
        raise CalibrationError(f"{seen.name}: the requests are not in order of sending; sort them by sent_ns")
    return seen


def _limits(
    captures: Sequence[Observations], sequences: int | None, batched_tokens: int | None, warnings: list[str]
) -> ServerLimits:
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


def start_ahead(law: StepLaw) -> StepLaw:
    """Where the fit of an engine that plans ahead starts: a host that needs a few decode steps to launch one with prefill.
    A span's offset holds the launch and the step of waiting; the constant before the queue is what remains."""
    launch_us = 3.5 * law.a_us
    return msgspec.structs.replace(
        law,
        c_us=max(law.c_us, 0.002 * law.a_us),
        e_us=5e-5 * law.b_us,
        launch_us=launch_us,
        launch_tail_us=0.5 * law.a_us,
        launch_idle_us=0.5 * launch_us,
        offset_us=max(law.offset_us - 0.7 * launch_us, 0.3 * law.offset_us, 1.0),
        offset_per_sequence_us=0.05 * law.a_us,
    )


def start_plain(law: StepLaw) -> StepLaw:
    """Where the fit of a plain engine starts: a parameter that is 0 could not move."""
    return msgspec.structs.replace(
        law,
        c_us=max(law.c_us, 0.001 * law.a_us),
        offset_us=max(0.9 * law.offset_us, 1.0),
        offset_per_sequence_us=0.025 * law.a_us,
    )


def _better_engine(
    captures: Sequence[Observations], spans: LawFit, limits: ServerLimits, evaluations: int
) -> tuple[ServerLimits, tuple[str, ...], Refined]:
    plain_limits = msgspec.structs.replace(limits, async_scheduling=False)
    ahead_limits = msgspec.structs.replace(limits, async_scheduling=True)
    plain = refine(captures, start_plain(spans.law), plain_limits, PLAIN, evaluations=evaluations)
    ahead = refine(captures, start_ahead(spans.law), ahead_limits, AHEAD, evaluations=evaluations)
    if plain.loss - ahead.loss > MUST_GAIN * max(1.0, plain.loss):
        return ahead_limits, AHEAD, ahead
    return plain_limits, PLAIN, plain


def fit_engine(
    captures: Sequence[Observations], limits: ServerLimits, free: tuple[str, ...], evaluations: int = EVALUATIONS
) -> StepLaw:
    """The law of an engine whose kind is known (``limits.async_scheduling``, with ``free`` to match)."""
    law = fit_law(list(captures), bootstrap=1).law
    start = start_ahead(law) if limits.async_scheduling else start_plain(law)
    return refine(captures, start, limits, free, evaluations=evaluations).law


def _held_out(
    captures: Sequence[Observations], limits: ServerLimits, free: tuple[str, ...], evaluations: int
) -> list[HeldOut]:
    if len(captures) == 1:
        return _second_half(captures[0], limits, free, evaluations)
    held = []
    for index, seen in enumerate(captures):
        others = [one for other, one in enumerate(captures) if other != index]
        law = fit_engine(others, limits, free, evaluations)
        held.append(HeldOut(seen.name, law, errors(figures(seen), figures(replay(seen, law, limits).times))))
    return held


def _second_half(seen: Observations, limits: ServerLimits, free: tuple[str, ...], evaluations: int) -> list[HeldOut]:
    half = len(seen) // 2
    if half < MIN_REQUESTS:
        return []
    early, late = np.arange(half), np.arange(half, len(seen))
    law = fit_engine([seen.take(early)], limits, free, evaluations)
    simulated = replay(seen, law, limits).times
    found = errors(figures(seen.take(late)), figures(simulated.take(late)))
    return [HeldOut(f"{seen.name} (second half)", law, found)]


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
        "jackknife_95": {name: [i.low, i.high] for name, i in _intervals(fit.law, held).items()},
        "left_out_range": {name: list(ends) for name, ends in _left_out_range(fit.law, held).items()},
        "held_out": {one.capture: one.errors for one in held},
        "mean_absolute_error": mean_absolute(held),
        "warnings": list(warnings),
    }


def _intervals(law: StepLaw, held: Sequence[HeldOut]) -> dict[str, Interval95]:
    return jackknife(law, [one.law for one in held])


def _left_out_range(law: StepLaw, held: Sequence[HeldOut]) -> dict[str, tuple[float, float]]:
    laws = [one.law for one in held] or [law]
    names = [name for name in StepLaw.__struct_fields__ if getattr(law, name) > 0]
    return {name: (min(getattr(one, name) for one in laws), max(getattr(one, name) for one in laws)) for name in names}
