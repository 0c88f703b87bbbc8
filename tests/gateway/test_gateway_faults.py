"""What upstreams do wrong, and what clients and records get for it."""

import asyncio
import contextlib
import json

import pytest
from gateway_upstream import DONE, SSE_HEAD, chat_body, event, request_bytes, text, until, usage

from scheduler.request import ErrorClass, Status
from scheduler.slots import Slots

CHAT = "/v1/chat/completions"
HEADERS = {"x-lmperf-tenant": "chat"}


async def good(request, peer):
    await peer.stream(text("hi"), text("!", "stop"), usage(3, 2), DONE)


async def broken(request, peer):
    await peer.answer(b'{"error":{"message":"no memory"}}', "500 Internal Server Error")


async def post(bench, gateway, **more: object):
    """Status, headers and body of one request."""
    http = await bench.http(gateway.url)
    async with http.post(CHAT, data=chat_body(**more), headers=HEADERS) as response:
        return response.status, response.headers, await response.read()


async def test_bytes_pass_untouched_and_headers_too(bench):
    """Spacing, unknown fields, comments and odd line ends of the upstream reach the client as they are."""
    odd = b'\xef\xbb\xbf: hi\r\n\r\ndata:{"choices": [ {"delta":{"content":"x"}, "new":1} ] }\n\n'
    odd += b'event: e\rdata: {"choices":[]}\r\r'

    async def script(request, peer):
        head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; x=1\r\nX-Own: 1\r\nX-Own: 2\r\nconnection: close\r\n\r\n"
        await peer.send(head + odd + text("", "stop") + DONE)
        peer.writer.close()

    gateway = await bench.gateway((await bench.upstream(script)).url)
    status, headers, body = await post(bench, gateway, stream_options={"include_usage": True})
    assert (status, body) == (200, odd + text("", "stop") + DONE)
    assert headers.getall("x-own") == ["1", "2"]
    assert headers["content-type"] == "text/event-stream; x=1"


async def test_each_chunk_reaches_the_client_before_the_next_is_there(bench):
    """The upstream sends the next chunk only when the client has the last: nothing is held back."""
    ready = asyncio.Queue()

    async def script(request, peer):
        await peer.send(SSE_HEAD)
        for number in range(5):
            await peer.chunk(text(str(number)))
            await ready.get()
        await peer.chunk(text("", "stop") + DONE)
        await peer.end()

    gateway = await bench.gateway((await bench.upstream(script)).url)
    http = await bench.http(gateway.url)
    async with http.post(CHAT, data=chat_body(), headers=HEADERS) as response:
        for number in range(5):
            assert await response.content.readuntil(b"\n\n") == text(str(number))
            ready.put_nowait(None)
        assert await response.read() == text("", "stop") + DONE


async def test_a_server_that_fails_before_any_byte_is_replaced_by_another(bench):
    """One retry, at another upstream; the client sees one good answer, the metrics one retry."""
    failing, working = await bench.upstream(broken), await bench.upstream(good)
    gateway = await bench.gateway(failing.url, working.url)
    status, _, body = await post(bench, gateway)
    assert (status, body) == (200, text("hi") + text("!", "stop") + DONE)
    assert (len(failing.requests), len(working.requests)) == (1, 1)
    assert failing.requests[0].body == working.requests[0].body
    assert gateway.metrics.retries == {"u1": 1}
    assert (await bench.outcome()).backend == "u2"


async def test_with_no_other_upstream_the_same_one_is_tried_once_more(bench):
    """Twice in all, then the upstream's own words go to the client."""
    failing = await bench.upstream(broken)
    gateway = await bench.gateway(failing.url)
    status, _, body = await post(bench, gateway)
    assert (status, body) == (500, b'{"error":{"message":"no memory"}}')
    assert len(failing.requests) == 2
    outcome = await bench.outcome()
    assert (outcome.status, outcome.error_class, outcome.http_status) == (Status.FAILED, ErrorClass.HTTP_5XX, 500)


async def test_an_upstream_that_dies_answering_is_retried_until_its_first_byte_only(bench):
    """A reset before the head: once more. After the first chunk: the client learns of it, nothing is sent twice."""
    calls = []

    async def script(request, peer):
        calls.append(request)
        if len(calls) == 2:
            await peer.send(SSE_HEAD)
            await peer.chunk(text("half"))
        peer.reset()

    gateway = await bench.gateway((await bench.upstream(script)).url)
    http = await bench.http(gateway.url)
    async with http.post(CHAT, data=chat_body(), headers=HEADERS) as response:
        assert response.status == 200
        assert await response.content.readuntil(b"\n\n") == text("half")
        told = json.loads((await response.content.readuntil(b"\n\n")).removeprefix(b"data: "))
        assert told["error"]["code"] == "upstream_cut"
        with pytest.raises(Exception, match=r"(?i)payload|transfer"):
            await response.content.readuntil(b"\n\n")
    assert len(calls) == 2
    outcome = await bench.outcome()
    assert (outcome.status, outcome.error_class) == (Status.FAILED, ErrorClass.BAD_STREAM)
    assert gateway.metrics.reasons["chat", "upstream_cut"] == 1


