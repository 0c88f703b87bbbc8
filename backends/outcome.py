"""Request + WireResult -> Outcome: the scheduler's stamps and the wire's, joined into one row."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from backends.protocol import WireResult
from scheduler.request import Outcome, Request, Status
from tenants.measures import itl
from tenants.measures.itl import Int64s


class Ended(NamedTuple):
    """A request that a backend is done with: what it said, and the scheduler's stamps (ns)."""

    request: Request
    result: WireResult
    backend: str | None
    enqueued_ns: int | None
    dispatched_ns: int | None


def outcome_of(
    request: Request,
    result: WireResult,
    *,
    backend: str | None,
    enqueued_ns: int | None,
    dispatched_ns: int | None,
) -> Outcome:
    """What became of ``request``; see :func:`outcomes_of`."""
    return outcomes_of([Ended(request, result, backend, enqueued_ns, dispatched_ns)])[0]


def outcomes_of(ended: Sequence[Ended]) -> list[Outcome]:
    """What became of each request. Offsets are taken from the first token and each rounded once, so that the last one is
    within 1 us of last - first; token counts are left out where every chunk held one token or where they are unknown
    (``tokens_known`` tells which). The prompt's length is the server's word if it gave one.
    """
    chunks = _Chunks([of.result.chunk_ns for of in ended])
    outcomes = []
    for number, (request, result, backend, enqueued_ns, dispatched_ns) in enumerate(ended):
        known = result.tokens_known
        tokens = _uneven(result) if known else None
        came = len(result.chunk_ns) > 0
        outcomes.append(
            Outcome(
                request=request,
                status=result.status,
                ended_ns=result.ended_ns,
                error_class=result.error_class,
                detail=result.detail,
                http_status=result.http_status,
                backend=backend,
                enqueued_ns=enqueued_ns,
                dispatched_ns=dispatched_ns,
                connect_ns=result.connect_ns,
                sent_ns=result.sent_ns,
                first_token_ns=result.chunk_ns[0] if came else None,
                last_token_ns=result.chunk_ns[-1] if came else None,
                finished_ns=result.finished_ns if result.status is Status.OK else None,
                prompt_tokens=request.prompt_tokens if result.prompt_tokens is None else result.prompt_tokens,
                cached_prompt_tokens=result.cached_prompt_tokens,
                output_tokens=result.output_tokens,
                tokens_source=result.tokens_source,
                tokens_known=known,
                chunk_offsets_us=chunks.offsets_us(number) if came else None,
                chunk_tokens=tokens,
                finish_reason=result.finish_reason,
                max_itl_ns=chunks.max_itl_ns(number, tokens) if known and came else None,
            )
        )
    return outcomes


class _Chunks:
    """The stamps of many answers' chunks in one array: what is reckoned of all costs hardly more than of one."""

    def __init__(self, chunk_ns: Sequence[array[int]]) -> None:
        joined = array("q")
        for stamps in chunk_ns:
            joined.extend(stamps)
        self._ends = list(accumulate(map(len, chunk_ns)))
        self._starts = [0, *self._ends[:-1]]
        self._ns = np.frombuffer(joined, dtype=np.int64) if joined else np.empty(0, dtype=np.int64)
        lengths = np.array([len(stamps) for stamps in chunk_ns], dtype=np.int64)
        firsts = np.array([stamps[0] if stamps else 0 for stamps in chunk_ns], dtype=np.int64)
        self._offsets_us = (self._ns - np.repeat(firsts - 500, lengths)) // 1000
        self._longest: list[int] | None = None

    def offsets_us(self, number: int) -> Int64s:
        """Of one answer: us from its first chunk."""
        return self._offsets_us[self._starts[number] : self._ends[number]]

    def max_itl_ns(self, number: int, tokens: NDArray[np.int32] | None) -> int | None:
        """The largest gap between the tokens of an answer that has chunks, None when there is none. ``tokens``: of each chunk,
        None for one each."""
        start, end = self._starts[number], self._ends[number]
        if tokens is not None:
            return itl.max_itl_ns(self._ns[start:end], tokens)
        if end - start < 2:
            return None
        if self._longest is None:
            self._longest = self._longest_gaps()
        return self._longest[number]

    def _longest_gaps(self) -> list[int]:
        """By answer; meaningless for one without a gap."""
        gaps = np.diff(self._ns, append=self._ns[-1])
        gaps[np.array(self._ends)[np.diff(self._ends, prepend=0) > 0] - 1] = np.iinfo(np.int64).min
        longest: list[int] = np.maximum.reduceat(gaps, np.minimum(self._starts, len(gaps) - 1)).tolist()
        return longest


def _uneven(result: WireResult) -> NDArray[np.int32] | None:
    """The counts as an array, None when every chunk held one token."""
    if result.chunk_tokens is None:
        return None
    if result.chunk_tokens == array("i", (1,)) * len(result.chunk_tokens):
        return None
    return np.frombuffer(result.chunk_tokens, dtype=np.int32)
