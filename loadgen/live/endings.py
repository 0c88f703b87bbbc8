"""Outcomes of requests that no backend's result tells of: never served, or given up by us."""

from __future__ import annotations

import asyncio

from backends.protocol import so_far_of
from scheduler.drivers.live import NotServed, Ticket
from scheduler.events import AbortReason
from scheduler.request import ErrorClass, Outcome, Status, TokensSource

_ABORTED = {
    AbortReason.CANCELLED: (Status.CANCELLED, ErrorClass.CANCELLED),
    AbortReason.FIRST_TOKEN_TIMEOUT: (Status.TIMED_OUT, ErrorClass.FIRST_TOKEN_TIMEOUT),
    AbortReason.TOTAL_TIMEOUT: (Status.TIMED_OUT, ErrorClass.TOTAL_TIMEOUT),
}


def not_served(ticket: Ticket, refusal: NotServed) -> Outcome:
    """A request that the queue refused, let expire or timed out."""
    timed_out = refusal.status is Status.TIMED_OUT
    return Outcome(
        request=ticket.request,
        status=refusal.status,
        ended_ns=refusal.at_ns,
        error_class=ErrorClass(refusal.reason) if timed_out else ErrorClass.SHED,
        detail=str(refusal.reason),
        enqueued_ns=ticket.enqueued_ns,
    )


def given_up(ticket: Ticket, now_ns: int, cancelled: asyncio.CancelledError) -> Outcome:
    """A request that we ended: by a time-out, a planned cancel, or the end of the run. ``cancelled``: as the call raised it."""
    call = so_far_of(cancelled)
    status, error_class = Status.UNFINISHED, ErrorClass.UNFINISHED
    if ticket.abort_reason is not None:
        status, error_class = _ABORTED[ticket.abort_reason]
    return Outcome(
        request=ticket.request,
        status=status,
        ended_ns=now_ns,
        error_class=error_class,
        backend=ticket.backend,
        enqueued_ns=ticket.enqueued_ns,
        dispatched_ns=ticket.dispatched_ns,
        connect_ns=call.connect_ns,
        sent_ns=call.sent_ns,
        first_token_ns=ticket.first_ns,
        last_token_ns=ticket.last_ns,
        output_tokens=ticket.generated or None,
        tokens_source=TokensSource.UNKNOWN,
        tokens_known=False,
    )
