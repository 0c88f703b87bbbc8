"""The stamps of many requests as numpy columns, and every latency that follows from them.

The same arithmetic judges a live outcome and a row read back from a trace, so the two can never disagree. Definitions
(docs/definitions.md): TTFT = first token - intended arrival; backend TTFT = first token - sent; queue time = dispatched
- enqueued; E2E = finished - intended arrival; TPOT = (last - first) / (output tokens - 1); own lateness = (enqueued -
arrival) + (sent - dispatched - connect). An absent stamp is ABSENT, so that 0 stays a time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scheduler.request import Outcome, Request, Status
from tenants.measures.columns import NEVER, UNDEFINED, Columns, Int64s, StatusCode

ABSENT = int(np.iinfo(np.int64).min)

STATUS_CODES = {
    Status.OK: StatusCode.OK,
    Status.FAILED: StatusCode.FAILED,
    Status.TIMED_OUT: StatusCode.TIMED_OUT,
    Status.SHED: StatusCode.SHED,
    Status.CANCELLED: StatusCode.CANCELLED,
    Status.UNFINISHED: StatusCode.UNFINISHED,
}
_PLAIN_CODES: dict[Status, int] = {status: int(code) for status, code in STATUS_CODES.items()}


@dataclass(frozen=True, slots=True)
class Stamps:
    """Requests as parallel arrays; ns since the run's start, ABSENT where unknown. ``tenant`` are codes of the
    caller's.
    """

    tenant: NDArray[np.int32]
    status: NDArray[np.int8]
    arrival: Int64s
    enqueued: Int64s
    dispatched: Int64s
    connect: Int64s
    sent: Int64s
    first: Int64s
    last: Int64s
    finished: Int64s
    ended: Int64s
    prompt_tokens: Int64s
    cached_prompt_tokens: Int64s
    output_tokens: Int64s
    max_itl: Int64s

    def __len__(self) -> int:
        return len(self.tenant)


@dataclass(frozen=True, slots=True)
class Gaps:
    """Gaps between consecutive chunks of many requests, flat: ``gap_ns`` of the request at row ``owner`` brought
    ``tokens`` tokens (0: unknown, then the gap counts for the inter-chunk latency only).
    """

    owner: NDArray[np.int64]
    gap_ns: Int64s
    tokens: Int64s

    def itl(self) -> tuple[NDArray[np.bool_], Int64s, Int64s]:
        """(mask of the gaps with known tokens, their ITL in ns, how many ITLs each stands for): a chunk that carries k
        tokens gives k gaps of gap/k.
        """
        known = self.tokens > 0
        counts = self.tokens[known]
        return known, np.rint(self.gap_ns[known] / counts).astype(np.int64), counts


def stamps_of(outcomes: Sequence[Outcome], code_of: Callable[[str], int]) -> Stamps:
    """The stamps of live or simulated outcomes; ``code_of`` gives a tenant's code."""

    def ints(values: list[int | None]) -> Int64s:
        return np.array([ABSENT if value is None else value for value in values], dtype=np.int64)

    requests = [outcome.request for outcome in outcomes]
    return Stamps(
        tenant=np.array([code_of(request.tenant) for request in requests], dtype=np.int32),
        status=np.array([status_code(outcome.status, outcome.request) for outcome in outcomes], dtype=np.int8),
        arrival=np.array([request.arrival_ns for request in requests], dtype=np.int64),
        enqueued=ints([outcome.enqueued_ns for outcome in outcomes]),
        dispatched=ints([outcome.dispatched_ns for outcome in outcomes]),
        connect=ints([outcome.connect_ns for outcome in outcomes]),
        sent=ints([outcome.sent_ns for outcome in outcomes]),
        first=ints([outcome.first_token_ns for outcome in outcomes]),
        last=ints([outcome.last_token_ns for outcome in outcomes]),
        finished=ints([outcome.finished_ns for outcome in outcomes]),
        ended=np.array([outcome.ended_ns for outcome in outcomes], dtype=np.int64),
        prompt_tokens=np.array(
            [o.request.prompt_tokens if o.prompt_tokens is None else o.prompt_tokens for o in outcomes], dtype=np.int64
        ),
        cached_prompt_tokens=ints([outcome.cached_prompt_tokens for outcome in outcomes]),
        output_tokens=ints([outcome.output_tokens for outcome in outcomes]),
        max_itl=ints([outcome.max_itl_ns for outcome in outcomes]),
    )


