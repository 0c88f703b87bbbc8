"""One latency distribution in bounded memory: an HdrHistogram, with what it cannot hold kept beside it.

Unit ns at the interface, recorded as whole microseconds, 1 us to 1 h with 3 significant digits (values of one bucket
differ by less than 0.1%). Beside the library's counts stand two groups that rank above them:

* *out of range*: measured, but longer than 1 h (the library would drop these without a word);
* *never*: the event was not reached (shed, failed, timed out, unfinished); kept as a count and the longest age.

So a percentile is over all that was due, in the order: counts, out of range, never. Percentiles are the nearest rank
``ceil(p / 100 * n)`` and, as the library and its public tools do, give the highest value of the bucket it falls in.
(The library itself rounds the rank to the nearest, which is one too low for half of all sample sizes.)

Bucket index (HdrHistogram, G. Tene): with 2,048 sub-buckets, v in us, ``b = bit_length(v | 2047) - 11`` and
``index = 1024 * (b + 1) + (v >> b) - 1024``; computed in numpy when many values arrive at once.
"""

from __future__ import annotations

import binascii
import weakref
import zlib
from typing import Any, Self

import numpy as np
from hdrh.codec import HdrCookieException, HdrLengthException
from hdrh.histogram import HdrHistogram
from numpy.typing import NDArray

from tenants.measures.columns import NEVER, UNDEFINED, Int64s
from tenants.measures.percentile import PercentileValue, nearest_rank

LOWEST_US = 1
HIGHEST_US = 3_600_000_000
SIGNIFICANT_DIGITS = 3
HIGHEST_NS = HIGHEST_US * 1000

_SUB_BUCKET_MASK = 2047
_SUB_BUCKET_BITS = 11
_HALF_BITS = 10
_HALF = 1 << _HALF_BITS


