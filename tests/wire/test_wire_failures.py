"""What is no success, and under which name it is counted."""

from __future__ import annotations

import asyncio
import errno
import gzip
import json
import socket
import zlib

import pytest
from scripted_server import DONE, HEAD, Peer, answering, call, delta, event, text, usage

from backends.protocol import CallTimeouts, so_far_of
from backends.wire.faults import fault_of
from scheduler.request import ErrorClass, Status

OPEN = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n"
UNTIL_CLOSE = OPEN + b"\r\n"


def raw(*segments: bytes, then=Peer.close):
    async def script(peer):
        await peer.request()
        for segment in segments:
            await peer.send(segment)
        if then is not None:
            then(peer)
        await peer.gone()

    return script


def response(status: int, body: bytes, kind: str = "application/json", extra: str = "") -> bytes:
    return f"HTTP/1.1 {status} X\r\ncontent-type: {kind}\r\n{extra}content-length: {len(body)}\r\n\r\n".encode() + body


@pytest.mark.parametrize(
    "error",
    [
        {"error": {"message": "out of memory", "type": "server"}},
        {"error": "out of memory", "error_type": "overloaded"},
        {"object": "error", "message": "out of memory", "code": 500},
        {"error": {"message": "out of memory"}, "choices": [{"index": 0, "delta": {"content": "x"}}]},
    ],
)
async def test_an_error_inside_a_200_stream_is_a_server_error(bench, error):
    """Also when tokens came before it and [DONE] comes after; the tokens stay recorded."""
    result = await bench.answer(answering(text("a"), event(error), DONE))
    assert (result.status, result.error_class, result.http_status) == (Status.FAILED, ErrorClass.SERVER_ERROR, 200)
    assert "out of memory" in result.detail
    assert (len(result.chunk_ns), result.finished_ns) == (1, None)


async def test_a_finish_reason_of_failure_is_a_server_error(bench):
    """A server that aborts says so in finish_reason."""
    result = await bench.answer(answering(text("a"), event(delta("abort")), DONE))
    assert result.error_class is ErrorClass.SERVER_ERROR


@pytest.mark.parametrize("head", [HEAD, UNTIL_CLOSE, OPEN + b"content-length: 900\r\n\r\n"])
async def test_a_cut_stream_is_a_failure(bench, head):
    """Closed before [DONE] and finish reason: bad_stream, whatever frames the body; what came is kept."""
    body = text("a") + text("b")[:20]
    framed = b"%x\r\n%s\r\n" % (len(body), body) if head is HEAD else body
    result = await bench.answer(raw(head, framed))
    assert (result.status, result.error_class) == (Status.FAILED, ErrorClass.BAD_STREAM)
    assert "cut" in result.detail or "ended" in result.detail
    assert len(result.chunk_ns) == 1


async def test_a_message_that_ends_properly_without_done_is_cut(bench):
    """The HTTP message is complete, the answer is not."""
    result = await bench.answer(answering(text("a")))
    assert (result.status, result.error_class) == (Status.FAILED, ErrorClass.BAD_STREAM)


async def test_a_stream_that_is_whole_survives_its_socket(bench):
    """[DONE] or a finish reason came: a success, even if the socket is then reset or closed without the last chunk."""
    for ending in (DONE, text("b", "stop")):
        for then in (Peer.close, Peer.reset):
            server = await bench.server(received_then(ending, then))
            result = await bench.ask(bench.client(server.url))
            assert result.status is Status.OK, result.detail
            assert result.finished_ns is not None


def received_then(ending, then):
    """Reset only after the client has read everything: a reset discards what is still in flight."""

    async def script(peer):
        await peer.request()
        await peer.send(HEAD, at_ms=1)
        await peer.chunked(text("a"), at_ms=2)
        await peer.chunked(ending, at_ms=3)
        then(peer)

    return script


async def test_a_reset_inside_the_stream_is_reset(bench):
    """RST, unlike an orderly close, is counted as reset."""
    result = await bench.answer(received_then(text("b"), Peer.reset))
    assert (result.error_class, len(result.chunk_ns)) == (ErrorClass.RESET, 2)


async def test_closing_without_an_answer_is_reset(bench):
    """On a new socket there is no second try."""
    server = await bench.server(raw())
    result = await bench.ask(bench.client(server.url))
    assert (result.error_class, server.connections) == (ErrorClass.RESET, 1)


