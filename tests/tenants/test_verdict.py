"""A promise is kept, broken or undecided by its interval; a run too short is never a promise kept."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from tenants.measures.histogram import Histogram
from tenants.measures.intervals import clopper_pearson
from tenants.slo import Metric, Objective, Slo
from tenants.tenant import Tenant
from tenants.verdict import (
    Verdict,
    duration_for_verdict_s,
    expected_width,
    judge,
    overall,
    requests_for_verdict,
)
from tests.tenants.rows import MS, S, columns, random_columns, row

LIMITS = Slo(ttft_ns=500 * MS, tpot_ns=20 * MS, attainment=0.99)


def chat(slo: Slo = LIMITS) -> Tenant:
    return Tenant(name="chat", slo=slo)


def p99(limit_ms: float, metric: Metric = Metric.TTFT) -> Slo:
    return Slo(objectives=(Objective(metric=metric, percentile=99, limit_ns=round(limit_ms * MS)),))


@pytest.mark.parametrize(
    ("lost_share", "n", "verdict"),
    [
        (0.0, 6000, Verdict.KEPT),
        (0.05, 6000, Verdict.BROKEN),
        (0.01, 6000, Verdict.UNDECIDED),
        (0.0, 300, Verdict.UNDECIDED),
    ],
)
def test_attainment_is_decided_by_the_ends_of_its_interval(lost_share, n, verdict):
    """Kept: lower end at the target or above. Broken: upper end below. In between, or too few requests: undecided."""
    found = judge(chat(), random_columns(n, 300, seed=1, median_ms=50, lost_share=lost_share))
    assert found.verdict is verdict
    interval = found.promises[0].interval
    assert verdict is {
        (True, True): Verdict.KEPT, (False, False): Verdict.BROKEN, (False, True): Verdict.UNDECIDED
    }[interval.low >= 0.99, interval.high >= 0.99]  # fmt: skip


@pytest.mark.parametrize(
    ("limit_ms", "verdict"), [(600, Verdict.KEPT), (200, Verdict.BROKEN), (320, Verdict.UNDECIDED)]
)
def test_an_objective_is_decided_by_the_ends_of_its_interval(limit_ms, verdict):
    """The true P99 is 100 ms * exp(0.5 * 2.326) = 320 ms."""
    assert judge(chat(p99(limit_ms)), random_columns(6000, 300, seed=1)).verdict is verdict


@given(st.integers(1, 119))
def test_a_run_too_short_is_undecided_when_all_goes_well(seconds):
    data = random_columns(5000, seconds, seed=1)
    found = judge(chat(Slo(ttft_ns=S * 9, attainment=0.5, objectives=p99(9000).objectives)), data)
    assert {p.verdict for p in found.promises} == {Verdict.UNDECIDED}
    assert all("too short" in p.why for p in found.promises)


def test_the_sentence_says_what_was_measured_promised_and_found():
    broken = judge(chat(), random_columns(6000, 300, seed=1, lost_share=0.05))
    share, interval = broken.promises[0].value, broken.promises[0].interval
    cut = [f"{math.floor(1000 * v) / 10:.1f}" for v in (share, interval.low, interval.high)]
    assert broken.sentences == (
        f"chat: {cut[0]}% [{cut[1]}, {cut[2]}] of requests met ttft <= 500 ms, tpot <= 20 ms; promised 99%: BROKEN",
    )
    objective = judge(chat(p99(600)), random_columns(6000, 300, seed=1)).sentences[0]
    assert objective.startswith("chat: P99 ttft 3")
    assert objective.endswith("promised <= 600 ms: KEPT")


def test_just_below_everything_is_not_printed_as_everything():
    """One miss in 30,000 prints 99.99%, not 100.00%."""
    data = columns([row(k * S // 100, ttft=(9 * S if k == 7 else 50 * MS)) for k in range(30_000)])
    assert judge(chat(), data).sentences[0].startswith("chat: 99.99% [99.")


def test_a_figure_never_reached_says_so():
    found = judge(chat(p99(600)), random_columns(6000, 300, seed=1, lost_share=0.1))
    assert "P99 ttft > 1000.0 ms [never, never]" in found.sentences[0]
    assert (found.verdict, found.promises[0].value) == (Verdict.BROKEN, math.inf)


def test_without_a_promise_there_is_nothing_to_judge():
    """Limits without a target count goodput and promise nothing."""
    for slo in (Slo(), Slo(ttft_ns=500 * MS)):
        found = judge(chat(slo), random_columns(10, 300, seed=1))
        assert (found.verdict, found.promises) == (Verdict.NO_SLO, ())
        assert found.sentences == ("chat: nothing was promised",)


def test_no_request_decides_nothing():
    data = random_columns(3000, 300, seed=1)
    idle = data.select(data.tenant == 1)
    found = judge(chat(Slo(ttft_ns=1, attainment=0.9, objectives=p99(1).objectives)), idle)
    assert found.verdict is Verdict.UNDECIDED
    assert {p.why for p in found.promises} == {"it had no request in the window"}
    assert {p.value for p in found.promises} == {None}


def test_every_promise_is_listed_and_one_broken_breaks_the_tenant():
    slo = Slo(ttft_ns=9 * S, attainment=0.9, objectives=p99(200).objectives)
    found = judge(chat(slo), random_columns(6000, 300, seed=1))
    assert [p.verdict for p in found.promises] == [Verdict.KEPT, Verdict.BROKEN]
    assert found.verdict is Verdict.BROKEN


def test_seeds_decide_what_one_short_run_cannot():
    runs = [random_columns(3000, 60, seed=k, median_ms=50) for k in range(5)]
    assert judge(chat(), runs[0]).verdict is Verdict.UNDECIDED
    assert judge(chat(), runs).verdict is Verdict.KEPT


def test_an_objective_on_gaps_is_judged_by_their_histogram():
    data = random_columns(4000, 300, seed=1)
    h = Histogram()
    h.record_many(np.random.default_rng(1).integers(5 * MS, 10 * MS, 10_000))
    for limit, verdict in ((11, Verdict.KEPT), (5, Verdict.BROKEN)):
        assert judge(chat(p99(limit, Metric.ITL)), data, pooled={Metric.ITL: h}).verdict is verdict
    with pytest.raises(ValueError, match="itl needs its histogram"):
        judge(chat(p99(11, Metric.ITL)), data)


@given(st.lists(st.sampled_from(list(Verdict)), max_size=6))
def test_the_worst_verdict_is_the_overall_one(verdicts):
    order = [Verdict.BROKEN, Verdict.UNDECIDED, Verdict.KEPT, Verdict.NO_SLO]
    assert overall(verdicts) == min(verdicts, key=order.index, default=Verdict.NO_SLO)


def test_the_expected_width_is_what_samples_show():
    """2,000 requests of a lognormal latency: 95% of sampled P99s lie within the expected factors, to 5% of them."""
    rng = np.random.default_rng(0)
    sampled = np.quantile(rng.lognormal(0, 0.5, (2000, 2000)), 0.99, axis=1, method="inverted_cdf")
    true = math.exp(0.5 * stats.norm.ppf(0.99))
    found = expected_width(2000, log_sigma=0.5)
    assert np.quantile(sampled, [0.025, 0.975]) / true == pytest.approx([found.low_factor, found.high_factor], rel=0.05)
    assert str(found).startswith("P99 of 2,000 requests: -")


def test_too_few_requests_promise_no_upper_end():
    assert expected_width(200).high is None
    assert "no upper end" in str(expected_width(200))
    assert expected_width(2000).high_factor > 1
    assert expected_width(2000, deff=10).high is None
    with pytest.raises(ValueError, match="at least one request"):
        expected_width(0)


def test_a_plan_without_misses_needs_what_the_exact_interval_needs():
    """At full attainment: the least n whose Clopper-Pearson interval reaches the target."""
    for target, least in ((0.9, 36), (0.99, 368), (0.999, 3688)):
        assert requests_for_verdict(target, 1.0) == least
        assert clopper_pearson(least, least).low >= target > clopper_pearson(least - 2, least - 2).low


@given(st.sampled_from([0.9, 0.95, 0.99, 0.999]), st.floats(0.1, 3.0).filter(lambda x: abs(x - 1) > 0.1))
def test_the_planned_requests_are_the_fewest_that_decide(target, spent):
    """With the misses expected of the share, the exact interval leaves the target behind; with one less, not."""
    share = max(0.0, 1 - (1 - target) * spent)
    n = requests_for_verdict(target, share)
    assert n >= 1
    now, before = clopper_pearson(share * n, n), clopper_pearson(share * (n - 1), max(n - 1, 1e-9))
    if share > target:
        assert now.low >= target > before.low
    else:
        assert now.high < target <= before.high


def test_a_verdict_needs_four_blocks_even_at_a_high_rate():
    assert duration_for_verdict_s(1000, 0.99) == 120
    assert duration_for_verdict_s(1, 0.99) == requests_for_verdict(0.99) > 368
    assert requests_for_verdict(0.99, deff=2) == 2 * requests_for_verdict(0.99)


def test_impossible_plans_are_named():
    with pytest.raises(ValueError, match="between 0 and 1"):
        requests_for_verdict(1.0)
    with pytest.raises(ValueError, match="cannot be told"):
        requests_for_verdict(0.99, 0.99)
    with pytest.raises(ValueError, match="rate above 0"):
        duration_for_verdict_s(0, 0.99)
