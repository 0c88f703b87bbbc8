"""The quantiles that intervals rest on are those of scipy.stats."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from tenants.measures.laws import (
    beta_quantile,
    binomial_quantile,
    normal_probability,
    normal_quantile,
    t_quantile,
)

SHARES = st.floats(0.001, 0.999)


@given(SHARES, st.integers(1, 400))
def test_normal_and_student(p, freedom):
    assert normal_quantile(p) == pytest.approx(stats.norm.ppf(p), abs=1e-12)
    assert normal_probability(normal_quantile(p)) == pytest.approx(p, rel=1e-9)
    assert t_quantile(p, freedom) == pytest.approx(stats.t.ppf(p, freedom), rel=1e-6, abs=1e-9)


@given(SHARES, st.floats(0.5, 500), st.floats(0.5, 500))
def test_beta(p, a, b):
    assert beta_quantile(p, a, b) == pytest.approx(stats.beta.ppf(p, a, b), rel=1e-6, abs=1e-12)


@given(SHARES, st.integers(1, 5000), SHARES)
def test_binomial(p, trials, share):
    """The least k whose cumulative probability reaches p."""
    k = binomial_quantile(p, trials, share)
    assert stats.binom.cdf(k, trials, share) >= p - 1e-9
    assert k == 0 or stats.binom.cdf(k - 1, trials, share) < p + 1e-9


def test_binomial_at_the_ends():
    assert binomial_quantile(0.5, 10, 1.0) == 10
    assert binomial_quantile(0.5, 10, 0.0) == 0
