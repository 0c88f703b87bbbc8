"""The rows that every measure reads: one entry a request, as numpy columns.

Two sentinels keep "it never happened" apart from "it has no meaning":

* ``NEVER`` (the largest int64): the event was due and was not reached (shed, failed, timed out, unfinished). It sorts
  above every measured value, so shedding or starving can never improve a percentile.
* ``UNDEFINED`` (-1): the figure has no value for this request (TPOT of a one-token answer); left out of percentiles.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

NEVER = int(np.iinfo(np.int64).max)
UNDEFINED = -1

Int64s = NDArray[np.int64]

PIECE_ROWS = 1 << 16


class StatusCode(IntEnum):
    """How a request ended, as stored in a column. ``CANCEL_PLANNED`` is a cancel that the workload itself asked for: it
    is counted and left out of every denominator."""

    OK = 0
    FAILED = 1
    TIMED_OUT = 2
    SHED = 3
    CANCELLED = 4
    UNFINISHED = 5
    CANCEL_PLANNED = 6


@dataclass(frozen=True, slots=True)
class Columns:
    """Requests of a run as parallel arrays of equal length, in any order; times in ns since the run's start.

    ``tenant`` indexes ``tenants``. ``ttft_ns``, ``e2e_ns``: from the intended arrival, NEVER if not reached.
    ``backend_ttft_ns``, ``queue_ns``: NEVER if not reached. ``tpot_ns``, ``max_itl_ns``: UNDEFINED where there is no gap,
    NEVER if the request failed. ``cached_prompt_tokens``: found in the server's prefix cache; UNDEFINED where that is not
    stated. ``end_ns``: when the outcome was known (an unfinished one: the end of the run), so
    ``end_ns - arrival_ns`` is the age of one that never got there. ``in_window``: False in warm-up and cool-down; every
    measure ignores those rows.
    """

    tenants: tuple[str, ...]
    tenant: NDArray[np.int32]
    arrival_ns: Int64s
    end_ns: Int64s
    ttft_ns: Int64s
    backend_ttft_ns: Int64s
    queue_ns: Int64s
    tpot_ns: Int64s
    max_itl_ns: Int64s
    e2e_ns: Int64s
    prompt_tokens: Int64s
    cached_prompt_tokens: Int64s
    output_tokens: Int64s
    status: NDArray[np.int8]
    in_window: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.tenant)

    def select(self, mask: NDArray[np.bool_]) -> Columns:
        """The rows where ``mask`` (bool, same length) is True; this object itself when those are all."""
        if mask.all():
            return self
        names = [f.name for f in fields(self) if f.name != "tenants"]
        return Columns(self.tenants, **{name: getattr(self, name)[mask] for name in names})

    def counted(self) -> NDArray[np.bool_]:
        """Which rows count: those in the window that are no cancel that the workload planned."""
        counted: NDArray[np.bool_] = self.in_window & (self.status != StatusCode.CANCEL_PLANNED)
        return counted

    def judged(self) -> Columns:
        """The rows that count (:meth:`counted`)."""
        return self.select(self.counted())

    def pieces(self, rows: int = PIECE_ROWS) -> Iterator[Columns]:
        """The rows in their order, at most ``rows`` at a time, for what need not hold a figure of every row at once."""
        names = [f.name for f in fields(self) if f.name != "tenants"]
        for start in range(0, len(self), rows):
            piece = slice(start, start + rows)
            yield Columns(self.tenants, **{name: getattr(self, name)[piece] for name in names})

    def of(self, name: str) -> Columns:
        """The rows of one tenant. Raises KeyError for a name that is not in ``tenants``."""
        if name not in self.tenants:
            raise KeyError(f"unknown tenant {name!r}; known: {', '.join(self.tenants)}")
        return self.select(self.tenant == self.tenants.index(name))
