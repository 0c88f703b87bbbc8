"""A run against the one it is compared with: signed differences, and which of them are a regression.

A latency regresses when it grows by more than the tolerance, attainment and rates when they fall by more. A percentile that
was never reached (it fell among requests without an answer) is worse than any that was. Where both runs state intervals of
a figure (attainment, promised percentiles), overlapping ones prove nothing, whatever the difference.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from loadgen.summary.schema import IntervalSummary, Summary, TenantSummary

LATENCIES = (("ttft", 50.0), ("ttft", 99.0), ("tpot", 50.0), ("itl", 99.0), ("e2e", 50.0), ("e2e", 99.0))


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """A figure of one run: ms, a share, or a rate. ``beyond``: it is only known to exceed ``value``."""

    value: float
    beyond: bool = False
    interval: IntervalSummary | None = None

    def text(self, digits: int, scale: float = 1.0) -> str:
        shown = f"{'> ' if self.beyond else ''}{self.value * scale:,.{digits}f}"
        if self.interval is None:
            return shown
        high = "inf" if self.interval.high is None else f"{self.interval.high * scale:,.{digits}f}"
        return f"{shown} [{self.interval.low * scale:,.{digits}f}, {high}]"


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One figure of one tenant in both runs. ``higher_is_worse``: a latency. ``share``: attainment, in 0..1."""

    tenant: str
    figure: str
    base: Reading
    run: Reading
    higher_is_worse: bool
    share: bool = False

    @property
    def change(self) -> float | None:
        """Relative growth (of a share: the difference itself); None when an unreached percentile hides it."""
        if self.base.beyond and self.run.beyond:
            return None
        if self.run.beyond:
            return math.inf
        if self.base.beyond:
            return -math.inf
        if self.share:
            return self.run.value - self.base.value
        return self.run.value / self.base.value - 1.0 if self.base.value else None

    @property
    def within_noise(self) -> bool:
        """True when both state an interval and these overlap."""
        a, b = self.base.interval, self.run.interval
        return a is not None and b is not None and a.low <= _high(b) and b.low <= _high(a)

    def regressed(self, tolerance: float) -> bool:
        """True when the run is worse by more than ``tolerance``, beyond what its intervals leave open."""
        change = self.change
        if change is None or self.within_noise:
            return False
        return (change if self.higher_is_worse else -change) > tolerance


def differences(base: Summary, run: Summary) -> list[Difference]:
    """Every figure that both runs have, tenant by tenant, then in total (when there are several tenants)."""
    theirs = {tenant.tenant: tenant for tenant in run.tenants}
    found = [
        difference
        for tenant in base.tenants
        if tenant.tenant in theirs
        for difference in _of(tenant, theirs[tenant.tenant])
    ]
    if len(base.tenants) > 1 or len(run.tenants) > 1:
        found.extend(_of(base.total, run.total))
    return found


def incomparable(base: Summary, run: Summary) -> str | None:
    """Why the two must not be compared; None when they may be."""
    if base.load_mode != run.load_mode:
        return (
            f"one is a {base.load_mode} loop, the other a {run.load_mode} loop: in a closed loop users wait for the server, "
            "so its latencies answer another question"
        )
    if not {t.tenant for t in base.tenants} & {t.tenant for t in run.tenants}:
        return "they have no tenant in common"
    return None


def _of(base: TenantSummary, run: TenantSummary) -> Iterator[Difference]:
    for metric, p in LATENCIES:
        pair = _latency(base, metric, p), _latency(run, metric, p)
        if pair[0] is not None and pair[1] is not None:
            yield Difference(
                tenant=base.tenant, figure=f"{metric} p{p:g} ms", base=pair[0], run=pair[1], higher_is_worse=True
            )
    shares = _share(base), _share(run)
    if shares[0] is not None and shares[1] is not None:
        yield Difference(
            tenant=base.tenant, figure="attained", base=shares[0], run=shares[1], higher_is_worse=False, share=True
        )
    for figure, before, after in (
        ("goodput 1/s", base.goodput.requests_per_s, run.goodput.requests_per_s),
        ("tokens/s", base.throughput.output_tokens_per_s, run.throughput.output_tokens_per_s),
    ):
        yield Difference(
            tenant=base.tenant,
            figure=figure,
            base=Reading(value=before),
            run=Reading(value=after),
            higher_is_worse=False,
        )


def _latency(tenant: TenantSummary, metric: str, p: float) -> Reading | None:
    try:
        found = tenant.metric(metric).at(p)
    except KeyError:
        return None
    promised = next((one for one in tenant.promises if one.promise == f"{metric}_p{p:g}"), None)
    interval = None if promised is None else promised.interval
    if found.beyond_ms is not None:
        return Reading(value=found.beyond_ms, beyond=True, interval=interval)
    return None if found.value_ms is None else Reading(value=found.value_ms, interval=interval)


def _share(tenant: TenantSummary) -> Reading | None:
    attained = tenant.attainment
    if attained is None or attained.share is None:
        return None
    return Reading(value=attained.share, interval=attained.interval)


def _high(interval: IntervalSummary) -> float:
    return math.inf if interval.high is None else interval.high
