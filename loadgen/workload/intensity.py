"""The expected arrivals of a tenant as a function of time, and its inverse.

Every open-loop process is one renewal process in *operational time* u (one arrival expected per unit) carried to the
run's time t by the inverse of the cumulative intensity: u = Lambda(t), Lambda' = lambda(t) (time-change theorem: Daley
and Vere-Jones, An Introduction to the Theory of Point Processes, 7.4). Ramps, steps and on/off phases are then only
other lambdas, and multiplying a rate by k plays the same arrivals k times as fast.

Here lambda is linear on each of finitely many pieces. Within a piece that starts at rate r0 and rises by s per second,
u = r0 x + s x^2 / 2, so x = 2u / (r0 + sqrt(r0^2 + 2 s u)): no cancellation, and exact for s = 0.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tenants.traffic import Arrivals, Process

Floats = NDArray[np.float64]
Parts = tuple[tuple[float, float], ...]


def open_parts(spec: Arrivals, duration_s: float) -> Parts:
    """The parts (start_s, end_s) of a run in which the tenant may send: ``active`` cut by ``on_s`` / ``period_s``."""
    active = _active_parts(spec, duration_s)
    if spec.on_s is None or spec.period_s is None:
        return active
    parts = []
    for start, end in active:
        for i in range(math.floor(start / spec.period_s), math.ceil(end / spec.period_s)):
            on = max(start, i * spec.period_s)
            off = min(end, i * spec.period_s + spec.on_s)
            if on < off:
                parts.append((on, off))
    return tuple(parts)


def next_open_ns(parts: Parts, at_ns: int) -> int | None:
    """The first instant >= ``at_ns`` inside ``parts``; None when there is none."""
    at_s = at_ns / 1e9
    i = bisect_right(parts, at_s, key=lambda part: part[0]) - 1
    if i >= 0 and at_s < parts[i][1]:
        return at_ns
    return round(parts[i + 1][0] * 1e9) if i + 1 < len(parts) else None


def _active_parts(spec: Arrivals, duration_s: float) -> Parts:
    if not spec.active:
        return ((0.0, duration_s),)
    return tuple((start * duration_s, end * duration_s) for start, end in spec.active)


@dataclass(frozen=True, slots=True)
class _Piece:
    start_s: float
    end_s: float
    rate_start: float
    rate_end: float

    def within(self, start_s: float, end_s: float) -> _Piece:
        start, end = max(self.start_s, start_s), min(self.end_s, end_s)
        return _Piece(start, end, self._rate_at(start), self._rate_at(end))

    def _rate_at(self, t: float) -> float:
        if self.rate_start == self.rate_end:
            return self.rate_start
        share = (t - self.start_s) / (self.end_s - self.start_s)
        return self.rate_start + share * (self.rate_end - self.rate_start)

    @property
    def expected(self) -> float:
        return (self.end_s - self.start_s) * (self.rate_start + self.rate_end) / 2


def _base_pieces(spec: Arrivals, duration_s: float) -> list[_Piece]:
    rate = spec.rate or 0.0
    if spec.process is Process.RAMP:
        return [_Piece(0.0, duration_s, spec.ramp_from, rate)]
    if spec.process is Process.STEPS:
        starts = [fraction * duration_s for fraction, _ in spec.steps]
        ends = [*starts[1:], duration_s]
        return [_Piece(start, end, r, r) for (_, r), start, end in zip(spec.steps, starts, ends, strict=True)]
    return [_Piece(0.0, duration_s, rate, rate)]


class Intensity:
    """Cumulative expected arrivals of one open-loop tenant over [0, ``duration_s``). ``total``: over the whole run."""

    def __init__(self, spec: Arrivals, duration_s: float) -> None:
        parts = open_parts(spec, duration_s)
        gain = 1.0
        if spec.on_s is not None:
            # The mean over the active parts is kept, also when the last period of a part is cut short.
            on_s = sum(end - start for start, end in parts)
            gain = sum(end - start for start, end in _active_parts(spec, duration_s)) / on_s if on_s > 0 else 0.0
        pieces = [
            piece.within(start, end)
            for piece in _base_pieces(spec, duration_s)
            for start, end in parts
            if piece.start_s < end and start < piece.end_s
        ]
        pieces = sorted((p for p in pieces if p.expected > 0), key=lambda p: p.start_s)
        self._start_s = np.array([p.start_s for p in pieces])
        self._rate = np.array([p.rate_start * gain for p in pieces])
        self._slope = np.array([gain * (p.rate_end - p.rate_start) / (p.end_s - p.start_s) for p in pieces])
        edges = np.concatenate([[0.0], np.cumsum([p.expected * gain for p in pieces])])
        self._before = edges[:-1]
        self.total = float(edges[-1])

    def time_s(self, u: Floats) -> Floats:
        """The instants (s) at which ``u`` arrivals (0 <= u < ``total``, shape (n,)) are expected to have come."""
        piece = np.searchsorted(self._before, u, side="right") - 1
        rest = u - self._before[piece]
        rate, slope = self._rate[piece], self._slope[piece]
        # At the start of a piece that begins at rate 0 both terms vanish, and the answer is its start.
        speed = rate + np.sqrt(np.maximum(rate**2 + 2 * slope * rest, 0.0))
        return np.asarray(self._start_s[piece] + 2 * rest / np.where(speed > 0, speed, 1.0))
