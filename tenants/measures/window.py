"""The percentile of what a tenant sees now: recent samples, together with the ages of requests still waiting.

A policy that steers by an observed percentile must not read completions alone: a starved tenant completes nothing and
would look healthy. So the statistic is the nearest rank over the *union* of the window's samples and the ages of the
requests that have no first token yet. The samples are kept sorted as they come and go; the ages are read from the top
only as far as the rank demands (1% of them for a P99).
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Iterator
from itertools import islice

from tenants.measures.percentile import nearest_rank


class WindowedQuantile:
    """Samples of the last ``window_ns`` (> 0): one that was added at t counts while ``now < t + window_ns``."""

    __slots__ = ("_by_time", "_sorted", "_window_ns")

    def __init__(self, window_ns: int) -> None:
        if window_ns <= 0:
            raise ValueError(f"a window must be longer than 0 ns, got {window_ns}")
        self._window_ns = window_ns
        self._by_time: deque[tuple[int, int]] = deque()
        self._sorted: list[int] = []

    def __len__(self) -> int:
        return len(self._sorted)

    def add(self, now_ns: int, value_ns: int) -> None:
        """Adds a sample. Raises ValueError when time runs backwards."""
        if self._by_time and now_ns < self._by_time[-1][0]:
            raise ValueError(f"samples must come in order of time: {now_ns} ns after {self._by_time[-1][0]} ns")
        self._by_time.append((now_ns, value_ns))
        insort(self._sorted, value_ns)

    def expire(self, now_ns: int) -> None:
        """Forgets the samples that have left the window."""
        by_time, ranked = self._by_time, self._sorted
        oldest = now_ns - self._window_ns
        while by_time and by_time[0][0] <= oldest:
            del ranked[bisect_left(ranked, by_time.popleft()[1])]

    def quantile(self, percentile: float, ages_desc: Iterator[int], n_ages: int) -> int | None:
        """The nearest-rank percentile (0 < p <= 100), in ns, over the window's samples and ``n_ages`` ages, which
        ``ages_desc`` yields in descending order; None over nothing. Raises ValueError when ages are missing.
        """
        ranked = self._sorted
        n = len(ranked) + n_ages
        if n == 0:
            return None
        from_top = n - nearest_rank(percentile, n) + 1
        # The value wanted is among the largest ``from_top`` of each.
        wanted = min(from_top, n_ages)
        if not wanted:
            return ranked[-from_top]
        ages = list(islice(ages_desc, 1))
        if ages and from_top <= len(ranked) and ages[0] <= ranked[-from_top]:
            return ranked[-from_top]
        ages += islice(ages_desc, wanted - 1)
        if len(ages) < wanted:
            raise ValueError(f"{n_ages - len(ages)} more ages were announced than given")
        ages += ranked[-from_top:]
        ages.sort()
        return ages[-from_top]
