"""Clients that misbehave: every one gets a clear end, and none costs another its service."""

import asyncio
import contextlib
import json

import pytest
from gateway_upstream import DONE, SSE_HEAD, chat_body, request_bytes, text, until, usage

from scheduler.request import Status
from scheduler.slots import Slots
from tenants.tenant import QueueLimits, Tenant

TENANT = "x-lmperf-tenant: chat"


async def good(request, peer):
    await peer.stream(text("hi"), text("!", "stop"), usage(3, 2), DONE)


async def read_answer(reader) -> tuple[int, dict[str, str], bytes]:
    """Status, headers and body with its chunk framing still on."""
    async with asyncio.timeout(10):
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        first, *lines = head.strip().split("\r\n")
        headers = {k.lower(): v.strip() for k, _, v in (line.partition(":") for line in lines)}
        if "content-length" in headers:
            body = await reader.readexactly(int(headers["content-length"]))
        elif headers.get("transfer-encoding") == "chunked":
            body = await reader.readuntil(b"0\r\n\r\n")
        else:
            body = await reader.read()
    return int(first.split(" ")[1]), headers, body


async def test_limits_on_size_are_answered_with_what_they_are(bench):
    """413 for the body (declared or not), 431 for the headers, each explained and counted; the gateway goes on."""
    upstream = await bench.upstream(good)
    gateway = await bench.gateway(upstream.url, limits={"max_body_bytes": 1000, "max_header_bytes": 2000})
    big = chat_body(padding="x" * 2000)
    chunked = (
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: g\r\nx-lmperf-tenant: chat\r\ntransfer-encoding: chunked\r\n\r\n"
    )
    cases = [
        (request_bytes(big, TENANT), 413, "body_too_large"),
        (chunked + b"%x\r\n%b\r\n0\r\n\r\n" % (len(big), big), 413, "body_too_large"),
        (request_bytes(chat_body(), TENANT, f"x-big: {'h' * 2500}"), 431, "headers_too_large"),
        (request_bytes(chat_body(), TENANT, *(f"x-{n}: {'h' * 100}" for n in range(30))), 431, "headers_too_large"),
    ]
    for data, status, reason in cases:
        reader, writer = await bench.raw(gateway)
        writer.write(data)
        answered, headers, body = await read_answer(reader)
        assert (answered, json.loads(body)["error"]["code"], headers["x-lmperf-reason"]) == (status, reason, reason)
    counted = gateway.metrics.reasons
    assert sum(count for (_, reason), count in counted.items() if reason == "body_too_large") == 2
    assert sum(count for (_, reason), count in counted.items() if reason == "headers_too_large") == 2
    assert upstream.requests == []
    reader, writer = await bench.raw(gateway)
    writer.write(request_bytes(chat_body(), TENANT))
    assert (await read_answer(reader))[0] == 200


async def test_a_body_that_never_comes_is_given_up(bench):
    """Half a request holds its socket no longer than the stall limit, and never enters the queue."""
    gateway = await bench.gateway((await bench.upstream(good)).url, limits={"client_stall_s": 0.1})
    reader, writer = await bench.raw(gateway)
    writer.write(request_bytes(chat_body(), TENANT)[:-5])
    status, _, body = await read_answer(reader)
    assert (status, json.loads(body)["error"]["code"]) == (408, "slow_request")
    assert bench.outcomes == []


async def test_a_request_byte_by_byte_is_a_request(bench):
    gateway = await bench.gateway((await bench.upstream(good)).url)
    reader, writer = await bench.raw(gateway)
    for byte in request_bytes(chat_body(), TENANT):
        writer.write(bytes([byte]))
        await writer.drain()
    assert (await read_answer(reader))[0] == 200


async def test_requests_sent_without_waiting_are_answered_in_order(bench):
    """Pipelining: two requests in one segment, two answers on one connection."""
    gateway = await bench.gateway((await bench.upstream(good)).url)
    reader, writer = await bench.raw(gateway)
    writer.write(request_bytes(chat_body(), TENANT) + request_bytes(chat_body(stream=False), TENANT))
    first, second = await read_answer(reader), await read_answer(reader)
    assert first[0] == 200
    assert first[1]["transfer-encoding"] == "chunked"
    assert json.loads(second[2])["choices"][0]["message"]["content"] == "hi!"


async def test_http_1_0_gets_the_stream_without_chunk_framing(bench):
    """Its end is the end of the connection."""
    gateway = await bench.gateway((await bench.upstream(good)).url)
    reader, writer = await bench.raw(gateway)
    writer.write(request_bytes(chat_body(), TENANT, version="1.0"))
    status, headers, body = await read_answer(reader)
    assert (status, body) == (200, text("hi") + text("!", "stop") + DONE)
    assert "transfer-encoding" not in headers


