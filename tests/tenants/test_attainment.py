"""Who meets the SLO, and the useful rate."""

from __future__ import annotations

import numpy as np
import pytest

from tenants.measures.attainment import attainment, goodput, goodput_total, meets, severity
from tenants.measures.columns import StatusCode
from tenants.slo import Slo
from tests.tenants.rows import MS, NEVER, UNDEFINED, S, columns, lost, random_columns, row

SLO = Slo(ttft_ns=500 * MS, tpot_ns=20 * MS, attainment=0.9)


def test_every_limit_must_be_met_and_a_limit_includes_its_value():
    data = columns([row(0, ttft=500 * MS), row(0, ttft=500 * MS + 1), row(0, tpot=20 * MS + 1), row(0)])
    assert meets(data, SLO).tolist() == [True, False, False, True]


def test_an_absent_limit_asks_nothing():
    data = columns([row(0, ttft=900 * S)])
    assert meets(data, Slo(tpot_ns=20 * MS)).tolist() == [True]


def test_a_figure_without_meaning_meets_its_limit():
    """A one-token answer has no TPOT; it is not a miss."""
    assert meets(columns([row(0, tpot=UNDEFINED, tokens=1)]), SLO).tolist() == [True]


@pytest.mark.parametrize("status", [s for s in StatusCode if s is not StatusCode.OK])
def test_every_end_but_ok_misses_even_within_the_limits(status):
    data = columns([row(0, status=status, end=S)])
    assert not meets(data, SLO).any()


def test_a_planned_cancel_and_the_warm_up_are_out_of_the_denominator():
    rows = [row(0), row(0, status=StatusCode.CANCEL_PLANNED, end=S), row(0, in_window=False, ttft=9 * S), lost(0, S)]
    found = attainment(columns(rows), SLO)
    assert (found.met, found.total, found.misses, found.share) == (1, 2, 1, 0.5)


def test_no_request_no_share():
    assert attainment(columns([]), SLO).share is None


def test_severity_is_at_most_1_exactly_when_the_limits_are_met():
    data = random_columns(2000, 60, seed=3, median_ms=400, lost_share=0.1)
    assert np.array_equal(severity(data, SLO) <= 1, meets(data, SLO))
    assert np.isinf(severity(data, SLO)[data.ttft_ns == NEVER]).all()


def test_goodput_counts_requests_and_tokens_that_meet_every_limit():
    """Two of three meet it in 4 s, with 10 and 30 tokens."""
    rows = [row(0, tokens=10), row(0, tokens=30), row(0, ttft=9 * S, tokens=99)]
    found = goodput(columns(rows), SLO, 4.0)
    assert (found.requests_per_s, found.tokens_per_s) == (0.5, 10.0)
    with pytest.raises(ValueError, match="longer than 0 s"):
        goodput(columns(rows), SLO, 0.0)


def test_the_total_holds_each_tenant_to_its_own_slo():
    """Batch has none: all that ended OK counts."""
    rows = [row(0, ttft=9 * S), row(0, tenant=1, ttft=9 * S, tokens=7), lost(0, S, tenant=1)]
    found = goodput_total(columns(rows), {"chat": SLO}, 1.0)
    assert (found.requests_per_s, found.tokens_per_s) == (1.0, 7.0)
