"""The interval of a difference between runs: paired where they share their seeds, over blocks of time in one run a side."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from tenants.measures.difference import Sides, over_seeds
from tenants.measures.percentile import metric_percentile
from tenants.slo import Metric, Slo
from tests.tenants.rows import MS, random_columns

FIGURES = st.lists(st.floats(1.0, 1e3), min_size=5, max_size=12)
SLOS = {name: Slo(ttft_ns=150 * MS) for name in ("chat", "batch")}


def swinging(seed: int, *, factor: float = 1.0, noise: int = 0, duration_s: float = 300.0) -> object:
    """Latencies that swing with a load that the ``seed`` draws (20 s at a time); ``noise`` draws all else."""
    run = random_columns(6000, duration_s, seed=noise + 1000, median_ms=100, log_sigma=0.3)
    load = np.random.default_rng(seed).lognormal(0, 0.5, int(duration_s / 20) + 1)
    place = (run.arrival_ns // 20_000_000_000).astype(int)
    ttft = (run.ttft_ns * load[place] * factor).astype(np.int64)
    return replace(run, ttft_ns=ttft)


def ratio(before: object, after: object, p: float = 50.0) -> float:
    values = [metric_percentile(run.of("chat"), Metric.TTFT, p).value_ns for run in (before, after)]
    return values[1] / values[0] - 1


@given(FIGURES, st.data())
def test_pairs_of_a_seed_are_judged_by_their_own_differences(before, data):
    """Student's t of the differences: scipy's paired test, and of the logarithms for a ratio."""
    n = len(before)
    after = data.draw(st.lists(st.floats(1.0, 1e3), min_size=n, max_size=n).filter(lambda v: np.std(v) > 0.1))
    oracle = stats.ttest_rel(after, before).confidence_interval(0.95)
    found = over_seeds(before, after, paired=True, relative=False)
    assert (found.low, found.high) == pytest.approx((oracle.low, oracle.high), rel=1e-6, abs=1e-9)
    logs = stats.ttest_rel(np.log(after), np.log(before)).confidence_interval(0.95)
    found = over_seeds(before, after, paired=True, relative=True)
    assert (found.low, found.high) == pytest.approx((np.exp(logs.low) - 1, np.exp(logs.high) - 1), rel=1e-6, abs=1e-9)


@given(FIGURES.filter(lambda v: np.std(v) > 0.1), FIGURES.filter(lambda v: np.std(v) > 0.1))
def test_runs_of_other_seeds_are_judged_by_welch(before, after):
    oracle = stats.ttest_ind(after, before, equal_var=False).confidence_interval(0.95)
    found = over_seeds(before, after, paired=False, relative=False)
    assert (found.low, found.high) == pytest.approx((oracle.low, oracle.high), rel=1e-6, abs=1e-9)


def test_four_seeds_or_a_rate_of_nothing_have_no_interval():
    assert over_seeds([1.0] * 4, [2.0] * 9, paired=False, relative=False) is None
    assert over_seeds([0.0] * 5, [2.0] * 5, paired=True, relative=True) is None
    assert over_seeds([1.0] * 5, [2.0, np.inf, 2, 2, 2], paired=True, relative=False) is None


def test_one_run_a_side_is_resampled_in_the_same_blocks_when_the_seed_is_the_same():
    """Both runs swing with the same load, so their ratio is known far better than either: the true +20% is found, and
    the interval with blocks of their own is more than twice as wide."""
    before, after = swinging(1, noise=1), swinging(1, noise=2, factor=1.2)
    value = ratio(before, after)
    widths = []
    for paired in (True, False):
        found = Sides.of([before.pieces()], [after.pieces()], SLOS, SLOS, paired=paired).percentile_ratio(
            "chat", Metric.TTFT, 50.0, value
        )
        assert found.low <= 0.2 <= found.high
        widths.append(found.width)
    assert widths[0] * 2 < widths[1]


def test_runs_that_differ_by_chance_alone_are_rarely_told_apart():
    """60 pairs of one law: the interval holds 0 in at least 54 of them (95% nominal, few blocks)."""
    held = 0
    for pair in range(60):
        before, after = swinging(2 * pair), swinging(2 * pair + 1, noise=pair + 1)
        sides = Sides.of([before.pieces()], [after.pieces()], SLOS, SLOS, paired=False)
        found = sides.percentile_ratio("chat", Metric.TTFT, 50.0, ratio(before, after))
        held += found.low <= 0 <= found.high
    assert held >= 54


def test_shares_and_rates_move_with_the_requests_that_met_their_limits():
    """A run without misses against one that lost a third: the difference is known and does not hold 0."""
    before = random_columns(6000, 300, seed=1, median_ms=50, log_sigma=0.1)
    after = random_columns(6000, 300, seed=2, median_ms=50, log_sigma=0.1, lost_share=1 / 3)
    sides = Sides.of([before.pieces()], [after.pieces()], SLOS, SLOS, paired=False)
    for found in (sides.share_difference("chat", -1 / 3), sides.rate_ratio("chat", -1 / 3, tokens=False)):
        assert -0.40 < found.low < -1 / 3 < found.high < -0.27


def test_a_tail_that_is_no_longer_reached_has_no_upper_end():
    before = random_columns(6000, 300, seed=1)
    after = random_columns(6000, 300, seed=2, lost_share=0.5)
    sides = Sides.of([before.pieces()], [after.pieces()], SLOS, SLOS, paired=False)
    assert sides.percentile_ratio("chat", Metric.TTFT, 99.0, 1.0).high == np.inf
    assert sides.percentile_ratio("nobody", Metric.TTFT, 50.0, 1.0) is None


def test_runs_shorter_than_four_blocks_have_no_sides():
    short, long = random_columns(600, 60, seed=1), random_columns(600, 300, seed=1)
    assert Sides.of([short.pieces()], [long.pieces()], SLOS, SLOS, paired=True) is None
    three = [[short]] * 3
    assert Sides.of(three, three, SLOS, SLOS, paired=True) is not None
    with_none = Sides.of([[short], [], [short], [short]], three, SLOS, SLOS, paired=False)
    assert len(with_none.before) == len(with_none.after), "a run without rows takes no time"