@pytest.mark.parametrize(
    "garbage", [b"\x16\x03\x01\x02\x00\x01\x00", b"GET\r\n\r\n", b"POST / HTTP/1.1\r\nbad header\r\n\r\n"]
)
async def test_garbage_ends_its_own_connection_only(bench, garbage):
    gateway = await bench.gateway((await bench.upstream(good)).url)
    reader, writer = await bench.raw(gateway)
    writer.write(garbage)
    async with asyncio.timeout(10):
        assert not (await reader.read()).startswith(b"HTTP/1.1 200")
    reader, writer = await bench.raw(gateway)
    writer.write(request_bytes(chat_body(), TENANT))
    assert (await read_answer(reader))[0] == 200


async def test_a_header_cannot_smuggle_another_request_upstream(bench):
    """What the upstream gets has one request's framing: the gateway's own; hop-by-hop headers end here."""
    upstream = await bench.upstream(good)
    gateway = await bench.gateway(upstream.url)
    reader, writer = await bench.raw(gateway)
    writer.write(
        request_bytes(chat_body(), TENANT, "connection: x-private", "x-private: 1", "te: trailers", "x-kept: yes")
    )
    assert (await read_answer(reader))[0] == 200
    headers = upstream.requests[0].headers
    assert headers["x-kept"] == "yes"
    assert headers["host"] == upstream.url.removeprefix("http://")
    assert headers["x-lmperf-tenant"] == "chat"
    assert not {"x-private", "te", "connection", "transfer-encoding"} & headers.keys()
    assert int(headers["content-length"]) == len(upstream.requests[0].body)


async def test_a_target_in_absolute_form_does_not_choose_the_server(bench):
    """The path alone goes on: the gateway is no open proxy."""

    async def script(request, peer):
        await peer.answer(b"{}")

    upstream = await bench.upstream(script)
    gateway = await bench.gateway(upstream.url)
    reader, writer = await bench.raw(gateway)
    writer.write(b"GET http://198.51.100.1/v1/models?a=%20b HTTP/1.1\r\nhost: evil\r\n\r\n")
    assert (await read_answer(reader))[0] == 200
    assert [request.target for request in upstream.requests] == ["/v1/models?a=%20b"]


async def test_a_client_that_does_not_read_pauses_its_upstream_and_is_cut_off_in_the_end(bench):
    """64 MiB of stream for a client that reads nothing: the upstream is stopped long before it has sent them, and after
    the stall limit the request ends as cancelled.
    """
    piece = text("x" * 65_000)
    sent = 0

    async def script(request, peer):
        nonlocal sent
        await peer.send(SSE_HEAD)
        for _ in range(1000):
            await peer.chunk(piece)
            sent += len(piece)

    gateway = await bench.gateway((await bench.upstream(script)).url, limits={"client_stall_s": 0.5})
    _, writer = await bench.raw(gateway)
    writer.transport.pause_reading()
    writer.write(request_bytes(chat_body(), TENANT))
    outcome = await bench.outcome()
    assert outcome.status is Status.CANCELLED
    assert sent < 1000 * len(piece)
    assert gateway.metrics.reasons["chat", "client_stalled"] == 1


async def test_a_slow_client_gets_every_byte(bench):
    """Backpressure loses and reorders nothing: 8 MiB through a client that reads in small pieces."""
    pieces = [text(f"{number} " + "x" * 20_000) for number in range(400)]

    async def script(request, peer):
        await peer.stream(*pieces, text("", "stop"), DONE)

    gateway = await bench.gateway((await bench.upstream(script)).url)
    http = await bench.http(gateway.url)
    got = bytearray()
    async with http.post("/v1/chat/completions", data=chat_body(), headers={"x-lmperf-tenant": "chat"}) as response:
        while data := await response.content.read(10_000):
            got += data
            await asyncio.sleep(0)
    assert bytes(got) == b"".join(pieces) + text("", "stop") + DONE
    assert (await bench.outcome()).status is Status.OK