async def test_a_refused_connection_takes_an_upstream_out_until_it_answers_again(bench):
    """Two attempts, 502; then 503 with Retry-After without any attempt, until a probe finds it up."""
    upstream = await bench.upstream(good)
    gateway = await bench.gateway(upstream.url, probe_interval_s=0.05)
    await upstream.stop()
    port = upstream.port
    http = await bench.http(gateway.url)
    statuses = []
    async with asyncio.timeout(10):
        while not statuses or statuses[-1] != 503:
            async with http.post(CHAT, data=chat_body(), headers=HEADERS) as response:
                statuses.append(response.status)
                told = await response.json()
                assert told["error"]["code"] == ("no_upstream" if response.status == 503 else "upstream_failed")
                assert int(response.headers["Retry-After"]) >= 1
    assert set(statuses) <= {502, 503}
    async with http.get("/ready") as response:
        assert response.status == 503
    back = await bench.upstream(good, port=port)
    async with asyncio.timeout(10):
        while True:
            async with http.get("/ready") as response:
                if response.status == 200:
                    break
    status, _, _ = await post(bench, gateway)
    assert (status, len(back.requests)) == (200, 1)


async def test_an_upstream_whose_probe_fails_gets_no_work(bench):
    """Health decides before a request has to find out."""
    sick, well = await bench.upstream(good, healthy=False), await bench.upstream(good)
    gateway = await bench.gateway(sick.url, well.url)
    for _ in range(3):
        assert (await post(bench, gateway))[0] == 200
    assert (len(sick.requests), len(well.requests)) == (0, 3)
    assert gateway.gate.upstreams.states() == {"u1": False, "u2": True}


async def test_a_kept_socket_that_the_upstream_closed_is_no_failure(bench):
    """The request is sent again on a new socket; no retry is counted."""
    peers = []

    async def script(request, peer):
        peers.append(peer)
        await good(request, peer)

    upstream = await bench.upstream(script)
    gateway = await bench.gateway(upstream.url, probe_interval_s=60)
    assert (await post(bench, gateway))[0] == 200

    async def closing(request, peer):
        if peer is peers[0]:
            peer.reset()
        else:
            await good(request, peer)

    upstream.script = closing
    assert (await post(bench, gateway))[0] == 200
    assert gateway.metrics.retries == {}


@pytest.mark.parametrize(
    ("bodies", "error_class"),
    [
        ((text("a"), event({"error": {"message": "secret prompt words", "code": 500}})), ErrorClass.SERVER_ERROR),
        ((text("a"),), ErrorClass.BAD_STREAM),
        ((usage(3, 0), DONE), ErrorClass.BAD_STREAM),
        ((b"data: nonsense\n\n",), ErrorClass.BAD_STREAM),
    ],
)
async def test_a_stream_that_is_no_answer_is_a_failure(bench, bodies, error_class):
    """An error inside HTTP 200, a stream without end, without tokens or of nonsense: the client that streams gets the
    bytes, the one that does not gets 502, and the record says failed both times, without the upstream's words.
    """

    async def script(request, peer):
        await peer.stream(*bodies)

    gateway = await bench.gateway((await bench.upstream(script)).url)
    status, _, body = await post(bench, gateway, stream_options={"include_usage": True})
    assert (status, body) == (200, b"".join(bodies))
    status, _, body = await post(bench, gateway, stream=False)
    assert status == 502
    assert json.loads(body)["error"]["code"] == "upstream_failed"
    for number in (1, 2):
        outcome = await bench.outcome(number)
        assert (outcome.status, outcome.error_class) == (Status.FAILED, error_class)
        assert "secret" not in outcome.detail


async def test_an_answer_that_cannot_fold_passes_whole(bench):
    """Tools: the upstream is not asked to stream; its JSON goes on byte for byte and its usage is counted."""
    whole = b'{ "choices":[{"finish_reason":"tool_calls","message":{}}], "usage":{"prompt_tokens":9,"completion_tokens":4} }'

    async def script(request, peer):
        assert "stream_options" not in request.json
        await peer.answer(whole)

    gateway = await bench.gateway((await bench.upstream(script)).url)
    status, headers, body = await post(bench, gateway, stream=False, tools=[{"type": "function"}])
    assert (status, body, headers["content-type"]) == (200, whole, "application/json")
    outcome = await bench.outcome()
    assert (outcome.prompt_tokens, outcome.output_tokens) == (9, 4)
    assert outcome.first_token_ns == outcome.finished_ns


