"""How many sequences the engine ran at once, and whether it was saturated, as far as client-side stamps can tell."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from scheduler.calibration.observations import Observations

_AT_PEAK = 0.9
_PLATEAU_SHARE = 0.05
_WAITING_FACTOR = 1.1
_GROWTH = 3.0


@dataclass(frozen=True, slots=True)
class Seats:
    """``peak``: the most requests that decoded at once. ``plateau``: the server held more requests than that while it was
    near the peak for a good part of the time, so that the peak is a limit and not an accident of the load. ``saturated``:
    there was a plateau and TTFT grew through the run."""

    peak: int
    plateau: bool
    saturated: bool


def seats(seen: Observations) -> Seats:
    """Of one capture."""
    times = np.concatenate([seen.sent_ns, seen.first_ns, seen.last_ns])
    ones = np.ones(len(seen), dtype=np.int64)
    decoding = np.concatenate([0 * ones, ones, -ones])
    inside = np.concatenate([ones, 0 * ones, -ones])
    order = np.argsort(times, kind="stable")
    decodes, holds = np.cumsum(decoding[order]), np.cumsum(inside[order])
    spans = np.diff(times[order], append=times[order][-1])
    peak = int(decodes.max(initial=0))
    near = decodes >= _AT_PEAK * peak
    crowded = near & (holds >= _WAITING_FACTOR * peak + 1)
    busy = spans[decodes > 0].sum()
    plateau = bool(busy > 0 and spans[crowded].sum() >= _PLATEAU_SHARE * busy)
    ttft = (seen.first_ns - seen.sent_ns).astype(np.float64)
    quarter = max(1, len(ttft) // 4)
    grew = bool(np.median(ttft[-quarter:]) > _GROWTH * np.median(ttft[:quarter]))
    return Seats(peak, plateau, plateau and grew and seen.users is None)
