"""Structured logs: one JSON object a line, of named fields alone.

Every field is the gateway's own word or number; what a client or an upstream wrote (prompts, answers, error messages, headers,
query strings) is never among them, so no prompt and no key can reach a log.
"""

from __future__ import annotations

import logging
from datetime import UTC, datetime
from typing import IO

import msgspec

from scheduler.request import Outcome

log = logging.getLogger("lmperf.gateway")

Field = str | int | float | bool | None | dict[str, bool] | list[str]


class JsonFormatter(logging.Formatter):
    """``{"time", "level", "event", ...fields}``. Records of other loggers keep their text as the event."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "event": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info is not None and record.exc_info[0] is not None:
            # The type alone: a message may quote what a client sent.
            line["exception"] = record.exc_info[0].__name__
        return msgspec.json.encode(line).decode()


def event(name: str, *, level: int = logging.INFO, **fields: Field) -> None:
    """One line; fields that are None are left out."""
    if log.isEnabledFor(level):
        log.log(level, name, extra={"fields": {key: value for key, value in fields.items() if value is not None}})


def request_ended(outcome: Outcome, *, api: str, mode: str, reason: str | None, http_status: int | None) -> None:
    """The line of a request that went through the queue."""
    request = outcome.request
    event(
        "request",
        id=request.id,
        tenant=request.tenant,
        api=api,
        mode=mode,
        status=str(outcome.status),
        error=None if outcome.error_class is None else str(outcome.error_class),
        reason=reason,
        http_status=http_status,
        upstream=outcome.backend,
        queue_ms=_ms(outcome.enqueued_ns, outcome.dispatched_ns),
        ttft_ms=_ms(request.arrival_ns, outcome.first_token_ns),
        e2e_ms=_ms(request.arrival_ns, outcome.ended_ns),
        prompt_tokens=outcome.prompt_tokens,
        output_tokens=outcome.output_tokens,
    )


def _ms(start_ns: int | None, end_ns: int | None) -> float | None:
    return None if start_ns is None or end_ns is None else round((end_ns - start_ns) / 1e6, 3)


def where(error: BaseException) -> str | None:
    """Module and line of the innermost frame: enough to find a fault, nothing of what a client sent."""
    frame = error.__traceback__
    while frame is not None and frame.tb_next is not None:
        frame = frame.tb_next
    return None if frame is None else f"{frame.tb_frame.f_globals.get('__name__')}:{frame.tb_lineno}"


def to_stream(stream: IO[str], level: str) -> None:
    """Send the gateway's lines, and warnings of everything else, to ``stream``."""
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonFormatter())
    logging.basicConfig(handlers=[handler], level=logging.WARNING, force=True)
    log.setLevel(level.upper())
