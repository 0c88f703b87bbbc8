"""Heads: the bytes of a request's head, and what the head of a failed response tells people.

The framing headers (connection, content-length, transfer-encoding, accept-encoding, and host) are the client's own; a
call that brings them is sent without them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import lru_cache
from urllib.parse import urljoin

from backends.wire.chunk import error_text
from backends.wire.faults import WireError
from backends.wire.proxy import Proxy
from backends.wire.url import Origin, split_origin
from scheduler.request import ErrorClass

_OWN = frozenset(
    {"connection", "content-length", "transfer-encoding", "accept-encoding", "host", "proxy-authorization"}
)
_PLAIN = frozenset({"content-type", "accept", "user-agent", "x-lmperf-tenant", "x-request-id"})
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+\Z")
_BREAKS = re.compile(r"[\r\n\0]")
_SHOWN = 400
_HINTS = {
    401: "check the API key",
    403: "the API key may not do this",
    404: "check the base URL and the model's name",
    413: "the prompt is too large for this server",
}


def request_bytes(
    origin: Origin,
    target: str,
    headers: Mapping[str, str],
    body: bytes,
    proxy: Proxy | None = None,
    method: str = "POST",
) -> bytes:
    """Head and body of a request, as one write. ``proxy`` (http only) makes the target absolute. ValueError names a header
    that cannot be sent, never its value.
    """
    head = _start(method, origin, target, proxy if origin.scheme == "http" else None)
    for name, value in headers.items():
        if not _is_ours(name):
            if "\r" in value or "\n" in value or "\0" in value:
                raise _unsendable(name)
            head += f"{name}: {value}\r\n"
    try:
        return f"{head}content-length: {len(body)}\r\n\r\n".encode("latin-1") + body
    except UnicodeEncodeError as exc:
        raise ValueError("a header or the path holds characters outside Latin-1, which HTTP cannot carry") from exc


def check_header(name: str, value: str) -> None:
    """ValueError for a header that a request cannot be sent with, or that its sender writes itself. Never names the value."""
    if _is_ours(name):
        raise ValueError(f"header {name!r} cannot be set: each request is sent with its own")
    if _BREAKS.search(value) or not all(ord(character) < 256 for character in value):
        raise _unsendable(name)


@lru_cache(maxsize=256)
def _start(method: str, origin: Origin, target: str, through: Proxy | None) -> str:
    """The lines that all requests to one place begin with."""
    if _BREAKS.search(target) or " " in target:
        raise ValueError(f"path {target!r} cannot be sent: it holds a space or a line break")
    lines = [f"{method} {origin if through else ''}{target} HTTP/1.1", f"host: {origin.host_header}"]
    if through is not None and through.authorization is not None:
        lines.append(f"proxy-authorization: {through.authorization}")
    return "\r\n".join([*lines, "accept-encoding: identity", ""])


@lru_cache(maxsize=256)
def _is_ours(name: str) -> bool:
    """Whether the client writes that header itself. ValueError for a name that cannot be sent."""
    if not _TOKEN.match(name):
        raise _unsendable(name)
    return name.lower() in _OWN


def _unsendable(name: str) -> ValueError:
    return ValueError(f"header {name!r} cannot be sent: its name or value holds characters that HTTP forbids")


def http_fault(status: int, text: bytes) -> WireError:
    """The fault of a status that is no success, with the server's own message."""
    message = error_text(text) or " ".join(text.decode(errors="replace").split())
    hint = f" ({_HINTS[status]})" if status in _HINTS else ""
    detail = f"HTTP {status}{hint}" + (f": {message[:_SHOWN]}" if message else "")
    if status >= 500:
        return WireError(ErrorClass.HTTP_5XX, detail)
    if status >= 400:
        return WireError(ErrorClass.HTTP_4XX, detail)
    return WireError(ErrorClass.BAD_STREAM, detail)


def retry_after_s(value: str | None) -> float | None:
    """Seconds of a Retry-After header: a number, or a date (RFC 9110, 10.2.3). None when absent or unreadable."""
    if value is None:
        return None
    if re.fullmatch(r"\d+(\.\d+)?", value):
        return float(value)
    try:
        when = parsedate_to_datetime(value)
    except ValueError:
        return None
    if when.tzinfo is None:
        when = when.replace(tzinfo=UTC)
    return max(0.0, (when - datetime.now(UTC)).total_seconds())


def redirect_target(origin: Origin, target: str, location: str | None) -> tuple[Origin, str]:
    """Where a 307 or 308 leads. WireError unless it stays on the host and does not leave TLS: the call's headers hold
    keys that were meant for this host alone.
    """
    if not location:
        raise WireError(ErrorClass.BAD_STREAM, "redirected without a Location")
    try:
        new, parts = split_origin(urljoin(f"{origin}{target}", location))
    except ValueError as exc:
        raise WireError(ErrorClass.BAD_STREAM, f"redirected to {location[:100]!r}: {exc}") from exc
    if new.host != origin.host or (origin.scheme == "https" and new.scheme != "https"):
        raise WireError(
            ErrorClass.BAD_STREAM, f"redirected away from {origin} to {new}: give that base URL if it is right"
        )
    path = parts.path or "/"
    return new, f"{path}?{parts.query}" if parts.query else path


def redacted(detail: str, headers: Mapping[str, str]) -> str:
    """``detail`` without any secret of ``headers``, which a server may have echoed in its message."""
    for name, value in headers.items():
        if name.lower() in _PLAIN:
            continue
        for secret in (value, value.partition(" ")[2]):
            if len(secret) >= 4:
                detail = detail.replace(secret, "***")
    return detail