@pytest.mark.parametrize(
    "segments",
    [
        (event({"choices": [], "usage": usage(3)}), DONE),
        (event(delta(role="assistant")), event(delta("stop")), DONE),
        (DONE,),
        (event({"choices": [], "usage": usage(3)}),),
        (),
    ],
)
async def test_an_answer_without_a_token_is_a_failure(bench, segments):
    """A usage-only or empty stream gave the user nothing."""
    result = await bench.answer(answering(*segments))
    assert (result.status, result.error_class) == (Status.FAILED, ErrorClass.BAD_STREAM)


@pytest.mark.parametrize(
    "body",
    [b"data: {oops}\n\n", b"data: {'a': 1}\n\n", b'data: {"choices": 3}\n\n', b"data: <html>\n\n", b'data: "\xff"\n\n'],
)
async def test_what_is_no_chunk_is_bad_stream(bench, body):
    """Not JSON, not the types of a chunk, or not UTF-8."""
    result = await bench.answer(answering(text("a"), body, DONE))
    assert (result.status, result.error_class) == (Status.FAILED, ErrorClass.BAD_STREAM)


async def test_a_whole_answer_in_place_of_a_stream_is_bad_stream(bench):
    """A JSON completion has no token times; its receipt must not pass for a first token."""
    body = json.dumps({"choices": [{"message": {"content": "Hi"}, "finish_reason": "stop"}], "usage": usage(1)})
    result = await bench.answer(raw(response(200, body.encode())))
    assert (result.error_class, len(result.chunk_ns)) == (ErrorClass.BAD_STREAM, 0)
    assert "did not stream" in result.detail
    failed = await bench.answer(raw(response(200, b'{"error": {"message": "no such adapter"}}')))
    assert (failed.error_class, "no such adapter" in failed.detail) == (ErrorClass.SERVER_ERROR, True)


@pytest.mark.parametrize(
    ("status", "body", "error_class", "told"),
    [
        (400, b'{"error": {"message": "max_tokens is too large"}}', ErrorClass.HTTP_4XX, "max_tokens is too large"),
        (401, b'{"detail": "no key"}', ErrorClass.HTTP_4XX, "API key"),
        (404, b"<h1>Not here</h1>", ErrorClass.HTTP_4XX, "Not here"),
        (500, b"", ErrorClass.HTTP_5XX, "500"),
        (503, b'{"message": "loading"}', ErrorClass.HTTP_5XX, "loading"),
        (302, b"", ErrorClass.BAD_STREAM, "302"),
    ],
)
async def test_statuses_that_are_no_success(bench, status, body, error_class, told):
    """The status is kept and the server's own words are in the detail; the socket is used again."""

    async def script(peer):
        for _ in range(2):
            await peer.request()
            await peer.send(response(status, body))
        await peer.gone()

    server = await bench.server(script)
    client = bench.client(server.url)
    for _ in range(2):
        result = await bench.ask(client)
        assert (result.status, result.http_status, result.error_class) == (Status.FAILED, status, error_class)
        assert told in result.detail
    assert server.connections == 1


@pytest.mark.parametrize("head", ["upgrade: websocket\r\nconnection: Upgrade\r\n", "upgrade: h2c\r\n", ""])
async def test_another_protocol_is_named(bench, head):
    """101 is the server's last word of HTTP: said as such, not as broken HTTP, and the socket is not used again."""

    async def script(peer):
        await peer.request()
        await peer.send(f"HTTP/1.1 101 Switching Protocols\r\n{head}\r\n".encode() + b"\x81\x02hi")
        await peer.gone()

    server = await bench.server(script)
    result = await bench.ask(bench.client(server.url))
    assert (result.status, result.http_status, result.error_class) == (Status.FAILED, 101, ErrorClass.BAD_STREAM)
    assert "switching protocols is not supported" in result.detail
    assert "not valid HTTP" not in result.detail


@pytest.mark.parametrize("status", [429, 503])
async def test_retry_after_is_kept(bench, status):
    """Seconds, or a date (in the past: 0); nonsense is nothing."""
    for value, seconds in (("7", 7.0), ("1.5", 1.5), ("Wed, 21 Oct 2015 07:28:00 GMT", 0.0), ("soon", None)):
        result = await bench.answer(raw(response(status, b"{}", extra=f"retry-after: {value}\r\n")))
        assert (result.http_status, result.retry_after_s) == (status, seconds)


async def test_a_secret_that_the_server_echoes_is_not_in_the_detail(bench):
    """Details are written to files; keys never are."""
    body = json.dumps({"error": {"message": "invalid key sk-very-secret (header Bearer sk-very-secret)"}}).encode()
    server = await bench.server(raw(response(401, body)))
    request = call(headers={"authorization": "Bearer sk-very-secret"})
    result = await bench.ask(bench.client(server.url), request)
    assert "invalid key" in result.detail
    assert "secret" not in result.detail


