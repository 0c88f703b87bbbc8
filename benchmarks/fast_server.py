"""A streaming server that is never the limit, and that knows what really happened.

    python -m benchmarks.fast_server [--first-ms 50] [--gap-ms 10] [--spread-ms MS] [--role-ms MS]
        [--stall-at-s S --stall-s S] [--truth FILE]

A bare ``asyncio.Protocol`` over httptools and uvloop that answers OpenAI chat and completion requests with ``max_tokens``
tokens: the first after ``--first-ms``, then one every ``--gap-ms``, both from absolute deadlines; a gap of 0 writes the
whole answer at once. ``--spread-ms``: the first token of each request comes up to that much later, by a fixed sequence,
so that equally long answers do not all end in step. ``--role-ms``: a chunk with only a role, that long before the first
token. ``--stall-at-s``: that long after the first request the whole process sleeps ``--stall-s``, once: sockets accept
and buffer, nothing is answered.

It prints ``ready PORT`` once it listens, and answers ``GET /stats`` with its own CPU time, so that whoever measures a
client can say that the server was not the limit. Truth: one JSON line a request when it ended, times in ns of the
host's monotonic clock, which all processes of a host share. A token's stamp is taken just before its bytes are handed
to the socket (a write buffer limit of 0 makes uvloop write at once), so a client can never have seen it earlier. With
a truth, a request without an ``x-request-id`` is answered under an id of its own, by which it can be found there.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import resource
import signal
import time
from array import array
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO, cast

import httptools
import msgspec
import uvloop

_NS = 1_000_000_000
_GOLDEN = 0.6180339887498949
_MODEL = "fast"
_HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
    b"cache-control: no-cache\r\ntransfer-encoding: chunked\r\n\r\n"
)
_ANSWER_ID = b"chatcmpl-0123456789abcdef0123456789abcdef"
_ID = b'{"id":"%s","object":"chat.completion.chunk","created":1754000000,'
_CHAT = _ID + b'"model":"fast","choices":[{"index":0,"delta":{%s},"logprobs":null,"finish_reason":%s}]}'
_TEXT = _ID + b'"model":"fast","choices":[{"index":0,"text":"%s","logprobs":null,"finish_reason":%s}]}'
_USAGE = _ID + b'"model":"fast","choices":[],"usage":{"prompt_tokens":%d,"completion_tokens":%d,"total_tokens":%d}}'


class Truth(msgspec.Struct, frozen=True):
    """What really happened to one request, ns of the monotonic clock. ``client_id``: its ``x-request-id``; ``answer_id``:
    the id that its answer bore; ``token_ns``: each token; ``role_ns``: the role chunk, if one was sent.
    """

    client_id: str | None
    answer_id: str
    received_ns: int
    token_ns: list[int]
    role_ns: int | None
    finished: bool


class Stats(msgspec.Struct, frozen=True):
    """Counts since the start: ``tokens`` of answers that ended, ``streamed`` also of those that have not; ``cpu_s`` of this
    process and ``now_ns`` of the monotonic clock, to be subtracted."""

    requests: int
    tokens: int
    streamed: int
    open_streams: int
    most_streams: int
    cpu_s: float
    now_ns: int


class Options(msgspec.Struct, frozen=True, kw_only=True):
    first_ns: int = 50_000_000
    gap_ns: int = 10_000_000
    spread_ns: int = 0
    role_ns: int | None = None
    stall_at_ns: int | None = None
    stall_s: float = 0.0


class Body(msgspec.Struct):
    """The fields of a request that matter here."""

    max_tokens: int | None = None
    max_completion_tokens: int | None = None


class Ledger:
    """Counts, and the truth file if there is one."""

    def __init__(self, truth: BinaryIO | None) -> None:
        self._truth = truth
        self.keeps_truth = truth is not None
        self.requests = 0
        self.tokens = 0
        self.streamed = 0
        self.open_streams = 0
        self.most_streams = 0

    def began(self) -> None:
        self.requests += 1
        self.open_streams += 1
        self.most_streams = max(self.most_streams, self.open_streams)

    def ended(self, truth: Truth) -> None:
        self.open_streams -= 1
        self.tokens += len(truth.token_ns)
        if self._truth is not None:
            self._truth.write(msgspec.json.encode(truth) + b"\n")

    def stats(self) -> Stats:
        usage = resource.getrusage(resource.RUSAGE_SELF)
        cpu_s = usage.ru_utime + usage.ru_stime
        return Stats(
            self.requests, self.tokens, self.streamed, self.open_streams, self.most_streams, cpu_s, time.monotonic_ns()
        )


def framed(payload: bytes) -> bytes:
    """One server-sent event as one HTTP chunk."""
    event = b"data: " + payload + b"\n\n"
    return b"%x\r\n%s\r\n" % (len(event), event)


class Dialect:
    """Ready-made events of the chat or the completions endpoint, all of one answer id."""

    def __init__(self, *, chat: bool, answer_id: bytes = _ANSWER_ID) -> None:
        self.answer_id = answer_id
        form, text = (_CHAT, b'"content":" token"') if chat else (_TEXT, b" token")
        self.role = framed(_CHAT % (answer_id, b'"role":"assistant","content":""', b"null")) if chat else b""
        self.token = framed(form % (answer_id, text, b"null"))
        self.last = framed(form % (answer_id, text, b'"length"'))

    def end(self, prompt: int, output: int) -> bytes:
        """The usage chunk, the closing mark, and the end of the HTTP message."""
        usage = _USAGE % (self.answer_id, prompt, output, prompt + output)
        return framed(usage) + framed(b"[DONE]") + b"0\r\n\r\n"


CHAT, TEXT = Dialect(chat=True), Dialect(chat=False)


class Peer(asyncio.Protocol):
    """One connection; a request at a time."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._options = server.options
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpRequestParser(self)
        self._path = b""
        self._client_id: str | None = None
        self._body = bytearray()
        self._received_ns = 0
        self._timer: asyncio.TimerHandle | None = None
        self._token_ns = array("q")
        self._role_ns: int | None = None
        self._dialect = CHAT
        self._left = 0
        self._next_ns = 0
        self._streaming = False

    # What the event loop and httptools call.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=0)

    def data_received(self, data: bytes) -> None:
        self._received_ns = time.monotonic_ns()
        self._parser.feed_data(data)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 (the protocol's signature)
        self._transport = None
        if self._timer is not None:
            self._timer.cancel()
        if self._streaming:
            self._close_stream(finished=False)

    def on_message_begin(self) -> None:
        self._client_id = None

    def on_url(self, url: bytes) -> None:
        self._path += url

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() == b"x-request-id":
            self._client_id = value.decode("latin-1")

    def on_body(self, body: bytes) -> None:
        self._body += body

    def on_message_complete(self) -> None:
        path, body = self._path.partition(b"?")[0], bytes(self._body)
        method = self._parser.get_method()
        self._path = b""
        self._body.clear()
        if method == b"POST" and path.endswith(b"/completions"):
            self._begin(body, chat=path.endswith(b"/chat/completions"))
        elif method == b"GET":
            self._answer(self._server.document(path))
        else:
            self._answer(None)

    # Answers.

    def _answer(self, document: bytes | None) -> None:
        assert self._transport is not None, "a request came in on it"
        status = b"404 Not Found" if document is None else b"200 OK"
        document = document or b"{}"
        head = b"HTTP/1.1 %s\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % (status, len(document))
        self._transport.write(head + document)

    def _begin(self, body: bytes, *, chat: bool) -> None:
        told = msgspec.json.decode(body, type=Body)
        self._streaming = True
        self._left = told.max_tokens or told.max_completion_tokens or 100
        self._token_ns = array("q")
        self._role_ns = None
        self._server.ledger.began()
        self._dialect = CHAT if chat else TEXT
        if self._client_id is None and self._server.ledger.keeps_truth:
            self._dialect = Dialect(chat=chat, answer_id=b"chatcmpl-%032x" % self._server.ledger.requests)
        self._server.first_request(self._received_ns)
        options = self._options
        later_ns = round(options.spread_ns * (self._server.ledger.requests * _GOLDEN % 1.0))
        self._next_ns = self._received_ns + options.first_ns + later_ns
        if options.first_ns == 0 and options.gap_ns == 0:
            self._all_at_once()
        elif options.role_ns is not None:
            self._at(self._next_ns - options.role_ns, self._send_role)
        else:
            self._at(self._next_ns, self._send_token)

    def _at(self, due_ns: int, callback: Callable[[], None]) -> None:
        delay_s = max(0, due_ns - time.monotonic_ns()) / _NS
        self._timer = self._loop.call_later(delay_s, callback)

    def _send_role(self) -> None:
        if self._transport is None:
            return
        self._role_ns = time.monotonic_ns()
        self._transport.write(_HEAD + self._dialect.role)
        self._at(self._next_ns, self._send_token)

    def _send_token(self) -> None:
        if self._transport is None:
            return
        data = self._dialect.token if self._left > 1 else self._dialect.last
        if not self._token_ns and self._role_ns is None:
            data = _HEAD + data
        self._left -= 1
        self._server.ledger.streamed += 1
        is_last = self._left == 0
        if is_last:
            data += self._dialect.end(1, len(self._token_ns) + 1)
        self._token_ns.append(time.monotonic_ns())
        self._transport.write(data)
        if is_last:
            self._close_stream(finished=True)
        else:
            self._next_ns += self._options.gap_ns
            self._at(self._next_ns, self._send_token)

    def _all_at_once(self) -> None:
        assert self._transport is not None, "a request came in on it"
        count = self._left
        data = _HEAD + self._dialect.token * (count - 1) + self._dialect.last + self._dialect.end(1, count)
        self._token_ns.extend([time.monotonic_ns()] * count)
        self._server.ledger.streamed += count
        self._transport.write(data)
        self._close_stream(finished=True)

    def _close_stream(self, *, finished: bool) -> None:
        self._streaming = False
        answer_id, token_ns = self._dialect.answer_id.decode(), self._token_ns.tolist()
        truth = Truth(self._client_id, answer_id, self._received_ns, token_ns, self._role_ns, finished)
        self._server.ledger.ended(truth)


class Server:
    def __init__(self, options: Options, ledger: Ledger) -> None:
        self.options = options
        self.ledger = ledger
        self._stall_is_set = options.stall_at_ns is None

    def document(self, path: bytes) -> bytes | None:
        """The body of a GET, None for a path that is not served."""
        if path == b"/stats":
            return msgspec.json.encode(self.ledger.stats())
        if path == b"/v1/models":
            model = {
                "id": _MODEL,
                "object": "model",
                "created": 1754000000,
                "owned_by": "lmperf",
                "max_model_len": 1 << 20,
            }
            return msgspec.json.encode({"object": "list", "data": [model]})
        return b"{}" if path == b"/health" else None

    def first_request(self, received_ns: int) -> None:
        """Sets the one stall, counted from the first request."""
        if self._stall_is_set or self.options.stall_at_ns is None:
            return
        self._stall_is_set = True
        delay_s = (received_ns + self.options.stall_at_ns - time.monotonic_ns()) / _NS
        # Blocking the loop is the point: a server that stalls answers nobody.
        asyncio.get_running_loop().call_later(max(0.0, delay_s), time.sleep, self.options.stall_s)


async def serve(options: Options, port: int, truth: BinaryIO | None) -> None:
    """Serve on loopback until SIGTERM or SIGINT."""
    loop = asyncio.get_running_loop()
    over = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, over.set)
    server = Server(options, Ledger(truth))
    listener = await loop.create_server(lambda: Peer(server), "127.0.0.1", port, backlog=4096)
    print(f"ready {listener.sockets[0].getsockname()[1]}", flush=True)
    await over.wait()
    listener.close()


def main() -> None:
    parser = argparse.ArgumentParser(description="A fast streaming server with its own ground truth.")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--first-ms", type=float, default=50.0)
    parser.add_argument("--gap-ms", type=float, default=10.0)
    parser.add_argument("--spread-ms", type=float, default=0.0)
    parser.add_argument("--role-ms", type=float)
    parser.add_argument("--stall-at-s", type=float)
    parser.add_argument("--stall-s", type=float, default=2.0)
    parser.add_argument("--truth", type=Path)
    args = parser.parse_args()
    options = Options(
        first_ns=round(args.first_ms * 1e6),
        gap_ns=round(args.gap_ms * 1e6),
        spread_ns=round(args.spread_ms * 1e6),
        role_ns=None if args.role_ms is None else round(args.role_ms * 1e6),
        stall_at_ns=None if args.stall_at_s is None else round(args.stall_at_s * _NS),
        stall_s=args.stall_s,
    )
    with contextlib.ExitStack() as stack:
        truth = None if args.truth is None else stack.enter_context(args.truth.open("wb"))
        uvloop.run(serve(options, args.port, truth))


if __name__ == "__main__":
    main()
