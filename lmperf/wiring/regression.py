"""A run against the one it is compared with: signed differences with their intervals, and which are a regression.

A latency regresses when it grows by more than the tolerance, attainment and rates when they fall by more. A percentile that
was never reached (it fell among requests without an answer) is worse than any that was. Where the interval of the
difference (:mod:`tenants.measures.difference`) holds 0, chance alone may have made it, whatever its size; of runs that
are known by their summaries alone, overlapping intervals of the figures say the same. Without any interval a difference
beyond the tolerance is undecided. The cache hit share stands beside and never regresses: what it gains or costs is in TTFT.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from lmperf.wiring.compared import Compared, Pair
from loadgen.summary.schema import TOTAL, IntervalSummary, Summary, TenantSummary
from tenants.measures.difference import RATIOS, over_seeds
from tenants.measures.intervals import Interval
from tenants.measures.shares import percent
from tenants.slo import Metric

LATENCIES = (
    (Metric.TTFT, 50.0),
    (Metric.TTFT, 99.0),
    (Metric.TPOT, 50.0),
    (Metric.ITL, 99.0),
    (Metric.E2E, 50.0),
    (Metric.E2E, 99.0),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """A figure of one run, or its mean over several: ms, a share, or a rate. ``beyond``: only known to exceed ``value``."""

    value: float
    beyond: bool = False
    interval: IntervalSummary | None = None

    def text(self, number: Callable[[float], str]) -> str:
        """``1,204.00 [1,180.00, 1,230.00]``, each as ``number`` writes it."""
        shown = f"{'> ' if self.beyond else ''}{number(self.value)}"
        if self.interval is None:
            return shown
        high = "inf" if self.interval.high is None else number(self.interval.high)
        return f"{shown} [{number(self.interval.low)}, {high}]"


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One figure of one tenant on both sides; a side is None where only the other has it. ``higher_is_worse``: a latency; None:
    neither way is, since the figure explains others and promises nothing. ``share``: a share, in 0..1. ``interval``: of
    ``change``, where one is known.
    """

    tenant: str
    figure: str
    base: Reading | None
    run: Reading | None
    higher_is_worse: bool | None
    share: bool = False
    interval: Interval | None = None

    def number(self, value: float) -> str:
        """A side's value as it is shown: a share in percent, cut where it is promised."""
        if not self.share:
            return f"{value:,.2f}"
        return f"{100 * value:,.1f}" if self.higher_is_worse is None else percent(value)

    @property
    def change(self) -> float | None:
        """Relative growth (of a share: the difference itself); None when an unreached percentile hides it or a side is None."""
        if self.base is None or self.run is None:
            return None
        return change_of(self.base, self.run, share=self.share)

    @property
    def has_interval(self) -> bool:
        """Whether anything is known of what chance alone would do."""
        if self.interval is not None:
            return True
        return all(side is not None and side.interval is not None for side in (self.base, self.run))

    @property
    def within_noise(self) -> bool:
        """True when chance alone may have made the difference; without any interval nothing is known of it."""
        if self.interval is not None:
            return self.interval.low <= 0 <= self.interval.high
        if self.base is None or self.run is None:
            return False
        a, b = self.base.interval, self.run.interval
        return a is not None and b is not None and a.low <= _high(b) and b.low <= _high(a)

    def regressed(self, tolerance: float) -> bool:
        """True when the run is worse by more than ``tolerance``, and not by chance alone."""
        return self._beyond(tolerance) and not self.within_noise and (self.has_interval or self._lost)

    def undecided(self, tolerance: float) -> bool:
        """True when it is worse by more than ``tolerance`` and nothing tells whether by chance alone."""
        return self._beyond(tolerance) and not self.has_interval and not self._lost

    @property
    def _lost(self) -> bool:
        """A percentile that is no longer reached needs no interval."""
        return self.change == math.inf

    def _beyond(self, tolerance: float) -> bool:
        change = self.change
        if change is None or self.higher_is_worse is None:
            return False
        return (change if self.higher_is_worse else -change) > tolerance


def change_of(base: Reading, run: Reading, *, share: bool) -> float | None:
    """See :attr:`Difference.change`."""
    if base.beyond and run.beyond:
        return None
    if run.beyond:
        return math.inf
    if base.beyond:
        return -math.inf
    if share:
        return run.value - base.value
    return run.value / base.value - 1.0 if base.value else None


def differences(pair: Pair) -> list[Difference]:
    """Every figure that both sides have, and the hit share if one has it, tenant by tenant, then in total (when there are
    several tenants)."""
    first, second = pair.base.summaries[0], pair.run.summaries[0]
    theirs = {tenant.tenant for tenant in second.tenants}
    names = [tenant.tenant for tenant in first.tenants if tenant.tenant in theirs]
    if len(first.tenants) > 1 or len(second.tenants) > 1:
        names.append(TOTAL)
    return [difference for name in names for difference in _of(pair, name)]


def incomparable(base: Compared, run: Compared) -> str | None:
    """Why the two must not be compared; None when they may be."""
    modes = {summary.load_mode for side in (base, run) for summary in side.summaries}
    if len(modes) > 1:
        return (
            "one is an open loop, the other a closed loop: in a closed loop users wait for the server, so its latencies "
            "answer another question"
        )
    if not _names(base.summaries) & _names(run.summaries):
        return "they have no tenant in common"
    return None