async def test_refused_and_unresolvable(bench):
    """Nobody listens; no such name."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    result = await bench.ask(bench.client(f"127.0.0.1:{port}"))
    assert (result.status, result.error_class, result.sent_ns) == (Status.FAILED, ErrorClass.REFUSED, None)
    for name in ("no-such-host.invalid", "a" * 70 + ".invalid"):
        result = await bench.ask(bench.client(name))
        assert (result.error_class, name in result.detail) == (ErrorClass.DNS, True)


async def test_connect_timeout(bench):
    """A TLS server that never answers the handshake: connecting, not waiting for a token."""
    silent = await bench.server(Peer.gone)
    client = bench.client(silent.url.replace("http:", "https:"), real_clock=True, connect_timeout_s=0.1)
    result = await bench.ask(client)
    assert (result.status, result.error_class) == (Status.TIMED_OUT, ErrorClass.CONNECT_TIMEOUT)


async def stalled(peer):
    await peer.request()
    await peer.send(HEAD)
    await peer.chunked(text("a"))
    await peer.gone()


async def silent(peer):
    await peer.request()
    await peer.gone()


async def test_token_timeout_although_keep_alives_come(bench):
    """The gap is between tokens: comments do not extend it. The server sees the socket close."""
    closed = asyncio.Event()

    async def script(peer):
        await peer.request()
        await peer.send(HEAD)
        await peer.chunked(text("a"))
        try:
            while not peer.reader.at_eof():
                await peer.chunked(b": keep-alive\n\n")
                await asyncio.sleep(0.005)
        except ConnectionError:
            pass
        closed.set()

    server = await bench.server(script)
    result = await bench.ask(bench.client(server.url, real_clock=True, token_timeout_s=0.1))
    assert (result.status, result.error_class, len(result.chunk_ns)) == (Status.TIMED_OUT, ErrorClass.TOKEN_TIMEOUT, 1)
    async with asyncio.timeout(10):
        await closed.wait()


@pytest.mark.parametrize("own_s", [0.1, None])
async def test_a_call_s_own_limit_between_tokens_stands_in_for_the_client_s(bench, own_s):
    """On one socket pool, before and after calls without one: a shorter limit is named, and null is none."""
    server = await bench.server(stalled)
    total = {} if own_s else {"total_timeout_s": 0.5}
    client = bench.client(server.url, real_clock=True, token_timeout_s=0.2, **total)
    own = call(timeouts=CallTimeouts(connect_s=1.0, between_tokens_s=own_s))
    found = [await bench.ask(client, each) for each in (call(), own, call())]
    limits = [ErrorClass.TOKEN_TIMEOUT if own_s else ErrorClass.TOTAL_TIMEOUT]
    assert [result.error_class for result in found] == [ErrorClass.TOKEN_TIMEOUT, *limits, ErrorClass.TOKEN_TIMEOUT]
    assert [result.detail.rpartition(" no token for ")[2] for result in found[::2]] == ["0.2 s", "0.2 s"]
    assert found[1].detail.endswith("no token for 0.1 s" if own_s else "more than 0.5 s")


@pytest.mark.parametrize("more", [{}, {"total_timeout_s": 10.0}, {"max_connections": 1}])
async def test_a_call_s_own_limit_of_connecting_stands_in_for_the_client_s(bench, more):
    """Each call waits as long as it may itself, though they dial the same origin at once."""
    server = await bench.server(Peer.gone)
    client = bench.client(server.url.replace("http:", "https:"), real_clock=True, connect_timeout_s=0.3, **more)
    own = call(timeouts=CallTimeouts(connect_s=0.1, between_tokens_s=None))
    found = await asyncio.gather(*(bench.ask(client, each) for each in (call(), own)))
    assert [result.error_class for result in found] == [ErrorClass.CONNECT_TIMEOUT] * 2
    assert [result.detail.rpartition(" more than ")[2] for result in found] == ["0.3 s", "0.1 s"]


@pytest.mark.parametrize(
    ("script", "options", "error_class"),
    [
        (silent, {"first_token_timeout_s": 0.05}, ErrorClass.FIRST_TOKEN_TIMEOUT),
        (silent, {"total_timeout_s": 0.05}, ErrorClass.TOTAL_TIMEOUT),
        (stalled, {"total_timeout_s": 0.05}, ErrorClass.TOTAL_TIMEOUT),
    ],
)
async def test_time_outs_for_use_without_a_scheduler(bench, script, options, error_class):
    """Told by name; each ends the call."""
    server = await bench.server(script)
    result = await bench.ask(bench.client(server.url, real_clock=True, **options))
    assert (result.status, result.error_class) == (Status.TIMED_OUT, error_class)


async def test_a_stall_after_the_finish_reason_is_a_success(bench):
    """The user has the whole answer: what never comes is only the end of the message."""

    async def script(peer):
        await peer.request()
        await peer.send(HEAD)
        await peer.chunked(text("a", "stop"))
        await peer.gone()

    server = await bench.server(script)
    result = await bench.ask(bench.client(server.url, real_clock=True, token_timeout_s=0.05))
    assert (result.status, result.finished_ns) == (Status.OK, result.chunk_ns[-1])


async def test_the_total_time_out_covers_the_wait_for_a_socket(bench):
    """With a limit on sockets, waiting for one is part of the call; the place in the line is given up."""
    both_over = asyncio.Event()

    async def script(peer):
        await (answering(text("a", "stop"), DONE) if both_over.is_set() else silent)(peer)

    server = await bench.server(script, script, script)
    client = bench.client(server.url, real_clock=True, max_connections=1, total_timeout_s=0.1)
    both = await asyncio.gather(bench.ask(client), bench.ask(client))
    assert {(result.status, result.error_class) for result in both} == {(Status.TIMED_OUT, ErrorClass.TOTAL_TIMEOUT)}
    both_over.set()
    assert (await bench.ask(client)).status is Status.OK


async def test_a_server_that_stalls_after_done_is_a_success(bench):
    """[DONE] ends the answer; the message's own end is waited for only briefly, and the socket is not used again."""

    async def script(peer):
        await peer.request()
        await peer.send(HEAD)
        await peer.chunked(text("a") + DONE)
        await peer.gone()

    server = await bench.server(script)
    client = bench.client(server.url)
    assert (await bench.ask(client)).status is Status.OK
    assert (await bench.ask(client)).status is Status.OK
    assert server.connections == 2