def in_order(stamps: Stamps, gaps: Gaps) -> NDArray[np.bool_]:
    """Where no stamp precedes the one before it, those of chunks included; the intended arrival may lie after ``enqueued`` by a
    timer's rounding, so it is not compared.
    """
    ordered = np.ones(len(stamps), dtype=np.bool_)
    latest = np.full(len(stamps), ABSENT, dtype=np.int64)
    for stamp in (stamps.enqueued, stamps.dispatched, stamps.sent, stamps.first, stamps.last, stamps.finished):
        ordered &= (stamp == ABSENT) | (stamp >= latest)
        latest = np.maximum(latest, stamp)
    ordered[gaps.owner[gaps.gap_ns < 0]] = False
    return ordered


def status_code(status: Status, request: Request) -> int:
    """The column code of ``status``: a cancel that the workload planned has its own."""
    if request.cancel_after_ns is not None and status is Status.CANCELLED:
        return int(StatusCode.CANCEL_PLANNED)
    return _PLAIN_CODES[status]


def gaps_of(outcomes: Sequence[Outcome]) -> Gaps:
    """The chunk gaps of ``outcomes``. Only stamps from the first token on are used; the first chunk gives no gap."""
    offsets, tokens, owners = [], [], []
    for row, outcome in enumerate(outcomes):
        chunks = outcome.chunk_offsets_us
        if chunks is None or len(chunks) < 2:
            continue
        owners.append(row)
        offsets.append(chunks)
        tokens.append(outcome.chunk_tokens if outcome.chunk_tokens is not None else int(outcome.tokens_known))
    return flat_gaps(owners, offsets, tokens)


def flat_gaps(
    owners: Sequence[int], offsets_us: Sequence[NDArray[np.int64]], tokens: Sequence[NDArray[Any] | int]
) -> Gaps:
    """Gaps from chunk offsets (us from the first token, at least two chunks each); ``tokens`` per chunk, or one number
    for all chunks of a request (0: unknown).
    """
    if not owners:
        empty = np.empty(0, dtype=np.int64)
        return Gaps(empty, empty, empty)
    lengths = np.array([len(chunks) for chunks in offsets_us], dtype=np.int64)
    flat = np.concatenate(offsets_us).astype(np.int64, copy=False)
    gaps = np.empty_like(flat)
    gaps[1:] = np.diff(flat)
    inner = np.ones(len(flat), dtype=np.bool_)
    inner[np.concatenate(([0], np.cumsum(lengths)[:-1]))] = False
    if all(isinstance(k, int) for k in tokens):
        per_chunk = np.repeat(np.array(tokens, dtype=np.int64), lengths)
    else:
        per_chunk = np.concatenate(
            [
                np.full(length, k, dtype=np.int64) if isinstance(k, int) else np.asarray(k, dtype=np.int64)
                for k, length in zip(tokens, lengths, strict=True)
            ]
        )
    owner = np.repeat(np.array(owners, dtype=np.int64), lengths)
    return Gaps(owner[inner], gaps[inner] * 1000, per_chunk[inner])


def with_max_itl(stamps: Stamps, gaps: Gaps) -> Int64s:
    """The longest ITL of each row: as measured by the source, else from its chunks, else ABSENT."""
    known, itl_ns, _ = gaps.itl()
    if not len(itl_ns):
        return stamps.max_itl
    from_chunks = np.full(len(stamps), ABSENT, dtype=np.int64)
    np.maximum.at(from_chunks, gaps.owner[known], itl_ns)
    return np.where(stamps.max_itl == ABSENT, from_chunks, stamps.max_itl)


