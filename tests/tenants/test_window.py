"""The windowed quantile equals the nearest rank over samples and ages together, and reads few ages."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenants.measures.percentile import nearest_rank
from tenants.measures.window import WindowedQuantile

steps = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 50)), max_size=40)
ages = st.lists(st.integers(0, 60), max_size=25)


@given(steps, ages, st.sampled_from([1, 25, 50, 90, 99, 100]), st.integers(1, 100))
def test_it_is_the_nearest_rank_of_the_union(added, waiting, p, window):
    """At every moment: the samples of the last `window` ns and all ages, sorted, at rank ceil(p n / 100)."""
    quantile, now, history = WindowedQuantile(window), 0, []
    for gap, value in added:
        now += gap
        quantile.expire(now)
        quantile.add(now, value)
        history.append((now, value))
        union = sorted([v for t, v in history if t > now - window] + waiting)
        assert len(quantile) == len(union) - len(waiting)
        found = quantile.quantile(p, iter(sorted(waiting, reverse=True)), len(waiting))
        assert found == union[nearest_rank(p, len(union)) - 1]


def test_only_as_many_ages_are_read_as_the_rank_demands():
    """The P99 of 100,000 ages lies at the 1,001st from the top: no more are read."""
    read = 0

    def descending():
        nonlocal read
        for age in range(100_000, 0, -1):
            read += 1
            yield age

    assert WindowedQuantile(10).quantile(99, descending(), 100_000) == 99_000
    assert read <= 1_001


def test_nothing_has_no_quantile():
    quantile = WindowedQuantile(10)
    quantile.add(0, 5)
    quantile.expire(10)
    assert len(quantile) == 0
    assert quantile.quantile(99, iter(()), 0) is None


def test_a_sample_counts_until_its_age_is_the_window():
    quantile = WindowedQuantile(10)
    quantile.add(0, 5)
    quantile.expire(9)
    assert len(quantile) == 1


def test_faults_are_named():
    quantile = WindowedQuantile(10)
    quantile.add(5, 1)
    with pytest.raises(ValueError, match="order of time"):
        quantile.add(4, 1)
    with pytest.raises(ValueError, match="2 more ages"):
        quantile.quantile(1, iter([7]), 3)
    with pytest.raises(ValueError, match="longer than 0"):
        WindowedQuantile(0)
