"""The output length that each row of a captured run is replayed with."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from loadgen.recording.stamps import ABSENT
from tenants.measures.columns import Int64s, StatusCode


def lengths_to_replay(
    output: Int64s, target: Int64s, status: NDArray[np.int8], tenant: NDArray[np.int32], seed: int = 0
) -> tuple[Int64s, NDArray[np.bool_]]:
    """(output length to replay, imputed) of each row; ABSENT is unknown. The truth is what a request that ended OK
    produced, at least 1: one without output (an embedding) costs its prefill and the step that ends it; else the length
    drawn before sending (``target``); else one drawn from the tenant's true lengths (from all when it has none, 1 when there
    are none at all), which is flagged.
    """
    true = (status == StatusCode.OK) & (output != ABSENT)
    output = np.where(true, np.maximum(output, 1), output)
    lengths = np.where(true, output, target)
    imputed = lengths == ABSENT
    rng = np.random.default_rng(seed)
    for code in np.unique(tenant[imputed]):
        rows = imputed & (tenant == code)
        pool = output[true & (tenant == code)]
        pool = pool if len(pool) else output[true]
        lengths[rows] = rng.choice(pool, int(rows.sum())) if len(pool) else 1
    return lengths, imputed
