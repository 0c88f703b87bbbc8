"""The histogram holds what hdrhistogram holds, and what it cannot hold beside it."""

from __future__ import annotations

import numpy as np
import pytest
from hdrh.histogram import HdrHistogram
from hypothesis import given, settings
from hypothesis import strategies as st

from tenants.measures.histogram import HIGHEST_NS, HIGHEST_US, Histogram
from tenants.measures.percentile import percentile, percentile_successes
from tests.tenants.rows import MS, NEVER, UNDEFINED, S

HOUR = 3600 * S
values_ns = st.one_of(
    st.integers(0, 3000),
    st.integers(0, 10**10),
    st.integers(0, 2 * HOUR),
    st.integers(0, 22).map(lambda k: 2**k * 1000),
)
pairs = st.lists(st.tuples(values_ns, st.integers(0, 5)), max_size=40)
levels = st.sampled_from([0.1, 1, 25, 50, 90, 99, 99.9, 100])


def state(h: Histogram) -> tuple[object, ...]:
    hdr = h.hdr
    beside = (h.count_never, h.longest_age_ns, h.out_of_range, h.longest_out_of_range_ns, h.mean_successes_ns)
    return (bytes(hdr.counts), hdr.total_count, hdr.min_value, hdr.max_value, *beside)


def filled(values, counts=None) -> Histogram:
    h = Histogram()
    h.record_many(np.array(values, dtype=np.int64), None if counts is None else np.array(counts, dtype=np.int64))
    return h


@settings(deadline=None)
@given(pairs)
def test_many_at_once_is_bit_identical_to_one_by_one(recorded):
    """record_many(values, counts) leaves exactly the state that record(value, count) leaves for each pair."""
    one_by_one = Histogram()
    for value, count in recorded:
        one_by_one.record(value, count)
    assert state(filled([v for v, _ in recorded], [c for _, c in recorded])) == state(one_by_one)


@settings(deadline=None)
@given(st.lists(st.integers(1, HIGHEST_US), min_size=1, max_size=40))
def test_the_counts_are_the_librarys_own(values_us):
    """The same values recorded by hdrhistogram itself give the same counts, and the same encoded payload."""
    library = HdrHistogram(1, HIGHEST_US, 3)
    for value in values_us:
        assert library.record_value(value)
    ours = filled([v * 1000 for v in values_us])
    assert bytes(ours.hdr.counts) == bytes(library.counts)
    assert ours.encode() == library.encode().decode()


@settings(deadline=None)
@given(
    st.lists(st.integers(1000, HOUR) | st.just(NEVER), min_size=1, max_size=50).filter(lambda v: set(v) != {NEVER}),
    levels,
    st.integers(0, 10**13),
)
def test_percentiles_agree_with_the_exact_rows(values, p, age):
    """Within 3 significant digits (and the rounding to 1 us), and `never` exactly where the rows say so."""
    column, ages = np.array(values), np.full(len(values), age)
    h = Histogram()
    h.record_column(column, ages)
    for ours, exact in (
        (h.percentile(p), percentile(column, p, ages)),
        (h.percentile_successes(p), percentile_successes(column, p)),
    ):
        assert ours.never == exact.never
        assert ours.at_least_ns == pytest.approx(exact.at_least_ns, rel=1e-3, abs=1000)


@settings(deadline=None)
@given(pairs, pairs)
def test_adding_is_recording_in_one(first, second):
    """The sum of two histograms equals one that recorded everything, empty ones included."""
    total = filled([v for v, _ in first], [c for _, c in first])
    total.add(filled([v for v, _ in second], [c for _, c in second]))
    both = first + second
    assert state(total) == state(filled([v for v, _ in both], [c for _, c in both]))


@settings(deadline=None)
@given(pairs, st.integers(0, 3), levels)
def test_a_decoded_histogram_gives_the_same_percentiles(recorded, never, p):
    """Encode, decode, and hand back what travelled beside: every percentile is the same."""
    h = filled([v for v, _ in recorded], [c for _, c in recorded])
    h.record_never(7 * HOUR, never)
    again = Histogram.decode(
        h.encode(),
        count_never=h.count_never,
        longest_age_ns=h.longest_age_ns,
        out_of_range=h.out_of_range,
        longest_out_of_range_ns=h.longest_out_of_range_ns,
    )
    assert again.count == h.count
    assert again.percentile(p) == h.percentile(p)
    if h.mean_successes_ns is not None and not h.out_of_range:
        # A value moves by 1 us at most (0 becomes 1 us) and by half a bucket, which is less than 0.1% of it.
        assert again.mean_successes_ns == pytest.approx(
            h.mean_successes_ns, rel=0, abs=1000 + h.mean_successes_ns / 1000
        )