@pytest.mark.parametrize(
    ("limits", "status", "reason"),
    [
        (QueueLimits(requests_per_s=0.01), 429, "rate_limit"),
        (QueueLimits(tokens_per_s=1.0), 429, "token_limit"),
    ],
)
async def test_a_refusal_by_the_queue_says_when_to_come_back(bench, limits, status, reason):
    """429 with Retry-After in whole seconds, the reason in body, header and metrics, and a shed outcome."""
    gateway = await bench.gateway((await bench.upstream(good)).url, tenants=(Tenant(name="chat", limits=limits),))
    http = await bench.http(gateway.url)
    answers = []
    for _ in range(2):
        async with http.post("/v1/chat/completions", data=chat_body(), headers={"x-lmperf-tenant": "chat"}) as response:
            answers.append((response.status, response.headers.get("Retry-After"), await response.read()))
    assert answers[0][0] == 200
    assert answers[1][0] == status
    assert int(answers[1][1]) >= 1
    error = json.loads(answers[1][2])["error"]
    assert (error["code"], error["type"]) == (reason, "rate_limit_error")
    assert "chat" in error["message"]
    assert gateway.metrics.reasons["chat", reason] == 1
    outcome = await bench.outcome(2)
    assert (outcome.status, outcome.detail) == (Status.SHED, reason)


async def test_a_time_to_live_ends_a_wait_in_the_queue(bench):
    """503, not a hang: with the only slot taken, the second request is given up after its tenant's ttl."""
    release = asyncio.Event()

    async def script(request, peer):
        await release.wait()
        await good(request, peer)

    upstream = await bench.upstream(script)
    gateway = await bench.gateway(
        upstream.url,
        slots=Slots(sequences=1),
        tenants=(Tenant(name="chat"), Tenant(name="batch", limits=QueueLimits(ttl_ns=50_000_000))),
    )
    http = await bench.http(gateway.url)

    async def ask(tenant: str) -> tuple[int, str | None]:
        async with http.post("/v1/chat/completions", data=chat_body(), headers={"x-lmperf-tenant": tenant}) as response:
            await response.read()
            return response.status, response.headers.get("x-lmperf-reason")

    first = asyncio.create_task(ask("chat"))
    await until(lambda: upstream.requests)
    assert await ask("batch") == (503, "ttl")
    release.set()
    assert await first == (200, None)


@pytest.mark.parametrize("streams", [False, True])
async def test_a_client_that_closes_its_sending_half_has_left(bench, streams):
    """Until something is written to it nobody can tell it from one that closed altogether, whose request must not keep its
    place: it is cancelled upstream at once, and the connection ends.
    """
    at_work, gone = asyncio.Event(), asyncio.Event()

    async def script(request, peer):
        if streams:
            await peer.send(SSE_HEAD)
            await peer.chunk(text("hi"))
        at_work.set()
        await peer.gone()
        gone.set()

    gateway = await bench.gateway((await bench.upstream(script)).url)
    reader, writer = await bench.raw(gateway)
    writer.write(request_bytes(chat_body(stream=streams), TENANT))
    async with asyncio.timeout(10):
        await at_work.wait()
        if streams:
            await reader.readuntil(b"hi")
        writer.write_eof()
        await gone.wait()
        with contextlib.suppress(ConnectionError):
            assert b"0\r\n\r\n" not in await reader.read(), "no answer that could be taken for whole"
    assert (await bench.outcome()).status is Status.CANCELLED
    reader, writer = await bench.raw(gateway)
    writer.write(request_bytes(chat_body(), TENANT))
    writer.write_eof()
    async with asyncio.timeout(10):
        with contextlib.suppress(ConnectionError):
            assert await reader.read() == b""
    await until(lambda: not gateway.gate.working)
    assert gateway.gate.outstanding() == {"u1": 0}


@pytest.mark.parametrize("sent", [b"", b"POST /v1/chat/completions HTTP/1.1\r\nhost: gateway\r\nx-half: "])
async def test_a_client_that_never_asks_is_let_go(bench, sent):
    """A socket with nothing on it, or half a head, is closed after the stall limit; one that asked in time is not."""
    gateway = await bench.gateway((await bench.upstream(good)).url, limits={"client_stall_s": 0.3})
    reader, writer = await bench.raw(gateway)
    asked_reader, asked_writer = await bench.raw(gateway)
    asked_writer.write(request_bytes(chat_body(), TENANT))
    assert (await read_answer(asked_reader))[0] == 200
    writer.write(sent)
    async with asyncio.timeout(10):
        with contextlib.suppress(ConnectionError):
            assert await reader.read() == b""
    asked_writer.write(request_bytes(chat_body(), TENANT))
    assert (await read_answer(asked_reader))[0] == 200