async def test_cancelling_closes_the_socket(bench):
    """The server learns at once that nobody listens; nothing stays open."""
    closed, started = asyncio.Event(), asyncio.Event()

    async def script(peer):
        await peer.request()
        started.set()
        await peer.gone()
        closed.set()

    server = await bench.server(script)
    client = bench.client(server.url)
    task = asyncio.create_task(bench.ask(client))
    async with asyncio.timeout(10):
        await started.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError) as raised:
            await task
        await closed.wait()
    assert type(raised.value) is asyncio.CancelledError, "time-outs and task groups know none but the plain one"
    assert so_far_of(raised.value).sent_ns is not None, "what was sent stays known of a call that is given up"
    assert so_far_of(raised.value).connect_ns is not None
    await client.close()
    assert client.open_connections == 0


async def endless(peer, head, piece):
    await peer.request()
    await peer.send(head)
    while True:
        await peer.send(piece)


@pytest.mark.parametrize(
    ("head", "piece"),
    [
        (b"HTTP/1.1 200 OK\r\n", b"x-filler: " + b"y" * 4000 + b"\r\n"),
        (b"HTTP/1.1 200 OK\r\nx: ", b"y" * 4000),
        (HEAD + b"0\r\n", b"x-trailer: " + b"y" * 4000 + b"\r\n"),
        (UNTIL_CLOSE + b"data: ", b"y" * 4000),
        (UNTIL_CLOSE, b"data: " + b"y" * 4000 + b"\n"),
    ],
    ids=["headers", "one header", "trailers", "one line", "one event"],
)
async def test_what_never_ends_is_cut_off(bench, head, piece):
    """Heads, trailers and single events are bounded."""
    server = await bench.server(lambda peer: endless(peer, head, piece))
    result = await bench.ask(bench.client(server.url, max_event_bytes=1 << 20, max_header_bytes=1 << 17))
    assert (result.status, result.error_class) == (Status.FAILED, ErrorClass.BAD_STREAM)


async def test_an_endless_error_page_is_cut_off(bench):
    """The beginning is kept for the detail, the rest is not read."""
    head = b"HTTP/1.1 500 X\r\ncontent-type: text/html\r\n\r\n<h1>Broken</h1>"
    server = await bench.server(lambda peer: endless(peer, head, b"y" * 4000))
    result = await bench.ask(bench.client(server.url))
    assert (result.error_class, "Broken" in result.detail, len(result.detail) < 1000) == (
        ErrorClass.HTTP_5XX,
        True,
        True,
    )


