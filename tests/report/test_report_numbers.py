"""Numbers, looks and thinned series: nothing is rounded into a better figure, no peak is hidden."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from report_runs import over_seeds

from loadgen.report import text
from loadgen.report.palette import looks_of
from loadgen.report.thin import drawn_of
from loadgen.summary.schema import Percentile, SeriesSummary


@pytest.mark.parametrize(
    ("value_ms", "beyond_ms", "printed"),
    [(312.44, None, "312.4"), (7.306, None, "7.31"), (12345.6, None, "12,346"), (None, 30000.0, "> 30,000")],
)
def test_latencies_have_about_three_digits_and_bounds_are_marked(value_ms, beyond_ms, printed):
    assert text.latency(Percentile(p=99, value_ms=value_ms, beyond_ms=beyond_ms)) == printed


def test_what_is_unknown_is_a_dash():
    nothing = [text.latency(None), text.share(None), text.rate(None), text.target(None), text.signed_error(None)]
    assert nothing == ["–"] * 5


@pytest.mark.parametrize(
    ("value", "printed"), [(1.0, "100.0%"), (0.99996, "99.99%"), (0.98999, "98.99%"), (0.5, "50.0%"), (0.0, "0.0%")]
)
def test_shares_are_cut_and_not_rounded(value, printed):
    """99.996% is not 100%, and 98.999% is not 99%."""
    assert text.share(value) == printed


@pytest.mark.parametrize(("value", "printed"), [(0.99, "99%"), (0.9995, "99.95%"), (0.999, "99.9%"), (0.57, "57%")])
def test_a_target_is_printed_as_it_was_written(value, printed):
    assert text.target(value) == printed


def test_a_lower_bound_over_seeds_says_so():
    assert text.figure(over_seeds(3.4, bound=True)) == "≥ 3.40"
    assert text.figure(over_seeds(1.04, 0.02)) == "1.04 [1.02, 1.06]"
    assert text.latency_figure(over_seeds(1.2e9, 1e7)) == "1,200 [1,190, 1,210]"


def test_an_interval_of_a_share_holds_only_what_is_possible():
    assert text.share_figure(over_seeds(0.999, 0.004)) == "99.90% [99.50%, 100.0%]"


def test_a_promise_reads_as_people_say_it():
    assert [text.promise_name(p) for p in ("ttft_p99", "itl_p99.9", "attainment")] == [
        "TTFT P99",
        "ITL P99.9",
        "attainment",
    ]


@given(names=st.lists(st.text(max_size=3), max_size=30, unique=True))
def test_no_two_tenants_look_alike(names):
    """Up to thirty tenants: colour and dash together tell them apart; the order of appearance decides, so that a tenant
    looks the same in every figure."""
    looks = looks_of([*names, *names])
    assert list(looks) == names
    assert len({(look.colour, look.dash) for look in looks.values()}) == len(names)
    assert len({look.key for look in looks.values()}) == len(names)


counts = st.integers(0, 1000)
latencies = st.one_of(st.none(), st.floats(0.1, 1e5))


@given(
    rows=st.lists(st.tuples(counts, counts, latencies, latencies, counts, counts), min_size=1, max_size=200),
    interval_s=st.sampled_from([1.0, 2.0, 5.0]),
    max_points=st.integers(1, 50),
)
def test_thinning_keeps_totals_and_peaks(rows, interval_s, max_points):
    """Rates times durations give the counts again; queues and percentiles keep their largest value; a second whose P99
    was never reached leaves none in what it is joined to."""
    arrivals, completions, p50, p99, in_flight, queued = (list(column) for column in zip(*rows, strict=True))
    drawn = drawn_of(
        SeriesSummary(
            tenant="a",
            interval_s=interval_s,
            arrivals=arrivals,
            completions=completions,
            failures=[0] * len(rows),
            output_tokens=[float(count) for count in completions],
            ttft_p50_ms=p50,
            ttft_p99_ms=p99,
            in_flight=in_flight,
            queued=queued,
        ),
        max_points,
    )
    n = len(drawn.time_s)
    assert n <= max_points
    assert drawn.time_s == sorted(drawn.time_s)
    sizes = [min(drawn.joined, len(rows) - i * drawn.joined) for i in range(n)]
    for rates, of in ((drawn.arrivals, arrivals), (drawn.completions, completions), (drawn.output_tokens, completions)):
        total = sum(rate * size * interval_s for rate, size in zip(rates, sizes, strict=True))
        assert total == pytest.approx(sum(of), abs=0.001 * len(rows) * interval_s)
    assert max(drawn.queued) == max(queued)
    assert max(drawn.in_flight) == max(in_flight)
    for i in range(n):
        part = slice(i * drawn.joined, (i + 1) * drawn.joined)
        unreached = any(a > 0 and p is None for a, p in zip(arrivals[part], p99[part], strict=True))
        known = [p for p in p99[part] if p is not None]
        assert drawn.unreached[i] == unreached
        if unreached or not known:
            assert drawn.ttft_p99_ms[i] is None
        else:
            assert drawn.ttft_p99_ms[i] == pytest.approx(max(known), abs=1e-3)