@pytest.mark.parametrize(
    "body",
    [
        b'{"model":"m","stream":true,"messages":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"stream":true,"stream_options":' + b'{"a":' * 20_000 + b"1" + b"}" * 20_000 + b"}",
    ],
)
async def test_a_body_nested_without_end_is_the_clients_fault(bench, body):
    """400 and no fault of ours in the log, however deep."""
    upstream = await bench.upstream(good)
    gateway = await bench.gateway(upstream.url)
    reader, writer = await bench.raw(gateway)
    writer.write(request_bytes(body, TENANT))
    status, _, told = await read_answer(reader)
    assert (status, json.loads(told)["error"]["code"]) == (400, "bad_body")
    assert upstream.requests == []


@pytest.mark.parametrize(
    "path",
    [
        "//v1/chat/completions",
        "/v1//chat/completions",
        "/v1/chat/completions/",
        "/v1/./chat/completions",
        "/x/../v1/chat/completions",
        "/v1/chat%2Fcompletions",
        "//chat/completions",
    ],
)
async def test_no_spelling_of_a_path_gets_around_the_queue(bench, path):
    """A server that reads them as the same path would generate without a slot: they are queued, and a tenant is asked for."""
    upstream = await bench.upstream(good)
    gateway = await bench.gateway(upstream.url)
    reader, writer = await bench.raw(gateway)
    writer.write(request_bytes(chat_body(), path=path))
    assert (await read_answer(reader))[0] == 400, "no tenant named"
    writer.write(request_bytes(chat_body(), TENANT, path=path))
    assert (await read_answer(reader))[0] == 200
    assert [request.target for request in upstream.requests] == ["/v1/chat/completions"]
    assert (await bench.outcome()).status is Status.OK


@pytest.mark.parametrize("path", ["/admin/x", "//admin/status", "/x/../admin/status", "/%61dmin/reload"])
async def test_no_spelling_reaches_an_upstreams_administration(bench, path):
    upstream = await bench.upstream(good)
    gateway = await bench.gateway(upstream.url)
    reader, writer = await bench.raw(gateway)
    writer.write(request_bytes(b"", TENANT, path=path))
    assert (await read_answer(reader))[0] == 404
    assert upstream.requests == []


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/embeddings", "/tokenize"])
async def test_a_whole_answer_that_nobody_reads_is_not_kept_for_ever(bench, path):
    """16 MiB that are no stream: after the stall limit the connection is gone, of a queued request as of a proxied one."""

    async def script(request, peer):
        await peer.answer(b'{"choices": [], "x": "' + b"x" * (16 << 20) + b'"}')

    gateway = await bench.gateway((await bench.upstream(script)).url, limits={"client_stall_s": 0.3})
    reader, writer = await bench.raw(gateway)
    writer.transport.pause_reading()
    writer.write(request_bytes(chat_body(stream=False), TENANT, path=path))
    await until(lambda: gateway.gate.working)
    await until(lambda: not gateway.gate.working)
    writer.transport.resume_reading()
    async with asyncio.timeout(10):
        with contextlib.suppress(ConnectionError):
            got = await reader.read()
            assert len(got) < 16 << 20, "cut off"
    if path != "/tokenize":
        assert gateway.metrics.reasons["chat", "client_stalled"] == 1


async def test_a_cut_stream_lets_go_of_a_client_that_does_not_read(bench):
    """The total time-out ends the request while the socket is full: it is closed in the end, though nobody reads."""

    async def script(request, peer):
        await peer.send(SSE_HEAD)
        for _ in range(1000):
            await peer.chunk(text("x" * 65_000))

    upstream = await bench.upstream(script)
    limits = {"client_stall_s": 1.0, "total_timeout_s": 0.5}
    gateway = await bench.gateway(upstream.url, limits=limits)
    _, writer = await bench.raw(gateway)
    writer.transport.pause_reading()
    writer.write(request_bytes(chat_body(), TENANT))
    assert (await bench.outcome()).status is Status.TIMED_OUT
    await until(lambda: not gateway.connections)


async def test_a_drain_waits_for_what_does_not_queue_too(bench):
    """A text that an upstream tokenizes when the gateway is told to stop is answered."""
    go_on = asyncio.Event()

    async def script(request, peer):
        await go_on.wait()
        await peer.answer(b"{}")

    upstream = await bench.upstream(script)
    gateway = await bench.gateway(upstream.url)
    http = await bench.http(gateway.url)
    asked = asyncio.create_task(http.post("/tokenize", data=b"{}", headers={"x-lmperf-tenant": "chat"}))
    await until(lambda: upstream.requests)
    draining = asyncio.create_task(gateway.drain())
    await until(lambda: gateway.gate.draining)
    await asyncio.sleep(0)
    assert not draining.done()
    go_on.set()
    async with await asked as response:
        assert response.status == 200
    assert await draining is True
