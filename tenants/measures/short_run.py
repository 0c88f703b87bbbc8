"""What a run too short for an interval already proves: the most that a share of its requests can be.

Such a run is never called kept, since nothing in it shows how latencies move over longer times. It may be called broken,
when even a generous upper end of the share misses the target. The run is cut into ten equal pieces of time, and the
exact binomial upper end is taken with the effective number of requests

    n_eff = n / deff * (z / t(pieces - 1))^2        (Korn and Graubard 1998, for shares from clustered samples)

``deff``, the design effect, is how much more the share varies between the pieces than that of independent requests
would; the second factor pays for its being known from few pieces. One stall in an otherwise good run so counts as what it
is, one event. Fewer than five pieces with a request of the tenant prove nothing.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tenants.measures.columns import Int64s
from tenants.measures.intervals import MIN_SEEDS, clopper_pearson
from tenants.measures.laws import normal_quantile, t_quantile

PIECES = 10
MIN_PIECES = MIN_SEEDS


def pieces_of(arrival_ns: Int64s, start_ns: int, end_ns: int) -> Int64s:
    """Which piece of [start_ns, end_ns] each arrival lies in."""
    place = (arrival_ns - start_ns) / max(1, end_ns - start_ns)
    found: Int64s = np.clip((place * PIECES).astype(np.int64), 0, PIECES - 1)
    return found


def effective_requests(flags: NDArray[np.bool_], piece: Int64s) -> float | None:
    """How many independent requests these are worth; None with too few pieces to tell."""
    total = np.bincount(piece, minlength=PIECES)
    used = total > 0
    n_pieces = int(used.sum())
    if n_pieces < MIN_PIECES:
        return None
    n, share = len(flags), float(flags.mean())
    # Linearised ratio estimator: pieces with few requests weigh as little as they hold.
    residual = (np.bincount(piece[flags], minlength=PIECES) - share * total)[used]
    variance = n_pieces / (n_pieces - 1) * float((residual**2).sum()) / n**2
    deff = max(1.0, variance / (share * (1 - share) / n)) if 0 < share < 1 else 1.0
    paid = (normal_quantile(0.975) / t_quantile(0.975, n_pieces - 1)) ** 2
    return n / deff * paid


def most(hits: NDArray[np.bool_], effective: float, level: float) -> float:
    """The upper end of the share of ``hits``."""
    return clopper_pearson(float(hits.mean()) * effective, effective, level).high
