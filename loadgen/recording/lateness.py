"""How late the load generator itself was, and how late it may be for the run to be believed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tenants.measures.columns import UNDEFINED, Int64s
from tenants.measures.percentile import PercentileValue, percentiles
from tenants.slo import Metric
from tenants.tenant import Tenant

LATENESS_FLOOR_NS = 5_000_000
LATENESS_SHARE_OF_TTFT = 0.05


@dataclass(frozen=True, slots=True)
class Lateness:
    """The generator's own lateness over the window, and the bound above which a run is invalid: max(5 ms, 5% of the
    tightest TTFT limit).
    """

    p50: PercentileValue
    p99: PercentileValue
    max_ns: int | None
    bound_ns: int

    @property
    def within_bound(self) -> bool:
        return self.p99.value_ns is None or self.p99.value_ns <= self.bound_ns


def lateness_bound_ns(tenants: Sequence[Tenant]) -> int:
    """The largest P99 of own lateness of a valid run with these tenants."""
    limits = [o.limit_ns for t in tenants for o in t.slo.objectives if o.metric is Metric.TTFT]
    limits += [t.slo.ttft_ns for t in tenants if t.slo.ttft_ns is not None]
    return max(LATENESS_FLOOR_NS, int(LATENESS_SHARE_OF_TTFT * min(limits, default=0)))


def lateness_of(values: Int64s, bound_ns: int) -> Lateness:
    """From the own lateness of every request of the window."""
    p50, p99 = percentiles(values, [50.0, 99.0])
    longest = int(values.max(initial=UNDEFINED))
    return Lateness(p50=p50, p99=p99, max_ns=None if longest == UNDEFINED else longest, bound_ns=bound_ns)
