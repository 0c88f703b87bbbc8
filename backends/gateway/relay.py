"""One response of an upstream on its way in: httptools parses it, its body goes on as it arrives.

A receiver of :class:`backends.wire.connection.Connection`, so bytes are handed on inside ``data_received``, without a task or
a queue between the two sockets: that is what keeps the added latency and the CPU of a token low. All body bytes of one
segment go on as one piece. The body that comes before :meth:`Relay.start` is kept until then.

``head`` resolves when the status is known, ``done`` when the message ended; either also when the connection failed, with
``fault`` set.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

import httptools

from backends.protocol import Clock
from backends.wire.faults import SWITCHES, WireError, fault_of
from backends.wire.options import WireOptions
from backends.wire.stream_socket import Delivers
from scheduler.request import ErrorClass

Take = Callable[[bytes, int], None]
"""``take(body, received_ns)``: never empty."""

LastOutput = Callable[[], int | None]
"""When output came last, in ns; None before the first."""

_NS = 1_000_000_000
_END_GRACE_S = 1.0


class Pausable(Protocol):
    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...


class Relay:
    """``headers`` in order, names in lower case. ``answered``: a byte of the response came. ``received``: body bytes."""

    __slots__ = (
        "_body_ns",
        "_clock",
        "_close_delimited",
        "_complete",
        "_head_complete",
        "_idle_ns",
        "_last_ns",
        "_last_output",
        "_loop",
        "_options",
        "_parse",
        "_parser",
        "_parts",
        "_quiet",
        "_resumed_ns",
        "_take",
        "_timer",
        "_whole_ns",
        "answered",
        "done",
        "fault",
        "finished_ns",
        "head",
        "headers",
        "paused",
        "received",
        "reusable",
        "status",
    )

    def __init__(self, options: WireOptions, clock: Clock, loop: asyncio.AbstractEventLoop) -> None:
        self.head: asyncio.Future[None] = loop.create_future()
        self.done: asyncio.Future[None] = loop.create_future()
        self.fault: WireError | None = None
        self.status = 0
        self.headers: list[tuple[bytes, bytes]] = []
        self.answered = False
        self.reusable = False
        self.received = 0
        self.finished_ns: int | None = None
        self._loop = loop
        self._clock = clock
        self._options = options
        self._idle_ns = 0
        self._take: Take | None = None
        self._last_output: LastOutput | None = None
        self._parts: list[bytes] = []
        self._last_ns = self._body_ns = self._resumed_ns = self._whole_ns = 0
        self.paused = False
        self._quiet = 0
        self._head_complete = False
        self._close_delimited = False
        self._complete = False
        self._timer: asyncio.TimerHandle | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._parse = self._parser.feed_data

    def header(self, name: bytes) -> str | None:
        """The last value of a header; ``name`` in lower case."""
        value = next((value for key, value in reversed(self.headers) if key == name), None)
        return None if value is None else value.decode("latin-1").strip()

    @property
    def is_stream(self) -> bool:
        """A success that is neither JSON nor a page: read event by event."""
        kind = (self.header(b"content-type") or "").lower()
        return 200 <= self.status < 300 and "json" not in kind and "html" not in kind

    @property
    def is_events(self) -> bool:
        """Whether an event of ours can follow those that came."""
        kind = (self.header(b"content-type") or "").lower()
        return not self.is_encoded and "event-stream" in kind

    @property
    def is_encoded(self) -> bool:
        return (self.header(b"content-encoding") or "identity").lower() != "identity"

    def start(self, take: Take, last_output: LastOutput | None = None, token_timeout_s: float | None = None) -> None:
        """From here on the body goes to ``take``; first what came already. With both others the response ends when no output
        follows output for ``token_timeout_s``, not counting while it was paused; before the first, an engine may queue as it
        likes.
        """
        self._take = take
        self._last_output = last_output
        if token_timeout_s is not None and last_output is not None and not self.done.done():
            self._idle_ns = round(token_timeout_s * _NS)
            self._timer = self._loop.call_later(token_timeout_s, self._watch)
        self._flush()

    def is_told_whole(self) -> None:
        """The answer in it came to its end, so the message's follows at once from any sane server; where nothing does, the
        response ends as if it had, but for its socket.
        """
        if self.done.done():
            return
        if self._timer is not None:
            self._timer.cancel()
        self._whole_ns = self._clock()
        self._timer = self._loop.call_later(_END_GRACE_S, self._never_ended)

    def _never_ended(self) -> None:
        # Whatever still comes, a comment every second, is nothing of the answer.
        now_ns = self._clock()
        since_ns = now_ns if self.paused else max(self._whole_ns, self._resumed_ns)
        left_s = _END_GRACE_S - (now_ns - since_ns) / _NS
        if left_s > 0:
            self._timer = self._loop.call_later(left_s + 0.001, self._never_ended)
            return
        if self.finished_ns is None:
            self.finished_ns = self._last_ns
        self._end(reusable=False)

    def resumed(self) -> None:
        """Its socket is read again, after a time in which the client was slow, not the upstream."""
        self.paused = False
        self._resumed_ns = self._clock()

    def heard_ns(self) -> int:
        """When body came last, or would have been taken if it had."""
        return self._clock() if self.paused else max(self._body_ns, self._resumed_ns)

    def fail(self, error_class: ErrorClass, detail: str) -> None:
        """End now with a fault, unless ended already."""
        if not self.done.done():
            self.fault = WireError(error_class, detail)
            self._end(reusable=False)

    def release(self) -> None:
        """Nothing more is wanted of it. Breaks the cycle with the parser, which holds bound methods."""
        self._end(reusable=self.reusable)
        self._take = self._last_output = None
        del self._parser, self._parse

    def _watch(self) -> None:
        """One timer a response, not one a token: the deadline moves with every token and is read when the timer fires."""
        assert self._last_output is not None, "armed by start"
        now_ns = self._clock()
        last_ns = self._last_output()
        since_ns = now_ns if last_ns is None or self.paused else max(last_ns, self._resumed_ns)
        left_ns = since_ns + self._idle_ns - now_ns
        if left_ns > 0:
            self._timer = self._loop.call_later(left_ns / _NS + 0.001, self._watch)
        else:
            self.fail(ErrorClass.TOKEN_TIMEOUT, f"no token followed within {self._idle_ns / _NS:g} s")

    # What the connection calls.

    def sent(self, link: Delivers) -> None:
        """All that comes is taken by way of the connection."""

    def feed(self, data: bytes, now_ns: int) -> None:
        if self.done.done():
            self.reusable = False
            return
        self._last_ns = now_ns
        self.answered = True
        self._quiet += len(data)
        try:
            self._parse(data)
        except httptools.HttpParserError as error:
            self.fail(ErrorClass.BAD_STREAM, f"the upstream's answer is not valid HTTP/1.1 ({type(error).__name__})")
            return
        if self._parts and self._take is not None:
            self._flush()
        if self._complete:
            self._end(reusable=self.reusable)
        elif self._quiet > self._options.max_header_bytes:
            self.fail(ErrorClass.BAD_STREAM, f"more than {self._options.max_header_bytes} bytes came without any body")

    def eof(self, now_ns: int) -> None:
        self._last_ns = now_ns
        if self._head_complete and self._close_delimited:
            self.finished_ns = now_ns
            self._end(reusable=False)
        else:
            self.lost(None)

    def lost(self, exc: Exception | None) -> None:
        if self.done.done():
            self.reusable = False
            return
        if not self.answered:
            detail = "the upstream closed the connection without an answer"
            fault = fault_of(exc, "the upstream") if isinstance(exc, OSError) else WireError(ErrorClass.RESET, detail)
        else:
            fault = WireError(ErrorClass.BAD_STREAM, "the upstream closed the connection inside its answer")
        self.fault = fault
        self._end(reusable=False)

    # What httptools calls.

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._head_complete:
            self.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if status == 101:  # no HTTP follows, which the parser then says in its own words
            self.fail(ErrorClass.BAD_STREAM, f"the upstream {SWITCHES}")
        if status < 200 or self._head_complete:
            return
        self.status = status
        self._head_complete = True
        coded = "chunked" in (self.header(b"transfer-encoding") or "").lower()
        self._close_delimited = not coded and self.header(b"content-length") is None and status not in {204, 304}
        if not self.head.done():
            self.head.set_result(None)

    def on_body(self, body: bytes) -> None:
        self._quiet = 0
        self.received += len(body)
        self._parts.append(body)

    def on_message_complete(self) -> None:
        if not self._head_complete:  # an interim response (1xx): the real one follows
            self.headers.clear()
        elif not self._complete:
            self._complete = True
            self.finished_ns = self._last_ns
            self.reusable = bool(self._parser.should_keep_alive())

    def _flush(self) -> None:
        parts, self._parts = self._parts, []
        self._body_ns = self._last_ns
        if parts and self._take is not None:
            self._take(parts[0] if len(parts) == 1 else b"".join(parts), self._last_ns)

    def _end(self, *, reusable: bool) -> None:
        self.reusable = reusable and self.fault is None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for future in (self.head, self.done):
            if not future.done():
                future.set_result(None)
