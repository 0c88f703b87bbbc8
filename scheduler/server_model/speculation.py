"""How many tokens a speculating engine emits a step: as many drafts as were accepted in a row, and one of its own.

A drafter proposes k tokens, each accepted with probability p given that those before it were (Leviathan, Kalman, Matias,
Fast Inference from Transformers via Speculative Decoding, ICML 2023), so a step emits 1 to k + 1 tokens::

    P(at least j drafts accepted) = p^j            E[tokens a step] = (1 - p^(k + 1)) / (1 - p)

The draw is a hash of (request id, tokens that the request has so far), not a stream: it does not depend on what else runs,
nor on the order in which anybody asks, so runs are reproducible and a live engine and a simulated one agree.
"""

from __future__ import annotations

from bisect import bisect_right

from scheduler.mixing import MASK, mix


class Speculation:
    """``drafts`` tokens a step, each accepted with probability ``acceptance``."""

    __slots__ = ("_below",)

    def __init__(self, drafts: int, acceptance: float) -> None:
        # At least j drafts are accepted when the draw, uniform on 64 bits, is below 2^64 p^j.
        self._below = sorted(round(acceptance**j * 2.0**64) for j in range(1, drafts + 1))

    def tokens(self, request_id: int, generated: int) -> int:
        """Tokens of the next step of a request that has ``generated`` so far."""
        draw = mix((mix(request_id & MASK) + generated) & MASK)
        return 1 + len(self._below) - bisect_right(self._below, draw)


def tokens_a_step(drafts: int, acceptance: float) -> float:
    """How many tokens a step gives a sequence on average."""
    return sum(acceptance**accepted for accepted in range(drafts + 1))


def acceptance_of(drafts: int, tokens: float) -> float:
    """The probability at which a step gives so many tokens on average; the nearest end of 0 to 1 where none does."""
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if tokens_a_step(drafts, middle) < tokens else (low, middle)
    return round(low, 6)
