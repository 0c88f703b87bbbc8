"""How many tokens each chunk of an answer held: k, the divisor of the inter-token latency.

A chunk is not a token: speculative decoding and coalescing put several into one. What proves k, best first:

1. token ids in every chunk with output: k is their number;
2. a running ``usage`` in every chunk with output: k is its increase since the chunk before;
3. as many chunks with output as ``usage`` counts tokens: k = 1 for each.

Otherwise k is unknown, the inter-token latency of that answer is null, and only the gaps between chunks are shown.
"""

from __future__ import annotations

from array import array
from itertools import pairwise


def tokens_per_chunk(
    chunks: int, ids: array[int], running_usage: array[int], output_tokens: int | None
) -> array[int] | None:
    """The k of each of ``chunks``, or None when nothing proves it.

    ``ids``: number of token ids, ``running_usage``: completion tokens so far; each has one entry per chunk *that told
    it*, so an array shorter than ``chunks`` proves nothing.
    """
    if chunks == 0:
        return array("i")
    if len(ids) == chunks:
        return ids
    if len(running_usage) == chunks:
        steps = _increases(running_usage)
        if steps is not None:
            return steps
    if output_tokens == chunks:
        return array("i", [1]) * chunks
    return None


def _increases(running: array[int]) -> array[int] | None:
    """Differences of a running count. None when it begins at 0 (it lags behind the text), falls, or is constant over
    several chunks (it is the total repeated, not a running count).
    """
    if running[0] <= 0 or (len(running) > 1 and running[0] == running[-1]):
        return None
    steps = array("i", [running[0]])
    for before, after in pairwise(running):
        if after < before:
            return None
        steps.append(after - before)
    return steps
