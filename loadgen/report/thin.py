"""A long series made short enough to draw, without hiding a peak or averaging a percentile.

Neighbouring intervals are joined. Counts become rates over the joined interval; queue lengths and percentiles are the
*largest* of the joined intervals (a mean of percentiles has no meaning). A percentile that was not reached in one of
them is not reached in the whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from loadgen.summary.schema import SeriesSummary

MAX_POINTS = 600


@dataclass(frozen=True, slots=True)
class Drawn:
    """One tenant's series as drawn. ``time_s``: the middle of each interval. Rates are per s. TTFT in ms, None where
    nothing arrived or (where ``unreached`` is True) where the P99 was never reached.
    """

    tenant: str
    interval_s: float
    joined: int
    time_s: list[float]
    arrivals: list[float]
    completions: list[float]
    output_tokens: list[float]
    ttft_p50_ms: list[float | None]
    ttft_p99_ms: list[float | None]
    unreached: list[bool]
    in_flight: list[int]
    queued: list[int]


def drawn_of(series: SeriesSummary, max_points: int = MAX_POINTS) -> Drawn:
    """``series`` in at most ``max_points`` points."""
    n = len(series.arrivals)
    joined = max(1, -(-n // max_points))
    starts = range(0, n, joined)
    width_s = series.interval_s * joined

    def rate(values: Sequence[float]) -> list[float]:
        parts = [values[i : i + joined] for i in starts]
        return [round(sum(part) / (len(part) * series.interval_s), 3) for part in parts]

    def largest(values: Sequence[int]) -> list[int]:
        return [max(values[i : i + joined]) for i in starts]

    never = [a > 0 and p99 is None for a, p99 in zip(series.arrivals, series.ttft_p99_ms, strict=True)]
    never_p50 = [a > 0 and p50 is None for a, p50 in zip(series.arrivals, series.ttft_p50_ms, strict=True)]
    return Drawn(
        tenant=series.tenant,
        interval_s=width_s,
        joined=joined,
        time_s=[round((i + min(joined, n - i) / 2) * series.interval_s, 3) for i in starts],
        arrivals=rate(series.arrivals),
        completions=rate(series.completions),
        output_tokens=rate(series.output_tokens),
        ttft_p50_ms=[_worst(series.ttft_p50_ms, never_p50, i, joined) for i in starts],
        ttft_p99_ms=[_worst(series.ttft_p99_ms, never, i, joined) for i in starts],
        unreached=[any(never[i : i + joined]) for i in starts],
        in_flight=largest(series.in_flight),
        queued=largest(series.queued),
    )


def _worst(values: Sequence[float | None], never: Sequence[bool], start: int, joined: int) -> float | None:
    if any(never[start : start + joined]):
        return None
    known = [value for value in values[start : start + joined] if value is not None]
    return round(max(known), 3) if known else None
