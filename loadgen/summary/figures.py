"""The figures of one tenant, or of all, that need the rows: statuses, rates in the window, where the waiting was."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from loadgen.recording.series import Series
from loadgen.summary.schema import MetricSummary, Percentile, PrefixCache, Rates, SeriesSummary, Successes, Waiting
from tenants.measures.columns import NEVER, UNDEFINED, Columns, Int64s, StatusCode
from tenants.measures.histogram import Histogram
from tenants.measures.percentile import PercentileValue
from tenants.measures.prefix_cache import cache_hits
from tenants.slo import Metric

_NS_PER_S = 1_000_000_000


def ms(ns: float | None) -> float | None:
    return None if ns is None else ns / 1e6


def percentile_summary(p: float, found: PercentileValue) -> Percentile:
    return Percentile(p=p, value_ms=ms(found.value_ns), beyond_ms=ms(found.beyond_ns))


def metric_summary(metric: Metric, due: Histogram, good: Histogram, ps: Sequence[float]) -> MetricSummary:
    """``due``: all requests; ``good``: those that ended OK."""
    return MetricSummary(
        metric=metric.value,
        count=due.count,
        never=due.count_never,
        out_of_range=due.out_of_range,
        percentiles=[percentile_summary(p, v) for p, v in zip(ps, due.percentiles(tuple(ps)), strict=True)],
        successes=Successes(
            count=good.count_successes,
            mean_ms=ms(good.mean_successes_ns),
            min_ms=ms(good.min_ns),
            max_ms=ms(good.max_ns),
            percentiles=[percentile_summary(p, good.percentile_successes(p)) for p in ps],
        ),
    )


def statuses(columns: Columns) -> dict[str, int]:
    """How the judged rows ended, by name; all names, so that a zero is seen."""
    ended = columns.judged().status
    named = [code for code in StatusCode if code is not StatusCode.CANCEL_PLANNED]
    return {code.name.lower(): int((ended == code).sum()) for code in named}


def rates(columns: Columns, window_ns: tuple[int, int]) -> Rates:
    """Work done inside the window by all rows of ``columns``, whenever they arrived: dividing what arrived in the
    window and was finished long after it by the window's length would overstate an overloaded server.
    """
    start, end = window_ns
    seconds = (end - start) / _NS_PER_S
    done = prompt = 0
    tokens = [np.empty(0)]
    for rows in columns.pieces():
        ok = rows.status == StatusCode.OK
        done += int((ok & (rows.end_ns >= start) & (rows.end_ns < end)).sum())
        first = _first_token(rows)
        prefilled = (first >= start) & (first < end)
        prompt += int(np.maximum(rows.prompt_tokens[prefilled], 0).sum())
        tokens.append(_tokens_inside(rows, first, start, end))
    output = float(np.concatenate(tokens).sum())
    return Rates(
        requests_per_s=done / seconds,
        output_tokens_per_s=output / seconds,
        total_tokens_per_s=(output + prompt) / seconds,
    )


def _first_token(columns: Columns) -> Int64s:
    reached = columns.ttft_ns != NEVER
    return np.where(reached, columns.arrival_ns + np.where(reached, columns.ttft_ns, 0), UNDEFINED)


def _tokens_inside(columns: Columns, first: Int64s, start: int, end: int) -> NDArray[np.float64]:
    """Output tokens of each request delivered in [start, end), spread evenly from its first to its last token."""
    known = (first >= 0) & (columns.output_tokens > 0)
    begin = first[known].astype(np.float64)
    count = columns.output_tokens[known].astype(np.float64)
    tpot = columns.tpot_ns[known]
    streamed = (tpot != NEVER) & (tpot != UNDEFINED)
    last = np.where(streamed, begin + np.where(streamed, tpot, 0) * (count - 1), columns.end_ns[known])
    span = last - begin
    inside = np.clip(np.minimum(last, end) - np.maximum(begin, start), 0, None)
    at_once: NDArray[np.bool_] = (begin >= start) & (begin < end)
    share = np.where(span > 0, inside / np.where(span > 0, span, 1), at_once)
    tokens: NDArray[np.float64] = share * count
    return tokens


def waiting(columns: Columns) -> Waiting:
    """Shares of the summed TTFT of the judged rows that ended OK."""
    judged = columns.judged()
    ttft = judged.ttft_ns
    rows = (judged.status == StatusCode.OK) & (ttft != NEVER)
    total = float(ttft[rows].astype(np.float64).sum())
    del ttft
    if total <= 0:
        return Waiting(our_queue=None, server=None, generator=None)
    queue, server = _share(judged.queue_ns[rows], total), _share(judged.backend_ttft_ns[rows], total)
    rest = None if queue is None or server is None else max(1.0 - queue - server, 0.0)
    return Waiting(our_queue=queue, server=server, generator=rest)


def _share(waits: Int64s, total: float) -> float | None:
    """None where one is not known."""
    return None if (waits < 0).any() else float(waits.sum()) / total


def prefix_cache(columns: Columns) -> PrefixCache | None:
    """Of the judged rows; None when none states its cached tokens."""
    hits = cache_hits(columns)
    if hits.share is None:
        return None
    return PrefixCache(
        requests=hits.requests,
        prompt_tokens=hits.prompt_tokens,
        cached_prompt_tokens=hits.cached_prompt_tokens,
        hit_share=hits.share,
    )


def series_summary(series: Series) -> SeriesSummary:
    def optional_ms(values: Int64s) -> list[float | None]:
        return [None if value in (NEVER, UNDEFINED) else value / 1e6 for value in values.tolist()]

    return SeriesSummary(
        tenant=series.tenant,
        interval_s=series.interval_s,
        arrivals=series.arrivals.tolist(),
        completions=series.completions.tolist(),
        failures=series.failures.tolist(),
        output_tokens=[round(value, 3) for value in series.output_tokens.tolist()],
        ttft_p50_ms=optional_ms(series.ttft_p50_ns),
        ttft_p99_ms=optional_ms(series.ttft_p99_ns),
        in_flight=series.in_flight.tolist(),
        queued=series.queued.tolist(),
    )
