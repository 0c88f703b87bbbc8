"""Decay and rho, with bounds where a percentile was never reached."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenants.measures.experiment import decay_interval, rho_interval
from tenants.measures.interference import (
    Growth,
    growth_by_tenant,
    rho_by_excess,
    rho_by_presence,
    windowed_correlation,
)
from tenants.measures.percentile import PercentileValue
from tests.tenants.rows import MS, S, columns, lost, random_columns, row

measured = st.integers(1, 10**12).map(PercentileValue)
bound = st.integers(0, 10**12).map(lambda ns: PercentileValue(None, ns))


def run(chat_ms: float, batch_ms: float, tenants=("chat", "batch")):
    rows = [row(k * S, ttft=round(chat_ms * MS)) for k in range(3)]
    rows += [row(k * S, ttft=round(batch_ms * MS), tenant=1) for k in range(3)]
    return columns(rows, tenants)


@given(measured, measured)
def test_rho_and_decay_are_two_views_of_one_ratio(before, after):
    """rho = 1 - 1/decay; signed, with the clipped value beside it."""
    growth = Growth(before, after)
    assert growth.decay == after.value_ns / before.value_ns
    assert growth.rho == pytest.approx(1 - 1 / growth.decay)
    assert growth.rho_clipped == max(0.0, growth.rho)
    assert not growth.censored


@given(measured, bound)
def test_shedding_never_looks_like_an_improvement(before, after):
    """A raised percentile that was never reached gives at least decay 1 and rho 0, flagged as a bound."""
    growth = Growth(before, after)
    assert growth.censored
    assert growth.decay >= 1
    assert growth.rho >= 0


def test_without_requests_there_is_no_figure():
    growth = Growth(PercentileValue(5), PercentileValue(None))
    assert (growth.decay, growth.rho, growth.rho_clipped) == (None, None, None)


def test_every_tenant_has_its_own_growth():
    """Chat 100 -> 200 ms is decay 2 and rho 0.5; batch 100 -> 1,000 ms decay 10."""
    growth = growth_by_tenant(run(100, 100), run(200, 1000))
    assert (growth["chat"].decay, growth["chat"].rho) == pytest.approx((2.0, 0.5))
    assert growth["batch"].decay == pytest.approx(10.0)
    better = growth_by_tenant(run(200, 100), run(100, 100))["chat"]
    assert (better.rho, better.rho_clipped) == pytest.approx((-1.0, 0.0))


def test_a_bound_is_flagged():
    raised = columns([row(0), lost(0, 9 * S), *(row(0, tenant=1) for _ in range(3))])
    growth = growth_by_tenant(run(100, 100), raised)
    assert growth["chat"].censored
    assert growth["chat"].decay == pytest.approx(90.0)
    assert not growth["batch"].censored


def test_the_matrix_says_what_each_does_to_each():
    """values[i, j] is victim i under cause j; nothing is said of a tenant's effect on itself."""
    matrix = rho_by_excess(run(100, 100), {"chat": run(999, 400), "batch": run(200, 999)})
    assert matrix.of("chat", "batch") == pytest.approx(0.5)
    assert matrix.of("batch", "chat") == pytest.approx(0.75)
    assert np.isnan(np.diag(matrix.values)).all()


def test_rho_by_presence_compares_with_the_tenant_removed():
    """Without batch, chat's P99 falls from 200 to 50 ms: 0.75."""
    alone = columns([row(k * S, ttft=50 * MS) for k in range(3)], ("chat",))
    matrix = rho_by_presence(run(200, 100), {"batch": alone})
    assert matrix.of("chat", "batch") == pytest.approx(0.75)
    with pytest.raises(ValueError, match="lacks other tenants too: batch"):
        rho_by_presence(run(200, 100), {"chat": alone})


def test_runs_of_different_tenants_are_not_compared():
    with pytest.raises(ValueError, match="different tenants"):
        growth_by_tenant(run(1, 1), run(1, 1, ("chat", "other")))
    with pytest.raises(KeyError, match="unknown tenant 'x'"):
        rho_by_excess(run(1, 1), {"x": run(1, 1)})


def test_tenants_that_suffer_together_correlate():
    """P99s over four minutes: chat 1, 2, 3, 4 s; batch the same plus a half -> 1; reversed -> -1."""
    for order, expected in (((1, 2, 3, 4), 1.0), ((4, 3, 2, 1), -1.0)):
        rows = [row(k * 60 * S, ttft=(k + 1) * S) for k in range(4)]
        rows += [row(k * 60 * S, ttft=v * S + S // 2, tenant=1) for k, v in enumerate(order)]
        assert windowed_correlation(columns(rows)).of("chat", "batch") == pytest.approx(expected)


def test_two_windows_are_too_few_to_correlate():
    rows = [row(k * 60 * S, ttft=(k + 1) * S, tenant=t) for k in range(2) for t in (0, 1)]
    assert np.isnan(windowed_correlation(columns(rows)).of("chat", "batch"))


def test_intervals_over_seeds_need_five_and_hold_the_truth():
    """Six pairs whose raised load doubles every TTFT: decay 2, rho 0.5, whatever the seed."""
    before = [random_columns(500, 60, seed=k) for k in range(6)]
    after = [random_columns(500, 60, seed=k, median_ms=200) for k in range(6)]
    decay, rho = decay_interval(before, after, ["chat"]), rho_interval(before, after, ["chat", "batch"])
    assert (decay.low, decay.value, decay.high) == pytest.approx((2, 2, 2), rel=1e-6)
    assert rho.value == pytest.approx(0.5)
    assert "6 seeds" in rho.method
    assert decay_interval(before[:4], after[:4], ["chat"]).method == "moving-block bootstrap"
    assert decay_interval(before[:1], after[:1], ["chat"]) is None


def test_one_pair_of_long_runs_gets_a_block_interval():
    """Independent runs of the same law: the interval of decay holds 1, that of rho holds 0."""
    before, after = random_columns(4000, 300, seed=1), random_columns(4000, 300, seed=2)
    decay, rho = decay_interval([before], [after], ["chat"]), rho_interval([before], [after], ["chat"])
    assert decay.low < 1 < decay.high < 2
    assert rho.low < 0 < rho.high < 0.5


def test_a_baseline_never_reached_has_no_interval_over_blocks():
    """With 5% lost at the baseline its P99 is only a bound, in nearly every resample: the ratio is unknown."""
    before, after = random_columns(4000, 300, seed=1, lost_share=0.05), random_columns(4000, 300, seed=2)
    assert decay_interval([before], [after], ["chat"]) is None
    assert rho_interval([before], [after], ["batch"]) is None


def test_runs_come_in_pairs():
    with pytest.raises(ValueError, match="pairs"):
        rho_interval([run(1, 1)], [], ["chat"])