def whole_us(values_ns: Int64s) -> Int64s:
    """Values as they are recorded: rounded to whole us, at least 1."""
    # Not (values + 500) // 1000, which overflows near the largest int64.
    values_us: Int64s = np.maximum(values_ns // 1000 + (values_ns % 1000 >= 500), LOWEST_US)
    return values_us


def bucket_indices(values_us: Int64s) -> Int64s:
    """The bucket of each value of 1 us to 1 h."""
    # frexp's exponent of an integer below 2^53 is its bit length, exactly.
    bits = np.frexp((values_us | _SUB_BUCKET_MASK).astype(np.float64))[1].astype(np.int64)
    bucket = bits - _SUB_BUCKET_BITS
    index: Int64s = ((bucket + 1) << _HALF_BITS) + (values_us >> bucket) - _HALF
    return index


def _highest_equivalent_us(index: int) -> int:
    bucket = max((index >> _HALF_BITS) - 1, 0)
    sub_bucket = (index & (_HALF - 1)) + (_HALF if index >= _HALF else 0)
    return ((sub_bucket + 1) << bucket) - 1


class Histogram:
    """The latencies of one tenant and metric. The counts (188 KiB) are allocated at the first value."""

    __slots__ = ("_counts", "_hdr", "_longest_age_ns", "_longest_out_ns", "_never", "_out", "_sum_ns")

    def __init__(self) -> None:
        self._hdr: Any = None
        self._counts: NDArray[np.uint64] | None = None
        self._sum_ns = 0
        self._out = 0
        self._longest_out_ns = 0
        self._never = 0
        self._longest_age_ns = 0

    @property
    def hdr(self) -> Any:  # noqa: ANN401 (the library has no types)
        """The library's ``HdrHistogram`` (values in us), which holds neither ``out_of_range`` nor ``count_never``."""
        if self._hdr is None:
            self._adopt(HdrHistogram(LOWEST_US, HIGHEST_US, SIGNIFICANT_DIGITS))
        return self._hdr

    def _adopt(self, hdr: Any) -> NDArray[np.uint64]:  # noqa: ANN401 (the library has no types)
        self._hdr = hdr
        # The library's encoder holds its histogram, which holds the encoder: a ring that only the garbage collector
        # frees, at 188 KiB each.
        hdr.encoder.histogram = weakref.proxy(hdr)
        # A view on the library's own ctypes array: what is added here is what it encodes.
        self._counts = np.frombuffer(hdr.counts, dtype=np.uint64)
        return self._counts

    def _ready(self) -> NDArray[np.uint64]:
        if self._counts is None:
            return self._adopt(HdrHistogram(LOWEST_US, HIGHEST_US, SIGNIFICANT_DIGITS))
        return self._counts

    def record(self, value_ns: int, count: int = 1) -> None:
        """Records ``count`` values. Raises ValueError for a negative value, NEVER or a negative count."""
        if not 0 <= value_ns < NEVER or count < 0:
            raise ValueError(
                f"cannot record {count} x {value_ns} ns: a latency is >= 0 and was reached, a count is >= 0 "
                "(record_never takes what was not reached)"
            )
        if count == 0:
            return
        self._sum_ns += value_ns * count
        value_us = max((value_ns + 500) // 1000, LOWEST_US)
        if value_us > HIGHEST_US:
            self._out += count
            self._longest_out_ns = max(self._longest_out_ns, value_ns)
            return
        if self._hdr is None:
            self._ready()
        if not self._hdr.record_value(value_us, count):
            raise AssertionError(f"hdrhistogram refused {value_us} us, which lies in its range")

    def record_many(self, values_ns: Int64s, counts: NDArray[np.integer[Any]] | None = None) -> None:
        """Records every value (``counts[k]`` times, else once); the same result as :meth:`record` one by one. Raises
        ValueError for a negative value, NEVER, a negative count or unequal lengths; nothing is recorded then.
        """
        values = np.asarray(values_ns, dtype=np.int64)
        weights = np.ones(len(values), dtype=np.int64) if counts is None else np.asarray(counts, dtype=np.int64)
        if len(weights) != len(values):
            raise ValueError(f"{len(values)} values but {len(weights)} counts: one count a value is needed")
        if len(values) == 0:
            return
        if values.min() < 0 or values.max() == NEVER or weights.min() < 0:
            raise ValueError(
                "cannot record a negative latency, a negative count or NEVER "
                "(record_column takes columns with sentinels)"
            )
        present = weights > 0
        if not present.all():
            values, weights = values[present], weights[present]
            if len(values) == 0:
                return
        # Split, so that the sum stays exact where a plain int64 sum of ns would overflow (2.5 million values of 1 h).
        self._sum_ns += int((values // 1000 * weights).sum()) * 1000 + int((values % 1000 * weights).sum())
        values_us = whole_us(values)
        inside = values_us <= HIGHEST_US
        if not inside.all():
            self._out += int(weights[~inside].sum())
            self._longest_out_ns = max(self._longest_out_ns, int(values[~inside].max()))
            values_us, weights = values_us[inside], weights[inside]
            if len(values_us) == 0:
                return
        np.add.at(self._ready(), bucket_indices(values_us), weights.astype(np.uint64))
        self._hdr.total_count += int(weights.sum())
        self._hdr.min_value = min(self._hdr.min_value, int(values_us.min()))
        self._hdr.max_value = max(self._hdr.max_value, int(values_us.max()))

    def record_buckets(self, indices: Int64s, counts: Int64s, least_us: int, largest_us: int, sum_ns: int) -> None:
        """Records values that were counted elsewhere: ``counts[k]`` > 0 in the bucket ``indices[k]``, distinct, with the
        least and the largest of them and their sum.
        """
        self._ready()[indices] += counts.astype(np.uint64)
        self._hdr.total_count += int(counts.sum())
        self._hdr.min_value = min(self._hdr.min_value, least_us)
        self._hdr.max_value = max(self._hdr.max_value, largest_us)
        self._sum_ns += sum_ns

    def record_never(self, age_ns: int, count: int = 1) -> None:
        """Records ``count`` requests that did not reach the event while they were watched for ``age_ns``."""
        if age_ns < 0 or count < 0:
            raise ValueError(f"cannot record {count} requests of age {age_ns} ns: both must be >= 0")
        if count:
            self._never += count
            self._longest_age_ns = max(self._longest_age_ns, age_ns)

    def record_column(self, values: Int64s, ages: Int64s) -> None:
        """Records a column with sentinels: UNDEFINED is left out, NEVER counts with its age."""
        never = values == NEVER
        self.record_many(values[~never & (values != UNDEFINED)])
        if never.any():
            self.record_never(max(int(ages[never].max()), 0), int(never.sum()))

    @property
    def count(self) -> int:
        """All that was due, what never reached the event included."""
        return self.count_successes + self._never

    @property
    def count_successes(self) -> int:
        """What was measured, out-of-range values included."""
        return (0 if self._hdr is None else int(self._hdr.total_count)) + self._out

    @property
    def count_never(self) -> int:
        return self._never

    @property
    def out_of_range(self) -> int:
        """Measured values above 1 h."""
        return self._out

    @property
    def longest_age_ns(self) -> int:
        """The longest time that a request was watched and did not reach the event; 0 when all did."""
        return self._longest_age_ns

    @property
    def longest_out_of_range_ns(self) -> int:
        return self._longest_out_ns

    @property
    def min_ns(self) -> int | None:
        """The least measured value (whole us, except above 1 h); None when nothing was measured."""
        if self._hdr is not None and self._hdr.total_count:
            return int(self._hdr.min_value) * 1000
        return self._longest_out_ns if self._out else None

    @property
    def max_ns(self) -> int | None:
        """The largest measured value (whole us, except above 1 h); None when nothing was measured."""
        if self._out:
            return self._longest_out_ns
        if self._hdr is not None and self._hdr.total_count:
            return int(self._hdr.max_value) * 1000
        return None

    @property
    def mean_successes_ns(self) -> float | None:
        """The mean of the measured values, from their exact sum (after ``decode``: from the buckets' middles)."""
        n = self.count_successes
        return self._sum_ns / n if n else None

    def percentile(self, p: float) -> PercentileValue:
        """The percentile (0 < p <= 100) of all that was due. Out of range: beyond 1 h. Never reached: beyond the
        longest age, and beyond the largest measured value, which it outranks.
        """
        return self.percentiles((p,))[0]

    def percentiles(self, ps: tuple[float, ...] | list[float]) -> list[PercentileValue]:
        """Several percentiles in one pass over the counts."""
        return self._ranked(ps, self.count)

    def percentile_successes(self, p: float) -> PercentileValue:
        """The percentile of the measured values alone; to stand beside :meth:`percentile`, never in its place."""
        return self._ranked((p,), self.count_successes)[0]

    def _ranked(self, ps: tuple[float, ...] | list[float], n: int) -> list[PercentileValue]:
        if n == 0:
            return [PercentileValue(None) for _ in ps]
        cumulative = None if self._counts is None else np.cumsum(self._counts, dtype=np.int64)
        found = []
        for p in ps:
            rank = nearest_rank(p, n)
            if rank > self.count_successes:
                found.append(PercentileValue(None, max(self._longest_age_ns, self.max_ns or 0)))
            elif cumulative is None or rank > cumulative[-1]:
                found.append(PercentileValue(None, HIGHEST_NS))
            else:
                index = int(np.searchsorted(cumulative, rank))
                found.append(PercentileValue(_highest_equivalent_us(index) * 1000))
        return found

    def add(self, other: Histogram) -> None:
        """Adds the counts of ``other`` (of another worker, or interval): as if every value had been recorded here."""
        self._sum_ns += other._sum_ns
        self._out += other._out
        self._longest_out_ns = max(self._longest_out_ns, other._longest_out_ns)
        self._never += other._never
        self._longest_age_ns = max(self._longest_age_ns, other._longest_age_ns)
        if other._counts is None:
            return
        # Not the library's add: with an empty histogram it sets the minimum to 0.
        counts = self._ready()
        counts += other._counts
        self._hdr.total_count += other._hdr.total_count
        self._hdr.min_value = min(self._hdr.min_value, other._hdr.min_value)
        self._hdr.max_value = max(self._hdr.max_value, other._hdr.max_value)

    def __getstate__(self) -> tuple[Any, ...]:
        """All of it, exactly, as a few arrays of what is not zero: how a worker's histograms travel."""
        beside = (self._sum_ns, self._out, self._longest_out_ns, self._never, self._longest_age_ns)
        if self._counts is None:
            return (*beside, None)
        used = np.flatnonzero(self._counts)
        extremes = (int(self._hdr.total_count), int(self._hdr.min_value), int(self._hdr.max_value))
        return (*beside, (used, self._counts[used], extremes))

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self._sum_ns, self._out, self._longest_out_ns, self._never, self._longest_age_ns, counted = state
        self._hdr = self._counts = None
        if counted is not None:
            used, values, (total, least, most) = counted
            self._ready()[used] = values
            self._hdr.total_count, self._hdr.min_value, self._hdr.max_value = total, least, most

    def encode(self) -> str:
        """The counts in HdrHistogram V2 (compressed, base64), in us. What stands beside the counts is not in it."""
        encoded: bytes = self.hdr.encode()
        return encoded.decode("ascii")

    @classmethod
    def decode(
        cls,
        payload: str,
        *,
        count_never: int = 0,
        longest_age_ns: int = 0,
        out_of_range: int = 0,
        longest_out_of_range_ns: int = 0,
    ) -> Self:
        """The histogram of a V2 payload, with what travelled beside it. Minimum, maximum and mean are then those of the
        buckets, with every value above 1 h taken for the longest. Raises ValueError when the payload is damaged or of
        another range or precision.
        """
        try:
            hdr = HdrHistogram.decode(payload)
        except (HdrCookieException, HdrLengthException, binascii.Error, zlib.error, IndexError, ValueError) as error:
            raise ValueError(f"not an HdrHistogram V2 payload in base64: {type(error).__name__}: {error}") from error
        shape = (hdr.lowest_trackable_value, hdr.highest_trackable_value, hdr.significant_figures)
        if shape != (LOWEST_US, HIGHEST_US, SIGNIFICANT_DIGITS):
            raise ValueError(
                f"the histogram counts {shape[0]} to {shape[1]} with {shape[2]} digits; "
                f"expected {LOWEST_US} to {HIGHEST_US} (us) with {SIGNIFICANT_DIGITS}"
            )
        found = cls()
        counts = found._adopt(hdr)
        used = np.flatnonzero(counts)
        bucket = np.maximum((used >> _HALF_BITS) - 1, 0)
        lowest = ((used & (_HALF - 1)) + np.where(used >= _HALF, _HALF, 0)) << bucket
        middle_us = lowest + ((1 << bucket) >> 1)
        found._sum_ns = int((middle_us * counts[used].astype(np.int64)).sum()) * 1000
        found._sum_ns += out_of_range * longest_out_of_range_ns
        found._out, found._longest_out_ns = out_of_range, longest_out_of_range_ns
        found._never, found._longest_age_ns = count_never, longest_age_ns
        return found
