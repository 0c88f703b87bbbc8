"""Outcomes for the tests of the recording: one maker with consistent stamps, one hypothesis strategy."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import strategies as st

from scheduler.request import ArrivalKind, ErrorClass, Outcome, Request, Status, TokensSource

MS = 1_000_000
S = 1_000_000_000

TRACES = Path(__file__).resolve().parents[3] / "shared" / "traces"


def real_trace(name: str) -> Path:
    """A public trace that lies beside the repository; the test is skipped where it does not."""
    path = TRACES / name
    if not path.exists():
        pytest.skip(f"{name} is not beside this checkout (public traces are no part of the project)")
    return path


def finished(
    request_id: int,
    tenant: str = "chat",
    *,
    arrival_ns: int = 0,
    queue_ns: int = 2 * MS,
    backend_ttft_ns: int = 40 * MS,
    gaps_us: tuple[int, ...] = (10_000, 10_000),
    tokens: tuple[int, ...] | None = None,
    late_ns: int = 0,
    **changes: object,
) -> Outcome:
    """A request that ended OK: enqueued ``late_ns`` after its arrival, one chunk and one more for each gap."""
    enqueued = arrival_ns + late_ns
    sent = enqueued + queue_ns
    first = sent + backend_ttft_ns
    offsets = np.concatenate(([0], np.cumsum(gaps_us))).astype(np.int64)
    last = first + int(offsets[-1]) * 1000
    fields: dict[str, object] = {
        "request": Request(id=request_id, tenant=tenant, arrival_ns=arrival_ns, prompt_tokens=100),
        "status": Status.OK,
        "ended_ns": last,
        "enqueued_ns": enqueued,
        "dispatched_ns": sent,
        "connect_ns": 0,
        "sent_ns": sent,
        "first_token_ns": first,
        "last_token_ns": last,
        "finished_ns": last,
        "prompt_tokens": 101,
        "output_tokens": sum(tokens) if tokens else len(offsets),
        "tokens_source": TokensSource.USAGE,
        "chunk_offsets_us": offsets,
        "chunk_tokens": np.array(tokens, dtype=np.int32) if tokens else None,
    }
    return Outcome(**(fields | changes))


def shed(request_id: int, tenant: str = "chat", *, arrival_ns: int = 0) -> Outcome:
    return Outcome(
        request=Request(id=request_id, tenant=tenant, arrival_ns=arrival_ns, prompt_tokens=100),
        status=Status.SHED,
        error_class=ErrorClass.SHED,
        enqueued_ns=arrival_ns,
        ended_ns=arrival_ns,
    )


def unfinished(request_id: int, tenant: str = "chat", *, arrival_ns: int = 0, age_ns: int = 30 * S) -> Outcome:
    return Outcome(
        request=Request(id=request_id, tenant=tenant, arrival_ns=arrival_ns, prompt_tokens=100),
        status=Status.UNFINISHED,
        error_class=ErrorClass.UNFINISHED,
        enqueued_ns=arrival_ns,
        ended_ns=arrival_ns + age_ns,
    )


@st.composite
def outcomes(draw: st.DrawFn, request_id: int = 0) -> Outcome:
    """Any outcome whose stamps are in order, stopped after any of its events."""
    arrival = draw(st.integers(0, 10**12))
    reached = draw(st.integers(0, 5))
    step = st.integers(0, 10**10)
    enqueued = arrival + draw(step)
    dispatched = enqueued + draw(step)
    connect = draw(st.integers(0, 10**6))
    sent = dispatched + connect + draw(step)
    first = sent + draw(step)
    gaps = draw(st.lists(st.integers(0, 10**7), max_size=6))
    offsets = np.concatenate(([0], np.cumsum(gaps))).astype(np.int64)
    last = first + int(offsets[-1]) * 1000
    end = last + draw(step)
    per_chunk = draw(st.none() | st.lists(st.integers(1, 5), min_size=len(offsets), max_size=len(offsets)))
    status = Status.OK if reached == 5 else draw(st.sampled_from([s for s in Status if s is not Status.OK]))
    chunks = reached >= 4
    return Outcome(
        request=Request(
            id=request_id,
            tenant=draw(st.sampled_from(["chat", "rag", "büro, 3"])),
            arrival_ns=arrival,
            prompt_tokens=draw(st.integers(0, 10**6)),
            max_tokens=draw(st.none() | st.integers(1, 4096)),
            target_output_tokens=draw(st.none() | st.integers(1, 4096)),
            priority=draw(st.integers(-5, 5)),
            arrival_kind=draw(st.sampled_from(list(ArrivalKind))),
            session_id=draw(st.none() | st.text(st.characters(codec="utf-8"), max_size=5)),
            turn=draw(st.integers(0, 9)),
            attempt=draw(st.integers(1, 3)),
            after_request_id=draw(st.none() | st.integers(0, 99)),
            think_ns=draw(st.none() | st.integers(0, 10**10)),
            cancel_after_ns=draw(st.none() | st.integers(0, 10**10)),
            prefix_blocks=tuple(draw(st.lists(st.integers(-(2**63), 2**63 - 1), max_size=3))),
        ),
        status=status,
        error_class=None if status is Status.OK else draw(st.sampled_from(list(ErrorClass))),
        http_status=draw(st.none() | st.sampled_from([200, 429, 503])),
        backend=draw(st.none() | st.just("http://a")),
        enqueued_ns=enqueued if reached >= 1 else None,
        dispatched_ns=dispatched if reached >= 2 else None,
        connect_ns=connect if reached >= 3 else None,
        sent_ns=sent if reached >= 3 else None,
        first_token_ns=first if chunks else None,
        last_token_ns=last if chunks else None,
        finished_ns=end if reached == 5 else None,
        ended_ns=end,
        prompt_tokens=draw(st.integers(0, 10**6)),
        cached_prompt_tokens=draw(st.none() | st.integers(0, 10**6)),
        output_tokens=(sum(per_chunk) if per_chunk else len(offsets)) if chunks else None,
        tokens_source=draw(st.sampled_from(list(TokensSource))),
        chunk_offsets_us=offsets if chunks else None,
        chunk_tokens=np.array(per_chunk, dtype=np.int32) if chunks and per_chunk else None,
        max_itl_ns=draw(st.none() | st.integers(0, 10**9)),
    )
