"""What happened in each second of a run, per tenant: computed from the rows, so that nothing grows while the run lasts.

Arrivals count at the intended arrival, completions where the outcome was known, output tokens spread evenly from the
first to the last token (so a token rate is a rate, not a spike at the finish), TTFT by arrival. ``in_flight`` and
``queued`` are counts at the end of the interval. An interval is 1 s; for a run above 3,600 intervals it is widened, so
that the series stays bounded, and ``interval_s`` says so.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loadgen.recording.store import Store
from tenants.measures.columns import NEVER, UNDEFINED, Int64s, StatusCode
from tenants.measures.percentile import percentiles

MAX_INTERVALS = 3600
_SECOND_NS = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Series:
    """Parallel arrays, one entry an interval from the run's start. ``ttft_p50_ns``, ``ttft_p99_ns``: NEVER where the
    percentile falls among requests that got no first token, UNDEFINED where none arrived.
    """

    tenant: str
    interval_s: float
    arrivals: Int64s
    completions: Int64s
    failures: Int64s
    output_tokens: NDArray[np.float64]
    ttft_p50_ns: Int64s
    ttft_p99_ns: Int64s
    in_flight: Int64s
    queued: Int64s


def interval_ns(end_ns: int) -> int:
    """The interval of a run that ended at ``end_ns``: whole seconds, the fewest that keep the series bounded."""
    seconds = max(-(-end_ns // _SECOND_NS), 1)
    return int(-(-seconds // MAX_INTERVALS)) * _SECOND_NS


def series_of(store: Store, tenant: str, code: int | None) -> Series:
    """The series of the tenant with ``code``, or of all tenants (None). Planned cancels and the rows outside the window
    are in it: it shows the run as it was. But a planned cancel is no failure, and one before the first token has no TTFT.
    """
    rows = None if code is None else store.column("tenant") == code

    def column(name: str) -> NDArray[Any]:
        return store.column(name, mask=rows)

    run_end = int(store.column("end").max(initial=0))
    width = interval_ns(run_end)
    n = run_end // width + 1
    dispatched = column("dispatched")
    left_queue = dispatched != UNDEFINED
    begun = _until(dispatched[left_queue], n, width)
    del dispatched
    end, status = column("end"), column("status")
    ok, planned = status == StatusCode.OK, status == StatusCode.CANCEL_PLANNED
    completions, failures = _per_interval(end[ok], n, width), _per_interval(end[~(ok | planned)], n, width)
    served, given_up = _until(end[left_queue], n, width), _until(end[~left_queue], n, width)
    del end, status, ok, left_queue
    arrival, ttft = column("arrival"), column("ttft")
    due = ~planned | (ttft != NEVER)
    p50, p99 = _ttft(arrival[due], ttft[due], n, width)
    del arrival, ttft, planned, due
    return Series(
        tenant=tenant,
        interval_s=width / _SECOND_NS,
        arrivals=_per_interval(column("arrival"), n, width),
        completions=completions,
        failures=failures,
        output_tokens=_token_rate(column, n, width),
        ttft_p50_ns=p50,
        ttft_p99_ns=p99,
        in_flight=begun - served,
        queued=_until(column("arrival"), n, width) - begun - given_up,
    )


def _per_interval(times: Int64s, n: int, width: int) -> Int64s:
    return np.bincount(np.clip(times // width, 0, n - 1), minlength=n).astype(np.int64)


def _until(times: Int64s, n: int, width: int) -> Int64s:
    """How many of ``times`` lie before the end of each interval."""
    before = np.bincount(np.clip(times // width, 0, n), minlength=n + 1)[:n]
    return np.cumsum(before).astype(np.int64)


def _token_rate(column: Callable[[str], NDArray[Any]], n: int, width: int) -> NDArray[np.float64]:
    """Tokens in each interval: every request's, spread evenly over [first token, last token]."""
    first, span, slope = _streams(column)
    # The tokens done by an edge are a sum of ramps, each the difference of two hinges; hinges are linear, so cumulative
    # sums over their sorted starts evaluate all of them at every edge at once.
    edges = np.arange(n + 1, dtype=np.float64) * width
    done = _ramp(first, slope, edges)
    first += span
    del span
    done -= _ramp(first, slope, edges)
    return np.maximum(np.diff(done), 0.0)


def _streams(
    column: Callable[[str], NDArray[Any]],
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """(first token, time until the last one, tokens in each ns of it) of the requests that have tokens."""
    ttft, tokens = column("ttft"), column("output_tokens")
    known = (ttft != NEVER) & (tokens > 0)
    first = (column("arrival")[known] + ttft[known]).astype(np.float64)
    count = tokens[known].astype(np.float64)
    del ttft, tokens
    tpot = column("tpot")[known]
    streamed = (tpot != NEVER) & (tpot != UNDEFINED)
    last = np.where(streamed, first + np.where(streamed, tpot, 0) * (count - 1), column("end")[known])
    del tpot, streamed, known
    span = np.maximum(last - first, 1.0)
    del last
    count /= span
    return first, span, count


def _ramp(starts: NDArray[np.float64], slopes: NDArray[np.float64], edges: NDArray[np.float64]) -> NDArray[np.float64]:
    """Sum of slope * max(edge - start, 0) over all starts, at every edge."""
    order = np.argsort(starts)
    starts, slopes = starts[order], slopes[order]
    del order
    before = np.searchsorted(starts, edges, side="left")
    starts *= slopes
    return _running(slopes, before) * edges - _running(starts, before)


def _running(values: NDArray[np.float64], before: NDArray[np.int64]) -> NDArray[np.float64]:
    """The sums of the first ``before`` values. ``values`` is overwritten."""
    sums = np.cumsum(values, out=values)
    found: NDArray[np.float64] = np.where(before > 0, sums[before - 1] if len(sums) else 0.0, 0.0)
    return found


def _ttft(arrival: Int64s, ttft: Int64s, n: int, width: int) -> tuple[Int64s, Int64s]:
    p50 = np.full(n, UNDEFINED, dtype=np.int64)
    p99 = np.full(n, UNDEFINED, dtype=np.int64)
    slot = np.clip(arrival // width, 0, n - 1)
    order = np.argsort(slot, kind="stable")
    bounds = np.searchsorted(slot[order], np.arange(n + 1))
    del slot
    for i in np.flatnonzero(np.diff(bounds)):
        middle, high = percentiles(ttft[order[bounds[i] : bounds[i + 1]]], [50.0, 99.0])
        p50[i] = NEVER if middle.value_ns is None else middle.value_ns
        p99[i] = NEVER if high.value_ns is None else high.value_ns
    return p50, p99
