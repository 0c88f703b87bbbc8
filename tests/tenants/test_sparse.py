"""Histograms kept by their used buckets only are the histograms that recording one by one gives."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tenants.measures.columns import NEVER
from tenants.measures.histogram import HIGHEST_NS, Histogram
from tenants.measures.sparse import SparseHistograms

VALUES = st.integers(0, 10**7) | st.integers(0, HIGHEST_NS + 10**6) | st.sampled_from([HIGHEST_NS, HIGHEST_NS + 1000])
ENTRIES = st.tuples(st.sampled_from([0, 1, 7, 119 << 32]), VALUES, st.integers(0, 3))


def columns(entries: list[tuple[int, int, int]]) -> tuple[np.ndarray, ...]:
    return (
        tuple(np.array(part, dtype=np.int64) for part in zip(*entries, strict=True)) if entries else (np.empty(0),) * 3
    )


@settings(max_examples=80, deadline=None)
@given(batches=st.lists(st.lists(ENTRIES, max_size=30), max_size=5))
def test_every_group_is_the_histogram_of_its_values(batches: list[list[tuple[int, int, int]]]) -> None:
    """Whatever the batches: counts, extremes, mean, what lies above 1 h, and the encoded text; groups ascend."""
    expected: dict[int, Histogram] = {}
    sparse = SparseHistograms()
    for batch in batches:
        sparse.record_many(*columns(batch))
        for group, value, count in batch:
            if count:
                expected.setdefault(group, Histogram()).record(value, count)
    found = list(sparse.histograms())
    assert [group for group, _ in found] == sorted(expected)
    for group, histogram in found:
        one_by_one = expected[group]
        for figure in ("count", "out_of_range", "min_ns", "max_ns", "mean_successes_ns", "longest_out_of_range_ns"):
            assert getattr(histogram, figure) == getattr(one_by_one, figure), figure
        assert histogram.encode() == one_by_one.encode()


def test_many_batches_of_one_group_add_up() -> None:
    """More values than wait for a merge: 200,000 values of 1,000 us apart, in 20 batches, each value twice."""
    sparse, whole = SparseHistograms(), Histogram()
    values = np.arange(200_000, dtype=np.int64) % 5_000 * 17_000
    for part in np.array_split(values, 20):
        sparse.record_many(np.zeros(len(part), dtype=np.int64), part, np.full(len(part), 2, dtype=np.int64))
    whole.record_many(np.tile(values, 2))
    ((group, found),) = sparse.histograms()
    assert (group, found.count, found.encode()) == (0, 400_000, whole.encode())


@pytest.mark.parametrize(
    ("group", "value", "count"), [(0, -1, 1), (0, NEVER, 1), (0, 1, -1), (-1, 1, 1), (NEVER, 1, 1)]
)
def test_what_is_no_latency_is_refused_and_nothing_recorded(group: int, value: int, count: int) -> None:
    sparse = SparseHistograms()
    with pytest.raises(ValueError, match=r"cannot record|a group is"):
        sparse.record_many(*columns([(0, 5, 1), (group, value, count)]))
    assert list(sparse.histograms()) == []
