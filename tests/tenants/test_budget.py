"""The error budget and its burn rate."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenants.budget import ErrorBudget, burn_rate, burn_rates, burning, error_budget
from tenants.slo import Slo
from tests.tenants.rows import MS, S, columns, row

SLO = Slo(ttft_ns=500 * MS, attainment=0.9)
GOOD, BAD = 100 * MS, 900 * MS


def test_half_of_the_allowed_misses_is_half_of_the_budget():
    """100 requests at 90% may miss 10; 5 missed."""
    budget = ErrorBudget(target=0.9, requests=100, misses=5)
    assert (budget.allowed, budget.spent, budget.remaining) == pytest.approx((10, 0.5, 0.5))
    assert ErrorBudget(target=0.9, requests=100, misses=30).remaining == pytest.approx(-2)
    assert ErrorBudget(target=0.9, requests=0, misses=0).remaining is None


def test_it_counts_the_judged_rows():
    rows = [row(0, ttft=GOOD)] * 9 + [row(0, ttft=BAD), row(0, ttft=BAD, in_window=False)]
    assert error_budget(columns(rows), SLO) == ErrorBudget(0.9, 10, 1)


def test_a_burn_rate_of_1_is_just_sustainable():
    assert burn_rate(1, 10, 0.9) == pytest.approx(1)
    assert burn_rate(10, 10, 0.9) == pytest.approx(10)
    assert burn_rate(0, 0, 0.9) is None


@given(
    st.lists(st.tuples(st.integers(0, 30), st.booleans()), max_size=30),
    st.lists(st.integers(0, 40), max_size=6),
    st.integers(1, 20),
)
def test_each_rate_is_over_the_arrivals_of_its_window(drawn, times, window):
    """At t: misses / requests among arrivals in (t - window, t], over 1 - target."""
    data = columns([row(a * S, ttft=GOOD if ok else BAD) for a, ok in drawn])
    found = burn_rates(data, SLO, window, [t * S for t in times])
    for t, rate in zip(times, found.rates, strict=True):
        seen = [ok for a, ok in drawn if t - window < a <= t]
        expected = np.nan if not seen else seen.count(False) / len(seen) / 0.1
        assert rate == pytest.approx(expected, nan_ok=True)


def test_the_alert_needs_both_windows():
    """Misses only in seconds 100 to 160: at 150 both burn; at 250 only the long window still does; before, neither."""
    data = columns([row(t * S, ttft=BAD if 100 <= t < 160 else GOOD) for t in range(300)])
    at = [50 * S, 150 * S, 250 * S]
    assert burning(data, SLO, 2.0, at, short_s=30, long_s=180).tolist() == [False, True, False]
    assert burn_rates(data, SLO, 180, at).rates[2] > 2
    assert burn_rates(data, SLO, 30, at).peak == pytest.approx(10)


def test_nothing_burns_without_requests():
    assert burning(columns([]), SLO, 0.0, [S]).tolist() == [False]
    assert burn_rates(columns([]), SLO, 1, [S]).peak is None


def test_a_budget_needs_a_target():
    with pytest.raises(ValueError, match="the SLO has none"):
        error_budget(columns([]), Slo(ttft_ns=1))
    with pytest.raises(ValueError, match="between 0 and 1"):
        burn_rate(1, 2, 1.0)
    with pytest.raises(ValueError, match="shorter than the long"):
        burning(columns([]), SLO, 1, [], short_s=60, long_s=60)
    with pytest.raises(ValueError, match="longer than 0 s"):
        burn_rates(columns([]), SLO, 0, [])
