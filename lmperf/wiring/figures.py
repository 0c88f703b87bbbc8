"""What a threshold may ask of a finished run, looked up in its recorder and summary."""

from __future__ import annotations

import math

from loadgen.recorder import Recorder
from loadgen.summary.schema import Summary, TenantSummary
from tenants.thresholds import Lookup, Measure


def lookup_in(recorder: Recorder, summary: Summary) -> Lookup:
    """Figures of a tenant, or of the run (None). Latencies in ns; a percentile that was never reached is inf."""

    def lookup(tenant: str | None, measure: Measure) -> float | None:
        of = summary.total if tenant is None else summary.tenant(tenant)
        if measure.metric is None:
            return _figure(of, str(measure.figure))
        histogram = recorder.histogram(measure.metric, tenant)
        if not histogram.count:
            return None
        match measure.aggregate:
            case "mean":
                return math.inf if histogram.count_never else histogram.mean_successes_ns
            case "min":
                return histogram.min_ns
            case "max":
                return math.inf if histogram.count_never else histogram.max_ns
            case _:
                found = histogram.percentile(50.0 if measure.percentile is None else measure.percentile)
                return math.inf if found.never else found.value_ns

    return lookup


def _figure(of: TenantSummary, name: str) -> float | None:
    match name:
        case "attainment":
            return None if of.attainment is None else of.attainment.share
        case "failed":
            return None if not of.requests else 1.0 - of.statuses.get("ok", 0) / of.requests
        case "goodput":
            return of.goodput.requests_per_s
        case "requests_per_s":
            return of.throughput.requests_per_s
        case "tokens_per_s":
            return of.throughput.output_tokens_per_s
        case _:
            return None