@pytest.mark.parametrize(
    "garbage",
    [b"SSH-2.0-OpenSSH_9\r\n", b"HTTP/1.1 banana\r\n\r\n", HEAD + b"zz\r\n", b"HTTP/1.1 101 Up\r\nupgrade: x\r\n\r\n"],
)
async def test_what_is_not_http_is_bad_stream(bench, garbage):
    """Another protocol on the port, or broken framing."""
    result = await bench.answer(raw(garbage))
    assert (result.status, result.error_class) == (Status.FAILED, ErrorClass.BAD_STREAM)


def bare_deflate(data):
    packer = zlib.compressobj(wbits=-15)
    return packer.compress(data) + packer.flush()


@pytest.mark.parametrize(
    ("encoding", "pack"), [("gzip", gzip.compress), ("deflate", zlib.compress), ("deflate", bare_deflate)]
)
async def test_compressed_although_identity_was_asked(bench, encoding, pack):
    """gzip and both kinds of deflate are read, in any segmentation."""
    packed = pack(text("a") + text("b", "stop") + DONE)
    head = OPEN + f"content-encoding: {encoding}\r\ncontent-length: {len(packed)}\r\n\r\n".encode()
    pieces = [bytes([byte]) for byte in packed]
    result = await bench.answer(raw(head, *pieces, then=None))
    assert (result.status, len(result.chunk_ns)) == (Status.OK, 2)


async def test_compression_that_cannot_be_read(bench):
    """An unknown encoding, a lie about it, or a small body that unfolds without end."""
    for encoding, body in (
        ("br", b"\x0b"),
        ("gzip", b"data: x\n\n"),
        ("gzip", gzip.compress(b"data: " + bytes(1 << 22))),
    ):
        head = OPEN + f"content-encoding: {encoding}\r\ncontent-length: {len(body)}\r\n\r\n".encode()
        server = await bench.server(raw(head, body))
        result = await bench.ask(bench.client(server.url, max_event_bytes=1 << 20))
        assert (result.status, result.error_class) == (Status.FAILED, ErrorClass.BAD_STREAM)


@pytest.mark.parametrize("with_id", [False, True])
@pytest.mark.parametrize("nth", [1, 2, 5])
async def test_a_callback_that_raises_is_not_swallowed(bench, nth, with_id):
    """on_tokens is ours: its error is a bug and comes out as it is, whichever token it is raised at."""
    token = event({"choices": [{"index": 0, "delta": {"content": "a"}, **({"token_ids": [7]} if with_id else {})}]})

    async def script(peer):
        await peer.request()
        await peer.send(HEAD, 1)
        for number in range(nth):
            await peer.chunked(token, 2 + number)
        await peer.gone()

    server = await bench.server(script)
    client = bench.client(server.url)
    told = []

    def broken(now_ns, k):
        told.append(now_ns)
        if len(told) == nth:
            raise LookupError("a bug")

    with pytest.raises(LookupError, match="a bug"):
        await client.generate(call(), broken)


def test_running_out_is_our_own_fault():
    """No descriptor or port left: internal, with what to raise; other errors of connecting count as refused."""
    for number, told in ((errno.EMFILE, "ulimit"), (errno.EADDRNOTAVAIL, "port")):
        fault = fault_of(OSError(number, "x"), "h")
        assert (fault.error_class, told in fault.detail) == (ErrorClass.INTERNAL, True)
    assert fault_of(OSError(errno.EHOSTUNREACH, "no route"), "h").error_class is ErrorClass.REFUSED


@pytest.mark.parametrize("path", ["/a b", "/a\r\nhost: x", "/\u20ac"])
async def test_a_path_that_cannot_be_sent(bench, path):
    """A space or line break would end the request line."""
    result = await bench.ask(bench.client("127.0.0.1:1"), call(path))
    assert (result.status, result.error_class) == (Status.FAILED, ErrorClass.INTERNAL)


@pytest.mark.parametrize(
    "options", [{"connect_timeout_s": 0}, {"token_timeout_s": -1.0}, {"max_connections": 0}, {"proxy": "socks5://h:1"}]
)
async def test_options_that_make_no_sense(bench, options):
    """Refused before anything runs."""
    with pytest.raises(ValueError, match=r"must be|not http|proxy"):
        bench.client("127.0.0.1:1", **options)


async def test_headers_that_cannot_be_sent(bench):
    """A line break in a header would be a second request: refused, by name, without the value."""
    server = await bench.server(answering(text("a"), DONE))
    request = call(headers={"x-key": "secret\r\nhost: elsewhere"})
    result = await bench.ask(bench.client(server.url), request)
    assert (result.error_class, server.connections) == (ErrorClass.INTERNAL, 0)
    assert "x-key" in result.detail
    assert "secret" not in result.detail
