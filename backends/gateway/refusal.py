"""What a client is told when it gets no answer: HTTP status, reason, words, and when to come back.

The body has the shape that OpenAI clients read (``error.message``, ``type``, ``param``, ``code``), for clients of Messages with
``type: error`` beside it; ``code`` is the reason, the same word that metrics and logs count by and that the header
``x-lmperf-reason`` repeats.
"""

from __future__ import annotations

import math
from enum import StrEnum

import msgspec
from aiohttp import web

from scheduler.events import AbortReason, RejectReason

REASON_HEADER = "x-lmperf-reason"


class Reason(StrEnum):
    """Why the gateway itself refuses or fails a request; the queue's reasons are ``RejectReason``."""

    UNKNOWN_KEY = "unknown_key"
    MISSING_KEY = "missing_key"
    UNKNOWN_TENANT = "unknown_tenant"
    MISSING_TENANT = "missing_tenant"
    TENANT_MISMATCH = "tenant_mismatch"
    BAD_REQUEST = "bad_request"
    BAD_BODY = "bad_body"
    BODY_TOO_LARGE = "body_too_large"
    HEADERS_TOO_LARGE = "headers_too_large"
    SLOW_REQUEST = "slow_request"
    NO_ROUTE = "no_route"
    NO_UPSTREAM = "no_upstream"
    DRAINING = "draining"
    UPSTREAM_FAILED = "upstream_failed"
    UPSTREAM_REFUSED = "upstream_refused"
    UPSTREAM_CUT = "upstream_cut"
    FIRST_TOKEN_TIMEOUT = "first_token_timeout"  # noqa: S105 (a time-out, not a secret)
    TOTAL_TIMEOUT = "total_timeout"
    CLIENT_STALLED = "client_stalled"
    INTERNAL = "internal"


_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    404: "not_found_error",
    405: "invalid_request_error",
    408: "invalid_request_error",
    413: "invalid_request_error",
    429: "rate_limit_error",
    431: "invalid_request_error",
    502: "upstream_error",
    503: "service_unavailable_error",
    504: "timeout_error",
}


class Refusal(Exception):  # noqa: N818 (an answer to the client, not a fault of ours)
    """``retry_after_s`` None: coming back does not help. ``tenant``: whose request it was, ``typed``: whether its API's errors
    are objects of a type, once that is known.
    """

    def __init__(self, status: int, reason: str, message: str, *, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.reason = str(reason)
        self.retry_after_s = retry_after_s
        self.tenant = ""
        self.typed = False

    def body(self) -> bytes:
        kind = _TYPES.get(self.status, "api_error")
        error = {"message": str(self), "type": kind, "param": None, "code": self.reason}
        return msgspec.json.encode({"type": "error", "error": error} if self.typed else {"error": error})

    def response(self) -> web.Response:
        headers = {REASON_HEADER: self.reason}
        if self.retry_after_s is not None:
            # Whole seconds (RFC 9110, 10.2.3), rounded up: a client that comes back early is refused again.
            headers["Retry-After"] = str(max(1, math.ceil(self.retry_after_s)))
        if self.status == 401:
            headers["WWW-Authenticate"] = "Bearer"
        return web.Response(
            status=self.status, body=self.body(), content_type="application/json", charset="utf-8", headers=headers
        )


_QUEUE: dict[RejectReason, tuple[int, str]] = {
    RejectReason.QUEUE_FULL: (429, "tenant {tenant!r} has as many requests waiting as its queue limit allows"),
    RejectReason.RATE_LIMIT: (429, "tenant {tenant!r} is over its limit of requests per second"),
    RejectReason.TOKEN_LIMIT: (429, "tenant {tenant!r} is over its limit of tokens per second"),
    RejectReason.OUT_OF_CONTRACT: (429, "tenant {tenant!r} has used up its contracted share"),
    RejectReason.DEADLINE: (503, "this request could not meet the first-token limit of tenant {tenant!r} any more"),
    RejectReason.TTL: (503, "the request waited in the queue for as long as tenant {tenant!r} allows"),
    RejectReason.LATE: (503, "the request can no longer meet the first-token limit of tenant {tenant!r}"),
    RejectReason.UNKNOWN_TENANT: (400, "tenant {tenant!r} is not configured any more"),
    RejectReason.FIRST_TOKEN_TIMEOUT: (503, "the first-token time-out passed while the request waited in the queue"),
    RejectReason.TOTAL_TIMEOUT: (503, "the total time-out passed while the request waited in the queue"),
}


def from_queue(reason: RejectReason, tenant: str, retry_after_ns: int | None, default_s: float) -> Refusal:
    """The answer to a request that the queue refused or gave up."""
    status, text = _QUEUE[reason]
    after_s = None if status == 400 else default_s if retry_after_ns is None else retry_after_ns / 1e9
    return Refusal(status, reason, text.format(tenant=tenant), retry_after_s=after_s)


def from_abort(reason: AbortReason) -> Refusal:
    """The answer to a request that was ended after its dispatch."""
    words = "no first token came" if reason is AbortReason.FIRST_TOKEN_TIMEOUT else "the answer was not complete"
    return Refusal(504, Reason(reason), f"{words} within the time-out of this gateway; the upstream was slow")
