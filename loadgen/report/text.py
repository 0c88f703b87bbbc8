"""Numbers as a report prints them: about three digits, units beside them, bounds marked, shares cut and not rounded."""

from __future__ import annotations

from loadgen.offline.verdicts import Figure
from loadgen.summary.schema import AttainmentSummary, IntervalSummary, Percentile, TenantSummary
from loadgen.table import hit_share_text, latency_text
from tenants.measures.shares import cut, percent, promised, raised

NOTHING = "–"

METRIC_NAMES = {
    "ttft": "TTFT",
    "backend_ttft": "backend TTFT",
    "tpot": "TPOT",
    "itl": "ITL",
    "inter_chunk": "inter-chunk latency",
    "max_itl": "longest ITL",
    "e2e": "E2E",
    "queue_time": "queue time",
    "own_lateness": "own lateness",
}
VERDICT_WORDS = {"kept": "kept", "broken": "broken", "undecided": "undecided", "no_slo": "no SLO"}


def latency(found: Percentile | None) -> str:
    """In ms, without the unit: ``7.31``, ``84.2``, ``1,204``, ``> 30,000``."""
    if found is None or (found.value_ms is None and found.beyond_ms is None):
        return NOTHING
    return latency_text(found)


def milliseconds(value_ms: float | None) -> str:
    """A plain latency in ms, as :func:`latency` prints it."""
    return latency(None if value_ms is None else Percentile(p=50.0, value_ms=value_ms))


def percentile_of(tenant: TenantSummary, metric: str, p: float) -> Percentile | None:
    """A tenant's percentile of a metric, or None when the summary does not hold it."""
    for found in tenant.metrics:
        if found.metric == metric:
            return next((percentile for percentile in found.percentiles if percentile.p == p), None)
    return None


def tenant_latency(tenant: TenantSummary, metric: str, p: float) -> str:
    return latency(percentile_of(tenant, metric, p))


def share(value: float | None, digits: int = 1) -> str:
    """``99.2%``, cut and not rounded (99.996% is not 100%); one digit more from 98.5% on, where it decides."""
    if value is None:
        return NOTHING
    digits += 0.985 <= value < 1
    return f"{percent(value, digits)}%"


def target(value: float | None) -> str:
    """A promised share as it was written: ``99%``, ``99.95%``."""
    return NOTHING if value is None else f"{promised(value)}%"


def budget(spent: float | None) -> str:
    """``41%``, ``101%``: an error budget that is hardly overdrawn is no full 100%."""
    return NOTHING if spent is None else f"{raised(100 * spent, 0)}%"


def allowed(found: AttainmentSummary) -> str:
    """How many misses the target allows, cut: 1 miss is more than 0.96."""
    return NOTHING if found.target is None else cut((1 - found.target) * found.total, 1)


def share_interval(interval: IntervalSummary | None) -> str:
    """``[98.1%, 99.4%]``; empty without one."""
    if interval is None:
        return ""
    return f"[{share(interval.low)}, {share(interval.high)}]"


def attained(found: AttainmentSummary | None) -> str:
    return NOTHING if found is None else share(found.share)


def hit_share(value: float | None) -> str:
    """``41.2%``, rounded: nobody promises it."""
    return NOTHING if value is None else hit_share_text(value)


def figure(found: Figure, digits: int = 2, scale: float = 1.0) -> str:
    """A figure over seeds with its interval: ``1.04 [1.02, 1.06]``, ``≥ 3.40`` for a lower bound."""
    if found.value is None:
        return NOTHING
    text = f"{'≥ ' if found.bound else ''}{found.value * scale:,.{digits}f}"
    if found.interval is None:
        return text
    return f"{text} [{found.interval.low * scale:,.{digits}f}, {found.interval.high * scale:,.{digits}f}]"


def share_figure(found: Figure) -> str:
    """An attainment over seeds; its interval is cut to what is possible at all."""
    if found.value is None:
        return NOTHING
    if found.interval is None:
        return share(found.value)
    possible = found.interval.clipped(0.0, 1.0)
    return f"{share(found.value)} [{share(possible.low)}, {share(possible.high)}]"


def latency_figure(found: Figure) -> str:
    """A latency in ns over seeds, in ms: ``1,204 [1,180, 1,230]``."""
    if found.value is None:
        return NOTHING
    text = f"{'≥ ' if found.bound else ''}{milliseconds(found.value / 1e6)}"
    if found.interval is None:
        return text
    return f"{text} [{milliseconds(max(found.interval.low, 0) / 1e6)}, {milliseconds(found.interval.high / 1e6)}]"


def signed_error(fraction: float | None) -> str:
    """``+6.3%``."""
    return NOTHING if fraction is None else f"{100 * fraction:+.1f}%"


def rate(value: float | None) -> str:
    """A rate with about three digits: ``0.25``, ``24.3``, ``4,905``."""
    if value is None:
        return NOTHING
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def promise_name(promise: str) -> str:
    """``ttft_p99`` as people say it: ``TTFT P99``."""
    metric, _, percentile = promise.rpartition("_p")
    return f"{METRIC_NAMES.get(metric, metric)} P{percentile}" if metric else promise
