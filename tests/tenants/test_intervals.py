"""Intervals hold the truth as often as they say, and never claim more than the data can tell."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from tenants.measures.attainment import meets
from tenants.measures.bootstrap import TimeBlocks, block_bootstrap, take
from tenants.measures.columns import Columns
from tenants.measures.evidence import Evidence, concatenate
from tenants.measures.histogram import Histogram
from tenants.measures.intervals import (
    Interval,
    clopper_pearson,
    geometric_interval,
    percentile_ranks,
    t_interval,
    wider,
)
from tenants.measures.percentile import percentile
from tenants.slo import Metric, Slo
from tests.tenants.rows import MS, NEVER, UNDEFINED, S, columns, lost, random_columns, row

SLO = Slo(ttft_ns=500 * MS, attainment=0.99)


def test_the_t_interval_is_scipys():
    values = [3.0, 4.5, 2.0, 5.5, 4.0, 3.5]
    expected = stats.ttest_1samp(values, 0).confidence_interval(0.9)
    found = t_interval(values, 0.9)
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high))
    assert (found.value, found.replicates) == (pytest.approx(np.mean(values)), 6)


def test_a_geometric_mean_is_intervalled_on_logarithms():
    values = [1.0, 2.0, 4.0, 2.0, 1.5]
    logs, found = t_interval([math.log(v) for v in values]), geometric_interval(values)
    assert (found.value, found.low, found.high) == pytest.approx(
        (stats.gmean(values), math.exp(logs.low), math.exp(logs.high))
    )


def test_fewer_than_five_seeds_or_a_value_without_a_mean_give_no_interval():
    assert t_interval([1.0] * 4) is None
    assert t_interval([1.0] * 4 + [math.inf]) is None
    assert geometric_interval([1.0] * 4) is None
    assert geometric_interval([1.0] * 4 + [0.0]) is None


@given(st.integers(1, 300), st.integers(0, 300))
def test_clopper_pearson_is_scipys_exact_interval(n, k):
    k = min(k, n)
    expected = stats.binomtest(k, n).proportion_ci(method="exact")
    found = clopper_pearson(k, n)
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high))
    assert found.width > 0


def test_a_p99_has_no_upper_end_below_368_requests():
    """0.99^n <= 0.025, all n below the P99, first holds at n = 368; dependence counts, not only the number of rows."""
    assert percentile_ranks(99, 367, 367)[1] is None
    assert percentile_ranks(99, 368, 368)[1] == 368
    assert percentile_ranks(99, 10_000, 367)[1] is None


@given(st.sampled_from([50, 90, 95, 99]), st.integers(20, 3000))
def test_the_ranks_enclose_the_percentile_at_the_level(p, n):
    """P(low <= number below the percentile < high), binomial, is at least 95%."""
    low, high = percentile_ranks(p, n, n)
    law = stats.binom(n, p / 100)
    assert law.cdf(n if high is None else high - 1) - law.cdf(low - 1) >= 0.95 - 1e-9


def test_the_wider_of_two_is_their_hull():
    a, b = Interval(5, 4, 6, "a", 10), Interval(5, 3, 5.5, "b", 0)
    assert (wider(a, b).low, wider(a, b).high, wider(a, b).method) == (3, 6, "a, widened to b")
    assert wider(a, Interval(5, 4.5, 5.5, "c", 0)) == a
    assert a.clipped(4.5, 5).width == 0.5


def test_a_run_shorter_than_four_blocks_has_no_resamples():
    assert TimeBlocks.over(0, 120 * S - 1) is None
    assert TimeBlocks.over(0, 120 * S) is not None
    with pytest.raises(ValueError, match="at least 30 s"):
        TimeBlocks.over(0, 999 * S, block_s=1)


@settings(max_examples=20, deadline=None)
@given(st.integers(120, 40_000), st.integers(30, 60), st.integers(0, 99))
def test_every_resample_is_as_long_as_the_run_and_made_of_blocks(seconds, block_s, seed):
    """Weights sum to the number of cells; a cell lasts at least a sixth of a block; every cell is drawn alike."""
    blocks = TimeBlocks.over(0, seconds * S, block_s=block_s, replicates=50, seed=seed)
    if blocks is None:
        assert seconds < 4 * block_s
        return
    assert (blocks.weights.sum(axis=1) == blocks.n_cells).all()
    assert seconds / blocks.n_cells >= block_s / 6 - 1e-9
    assert blocks.n_cells <= 1200


def test_an_arrival_belongs_to_the_cell_of_its_time():
    """300 s in cells of 5 s; what lies outside belongs to the nearest."""
    arrivals = np.array([-S, 0, 5 * S - 1, 5 * S, 299 * S, 300 * S, 999 * S])
    assert TimeBlocks.over(0, 300 * S).cells(arrivals).tolist() == [0, 0, 0, 1, 59, 59, 59]


def test_resampled_shares_and_percentiles_are_those_of_the_resampled_rows():
    """Against repeating every row as often as its cell counts: the fast products give the very same values."""
    data = random_columns(1500, 300, seed=5, median_ms=300, lost_share=0.02)
    values = np.where(np.arange(1500) % 7 == 0, UNDEFINED, data.ttft_ns)
    blocks = TimeBlocks.over(0, 300 * S, replicates=40, seed=1)
    cells, hits = blocks.cells(data.arrival_ns), meets(data, SLO)
    rows = [np.repeat(np.arange(1500), weight[cells]) for weight in blocks.weights]
    assert blocks.shares(hits, cells).tolist() == pytest.approx([hits[r].mean() for r in rows])
    for p in (1, 50, 97.5, 99, 100):
        exact = [percentile(values[r], p) for r in rows]
        expected = [math.inf if e.never else float(e.value_ns) for e in exact]
        assert blocks.percentiles(values, cells, p).tolist() == expected


def test_the_same_seed_gives_the_same_interval():
    data = random_columns(500, 300, seed=1)
    statistic = lambda c: float(c.ttft_ns.mean())  # noqa: E731 (one expression, named for reading)
    first, second = (block_bootstrap(data, statistic, replicates=100, seed=4) for _ in range(2))
    assert first == second
    assert first != block_bootstrap(data, statistic, replicates=100, seed=5)


def test_the_general_bootstrap_agrees_with_the_standard_error_of_independent_values():
    """2,000 independent values: the interval's half width is about 2 standard errors of the mean."""
    data = random_columns(2000, 1800, seed=2)
    found = block_bootstrap(data, lambda c: float(c.ttft_ns.mean()), replicates=400)
    error = float(data.ttft_ns.std()) / math.sqrt(2000)
    assert found.width / 2 == pytest.approx(2 * error, rel=0.35)
    assert found.low < 100 * MS * math.exp(0.125) < found.high


