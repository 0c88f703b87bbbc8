"""What an exchange with an upstream came to: its verdict and, as a WireResult, its stamps and counts.

The rules are those of the measuring client: a stream is a success when it came to its end and held output; an error object
inside HTTP 200 is a failure. An answer that came whole has one known time, its end: that is its first token too, since its
client saw nothing before.
"""

from __future__ import annotations

from array import array

from backends.gateway.dialects.dialect import Whole
from backends.gateway.upstreams import Exchange
from backends.protocol import WireResult
from backends.wire.answer import Answer
from backends.wire.faults import WireError
from scheduler.request import ErrorClass, Status, TokensSource


def judge_stream(answer: Answer, unreadable: str | None) -> WireError | None:
    """The fault of a stream whose message came to its end, None for a success."""
    if answer.fault is not None:
        return answer.fault
    if unreadable is not None:
        return WireError(ErrorClass.BAD_STREAM, unreadable)
    if not answer.whole:
        return WireError(ErrorClass.BAD_STREAM, "the stream ended without its closing mark")
    if not answer.chunk_ns:
        return WireError(ErrorClass.BAD_STREAM, "the stream came to its end without a single token")
    return None


def judge_whole(http_status: int) -> WireError | None:
    if http_status < 400:
        return None
    return WireError(ErrorClass.HTTP_5XX if http_status >= 500 else ErrorClass.HTTP_4XX, f"HTTP {http_status}")


def wire_result(
    exchange: Exchange | None,
    answer: Answer,
    whole: Whole | None,
    fault: WireError | None,
    *,
    status: Status | None,
    http_status: int | None,
    now_ns: int,
) -> WireResult:
    """``status`` None: OK without a fault, else the fault's. The detail is never an upstream's text, which may quote a
    prompt.
    """
    status = status or (Status.OK if fault is None else fault.status)
    relay = None if exchange is None else exchange.relay
    finished_ns = None if relay is None or status is not Status.OK else relay.finished_ns
    counts = answer.counts()
    chunk_ns = answer.chunk_ns
    if not chunk_ns and finished_ns is not None:
        chunk_ns = array("q", [finished_ns])
    output_tokens = counts.output_tokens if whole is None else whole.output_tokens
    source = counts.source if whole is None else TokensSource.USAGE if output_tokens is not None else counts.source
    known = counts.chunk_tokens is not None and bool(answer.chunk_ns)
    told_by_server = fault is not None and fault.error_class is ErrorClass.SERVER_ERROR
    return WireResult(
        status=status,
        ended_ns=now_ns,
        error_class=None if fault is None else fault.error_class,
        detail=None if fault is None else "an error inside the answer" if told_by_server else fault.detail,
        http_status=http_status,
        connect_ns=None if exchange is None else exchange.connect_ns,
        sent_ns=None if exchange is None else exchange.sent_ns,
        finished_ns=finished_ns,
        chunk_ns=chunk_ns,
        chunk_tokens=counts.chunk_tokens if known else None,
        tokens_known=known,
        prompt_tokens=counts.prompt_tokens if whole is None else whole.prompt_tokens,
        cached_prompt_tokens=counts.cached_prompt_tokens if whole is None else whole.cached_prompt_tokens,
        output_tokens=output_tokens,
        tokens_source=source,
        finish_reason=answer.finish_reason if whole is None else whole.finish_reason,
    )
