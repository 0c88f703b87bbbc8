"""Gaps between the tokens of one answer.

The inter-token latency (ITL) needs to know how many tokens each chunk held: a chunk of k tokens, t after the one before,
gives k gaps of t / k; the first chunk gives none, for what came before it is the time to first token. A chunk of no token
(one token's text spread over two chunks) gives no gap, and its time belongs to the next one.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Int64s = NDArray[np.int64]


def itl_gaps_ns(chunk_ns: Int64s, chunk_tokens: NDArray[np.int32] | None = None) -> Int64s:
    """Gaps (ns, each rounded to 1 ns) between tokens; ``chunk_tokens`` (same length) None means one token a chunk.

    Only for an answer whose counts are known: where they are not, the ITL is null, and asking for it is the caller's
    mistake that cannot be seen here. Raises ValueError for arrays of unequal length or negative counts.
    """
    if chunk_tokens is None:
        return np.diff(chunk_ns)
    if len(chunk_tokens) != len(chunk_ns):
        raise ValueError(f"{len(chunk_tokens)} token counts for {len(chunk_ns)} chunks; one each would be right")
    if len(chunk_ns) == 0:
        return np.empty(0, dtype=np.int64)
    if chunk_tokens.min() < 0:
        raise ValueError("a chunk cannot hold a negative number of tokens")
    counted = chunk_tokens > 0
    counted[0] = True
    counts = chunk_tokens[counted][1:]
    return np.repeat(np.rint(np.diff(chunk_ns[counted]) / counts).astype(np.int64), counts)


def max_itl_ns(chunk_ns: Int64s, chunk_tokens: NDArray[np.int32] | None = None) -> int | None:
    """The largest of :func:`itl_gaps_ns`, None when there is none."""
    gaps = itl_gaps_ns(chunk_ns, chunk_tokens)
    return int(gaps.max()) if len(gaps) else None
