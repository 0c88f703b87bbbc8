"""Which requests meet their SLO, the share that do, and the useful rate they make (goodput).

A request meets the SLO when it ended OK and meets every limit that is set. A limit on a figure that has no meaning for
the request (TPOT of a one-token answer) counts as met. Every other end is a miss, also a cancel of the client's own;
only a cancel that the workload planned is left out (:meth:`Columns.judged`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tenants.measures.columns import NEVER, Columns, Int64s, StatusCode
from tenants.slo import Slo


def _limited(columns: Columns, slo: Slo) -> list[tuple[Int64s, int]]:
    pairs = [
        (columns.ttft_ns, slo.ttft_ns),
        (columns.tpot_ns, slo.tpot_ns),
        (columns.e2e_ns, slo.e2e_ns),
        (columns.max_itl_ns, slo.max_itl_ns),
    ]
    return [(values, limit) for values, limit in pairs if limit is not None]


def meets(columns: Columns, slo: Slo) -> NDArray[np.bool_]:
    """For each row of ``columns`` (all of them, also those outside the window) whether it meets ``slo``."""
    met: NDArray[np.bool_] = columns.status == StatusCode.OK
    for values, limit in _limited(columns, slo):
        # UNDEFINED is negative and passes; NEVER is the largest int64 and fails.
        met = met & (values <= limit)
    return met


def severity(columns: Columns, slo: Slo) -> NDArray[np.float64]:
    """For each row the worst ratio of a figure to its limit: at most 1 exactly when the limits are met, inf when the
    request did not end OK. How far slow requests clump in time is read from it even when none of them is a miss.
    """
    worst = np.where(columns.status == StatusCode.OK, 0.0, np.inf)
    for values, limit in _limited(columns, slo):
        ratio = np.where(values == NEVER, np.inf, values / limit) if limit else np.where(values > 0, np.inf, 0.0)
        worst = np.maximum(worst, ratio)
    return worst


@dataclass(frozen=True, slots=True)
class Attainment:
    """``met`` of ``total`` judged requests meet the SLO."""

    met: int
    total: int

    @property
    def share(self) -> float | None:
        """Met / total; None when there was no request."""
        return self.met / self.total if self.total else None

    @property
    def misses(self) -> int:
        return self.total - self.met


def attainment(columns: Columns, slo: Slo) -> Attainment:
    """Over the judged rows of ``columns``: those of one tenant, all held to ``slo``."""
    judged = columns.judged()
    return Attainment(int(meets(judged, slo).sum()), len(judged))


@dataclass(frozen=True, slots=True)
class Goodput:
    """Requests/s, and output tokens/s of those requests, that meet every limit."""

    requests_per_s: float
    tokens_per_s: float

    def __add__(self, other: Goodput) -> Goodput:
        return Goodput(self.requests_per_s + other.requests_per_s, self.tokens_per_s + other.tokens_per_s)


def goodput(columns: Columns, slo: Slo, duration_s: float) -> Goodput:
    """Over the judged rows, all held to ``slo``, whose arrivals span a window of ``duration_s`` > 0. An SLO without
    limits counts what ended OK.
    """
    if not duration_s > 0:
        raise ValueError(f"goodput is a rate: the window must be longer than 0 s, got {duration_s}")
    judged = columns.judged()
    met = meets(judged, slo)
    # An unknown output length is below 0 in the column; it adds nothing.
    tokens = int(np.maximum(judged.output_tokens[met], 0).sum())
    return Goodput(int(met.sum()) / duration_s, tokens / duration_s)


def goodput_total(columns: Columns, slos: Mapping[str, Slo], duration_s: float) -> Goodput:
    """The goodput of all tenants together, each held to its own SLO (to :class:`Slo` without limits when not named)."""
    total = Goodput(0.0, 0.0)
    for name in columns.tenants:
        total = total + goodput(columns.of(name), slos.get(name, Slo()), duration_s)
    return total
