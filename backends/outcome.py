"""Request + WireResult -> Outcome: the scheduler's stamps and the wire's, joined into one row."""

from __future__ import annotations

from array import array

import numpy as np
from numpy.typing import NDArray

from backends.protocol import WireResult
from scheduler.request import Outcome, Request, Status
from tenants.measures import itl
from tenants.measures.itl import Int64s


def outcome_of(
    request: Request,
    result: WireResult,
    *,
    backend: str | None,
    enqueued_ns: int | None,
    dispatched_ns: int | None,
) -> Outcome:
    """What became of ``request``. Offsets are taken from the first token and each rounded once, so that the last one is
    within 1 us of last - first; token counts are left out where every chunk held one token or where they are unknown
    (``tokens_known`` tells which). The prompt's length is the server's word if it gave one.
    """
    chunk_ns = np.frombuffer(result.chunk_ns, dtype=np.int64) if result.chunk_ns else None
    known = result.tokens_known
    tokens = _uneven(result) if known else None
    return Outcome(
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
        first_token_ns=result.chunk_ns[0] if result.chunk_ns else None,
        last_token_ns=result.chunk_ns[-1] if result.chunk_ns else None,
        finished_ns=result.finished_ns if result.status is Status.OK else None,
        prompt_tokens=request.prompt_tokens if result.prompt_tokens is None else result.prompt_tokens,
        cached_prompt_tokens=result.cached_prompt_tokens,
        output_tokens=result.output_tokens,
        tokens_source=result.tokens_source,
        tokens_known=known,
        chunk_offsets_us=(chunk_ns - (result.chunk_ns[0] - 500)) // 1000 if chunk_ns is not None else None,
        chunk_tokens=tokens,
        finish_reason=result.finish_reason,
        max_itl_ns=itl.max_itl_ns(chunk_ns, tokens) if known and chunk_ns is not None else None,
    )


def inter_chunk_gaps_ns(outcome: Outcome) -> Int64s | None:
    """Raw gaps between the chunks of an outcome, always kept; None when no chunk came."""
    if outcome.chunk_offsets_us is None:
        return None
    return itl.inter_chunk_gaps_ns(outcome.chunk_offsets_us * 1000)


def itl_gaps_ns(outcome: Outcome) -> Int64s | None:
    """Gaps between the tokens of an outcome; None when it is not known how many tokens each chunk held."""
    if outcome.chunk_offsets_us is None or not outcome.tokens_known:
        return None
    return itl.itl_gaps_ns(outcome.chunk_offsets_us * 1000, outcome.chunk_tokens)


def _uneven(result: WireResult) -> NDArray[np.int32] | None:
    """The counts as an array, None when every chunk held one token."""
    if result.chunk_tokens is None:
        return None
    if result.chunk_tokens == array("i", (1,)) * len(result.chunk_tokens):
        return None
    return np.frombuffer(result.chunk_tokens, dtype=np.int32)
