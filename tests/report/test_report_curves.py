"""Percentile curves: the values of the sorted sample, far into the tail, and never better than what was due."""

from __future__ import annotations

import math
from fractions import Fraction

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from report_runs import MS, S, busy_recorder, recorder_of, spread

from loadgen.report.curves import Curve, Mark, curves_of, curves_of_histograms, level_of
from loadgen.report.palette import looks_of
from loadgen.report.run_plots import percentile_plots
from tenants.measures.histogram import Histogram
from tenants.slo import Metric, Objective, Slo
from tenants.tenant import Tenant


def curve_of(values_ns, never=0, age_ns=0, slo=None):
    histogram = Histogram()
    histogram.record_many(np.array(values_ns, dtype=np.int64))
    histogram.record_never(age_ns, never)
    tenants = [Tenant(name="a", slo=slo or Slo())]
    (curve,) = curves_of_histograms({("a", Metric.TTFT): histogram}, tenants)
    return curve


values = st.lists(st.integers(1000, 10**12), min_size=1, max_size=200)


@settings(max_examples=60, deadline=None)
@given(values=values, never=st.integers(0, 50))
def test_every_point_is_the_nearest_rank_of_all_that_was_due(values, never):
    """The value at level x is the one at rank ceil((1 - 1/x) n), n counting what was never reached, within the three
    digits that a histogram keeps."""
    curve = curve_of(values, never, age_ns=10**12)
    n, ranked = len(values) + never, sorted(values)
    for level, value_ms in list(zip(curve.levels, curve.values_ms, strict=True))[:-1]:
        exact = (1 - 1 / Fraction(level)) * n
        # Levels are printed with four decimals: a rank within that of the boundary may be either neighbour.
        ranks = {max(1, math.ceil(exact + Fraction(shift) * n)) for shift in ("-0.0001", "0", "0.0001")}
        near = [ranked[min(rank, len(ranked)) - 1] / 1e6 for rank in ranks]
        assert min(near) * 0.999 - 0.001 <= value_ms <= max(near) * 1.001 + 0.001


@given(values=values, never=st.integers(0, 50))
@settings(max_examples=60, deadline=None)
def test_a_curve_only_rises_and_ends_at_the_longest_measured_value(values, never):
    """Levels and values ascend; the last value is the maximum, at level n / never, or 2n when all was measured."""
    curve = curve_of(values, never, age_ns=10**12)
    n = len(values) + never
    assert curve.levels == sorted(set(curve.levels))
    assert curve.values_ms == sorted(curve.values_ms)
    assert curve.values_ms[-1] == pytest.approx(max(values) / 1e6, rel=1e-3, abs=1e-3)
    assert curve.levels[-1] == pytest.approx(n / never if never else 2 * n, abs=1e-3)


def test_what_never_got_there_is_a_bound_and_not_a_value():
    """Ten of a hundred never reached the event: above the 90th percentile there is a bound, at least their age."""
    curve = curve_of([50 * MS] * 90, never=10, age_ns=30 * S)
    assert curve.levels[-1] == pytest.approx(10)
    assert curve.beyond_ms == 30_000
    assert (curve.count, curve.unmeasured, curve.end_level) == (100, 10, 200)


def test_where_nothing_was_reached_there_is_no_point_at_all():
    curve = curve_of([], never=5, age_ns=2 * S)
    assert (curve.levels, curve.values_ms, curve.beyond_ms) == ([], [], 2000)


def test_latencies_above_one_hour_are_a_bound_too():
    """A histogram tells nothing apart above 1 h, so the curve says no more than that."""
    curve = curve_of([MS] * 9 + [2 * 3600 * S], never=0)
    assert curve.levels[-1] == pytest.approx(10)
    assert curve.values_ms[-1] == pytest.approx(1, rel=1e-3)
    assert curve.beyond_ms == 3_600_000


def test_named_percentiles_are_points_of_the_curve():
    """P50, P90, P99 can be read off exactly, not between two points."""
    curve = curve_of(list(range(MS, 1001 * MS, MS)))
    for p in (50, 90, 99, 99.9):
        assert curve.values_ms[curve.levels.index(round(level_of(p), 4))] == pytest.approx(p * 10, rel=2e-3)


def axis_of(metric, values_ms, *marks):
    """The axis of latencies of one tenant's curve through P0, P6, P50 and P99, and its ends in ms."""
    levels = [1.0, 1.06, 2.0, 100.0]
    curve = Curve(
        tenant="a",
        metric=metric,
        count=1000,
        unmeasured=0,
        levels=levels,
        values_ms=values_ms,
        end_level=100.0,
        marks=[*marks],
    )
    (plot,) = percentile_plots([curve], looks_of(["a"]))
    axis = plot.layout["yaxis"]
    return axis, *(10**end for end in axis["range"])


def test_one_gap_of_a_microsecond_does_not_squeeze_the_figure():
    """Two tokens that were read together: the axis begins at the body of the curves, and is labelled for what is seen."""
    axis, low, high = axis_of(Metric.ITL, [0.001, 5.0, 6.0, 20.0])
    assert 3 < low < 5
    assert 20 < high < 40
    assert {"5", "10", "20"} <= set(axis["ticktext"])


def test_a_promise_far_below_the_curves_stays_in_the_figure():
    """The target that is missed by most is the last one that may be cut off."""
    _, low, _ = axis_of(Metric.TTFT, [0.1, 50.0, 60.0, 90.0], Mark(level=100.0, limit_ms=10.0))
    assert low < 10


def test_promises_are_marked_where_the_curve_must_pass_below_them():
    """A per-request limit stands at the attainment target, an objective at its own percentile."""
    slo = Slo(
        ttft_ns=500 * MS,
        attainment=0.99,
        objectives=(
            Objective(metric=Metric.TTFT, percentile=50.0, limit_ns=200 * MS),
            Objective(metric=Metric.E2E, percentile=90.0, limit_ns=5 * S),
        ),
    )
    marks = [(round(mark.level, 6), mark.limit_ms) for mark in curve_of([MS], slo=slo).marks]
    assert sorted(marks) == [(2, 200), (100, 500)]


def test_a_recorder_gives_a_curve_for_each_tenant_and_metric_and_they_can_be_kept():
    """Curves survive a file: what is read back is what was written."""
    curves = curves_of(busy_recorder())
    found = {(curve.tenant, curve.metric) for curve in curves}
    assert {(t, m) for t in ("chat", "batch", "brief", "free") for m in ("ttft", "itl", "e2e")} <= found
    assert msgspec.json.decode(msgspec.json.encode(curves), type=list[Curve]) == curves


def test_a_tenant_without_requests_has_no_curve():
    recorder = recorder_of([Tenant(name="a"), Tenant(name="idle")], spread("a", 3))
    assert {curve.tenant for curve in curves_of(recorder)} == {"a"}