def test_a_payload_does_not_carry_the_never_counts():
    h = filled([5 * MS])
    h.record_never(S)
    assert (h.count, Histogram.decode(h.encode()).count) == (2, 1)


def test_the_rank_is_the_ceiling():
    """Of 3 values the P50 is the second; the library's own rounding of the rank agrees here, but not at the P40."""
    h = filled([1 * MS, 2 * MS, 3 * MS])
    assert h.percentile(50).value_ns == pytest.approx(2 * MS, rel=1e-3)
    assert h.percentile(40).value_ns == pytest.approx(2 * MS, rel=1e-3)
    assert h.hdr.get_value_at_percentile(40) == pytest.approx(1000, rel=1e-3)


def test_above_one_hour_is_counted_and_ranked_above():
    """2 of 4 took longer than an hour: they are in the count, and the P75 is beyond one hour."""
    h = filled([S, 2 * S, 2 * HOUR, 3 * HOUR])
    assert (h.count, h.out_of_range, h.max_ns) == (4, 2, 3 * HOUR)
    assert h.percentile(50).value_ns == pytest.approx(2 * S, rel=1e-3)
    assert h.percentile(75).beyond_ns == HIGHEST_NS
    assert h.mean_successes_ns == (3 * S + 5 * HOUR) / 4


def test_never_ranks_above_out_of_range():
    h = filled([2 * HOUR])
    h.record_never(5 * HOUR)
    assert h.percentile(50).beyond_ns == HIGHEST_NS
    assert h.percentile(99).beyond_ns == 5 * HOUR
    assert h.percentile_successes(99).beyond_ns == HIGHEST_NS


def test_a_bound_is_never_below_the_largest_value():
    """Shed at age 0 beside an answer of 5 s: the percentile exceeds 5 s."""
    h = filled([5 * S])
    h.record_never(0)
    assert h.percentile(99).beyond_ns == 5 * S


def test_a_value_goes_to_the_nearest_microsecond():
    """1,499 ns is 1 us, 1,500 ns is 2 us, one by one and many at once."""
    one_by_one = Histogram()
    for value in (1499, 1500):
        one_by_one.record(value)
    for h in (one_by_one, filled([1499, 1500])):
        assert (h.percentile(50).value_ns, h.percentile(100).value_ns) == (1000, 2000)


def test_less_than_a_microsecond_counts_as_one():
    assert filled([0, 3, 999]).percentile(100).value_ns == 1000


def test_what_was_not_reached_or_is_negative_is_refused():
    h = Histogram()
    for call in (
        lambda: h.record(-1),
        lambda: h.record(NEVER),
        lambda: h.record(1, -1),
        lambda: h.record_never(-1),
        lambda: h.record_many(np.array([1, -1])),
        lambda: h.record_many(np.array([1, NEVER])),
        lambda: h.record_many(np.array([1, 2]), np.array([1])),
        lambda: h.record_many(np.array([1]), np.array([-1])),
    ):
        with pytest.raises(ValueError, match=r"cannot record|counts"):
            call()
    assert h.count == 0


def test_a_column_records_each_row_once():
    h = Histogram()
    h.record_column(np.array([MS, NEVER, UNDEFINED, NEVER]), np.array([0, 4 * S, 9 * S, 2 * S]))
    assert (h.count, h.count_successes, h.count_never, h.longest_age_ns) == (3, 1, 2, 4 * S)


def test_an_empty_one_has_no_figures():
    h = Histogram()
    assert h.percentile(99).at_least_ns is None
    assert (h.count, h.min_ns, h.max_ns, h.mean_successes_ns) == (0, None, None, None)


def test_extremes_and_mean():
    h = filled([3 * MS, 1 * MS, 8 * MS], [1, 2, 1])
    assert (h.min_ns, h.max_ns, h.mean_successes_ns) == (1 * MS, 8 * MS, 13 * MS / 4)


@pytest.mark.parametrize("payload", ["", "nonsense", "HISTFAAAABB42pNpmSzMwMDAxQABzFCaEUoz2X+AsYZ3"])
def test_a_damaged_payload_is_named(payload):
    with pytest.raises(ValueError, match="not an HdrHistogram V2 payload"):
        Histogram.decode(payload)


def test_a_payload_of_another_range_is_refused():
    other = HdrHistogram(1, 10_000, 2)
    other.record_value(5)
    with pytest.raises(ValueError, match="expected 1 to 3600000000"):
        Histogram.decode(other.encode().decode())