@pytest.mark.parametrize("stream", [True, False])
async def test_a_time_out_ends_the_request_upstream_and_says_so(bench, stream):
    """First token too late: 504, the upstream's socket closed, the slot free for the next."""
    closed = asyncio.Event()

    async def script(request, peer):
        if not closed.is_set():
            await peer.gone()
            closed.set()
        else:
            await good(request, peer)

    gateway = await bench.gateway(
        (await bench.upstream(script)).url, slots=Slots(sequences=1), limits={"first_token_timeout_s": 0.1}
    )
    status, _, body = await post(bench, gateway, stream=stream)
    assert (status, json.loads(body)["error"]["code"]) == (504, "first_token_timeout")
    async with asyncio.timeout(10):
        await closed.wait()
    outcome = await bench.outcome()
    assert (outcome.status, outcome.error_class) == (Status.TIMED_OUT, ErrorClass.FIRST_TOKEN_TIMEOUT)
    assert gateway.gate.outstanding() == {"u1": 0}


async def test_a_total_time_out_inside_a_stream_is_told_in_the_stream(bench):
    """What came stays; an error event follows; the message does not end as if it were whole."""

    async def script(request, peer):
        await peer.send(SSE_HEAD)
        await peer.chunk(text("a"))
        await peer.gone()

    gateway = await bench.gateway((await bench.upstream(script)).url, limits={"total_timeout_s": 0.2})
    http = await bench.http(gateway.url)
    async with http.post(CHAT, data=chat_body(), headers=HEADERS) as response:
        assert await response.content.readuntil(b"\n\n") == text("a")
        assert b'"total_timeout"' in await response.content.readuntil(b"\n\n")
    assert (await bench.outcome()).status is Status.TIMED_OUT


@pytest.mark.parametrize("stream", [True, False])
async def test_silence_counts_from_the_first_token_only(bench, stream):
    """An engine may queue after its role chunk for longer than the gap between tokens may be; after a token, a gap of
    that length ends the answer, and comments do not extend it.
    """

    async def script(request, peer):
        await peer.send(SSE_HEAD)
        await peer.chunk(text(""))
        await asyncio.sleep(0.5)  # how slow this upstream is
        await peer.chunk(text("a"))
        with contextlib.suppress(ConnectionError):
            while True:
                await peer.chunk(b": still here\n\n")
                await asyncio.sleep(0.05)

    upstream = await bench.upstream(script)
    gateway = await bench.gateway(upstream.url, limits={"token_timeout_s": 0.3})
    http = await bench.http(gateway.url)
    async with http.post(CHAT, data=chat_body(stream=stream), headers=HEADERS) as response:
        if stream:
            assert await response.content.readuntil(b"\n\n") == text("")
            assert await response.content.readuntil(b"\n\n") == text("a")
            while b"upstream_cut" not in (await response.content.readuntil(b"\n\n")):
                pass
        else:
            assert response.status == 504
    outcome = await bench.outcome()
    assert (outcome.status, outcome.error_class) == (Status.TIMED_OUT, ErrorClass.TOKEN_TIMEOUT)
    assert outcome.first_token_ns is not None


async def test_an_upstream_that_is_not_http_is_a_502(bench):
    async def script(request, peer):
        await peer.send(b"SSH-2.0-OpenSSH\r\n")

    gateway = await bench.gateway((await bench.upstream(script)).url)
    status, _, body = await post(bench, gateway)
    assert (status, json.loads(body)["error"]["code"]) == (502, "upstream_failed")


@pytest.mark.parametrize("method", ["POST", "GET"])
@pytest.mark.parametrize("head", [b"upgrade: websocket\r\nconnection: Upgrade\r\n", b""])
async def test_an_upstream_that_switches_protocols_is_a_502_that_says_so(bench, method, head):
    """Whether its answer waits in the queue or passes: 101 is no answer that a client could be given."""

    async def script(request, peer):
        await peer.send(b"HTTP/1.1 101 Switching Protocols\r\n" + head + b"\r\n\x81\x02hi")
        await peer.gone()

    gateway = await bench.gateway((await bench.upstream(script)).url)
    http = await bench.http(gateway.url)
    async with http.request(method, CHAT, data=chat_body() if method == "POST" else None, headers=HEADERS) as response:
        told = (await response.json())["error"]
    assert (response.status, told["code"]) == (502, "upstream_failed")
    assert "switching protocols is not supported" in told["message"]


async def test_a_client_that_leaves_the_queue_is_never_sent(bench):
    """One slot, taken: the second request waits, its client leaves, and the upstream never sees it."""
    release = asyncio.Event()

    async def script(request, peer):
        await release.wait()
        await good(request, peer)

    upstream = await bench.upstream(script)
    gateway = await bench.gateway(upstream.url, slots=Slots(sequences=1))
    first = asyncio.create_task(post(bench, gateway))
    _, writer = await bench.raw(gateway)
    await until(lambda: upstream.requests)
    writer.write(request_bytes(chat_body(), "x-lmperf-tenant: batch"))
    await until(lambda: gateway.gate.driver.dispatcher.queued)
    writer.close()
    outcome = await bench.outcome()
    assert (outcome.status, outcome.request.tenant, outcome.dispatched_ns) == (Status.CANCELLED, "batch", None)
    release.set()
    assert (await first)[0] == 200
    assert len(upstream.requests) == 1