def _names(summaries: Sequence[Summary]) -> set[str]:
    return {tenant.tenant for summary in summaries for tenant in summary.tenants}


def _of(pair: Pair, name: str) -> Iterator[Difference]:
    whose = None if name == TOTAL else name
    for metric, p in LATENCIES:
        of = partial(_latency, metric, p)
        found = _both(pair, name, of, mean=_geometric)
        if found is None:
            continue
        value = change_of(*found, share=False)
        interval = _over_seeds(pair, name, of, relative=True)
        if interval is None and value is not None and math.isfinite(value) and metric in RATIOS and pair.sides:
            interval = pair.sides.percentile_ratio(whose, metric, p, value)
        yield Difference(
            tenant=name,
            figure=f"{metric.value} p{p:g} ms",
            base=found[0],
            run=found[1],
            higher_is_worse=True,
            interval=interval,
        )
    yield from _hit_share(pair, name)
    yield from _attained(pair, name, whose)
    for figure, tokens, rate in (
        ("goodput 1/s", False, lambda t: Reading(value=t.goodput.requests_per_s)),
        ("tokens/s", True, lambda t: Reading(value=t.throughput.output_tokens_per_s)),
    ):
        rates = _both(pair, name, rate, mean=_mean)
        if rates is None:
            continue
        value = change_of(*rates, share=False)
        interval = _over_seeds(pair, name, rate, relative=True)
        if interval is None and value is not None and pair.sides is not None:
            interval = pair.sides.rate_ratio(whose, value, tokens=tokens)
        yield Difference(
            tenant=name, figure=figure, base=rates[0], run=rates[1], higher_is_worse=False, interval=interval
        )


def _attained(pair: Pair, name: str, whose: str | None) -> Iterator[Difference]:
    found = _both(pair, name, _share, mean=_mean)
    if found is None:
        return
    interval = _over_seeds(pair, name, _share, relative=False)
    # The total's share is over tenants with limits alone, which the rows of everybody are not.
    if interval is None and whose is not None and pair.sides is not None:
        interval = pair.sides.share_difference(whose, found[1].value - found[0].value)
    yield Difference(
        tenant=name,
        figure="attained",
        base=found[0],
        run=found[1],
        higher_is_worse=False,
        share=True,
        interval=interval,
    )


def _hit_share(pair: Pair, name: str) -> Iterator[Difference]:
    """What a run without a prefix cache does not state is what one with a cache is compared for."""
    base, run = (_one(_readings(side, name, _found), mean=_mean) for side in (pair.base, pair.run))
    if base is None and run is None:
        return
    yield Difference(
        tenant=name,
        figure="hit share",
        base=base,
        run=run,
        higher_is_worse=None,
        share=True,
        interval=_over_seeds(pair, name, _found, relative=False),
    )


_Of = Callable[[TenantSummary], Reading | None]


def _readings(side: Compared, name: str, of: _Of) -> list[Reading]:
    tenants = [
        summary.total if name == TOTAL else summary.tenant(name)
        for summary in side.summaries
        if name == TOTAL or name in _names([summary])
    ]
    return [reading for reading in map(of, tenants) if reading is not None]


def _both(
    pair: Pair, name: str, of: _Of, *, mean: Callable[[Sequence[float]], float]
) -> tuple[Reading, Reading] | None:
    base, run = (_one(_readings(side, name, of), mean=mean) for side in (pair.base, pair.run))
    return None if base is None or run is None else (base, run)


def _one(readings: Sequence[Reading], *, mean: Callable[[Sequence[float]], float]) -> Reading | None:
    """The reading of one side; of several runs their mean."""
    if len(readings) <= 1:
        return readings[0] if readings else None
    return Reading(value=mean([r.value for r in readings]), beyond=any(r.beyond for r in readings))


def _over_seeds(pair: Pair, name: str, of: _Of, *, relative: bool) -> Interval | None:
    before, after = (_readings(side, name, of) for side in (pair.base, pair.run))
    if any(reading.beyond for reading in (*before, *after)):
        return None
    paired = pair.paired and len(before) == len(after) == len(pair.base.summaries)
    return over_seeds([r.value for r in before], [r.value for r in after], paired=paired, relative=relative)


def _latency(metric: Metric, p: float, tenant: TenantSummary) -> Reading | None:
    try:
        found = tenant.metric(metric.value).at(p)
    except KeyError:
        return None
    promised = next((one for one in tenant.promises if one.promise == f"{metric.value}_p{p:g}"), None)
    interval = None if promised is None else promised.interval
    if found.beyond_ms is not None:
        return Reading(value=found.beyond_ms, beyond=True, interval=interval)
    return None if found.value_ms is None else Reading(value=found.value_ms, interval=interval)


def _share(tenant: TenantSummary) -> Reading | None:
    attained = tenant.attainment
    if attained is None or attained.share is None:
        return None
    return Reading(value=attained.share, interval=attained.interval)


def _found(tenant: TenantSummary) -> Reading | None:
    return None if tenant.hit_share is None else Reading(value=tenant.hit_share)


def _high(interval: IntervalSummary) -> float:
    return math.inf if interval.high is None else interval.high


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _geometric(values: Sequence[float]) -> float:
    return math.exp(_mean([math.log(v) for v in values])) if all(v > 0 for v in values) else 0.0
