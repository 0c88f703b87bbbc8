"""A request and its life: what is known before it runs (:class:`Request`) and all that became of it (:class:`Outcome`).

Both are frozen msgspec structs, not dataclasses: one of each is made for every request on the hot path (a frozen slotted
dataclass of this width costs several times as much to build), and both are written to logs as they are. Neither can be part
of a ring, so the garbage collector need not look at them.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec
import numpy as np
from numpy.typing import NDArray


class Status(StrEnum):
    """How a request ended. Every status but OK is a miss for the SLO, except a planned cancel (``cancel_after_ns``)."""

    OK = "ok"
    FAILED = "failed"
    TIMED_OUT = "timed_out"
    SHED = "shed"
    CANCELLED = "cancelled"
    UNFINISHED = "unfinished"


class ErrorClass(StrEnum):
    """Why a request did not end OK; what a report counts failures by."""

    REFUSED = "refused"
    RESET = "reset"
    DNS = "dns"
    TLS = "tls"
    CONNECT_TIMEOUT = "connect_timeout"
    FIRST_TOKEN_TIMEOUT = "first_token_timeout"  # noqa: S105 (a time-out, not a secret)
    TOKEN_TIMEOUT = "token_timeout"  # noqa: S105 (a time-out between tokens, not a secret)
    TOTAL_TIMEOUT = "total_timeout"
    HTTP_4XX = "http_4xx"
    HTTP_5XX = "http_5xx"
    BAD_STREAM = "bad_stream"
    SERVER_ERROR = "server_error"
    SHED = "shed"
    CANCELLED = "cancelled"
    UNFINISHED = "unfinished"
    INTERNAL = "internal"


class TokensSource(StrEnum):
    """Where the count of output tokens comes from, best first."""

    USAGE = "usage"
    TOKEN_IDS = "token_ids"  # noqa: S105 (a source of counts, not a secret)
    TOKENIZER = "tokenizer"
    MODEL = "model"
    UNKNOWN = "unknown"


class ArrivalKind(StrEnum):
    """ABSOLUTE: from the schedule. AFTER: because another request finished (closed loop, session, retry)."""

    ABSOLUTE = "absolute"
    AFTER = "after"


class Request(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """What is known of a request before it runs; no prompt in it. Ids are unique ints in a run.

    ``arrival_ns`` is when it was *meant* to arrive. ``prompt_tokens`` may be an estimate (gateway). ``max_tokens`` is the
    limit the client sends. ``target_output_tokens`` is the length drawn beforehand: the workload asks the server for it
    and the simulator produces it; a policy must never read it. Time-outs are ns from ``arrival_ns``, except ``ttl_ns``,
    the longest wait in our queue.
    """

    id: int
    tenant: str
    arrival_ns: int
    prompt_tokens: int
    max_tokens: int | None = None
    target_output_tokens: int | None = None
    priority: int = 0
    ttl_ns: int | None = None
    first_token_timeout_ns: int | None = None
    timeout_ns: int | None = None
    arrival_kind: ArrivalKind = ArrivalKind.ABSOLUTE
    session_id: str | None = None
    turn: int = 0
    attempt: int = 1
    after_request_id: int | None = None
    think_ns: int | None = None
    cancel_after_ns: int | None = None
    prefix_blocks: tuple[int, ...] = ()


class Outcome(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """All stamps of one request, in ns since the run's start; None where the event was not reached.

    ``connect_ns`` is a duration (0 for a reused socket). ``prompt_tokens`` is the truth where the server told it, else
    the request's. ``chunk_offsets_us``: arrival of each chunk with tokens, in us from the first token (first entry 0);
    ``chunk_tokens``: tokens in each, None when every chunk held one or when it is unknown (``tokens_known`` tells which).
    ``ended_ns``: when the outcome was known, whatever it was.
    """

    request: Request
    status: Status
    ended_ns: int
    error_class: ErrorClass | None = None
    detail: str | None = None
    http_status: int | None = None
    backend: str | None = None
    enqueued_ns: int | None = None
    dispatched_ns: int | None = None
    connect_ns: int | None = None
    sent_ns: int | None = None
    first_token_ns: int | None = None
    last_token_ns: int | None = None
    finished_ns: int | None = None
    prompt_tokens: int | None = None
    cached_prompt_tokens: int | None = None
    output_tokens: int | None = None
    tokens_source: TokensSource = TokensSource.UNKNOWN
    tokens_known: bool = True
    chunk_offsets_us: NDArray[np.int64] | None = None
    chunk_tokens: NDArray[np.int32] | None = None
    max_itl_ns: int | None = None
    finish_reason: str | None = None