def test_dependence_in_time_widens_the_interval():
    """Requests that share one value for 20 s at a time: an interval over single requests would be far too narrow."""
    data = random_columns(6000, 600, seed=3)
    slow = np.random.default_rng(3).random(30) < 0.3
    clumped = np.where(slow[np.minimum(data.arrival_ns // (20 * S), 29)], 900 * MS, 100 * MS)
    data = Columns(
        data.tenants,
        **{n: getattr(data, n) for n in Columns.__slots__ if n not in {"tenants", "ttft_ns"}},
        ttft_ns=clumped,
    )
    share, interval = Evidence.of("chat", [data]).attainment(SLO)
    naive = clopper_pearson(share * 3000, 3000)
    assert interval.width > 4 * naive.width


def test_too_short_or_without_requests_there_is_no_general_interval():
    assert block_bootstrap(random_columns(50, 60, seed=1), len) is None
    assert block_bootstrap(columns([]), len) is None
    assert block_bootstrap(random_columns(50, 300, seed=1), lambda c: None) is None


def test_a_statistic_often_without_value_has_no_interval():
    """Only requests of the first 5 s have a value: a tenth of the resamples and more have none of them."""
    data = random_columns(600, 300, seed=1)
    early = lambda c: 1.0 if (c.arrival_ns < 5 * S).any() else None  # noqa: E731 (one expression, named for reading)
    assert block_bootstrap(data, early, replicates=100) is None


def test_rows_are_taken_as_often_as_named():
    data = columns([row(0), row(S), row(2 * S)])
    assert take(data, np.array([2, 2, 0])).arrival_ns.tolist() == [2 * S, 2 * S, 0]


def test_no_miss_is_no_certainty():
    """Without a single miss the interval is at least as wide as the exact one, and its upper end is 1."""
    data = random_columns(2000, 300, seed=4, median_ms=10)
    share, interval = Evidence.of("chat", [data]).attainment(SLO)
    n = int((data.tenant == 0).sum())
    assert share == 1
    assert interval.high == 1
    assert interval.low <= clopper_pearson(n, n).low < 1


def test_an_interval_covers_the_truth_about_as_often_as_it_says():
    """100 runs of independent requests whose true attainment and P99 are known: at least 90 intervals hold them."""
    true_share = stats.norm.cdf(math.log(5) / 0.9)
    true_p99 = 100 * MS * math.exp(0.9 * stats.norm.ppf(0.99))
    held = [0, 0]
    for seed in range(100):
        data = random_columns(3000, 300, seed=seed, log_sigma=0.9)
        evidence = Evidence.of("chat", [data], replicates=200, seed=seed)
        intervals = evidence.attainment(SLO)[1], evidence.percentile(Metric.TTFT, 99)[1]
        held[0] += intervals[0].low <= true_share <= intervals[0].high
        held[1] += intervals[1].low <= true_p99 <= intervals[1].high
    assert min(held) >= 90


def test_five_seeds_are_replicates_however_short_they_are():
    runs = [random_columns(900, 20, seed=k, lost_share=0.05) for k in range(5)]
    share, interval = Evidence.of("chat", runs).attainment(SLO)
    assert interval.low < share < interval.high
    assert interval.method.startswith("t over 5 seeds")
    assert interval.low < 0.95 < interval.high


def test_fewer_runs_are_laid_end_to_end():
    """Four runs of 40 s make 160 s of blocks; two make too little."""
    runs = [random_columns(500, 40, seed=k) for k in range(4)]
    assert Evidence.of("chat", runs).percentile(Metric.TTFT, 50)[1].method.startswith("moving-block")
    assert Evidence.of("chat", runs[:2]).percentile(Metric.TTFT, 50)[1] is None


def test_a_seed_in_which_the_percentile_was_never_reached_leaves_no_upper_end():
    runs = [random_columns(2000, 60, seed=k) for k in range(5)]
    runs.append(random_columns(2000, 60, seed=9, lost_share=0.5))
    assert math.isinf(Evidence.of("chat", runs).percentile(Metric.TTFT, 99)[1].high)


def test_gaps_are_pooled_with_one_trial_a_request():
    """1,000 requests of 100 gaps: the interval of the P99 is that of 1,000 values, not of 100,000."""
    data = random_columns(1000, 300, seed=1, tenants=("chat",))
    gaps = np.sort(np.random.default_rng(1).integers(MS, 50 * MS, 100_000))
    h = Histogram()
    h.record_many(gaps)
    found, interval = Evidence.of("chat", [data]).pooled_percentile(h, 99)
    low, high = percentile_ranks(99, 100_000, 1000)
    assert found.value_ns == pytest.approx(gaps[98_999], rel=1e-3)
    assert (interval.low, interval.high) == pytest.approx((gaps[low - 1], gaps[high - 1]), rel=1e-3)


def test_runs_of_different_tenants_do_not_mix():
    with pytest.raises(ValueError, match="different tenants"):
        concatenate([columns([row(0)]), columns([row(0)], ("chat", "other"))])
    with pytest.raises(ValueError, match="no run"):
        concatenate([])
    with pytest.raises(KeyError, match="unknown tenant"):
        Evidence.of("nobody", [columns([row(0)])])


def test_lost_requests_reach_into_the_interval_of_a_percentile():
    """3% never got a token: the P99 and both ends of its interval were never reached."""
    data = columns([row(k * S // 10) for k in range(3000)] + [lost(k * 3 * S, 5 * S) for k in range(100)])
    found, interval = Evidence.of("chat", [data]).percentile(Metric.TTFT, 99)
    assert found.beyond_ns == 5 * S
    assert math.isinf(interval.low)
    assert NEVER not in (interval.low, interval.high)
