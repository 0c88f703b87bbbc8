"""The error budget: how many misses a promise allows, how much of that is spent, and how fast.

With attainment target t, a share ``1 - t`` of the requests may miss:

    spent     = misses / ((1 - t) * requests of the period)         1 = all of it
    burn rate = (misses / requests of the window) / (1 - t)         1 = just sustainable

An alert watches two windows: the long one shows that the burn matters, the short one that it has not already stopped
(multi-window burn-rate alerts, *The Site Reliability Workbook*, chapter 5). Requests belong to the window of their
arrival.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tenants.measures.attainment import meets
from tenants.measures.columns import Columns, Int64s
from tenants.slo import Slo

SHORT_S = 60.0
LONG_S = 300.0


def _allowed(target: float) -> float:
    if not 0 < target < 1:
        raise ValueError(f"an error budget needs an attainment target between 0 and 1, got {target}")
    return 1 - target


@dataclass(frozen=True, slots=True)
class ErrorBudget:
    """Of a period with ``requests`` requests of which ``misses`` missed, against ``target``."""

    target: float
    requests: int
    misses: int

    @property
    def allowed(self) -> float:
        """How many misses the period's requests allow (not whole)."""
        return _allowed(self.target) * self.requests

    @property
    def spent(self) -> float | None:
        """The share of the budget that is spent, above 1 when overdrawn; None without requests."""
        return self.misses / self.allowed if self.requests else None

    @property
    def remaining(self) -> float | None:
        """1 - spent, negative when overdrawn."""
        return None if self.spent is None else 1 - self.spent


def error_budget(columns: Columns, slo: Slo) -> ErrorBudget:
    """Over the judged rows (of one tenant). Raises ValueError when the SLO has no attainment target."""
    judged, target = columns.judged(), _target(slo)
    return ErrorBudget(target, len(judged), len(judged) - int(meets(judged, slo).sum()))


def _target(slo: Slo) -> float:
    if slo.attainment is None:
        raise ValueError("an error budget needs an attainment target; the SLO has none")
    _allowed(slo.attainment)
    return slo.attainment


def burn_rate(misses: int, requests: int, target: float) -> float | None:
    """Of one window; None without requests."""
    return misses / requests / _allowed(target) if requests else None


@dataclass(frozen=True, slots=True)
class BurnRates:
    """Burn rates at the times ``at_ns``, over the ``window_s`` before each, the time itself included; NaN where no
    request arrived in the window.
    """

    window_s: float
    at_ns: Int64s
    rates: NDArray[np.float64]

    @property
    def peak(self) -> float | None:
        """The largest; None when there is none."""
        known = self.rates[~np.isnan(self.rates)]
        return float(known.max()) if len(known) else None


def burn_rates(columns: Columns, slo: Slo, window_s: float, at_ns: Sequence[int] | Int64s) -> BurnRates:
    """Over the judged rows (of one tenant). A window that reaches back before the first arrival holds what there is."""
    if not window_s > 0:
        raise ValueError(f"a window must be longer than 0 s, got {window_s}")
    target, judged = _target(slo), columns.judged()
    order = np.argsort(judged.arrival_ns, kind="stable")
    arrivals = judged.arrival_ns[order]
    missed = np.concatenate([[0], np.cumsum(~meets(judged, slo)[order])])
    at = np.asarray(at_ns, dtype=np.int64)
    first = np.searchsorted(arrivals, at - round(window_s * 1e9), side="right")
    last = np.searchsorted(arrivals, at, side="right")
    requests, misses = last - first, missed[last] - missed[first]
    rates = np.where(requests > 0, misses / np.maximum(requests, 1) / _allowed(target), np.nan)
    return BurnRates(window_s, at, rates)


def burning(
    columns: Columns,
    slo: Slo,
    threshold: float,
    at_ns: Sequence[int] | Int64s,
    *,
    short_s: float = SHORT_S,
    long_s: float = LONG_S,
) -> NDArray[np.bool_]:
    """At each time whether the alert is on: both windows burn at least ``threshold`` times as fast as sustainable."""
    if not short_s < long_s:
        raise ValueError(f"the short window ({short_s} s) must be shorter than the long one ({long_s} s)")
    short, long = (burn_rates(columns, slo, window, at_ns).rates for window in (short_s, long_s))
    # Comparisons with NaN are False: a window without requests burns nothing.
    return (short >= threshold) & (long >= threshold)
