"""The grammar of thresholds, and of --goodput."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenants.slo import Metric, Slo
from tenants.thresholds import Measure, ThresholdError, evaluate, parse_goodput, parse_threshold


@pytest.mark.parametrize(
    ("text", "tenant", "measure", "comparison", "limit"),
    [
        ("p99(ttft) < 350ms", None, "p99(ttft)", "<", 350e6),
        ("mean(itl) < 15ms", None, "mean(itl)", "<", 15e6),
        ("median(ttft)<350 ms", None, "median(ttft)", "<", 350e6),
        ("avg(tpot) <= 20ms", None, "mean(tpot)", "<=", 20e6),
        ("chat: p95(e2e) <= 2s", "chat", "p95(e2e)", "<=", 2e9),
        ("a:b : p99.9( queue_time ) <= 500 us", "a:b", "p99.9(queue_time)", "<=", 5e5),
        ("attainment > 0.99", None, "attainment", ">", 0.99),
        ("attainment >= 99.5%", None, "attainment", ">=", 0.995),
        ("failed < 1%", None, "failed", "<", 0.01),
        ("failed == 0", None, "failed", "==", 0.0),
        ("goodput > 20", None, "goodput", ">", 20.0),
        ("tokens_per_s >= 1e3", None, "tokens_per_s", ">=", 1000.0),
        ("peak_vram < 72GiB", None, "peak_vram", "<", 72 * 2.0**30),
        ("my tenant: rho < -0.05", "my tenant", "rho", "<", -0.05),
        ("decay != 1", None, "decay", "!=", 1.0),
        ("max(inter_chunk) < 12ns", None, "max(inter_chunk)", "<", 12.0),
    ],
)
def test_it_reads(text, tenant, measure, comparison, limit):
    found = parse_threshold(text)
    assert (found.tenant, str(found.measure), found.operator) == (tenant, measure, comparison)
    assert found.limit == pytest.approx(limit)


@pytest.mark.parametrize(
    ("text", "position", "problem"),
    [
        ("", 0, "expected a measure"),
        ("p99 < 350ms", 4, "expected ( and a metric after p99"),
        ("p99(tftt) < 350ms", 4, "unknown metric 'tftt'; known: ttft"),
        ("p99(ttft < 350ms", 9, "expected )"),
        ("p100(ttft) < 1s", 0, "between 0 and 100"),
        ("p0(ttft) < 1s", 0, "between 0 and 100"),
        ("chat: pears(ttft) < 1s", 6, "unknown measure 'pears'"),
        (": p99(ttft) < 1s", 0, "name of a tenant"),
        ("p99(ttft) 350ms", 10, "expected one of <="),
        ("p99(ttft) < fast", 12, "expected a number"),
        ("p99(ttft) < 350", 15, "with ns, us, ms or s; got no unit"),
        ("p99(ttft) < 350 m", 16, "got unit 'm'"),
        ("p99(ttft) < 350%", 15, "got unit '%'"),
        ("attainment > 99", 15, "0 to 1, or 0% to 100%"),
        ("attainment > 0.9ms", 16, "a plain number, or with %"),
        ("goodput > 20%", 12, "without a unit"),
        ("peak_vram < 72", 14, "bytes, with B"),
        ("p99(ttft) < 350ms please", 18, "nothing may follow the limit, found 'please'"),
    ],
)
def test_a_fault_is_shown_where_it_is(text, position, problem):
    with pytest.raises(ThresholdError) as raised:
        parse_threshold(text)
    assert problem in raised.value.problem
    assert raised.value.position == position
    assert str(raised.value).splitlines()[1:] == [f"  {text}", "  " + " " * position + "^"]


def outcome(text):
    try:
        return parse_threshold(text)
    except ThresholdError as error:
        return error


pieces = st.sampled_from(
    ["p99", "(", "ttft", ")", "<", "=", "1", ".", "ms", "%", ":", " ", "mean", "goodput", "e", "-"]
)


@given(st.text(max_size=30) | st.lists(pieces, max_size=9).map("".join))
def test_no_text_does_worse_than_a_threshold_error(text):
    """Whatever is typed, it reads or it is refused with its place inside the text."""
    found = outcome(text)
    assert not isinstance(found, ThresholdError) or 0 <= found.position <= len(text)


@given(
    st.sampled_from(["p50", "p99.9", "mean", "median", "min", "max"]),
    st.sampled_from(list(Metric)),
    st.sampled_from(["<", "<=", ">", ">=", "==", "!="]),
    st.integers(1, 10**6),
    st.sampled_from(["", " ", "   "]),
)
def test_white_space_is_free(aggregate, metric, comparison, number, space):
    text = space.join([aggregate, "(", metric.value, ")", comparison, str(number), "us", ""])
    assert parse_threshold(text).limit == number * 1000
    assert parse_threshold(text).measure.metric is metric


@pytest.mark.parametrize(
    ("comparison", "below", "equal", "above"),
    [
        ("<", True, False, False),
        ("<=", True, True, False),
        (">", False, False, True),
        (">=", False, True, True),
        ("==", False, True, False),
        ("!=", True, False, True),
    ],
)
def test_it_compares_what_was_measured_with_the_limit(comparison, below, equal, above):
    threshold = parse_threshold(f"goodput {comparison} 20")
    assert [evaluate(threshold, lambda t, m, v=v: v).passed for v in (19.0, 20.0, 21.0)] == [below, equal, above]


def test_the_lookup_is_asked_for_the_tenant_and_the_measure():
    asked = []
    evaluate(parse_threshold("chat: p95(e2e) <= 2s"), lambda tenant, measure: asked.append((tenant, measure)))
    assert asked == [("chat", Measure(metric=Metric.E2E, aggregate="percentile", percentile=95.0))]


@pytest.mark.parametrize("measured", [None, math.nan])
def test_what_could_not_be_measured_fails(measured):
    for text in ("failed < 1%", "failed >= 0"):
        result = evaluate(parse_threshold(text), lambda t, m: measured)
        assert (result.passed, result.measured) == (False, None)


def test_a_percentile_never_reached_fails_its_upper_limit():
    assert not evaluate(parse_threshold("p99(ttft) < 999999s"), lambda t, m: math.inf).passed


def test_goodput_reads_limits_in_ms():
    assert parse_goodput(["ttft:200", "tpot:30"]) == Slo(ttft_ns=200_000_000, tpot_ns=30_000_000)
    assert parse_goodput(["e2el:1500.5"], 0.9) == Slo(e2e_ns=1_500_500_000, attainment=0.9)
    assert parse_goodput(["max_itl:50"]).max_itl_ns == 50_000_000


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ([], "at least one limit"),
        (["ttft"], "expected NAME:MILLISECONDS"),
        (["itl:5"], "with a name of ttft"),
        (["ttft:fast"], "expected milliseconds above 0"),
        (["ttft:0"], "expected milliseconds above 0"),
        (["e2e:5", "e2el:6"], "limited twice"),
    ],
)
def test_a_fault_in_goodput_is_named(words, problem):
    with pytest.raises(ValueError, match=problem):
        parse_goodput(words)
