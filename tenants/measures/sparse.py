"""Many histograms of which few buckets are used, e.g. one for every tenant and ten seconds of a run.

A :class:`~tenants.measures.histogram.Histogram` has 188 KiB of counts, most of them 0. Here only the buckets with a
count are kept, sorted by (group, bucket) in one array for all groups, and each group becomes a histogram when it is its
turn to be read. What comes in waits until there is as much of it as is kept, so that every value is sorted a bounded
number of times.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tenants.measures.columns import NEVER, Int64s
from tenants.measures.histogram import HIGHEST_US, Histogram, bucket_indices, whole_us

_BUCKETS = 1 << 15
"""More than a histogram has, so that a group and a bucket make one key."""

_LARGEST_GROUP = NEVER // _BUCKETS - 1
_AT_ONCE = 1 << 16


@dataclass(slots=True)
class _Beside:
    """What the buckets of one group do not say."""

    least_us: int = HIGHEST_US
    largest_us: int = 0
    sum_ns: int = 0


class SparseHistograms:
    """Histograms by group, a number from 0 on; :meth:`histograms` gives what ``Histogram.record_many`` of each group's
    values would have given.
    """

    def __init__(self) -> None:
        self._keys: Int64s = np.empty(0, dtype=np.int64)
        self._counts: Int64s = np.empty(0, dtype=np.int64)
        self._waiting: list[tuple[Int64s, Int64s]] = []
        self._n_waiting = 0
        self._beside: dict[int, _Beside] = {}
        self._out: dict[int, Histogram] = {}

    def record_many(self, groups: Int64s, values_ns: Int64s, counts: Int64s) -> None:
        """Records each value ``counts[k]`` times in the group ``groups[k]``. Raises ValueError for a value that is
        negative or NEVER, for a negative count or a group out of range; nothing is recorded then.
        """
        if not len(values_ns):
            return
        if values_ns.min() < 0 or values_ns.max() == NEVER or counts.min() < 0:
            raise ValueError("cannot record a negative latency, a negative count or NEVER")
        if groups.min() < 0 or groups.max() > _LARGEST_GROUP:
            raise ValueError(f"a group is a number from 0 to {_LARGEST_GROUP}, got {groups.min()} to {groups.max()}")
        values_us = whole_us(values_ns)
        inside = (values_us <= HIGHEST_US) & (counts > 0)
        if not inside.all():
            self._record_out(groups, values_ns, np.where(values_us > HIGHEST_US, counts, 0))
            groups, values_ns, counts = groups[inside], values_ns[inside], counts[inside]
            values_us = values_us[inside]
            if not len(groups):
                return
        keys = groups * _BUCKETS + bucket_indices(values_us)
        order = np.argsort(keys, kind="stable")
        keys, counts = keys[order], counts[order]
        self._record_beside(keys // _BUCKETS, values_ns[order], values_us[order], counts)
        self._waiting.append(_summed(keys, counts))
        self._n_waiting += len(self._waiting[-1][0])
        if self._n_waiting >= max(_AT_ONCE, len(self._keys)):
            self._merge()

    def histograms(self) -> Iterator[tuple[int, Histogram]]:
        """(group, its histogram) of every group that has a value, by ascending group; each is made when it is asked
        for and belongs to the caller.
        """
        self._merge()
        for group in sorted({*self._beside, *self._out}):
            histogram = Histogram()
            first, last = np.searchsorted(self._keys, [group * _BUCKETS, (group + 1) * _BUCKETS])
            if first < last:
                beside = self._beside[group]
                histogram.record_buckets(
                    self._keys[first:last] % _BUCKETS,
                    self._counts[first:last],
                    beside.least_us,
                    beside.largest_us,
                    beside.sum_ns,
                )
            if group in self._out:
                histogram.add(self._out[group])
            yield group, histogram

    def _record_out(self, groups: Int64s, values_ns: Int64s, counts: Int64s) -> None:
        """Values above 1 h have no bucket; there are few."""
        for row in np.flatnonzero(counts).tolist():
            self._out.setdefault(int(groups[row]), Histogram()).record(int(values_ns[row]), int(counts[row]))

    def _record_beside(self, groups: Int64s, values_ns: Int64s, values_us: Int64s, counts: Int64s) -> None:
        starts = _starts(groups)
        least, largest = np.minimum.reduceat(values_us, starts), np.maximum.reduceat(values_us, starts)
        # Split, so that the sum stays exact where a plain int64 sum of ns would overflow.
        whole = np.add.reduceat(values_ns // 1000 * counts, starts)
        rest = np.add.reduceat(values_ns % 1000 * counts, starts)
        for k, group in enumerate(groups[starts].tolist()):
            beside = self._beside.setdefault(group, _Beside())
            beside.least_us = min(beside.least_us, int(least[k]))
            beside.largest_us = max(beside.largest_us, int(largest[k]))
            beside.sum_ns += int(whole[k]) * 1000 + int(rest[k])

    def _merge(self) -> None:
        if not self._waiting:
            return
        keys = np.concatenate([self._keys, *(keys for keys, _ in self._waiting)])
        counts = np.concatenate([self._counts, *(counts for _, counts in self._waiting)])
        self._waiting, self._n_waiting = [], 0
        order = np.argsort(keys, kind="stable")
        self._keys, self._counts = _summed(keys[order], counts[order])


def _starts(ascending: Int64s) -> NDArray[np.int64]:
    """Where each distinct value begins."""
    return np.flatnonzero(np.concatenate(([True], ascending[1:] != ascending[:-1])))


def _summed(keys: Int64s, counts: Int64s) -> tuple[Int64s, Int64s]:
    """Ascending keys without repetition, their counts added."""
    starts = _starts(keys)
    return keys[starts], np.add.reduceat(counts, starts)