@dataclass(frozen=True, slots=True)
class Measures:
    """What :class:`tenants.measures.columns.Columns` holds of each row, with the same sentinels, and the own lateness
    (UNDEFINED where a stamp is missing).
    """

    ttft: Int64s
    backend_ttft: Int64s
    queue: Int64s
    tpot: Int64s
    max_itl: Int64s
    e2e: Int64s
    lateness: Int64s


def measure(stamps: Stamps, max_itl: Int64s) -> Measures:
    """Every latency of ``stamps``; ``max_itl`` as :func:`with_max_itl` gives it.

    A stamp that is absent from a request that ended OK is unknown (UNDEFINED: a foreign trace has no queue), from any
    other it was never reached (NEVER). TTFT and E2E are due from every request: absent means NEVER.
    """
    ok = stamps.status == StatusCode.OK
    missing = np.where(ok, UNDEFINED, NEVER)
    has_first = stamps.first != ABSENT
    has_sent = stamps.sent != ABSENT
    queued = (stamps.dispatched != ABSENT) & (stamps.enqueued != ABSENT)
    never_left = (stamps.dispatched == ABSENT) & (stamps.sent == ABSENT)
    several = has_first & (stamps.last != ABSENT) & (stamps.output_tokens > 1)
    per_token = np.rint((stamps.last - stamps.first) / np.where(several, stamps.output_tokens - 1, 1)).astype(np.int64)
    return Measures(
        ttft=np.where(has_first, _span(stamps.arrival, stamps.first), NEVER),
        backend_ttft=np.where(
            has_first & has_sent, _span(stamps.sent, stamps.first), np.where(has_first, UNDEFINED, missing)
        ),
        queue=np.where(queued, _span(stamps.enqueued, stamps.dispatched), np.where(never_left, missing, UNDEFINED)),
        tpot=np.where(ok, np.where(several, np.maximum(per_token, 0), UNDEFINED), NEVER),
        max_itl=np.where(ok, np.where(max_itl == ABSENT, UNDEFINED, np.maximum(max_itl, 0)), NEVER),
        e2e=np.where(ok & (stamps.finished != ABSENT), _span(stamps.arrival, stamps.finished), NEVER),
        lateness=_lateness(stamps),
    )


def _span(start: Int64s, end: Int64s) -> Int64s:
    """``end - start``, at least 0: a timer that fires a moment early must not be taken for a sentinel."""
    span: Int64s = np.maximum(end - start, 0)
    return span


def _lateness(stamps: Stamps) -> Int64s:
    on_queue = stamps.enqueued != ABSENT
    on_wire = (stamps.sent != ABSENT) & (stamps.dispatched != ABSENT)
    connect = np.where(stamps.connect == ABSENT, 0, stamps.connect)
    late = np.where(on_queue, stamps.enqueued - stamps.arrival, 0)
    late += np.where(on_wire, stamps.sent - stamps.dispatched - connect, 0)
    lateness: Int64s = np.where(on_queue | on_wire, np.maximum(late, 0), UNDEFINED)
    return lateness


def columns_of(stamps: Stamps, measures: Measures, tenants: tuple[str, ...], in_window: NDArray[np.bool_]) -> Columns:
    """The rows as every measure reads them."""
    return Columns(
        tenants=tenants,
        tenant=stamps.tenant,
        arrival_ns=stamps.arrival,
        end_ns=stamps.ended,
        ttft_ns=measures.ttft,
        backend_ttft_ns=measures.backend_ttft,
        queue_ns=measures.queue,
        tpot_ns=measures.tpot,
        max_itl_ns=measures.max_itl,
        e2e_ns=measures.e2e,
        prompt_tokens=np.where(stamps.prompt_tokens == ABSENT, 0, stamps.prompt_tokens),
        cached_prompt_tokens=np.maximum(stamps.cached_prompt_tokens, UNDEFINED),
        output_tokens=np.where(stamps.output_tokens == ABSENT, UNDEFINED, stamps.output_tokens),
        status=stamps.status,
        in_window=in_window,
    )
