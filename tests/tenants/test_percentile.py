"""Percentiles count what never happened; the nearest rank is exact."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenants.measures.percentile import (
    PercentileValue,
    mean_successes_ns,
    metric_percentile,
    metric_values,
    nearest_rank,
    nearest_ranks,
    percentile,
    percentile_successes,
    percentiles,
)
from tenants.slo import Metric, Slo
from tests.tenants.rows import MS, NEVER, UNDEFINED, S, columns, lost, row

latencies = st.lists(st.integers(0, 10**13) | st.just(NEVER) | st.just(UNDEFINED), max_size=60)
levels = st.integers(1, 1000).map(lambda k: k / 10)


@given(latencies, levels)
def test_it_is_the_value_at_the_ceiling_of_p_n(values, p):
    """The percentile is the ceil(p n / 100)-th of the values in ascending order, with NEVER last and UNDEFINED out."""
    ranked = sorted(v for v in values if v != UNDEFINED)
    found = percentile(np.array(values, dtype=np.int64), p)
    if not ranked:
        assert found == PercentileValue(None)
        return
    expected = ranked[math.ceil(Fraction(str(p)) * len(ranked) / 100) - 1]
    assert (found.value_ns, found.never) == ((None, True) if expected == NEVER else (expected, False))


@given(latencies.filter(lambda v: NEVER not in v), levels, st.integers(0, 10**13))
def test_losing_a_request_never_improves_a_percentile(values, p, age):
    """Turning any one request into one that never got there leaves the percentile, or its bound, as high or higher."""
    before = percentile(np.array(values, dtype=np.int64), p)
    for k, value in enumerate(values):
        if value == UNDEFINED:
            continue
        worse = np.array([*values[:k], NEVER, *values[k + 1 :]], dtype=np.int64)
        after = percentile(worse, p, np.full(len(values), age))
        if not after.never:
            assert after.value_ns >= before.value_ns
        else:
            assert after.at_least_ns >= max([v for j, v in enumerate(values) if j != k], default=0)


def test_binary_fractions_do_not_move_the_rank():
    """100 * 0.57 is 56.99... in binary and means 57; 7% of 100 is rank 7, not 8."""
    assert nearest_rank(100 * 0.57, 100) == 57
    assert nearest_rank(7.0, 100) == 7
    assert nearest_rank(99.9, 1000) == 999
    assert nearest_rank(Slo(ttft_ns=1, attainment=0.57).ttft_objective.percentile, 100) == 57


@given(levels, st.lists(st.integers(1, 10**6), min_size=1, max_size=5))
def test_many_sample_sizes_at_once_rank_as_one_by_one(p, sizes):
    assert nearest_ranks(p, np.array(sizes)).tolist() == [nearest_rank(p, n) for n in sizes]


@pytest.mark.parametrize("p", [0, -1, 100.1, math.nan])
def test_a_percentile_outside_0_to_100_is_refused(p):
    with pytest.raises(ValueError, match="percentile"):
        nearest_rank(p, 10)


def test_what_never_came_is_bounded_by_the_longest_age():
    """Two of four never came, watched for 3 s and 9 s: the P99 exceeds 9 s."""
    found = percentile(np.array([1, NEVER, 2, NEVER]), 99, np.array([1, 3 * S, 2, 9 * S]))
    assert (found.value_ns, found.beyond_ns, str(found)) == (None, 9 * S, "> 9000.0 ms")


def test_a_request_shed_at_once_still_ranks_above_the_slowest_answer():
    """Shed at age 0, it outranks an answer of 5 s, so the percentile exceeds 5 s and not 0 s."""
    assert percentile(np.array([5 * S, NEVER]), 99, np.array([0, 0])).beyond_ns == 5 * S


def test_figures_of_the_successes_leave_the_others_out():
    values = np.array([10, NEVER, 30, UNDEFINED, NEVER])
    assert percentile_successes(values, 99).value_ns == 30
    assert mean_successes_ns(values) == 20
    assert mean_successes_ns(np.array([NEVER])) is None


def test_several_percentiles_equal_one_by_one():
    values = np.random.default_rng(0).integers(0, 10**9, 997)
    assert percentiles(values, [1, 50, 99.9]) == [percentile(values, p) for p in (1, 50, 99.9)]


def test_it_prints_in_ms():
    assert str(PercentileValue(1_234_567)) == "1.2 ms"
    assert PercentileValue(1_234_567).format_ms(3) == "1.235 ms"
    assert str(PercentileValue(None)) == "-"


def test_a_metric_is_judged_over_the_window_with_its_own_ages():
    """Warm-up rows are out. TTFT is bounded by the age; TPOT, a gap, by the largest gap seen."""
    data = columns([row(0, in_window=False, ttft=90 * S), row(S, ttft=S, tpot=7 * MS), lost(2 * S, age=60 * S)])
    assert metric_percentile(data, Metric.TTFT, 50).value_ns == S
    assert metric_percentile(data, Metric.TTFT, 99).beyond_ns == 60 * S
    assert metric_percentile(data, Metric.TPOT, 99).beyond_ns == 7 * MS


def test_backend_ttft_is_watched_from_the_dispatch():
    """Queued 10 s of an age of 60 s: the backend was watched for 50 s."""
    data = columns([{**lost(0, age=60 * S), "queue_ns": 10 * S}])
    assert metric_percentile(data, Metric.BACKEND_TTFT, 50).beyond_ns == 50 * S


def test_a_metric_without_a_column_is_named():
    with pytest.raises(ValueError, match=r"itl has no single value.*ttft"):
        metric_values(columns([row(0)]), Metric.ITL)
