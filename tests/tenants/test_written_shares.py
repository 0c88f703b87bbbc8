"""A share against a bar is never written better than it is; a bar is written as it was set."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenants.measures.intervals import Interval
from tenants.measures.shares import cut, percent, percent_within, promised, raised

DIGITS = st.integers(0, 4)


@st.composite
def shares(draw):
    total = draw(st.integers(1, 10**7))
    return draw(st.integers(0, total)), total


@given(shares(), DIGITS)
def test_what_is_written_is_the_share_cut_at_its_digits(share, digits):
    """By exact arithmetic: at most the share, and less by less than one unit of the last digit."""
    met, total = share
    exact, unit = Fraction(100 * met, total), Fraction(1, 10**digits)
    low, high = Fraction(percent(met / total, digits)), Fraction(raised(100 * met / total, digits))
    assert low <= exact < low + unit
    assert high - unit < exact <= high


@given(shares(), st.integers(1, 9999), DIGITS)
def test_a_share_below_its_target_never_reads_as_one_at_it(share, target, digits):
    """For targets of up to two decimals of a percent, whatever the digits of the table."""
    met, total = share
    bar = target / 10_000
    if met / total < bar:
        assert Fraction(percent(met / total, digits)) < Fraction(promised(bar))


@pytest.mark.parametrize(
    ("share", "text"),
    [(0.9996, "99.9"), (0.8999, "89.9"), (0.57, "57.0"), (1.0, "100.0"), (0.99999, "99.9"), (0.0, "0.0")],
)
def test_the_last_digit_is_not_rounded_up(share, text):
    assert percent(share) == text


def test_plain_shares_are_cut_too():
    assert [cut(value, 3) for value in (0.9996, 0.8999, 0.9, 1.0)] == ["0.999", "0.899", "0.900", "1.000"]


@pytest.mark.parametrize(("target", "text"), [(0.9, "90"), (0.9995, "99.95"), (0.57, "57"), (0.999999, "99.9999")])
def test_a_bar_is_written_as_it_was_set(target, text):
    """99.95% is no 100.0%."""
    assert promised(target) == text


def test_an_interval_is_cut_to_what_is_possible():
    """Its ends too never look better than they are."""
    assert percent_within(0.9996, Interval(0.9996, 0.99896, 1.0003, "t", 5)) == "99.9 [99.8, 100.0]"
    assert percent_within(0.01, Interval(0.01, -0.02, 0.9999, "t", 5), 2) == "1.00 [0.00, 99.99]"
    assert percent_within(0.5, None) == "50.0"
    assert percent_within(None, None) == "-"
