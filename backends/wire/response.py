"""One HTTP response on its way in: httptools parses it, its body goes to the answer as events, its end is a future.

It ends in exactly one of three ways: ``done`` resolves with ``fault`` unset (the message ended, or its answer was whole
when the socket closed), with ``fault`` set, or with the exception that a callback of ours raised.

Mode of the body, fixed by the head: *stream* (2xx that is neither JSON nor HTML), read event by event; else *text*,
of which a bounded beginning is kept. After the closing mark the rest is only parsed, so that the socket can be used
again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator

import httptools

from backends.wire.answer import TimedAnswer
from backends.wire.faults import SWITCHES, WireError, fault_of
from backends.wire.inflate import InflateError, inflater
from backends.wire.options import WireOptions
from backends.wire.sse import SseDecoder, SseOverflowError
from backends.wire.stream_socket import Delivers
from backends.wire.template import Taker, Template, payload_of, whole_event
from scheduler.request import ErrorClass

TEXT_KEPT = 64 << 10
_TEMPLATES_TRIED = 8


class Response:
    """Fed by a connection. ``answered`` is False until the first byte of it came; ``reusable`` once the message ended
    and the server keeps the connection; ``stream`` is True for a body read as events; ``finished_ns``: receipt of the
    end. ``each``: of every token is told as it comes; else of the first, and of others at the release.
    """

    __slots__ = (
        "_close_delimited",
        "_complete",
        "_direct",
        "_each",
        "_event",
        "_events",
        "_grace",
        "_head_done",
        "_headers",
        "_inflate",
        "_link",
        "_loop",
        "_now_ns",
        "_options",
        "_over",
        "_parse",
        "_parser",
        "_quiet",
        "_read",
        "_sse",
        "_taker",
        "_template",
        "_templates_left",
        "_upper",
        "answer",
        "answered",
        "done",
        "fault",
        "finished_ns",
        "reusable",
        "status",
        "stream",
        "text",
    )

    __deletable__ = ("_parse", "_parser")  # which the compiler wants to be told

    def __init__(
        self, answer: TimedAnswer, options: WireOptions, loop: asyncio.AbstractEventLoop, *, each: bool = True
    ) -> None:
        self.answer = answer
        self._options = options
        self._each = each
        self._loop = loop
        self.done: asyncio.Future[None] = loop.create_future()
        self.fault: WireError | None = None
        self.status: int | None = None
        self.text = bytearray()
        self.stream = False
        self.answered = False
        self.reusable = False
        self.finished_ns: int | None = None
        self._sse = SseDecoder(options.max_event_bytes)
        self._events = self._sse.feed
        self._read = answer.read
        self._headers: dict[bytes, bytes] = {}
        self._inflate: Callable[[bytes], Iterator[bytes]] | None = None
        self._head_done = False
        self._close_delimited = False
        self._complete = False
        self._direct = False
        self._over = False
        self._quiet = 0
        self._link: Delivers | None = None
        self._event = b""
        self._template: Template | None = None
        self._templates_left = _TEMPLATES_TRIED
        self._upper = False
        self._taker: Taker | None = None
        self._now_ns = 0
        self._grace: asyncio.TimerHandle | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._parse = self._parser.feed_data

    def header(self, name: bytes) -> str | None:
        """A header's value; ``name`` in lower case."""
        value = self._headers.get(name)
        return value.decode("latin-1").strip() if value is not None else None

    # What the connection calls.

    def sent(self, link: Delivers) -> None:
        self._link = link

    def feed(self, data: bytes, now_ns: int) -> None:
        self._now_ns = now_ns
        self.answered = True
        self._quiet += len(data)
        try:
            self._parse(data)
        except httptools.HttpParserCallbackError as exc:
            self._raised(exc.__context__ or exc)
        except httptools.HttpParserError as exc:
            self._not_http(exc)
        if self._quiet > self._options.max_header_bytes:
            self.fail(ErrorClass.BAD_STREAM, f"more than {self._options.max_header_bytes} bytes came without any body")
        if self._over:
            self._await_message_end()
        if self._link is not None:
            self._link.deliver = self._taker_of_more_like(data) or self.feed

    def eof(self, now_ns: int) -> None:
        """The server will send no more."""
        self._now_ns = now_ns
        if self._head_done and self._close_delimited and not self._complete:
            self.on_message_complete()
            self.reusable = False
        else:
            self.lost(None)

    def lost(self, exc: Exception | None) -> None:
        """The socket is gone. An answer that was whole stays a success."""
        if self.done.done():
            return
        if self.stream and not self._over:
            self._flush(cut=True)
        if self.fault is not None or (self.stream and self.answer.whole) or (self._head_done and not self.stream):
            if self.finished_ns is None:
                self.finished_ns = self._now_ns
            self._end()
            return
        if isinstance(exc, OSError):
            self.fault = fault_of(exc, "the server")
        elif not self.answered:
            self.fault = WireError(ErrorClass.RESET, "the server closed the connection without an answer")
        else:
            where = f"after {len(self.answer.chunk_ns)} chunks with output" if self._head_done else "inside the head"
            self.fault = WireError(
                ErrorClass.BAD_STREAM, f"the stream was cut {where}: neither [DONE] nor a finish reason came"
            )
        self._end()

    def fail(self, error_class: ErrorClass, detail: str) -> None:
        """End now with a fault, unless ended already."""
        if not self.done.done():
            self.fault = WireError(error_class, detail)
            self.reusable = False
            self._end()

    def release(self) -> None:
        """Tell of what came, and break the cycle with the parser, which holds bound methods: memory is freed without the cycle
        collector."""
        if not self._each:
            self.answer.tell_rest()
        if self._grace is not None:
            self._grace.cancel()
        del self._parser, self._parse
        self._link = self._taker = None

    # What httptools calls.

    def on_message_begin(self) -> None:
        if self._complete:  # bytes after the end of the response: nobody asked for them
            self.reusable = False

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._head_done:
            self._headers[name.lower()] = value

    def on_headers_complete(self) -> None:
        if self._complete:
            return
        status = self._parser.get_status_code()
        if status < 200:
            if status == 101:  # the last of its kind: no HTTP follows, which the parser then says in its own words
                self.status = status
                self.fail(ErrorClass.BAD_STREAM, f"the server {SWITCHES}")
            return
        self.status = status
        self._head_done = True
        coded = b"chunked" in self._headers.get(b"transfer-encoding", b"").lower()
        self._close_delimited = not coded and b"content-length" not in self._headers
        kind = (self.header(b"content-type") or "").lower()
        self.stream = status < 300 and "json" not in kind and "html" not in kind
        encoding = (self.header(b"content-encoding") or "identity").lower()
        if encoding != "identity":
            try:
                self._inflate = inflater(encoding)
            except InflateError as exc:
                self.fail(ErrorClass.BAD_STREAM, str(exc))
        self._direct = self.stream and self._inflate is None

    def on_body(self, body: bytes) -> None:
        self._quiet = 0
        if self._direct:
            self._event = body
            # What _read_events does, without its call: this runs once a token.
            try:
                for payload in self._events(body):
                    if self._read(payload, self._now_ns):
                        self._answer_over()
                        return
            except SseOverflowError as exc:
                self.fail(ErrorClass.BAD_STREAM, str(exc))
        elif not self._over:
            self._other_body(body)

    def on_message_complete(self) -> None:
        if not self._head_done:  # an interim response (1xx): the real one follows
            self._headers.clear()
            return
        if self._complete:
            return
        self._complete = True
        if self.stream and not self._over:
            self._flush(cut=self._close_delimited)
        if self.finished_ns is None:
            self.finished_ns = self._now_ns
        self.reusable = self.fault is None and self._parser.should_keep_alive()
        self._end()

    # The body.

    def _read_events(self, body: bytes) -> None:
        try:
            for payload in self._events(body):
                if self._read(payload, self._now_ns):
                    self._answer_over()
                    return
        except SseOverflowError as exc:
            self.fail(ErrorClass.BAD_STREAM, str(exc))

    def _other_body(self, body: bytes) -> None:
        pieces: Iterable[bytes] = (body,) if self._inflate is None else self._inflate(body)
        try:
            for piece in pieces:
                if self._over:
                    return
                if self.stream:
                    self._read_events(piece)
                else:
                    self._keep_text(piece)
        except InflateError as exc:
            self.fail(ErrorClass.BAD_STREAM, str(exc))

    def _keep_text(self, piece: bytes) -> None:
        self.text += piece[: TEXT_KEPT - len(self.text)]
        if len(self.text) == TEXT_KEPT:
            self._end()

    def _answer_over(self) -> None:
        self._over = True
        self._direct = False
        self.fault = self.answer.fault
        self.finished_ns = self._now_ns

    def _flush(self, *, cut: bool) -> None:
        """An event without its closing empty line. In a cut stream it may be half an event, which proves nothing."""
        for payload in self._sse.close():
            if self._read(payload, self._now_ns):
                fault = self.answer.fault
                if cut and fault is not None and fault.error_class is ErrorClass.BAD_STREAM:
                    self.answer.fault = None
                else:
                    self._answer_over()
                    return

    def _taker_of_more_like(self, data: bytes) -> Taker | None:
        """Who may take the next segment past the parsers if it is a chunk such as ``data``, which they have just read.

        That ``data`` is by itself one HTTP chunk, and the body in it was what they took it for, proves that they stand
        between two chunks, where a whole one leaves them.
        """
        if not self._direct:
            return None
        event = whole_event(data)
        if event is None or event != self._event or not self._sse.between_events:
            return None
        payload, upper = payload_of(event), data[: data.index(b"\r")].isupper()
        if self._template is None or not self._template.fits(payload):
            if self._templates_left == 0:
                return None
            self._templates_left -= 1
            self._template, self._taker = self.answer.template(payload), None
        if self._template is not None and (self._taker is None or upper is not self._upper):
            self._upper = upper
            self._taker = self.answer.taker(self._template, self.feed, self._raised, upper=upper, each=self._each)
        return self._taker

    # The end.

    def _await_message_end(self) -> None:
        """After the closing mark the message's own end follows at once from any sane server; wait for it briefly,
        because only then can the socket be used again.
        """
        if self.done.done() or self._grace is not None:
            return
        if self.fault is not None:
            self._end()
        else:
            self._grace = self._loop.call_later(self._options.done_grace_s, self._end)

    def _end(self) -> None:
        self._over = True
        self._direct = False
        if self._link is not None:
            self._link.deliver = self.feed  # no token counts after the end
        if not self.done.done():
            self.done.set_result(None)

    def _raised(self, exc: BaseException) -> None:
        """A callback of ours did."""
        self.reusable = False
        if not self.done.done():
            self.done.set_exception(exc)
        self._end()

    def _not_http(self, exc: httptools.HttpParserError) -> None:
        self.reusable = False
        self.fail(ErrorClass.BAD_STREAM, f"not valid HTTP/1.1: {exc or type(exc).__name__}")
