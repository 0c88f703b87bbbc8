"""Every API that makes a server work goes through the queue and is counted; nothing of it is changed on the way."""

import asyncio
import contextlib
import json

import pytest
from gateway_upstream import DEADLINE_S, SSE_HEAD, chat_body, text, until

from backends.gateway.routes import route_of
from scheduler.request import ErrorClass, Status, TokensSource
from scheduler.slots import Slots
from tenants.tenant import Identity, Tenant

CHAT = {"x-lmperf-tenant": "chat"}


def typed(value: dict[str, object]) -> bytes:
    """An event with its name, as both APIs write it."""
    return b"event: " + value["type"].encode() + b"\ndata: " + json.dumps(value).encode() + b"\n\n"


def response(**more: object) -> dict[str, object]:
    return {
        "id": "resp_1", "object": "response", "created_at": 1, "model": "m", "status": "completed", "error": None,
        "parallel_tool_calls": True, "tool_choice": "auto", "tools": [], "incomplete_details": None,
        "output": [{"type": "message", "id": "msg_1", "status": "completed", "role": "assistant",
                    "content": [{"type": "output_text", "text": "hi!", "annotations": []}]}],
        "usage": {"input_tokens": 9, "output_tokens": 2, "total_tokens": 11,
                  "input_tokens_details": {"cached_tokens": 4}, "output_tokens_details": {"reasoning_tokens": 0}},
        **more,
    }  # fmt: skip


def message(**more: object) -> dict[str, object]:
    return {
        "id": "msg_1", "type": "message", "role": "assistant", "model": "m", "stop_reason": "end_turn",
        "content": [{"type": "text", "text": "hi!"}],
        "usage": {"input_tokens": 5, "cache_read_input_tokens": 4, "output_tokens": 2},
        **more,
    }  # fmt: skip


def delta(of: str, *, at: int = 0, **more: object) -> bytes:
    return typed({"type": "content_block_delta", "index": at, "delta": {"type": of, **more}})


def output(piece: str) -> bytes:
    return typed({"type": "response.output_text.delta", "item_id": "msg_1", "output_index": 0, "content_index": 0,
                  "delta": piece, "logprobs": [], "sequence_number": 3})  # fmt: skip


RESPONSES_STREAM = [
    typed({"type": "response.created", "response": response(status="in_progress", usage=None), "sequence_number": 0}),
    output("hi"),
    output("!"),
    typed({"type": "response.output_text.done", "item_id": "msg_1", "output_index": 0, "content_index": 0, "text": "hi!",
           "logprobs": [], "sequence_number": 5}),
    typed({"type": "response.completed", "response": response(), "sequence_number": 6}),
]  # fmt: skip
MESSAGES_STREAM = [
    typed({"type": "message_start", "message": message(stop_reason=None, usage={"input_tokens": 5, "output_tokens": 1,
                                                                               "cache_read_input_tokens": 4})}),
    typed({"type": "content_block_start", "index": 0, "content_block": {"type": "thinking", "thinking": ""}}),
    typed({"type": "ping"}),
    delta("thinking_delta", thinking="h"),
    delta("signature_delta", signature="c2ln"),
    typed({"type": "content_block_stop", "index": 0}),
    typed({"type": "content_block_start", "index": 1, "content_block": {"type": "text", "text": ""}}),
    delta("text_delta", at=1, text="hi!"),
    typed({"type": "message_delta", "delta": {"stop_reason": "max_tokens"}, "usage": {"output_tokens": 2}}),
    typed({"type": "message_stop"}),
]  # fmt: skip
RESPONSES_BODY = {"model": "m", "instructions": "be brief", "input": "hello " * 40, "max_output_tokens": 17}
MESSAGES_BODY = {
    "model": "m",
    "system": "be brief",
    "messages": [{"role": "user", "content": "hello " * 40}],
    "max_tokens": 17,
}
APIS = {
    "responses": ("/v1/responses", RESPONSES_BODY, RESPONSES_STREAM, response(), "stop"),
    "messages": ("/v1/messages", MESSAGES_BODY, MESSAGES_STREAM, message(), "length"),
}


@pytest.fixture(params=APIS)
def api(request):
    return APIS[request.param]


def streaming(*bodies: bytes):
    async def script(request, peer):
        await peer.stream(*bodies)

    return script


def answering(value: object, **more: object):
    async def script(request, peer):
        await peer.answer(value if isinstance(value, bytes) else json.dumps(value).encode(), **more)

    return script


async def post(http, path: str, body: object, **headers: str) -> tuple[int, bytes]:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    named = {"content-type": "application/json", **CHAT, **headers}
    async with http.post(path, data=data, headers=named) as answer:
        return answer.status, await answer.read()


async def test_a_stream_is_queued_counted_and_not_changed(bench, api):
    """The outcome has the request's limits and the answer's tokens, a stamp for each delta with output."""
    path, body, events, _, reason = api
    upstream = await bench.upstream(streaming(*events))
    gateway = await bench.gateway(upstream.url)
    http = await bench.http(gateway.url)
    asked = {**body, "stream": True}
    assert await post(http, f"{path}?beta=true", asked) == (200, b"".join(events))
    assert (upstream.requests[0].target, upstream.requests[0].json) == (f"{path}?beta=true", asked)
    outcome = await bench.outcome()
    assert (outcome.status, outcome.request.tenant, outcome.backend) == (Status.OK, "chat", "u1")
    assert outcome.dispatched_ns is not None
    assert outcome.request.max_tokens == 17
    assert outcome.request.prompt_tokens > 40, "the text is 240 bytes long"
    assert (outcome.prompt_tokens, outcome.cached_prompt_tokens) == (9, 4)
    assert (outcome.output_tokens, outcome.tokens_source) == (2, TokensSource.USAGE)
    assert len(outcome.chunk_offsets_us) == 2
    assert outcome.tokens_known
    assert outcome.finish_reason == reason
    assert outcome.first_token_ns <= outcome.last_token_ns <= outcome.finished_ns


async def test_a_json_answer_is_counted_and_not_changed(bench, api):
    path, body, _, answer, _ = api
    gateway = await bench.gateway((await bench.upstream(answering(answer))).url)
    assert await post(await bench.http(gateway.url), path, body) == (200, json.dumps(answer).encode())
    outcome = await bench.outcome()
    assert (outcome.status, outcome.prompt_tokens, outcome.cached_prompt_tokens) == (Status.OK, 9, 4)
    assert (outcome.output_tokens, outcome.finish_reason) == (2, "stop")


async def test_a_stream_that_fails_is_a_failure(bench, api):
    """The server's own word of it, or an end without the last event."""
    path, body, events, _, _ = api
    failed = {
        "/v1/responses": typed({"type": "response.failed", "response": response(status="failed", usage=None)}),
        "/v1/messages": typed({"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}),
    }[path]
    endings = [([*events[:2], failed], ErrorClass.SERVER_ERROR), (events[:-2], ErrorClass.BAD_STREAM)]
    for number, (sent, error_class) in enumerate(endings, 1):
        gateway = await bench.gateway((await bench.upstream(streaming(*sent))).url)
        await post(await bench.http(gateway.url), path, {**body, "stream": True})
        outcome = await bench.outcome(number)
        assert (outcome.status, outcome.error_class) == (Status.FAILED, error_class)


async def test_the_openai_client_reads_responses_through_the_gateway(bench):
    """Whole and streamed, as it reads them from a server."""

    async def script(request, peer):
        if request.json.get("stream"):
            await peer.stream(*RESPONSES_STREAM)
        else:
            await peer.answer(json.dumps(response()).encode())

    gateway = await bench.gateway((await bench.upstream(script)).url)
    client = await bench.openai(gateway)
    assert (await client.responses.create(model="m", input="hello")).output_text == "hi!"
    stream = await client.responses.create(model="m", input="hello", stream=True)
    assert [event.type async for event in stream][-1] == "response.completed"
    assert [(await bench.outcome(n)).status for n in (1, 2)] == [Status.OK, Status.OK]


WORKING = [
    ("POST", "/v1/chat/completions"),
    ("POST", "/completions"),
    ("POST", "/v1/responses"),
    ("POST", "/responses"),
    ("POST", "//v1/./responses/"),
    ("POST", "/v1/messages"),
    ("POST", "/v1/embeddings"),
    ("POST", "/v1/rerank"),
    ("POST", "/score"),
    ("POST", "/pooling"),
    ("POST", "/v1/audio/transcriptions"),
    ("POST", "/generate"),
    ("PUT", "/generate"),
    ("POST", "/invocations"),
    ("POST", "/inference/v1/generate"),
    ("POST", "/v1/responses/compact"),
    ("POST", "/tokenize/../api/generate"),
    ("POST", "/"),
    ("PATCH", "/what/nobody/knows"),
    ("PROPFIND", "/v1/completions"),
    ("GET", "/health_generate"),
]
IDLE = [
    ("GET", "/v1/models", "/v1/models"),
    ("GET", "/v1/responses/resp_1", "/v1/responses/resp_1"),
    ("DELETE", "/v1/responses/resp_1", "/v1/responses/resp_1"),
    ("POST", "/v1/responses/resp_1/cancel?a=1", "/v1/responses/resp_1/cancel?a=1"),
    ("POST", "/tokenize", "/tokenize"),
    ("POST", "/v1/messages/count_tokens", "/v1/messages/count_tokens"),
    ("POST", "/v1/chat/completions/render", "/v1/chat/completions/render"),
    # What is judged as harmless goes on in the spelling that was judged.
    ("POST", "/v1/completions/../../tokenize", "/tokenize"),
    ("POST", "/v1/chat/completions/..%2f..%2f..%2ftokenize?b", "/tokenize?b"),
]


def raw(method: str, path: str, *headers: str, body: bytes = b"{}") -> bytes:
    lines = [f"{method} {path} HTTP/1.1", "host: gateway", f"content-length: {len(body)}", *headers]
    return ("\r\n".join(lines) + "\r\n\r\n").encode() + body


async def test_nothing_that_works_a_server_gets_around_the_slots(bench):
    """With the only slot taken: every request that may make a server work waits, in whatever API, method or spelling, and
    needs a tenant; those that do not pass at once, and none of theirs is read by a server as another."""
    go_on = asyncio.Event()

    async def script(request, peer):
        if request.headers.get("x-holds"):
            await go_on.wait()
        await peer.answer(b"{}")

    upstream = await bench.upstream(script)
    gateway = await bench.gateway(upstream.url, slots=Slots(sequences=1))

    async def status(method: str, path: str, *headers: str) -> int:
        reader, writer = await bench.raw(gateway)
        writer.write(raw(method, path, *headers))
        async with asyncio.timeout(DEADLINE_S):
            return int((await reader.readline()).split()[1])

    holding = asyncio.create_task(status("POST", "/generate", "x-lmperf-tenant: chat", "x-holds: yes"))
    await until(lambda: upstream.requests)
    for method, path in WORKING:
        assert await status(method, path) == 400, f"{method} {path} was served without a tenant"
    assert gateway.metrics.reasons == {("", "missing_tenant"): len(WORKING)}
    waiting = [
        asyncio.create_task(status(method, path, "x-lmperf-tenant: chat", f"x-number: {number}"))
        for number, (method, path) in enumerate(WORKING)
    ]
    await until(lambda: gateway.gate.gauges().queued["chat"] == len(WORKING))
    for method, path, target in IDLE:
        assert await status(method, path) == 200
        assert (upstream.requests[-1].method, upstream.requests[-1].target) == (method, target)
    assert len(upstream.requests) == 1 + len(IDLE)
    go_on.set()
    assert await holding == 200
    assert await asyncio.gather(*waiting) == [200] * len(WORKING)
    sent = {int(request.headers["x-number"]): request for request in upstream.requests if "x-number" in request.headers}
    assert [sent[number].method for number in range(len(WORKING))] == [method for method, _ in WORKING]
    assert {outcome.status for outcome in bench.outcomes} == {Status.OK}


@pytest.mark.parametrize("path", ["/health_generate", "//health_generate/"])
async def test_a_head_of_what_generates_is_refused_and_takes_no_slot(bench, path):
    """Its answer has a length and no body: whoever reads the body waits for ever."""

    async def script(request, peer):
        await peer.send(b"HTTP/1.1 405 Method Not Allowed\r\ncontent-length: 31\r\n\r\n")

    upstream = await bench.upstream(script)
    gateway = await bench.gateway(upstream.url, slots=Slots(sequences=1))
    reader, writer = await bench.raw(gateway)
    writer.write(raw("HEAD", path, "x-lmperf-tenant: chat", body=b""))
    async with asyncio.timeout(DEADLINE_S):
        assert b" 405 " in await reader.readline()
    assert not upstream.requests
    assert not gateway.gate.driver.dispatcher.outstanding


@pytest.mark.parametrize("name", ["health", "ready", "metrics", "admin/status"])
@pytest.mark.parametrize("spelling", ["//{}", "/{}/", "/./{}", "/x/../{}", "/%2e/{}", "/{}%0a"])
async def test_the_gateway_s_own_paths_hide_an_upstream_s_in_every_spelling(bench, name, spelling):
    """A server that reads the path more freely must not answer in its place (SGLang's ``/health`` generates a token)."""
    upstream = await bench.upstream(answering({}))
    gateway = await bench.gateway(upstream.url)
    reader, writer = await bench.raw(gateway)
    writer.write(raw("GET", spelling.format(name), "x-lmperf-tenant: chat", body=b""))
    async with asyncio.timeout(DEADLINE_S):
        assert b" 404 " in await reader.readline()
    assert not upstream.requests


async def test_a_line_break_at_a_path_s_end_does_not_pass(bench):
    """Starlette's routes end in ``$``, which matches before one."""
    upstream = await bench.upstream(answering({}))
    gateway = await bench.gateway(upstream.url)
    for path in ("/health_generate%0A", "/tokenize%0A", "/v1/batches%0A"):
        reader, writer = await bench.raw(gateway)
        writer.write(raw("GET" if "health" in path else "POST", path, "x-lmperf-tenant: chat"))
        async with asyncio.timeout(DEADLINE_S):
            assert b" 404 " in await reader.readline()
    assert not upstream.requests


async def test_a_web_socket_does_not_pass(bench):
    """What is said on one no queue sees (vLLM's ``/v1/realtime``): the upstream gets a plain GET."""
    upstream = await bench.upstream(answering({}, status="426 Upgrade Required"))
    gateway = await bench.gateway(upstream.url)
    reader, writer = await bench.raw(gateway)
    keys = (
        "connection: Upgrade",
        "upgrade: websocket",
        "sec-websocket-version: 13",
        "sec-websocket-key: AAAAAAAAAAAAAAAAAAAAAA==",
    )
    writer.write(raw("GET", "/v1/realtime", *keys, body=b""))
    assert b" 426 " in await reader.readline()
    assert "upgrade" not in upstream.requests[0].headers


@pytest.mark.parametrize(
    ("path", "body", "said"),
    [
        ("/v1/responses", {"input": "x", "background": True}, "without background"),
        ("/v1/batches", {"endpoint": "/v1/chat/completions"}, "one by one"),
        ("/v1/messages/batches", {"requests": []}, "one by one"),
    ],
)
async def test_work_that_outlives_its_answer_is_refused(bench, path, body, said):
    """It would run where no queue sees it."""
    upstream = await bench.upstream(answering({}))
    gateway = await bench.gateway(upstream.url)
    status, told = await post(await bench.http(gateway.url), path, body)
    assert (status, upstream.requests) == (400, [])
    assert said in json.loads(told)["error"]["message"]


@pytest.mark.parametrize(
    ("told", "prompt", "output"),
    [
        ({"data": [], "usage": {"prompt_tokens": 7, "total_tokens": 7}}, 7, 0),
        ({"results": [], "usage": {"total_tokens": 8}}, 8, 0),
        ({"usage": {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7}}, 3, 4),
        ({"text": "x", "meta_info": {"prompt_tokens": 3, "completion_tokens": 4}}, 3, 4),
        ({"content": "x", "tokens_evaluated": 3, "tokens_predicted": 4}, 3, 4),
        ({"response": "x", "prompt_eval_count": 3, "eval_count": 4}, 3, 4),
        ({"usage": {"type": "duration", "seconds": 3}}, None, None),
        ({"usage": "none"}, None, None),
        ([1, 2], None, None),
    ],
)
async def test_an_unknown_api_is_counted_as_far_as_it_tells(bench, told, prompt, output):
    """By the usage that it writes in any of the names in use; what tells nothing keeps the estimate."""
    gateway = await bench.gateway((await bench.upstream(answering(told))).url)
    http = await bench.http(gateway.url)
    body = {"input": "hello", "max_tokens": 12}
    assert await post(http, "/v1/embeddings", body) == (200, json.dumps(told).encode())
    outcome = await bench.outcome()
    assert outcome.status is Status.OK
    assert outcome.prompt_tokens == (outcome.request.prompt_tokens if prompt is None else prompt)
    assert (outcome.output_tokens, outcome.request.max_tokens) == (output, 12)


@pytest.mark.parametrize(
    ("kind", "pieces"),
    [
        ("text/event-stream", [text("a"), text("b"), b'data: {"usage":{"prompt_tokens":3,"completion_tokens":3}}\n\n']),
        (
            "application/x-ndjson",
            [b'{"response":"a"}\n', b'{"response":"b"}\n', b'{"prompt_eval_count":3,"eval_count":3}'],
        ),
    ],
)
async def test_an_unknown_stream_reaches_the_client_as_it_comes(bench, kind, pieces):
    """Each piece before the next one is there; every event or line is output, and the counts are the server's."""
    seen = [asyncio.Event() for _ in pieces]

    async def script(request, peer):
        await peer.send(SSE_HEAD.replace(b"text/event-stream", kind.encode()))
        for piece, arrived in zip(pieces, seen, strict=True):
            await peer.chunk(piece)
            await arrived.wait()
        await peer.end()

    gateway = await bench.gateway((await bench.upstream(script)).url)
    http = await bench.http(gateway.url)
    async with http.post("/api/generate", data=b'{"prompt":"x"}', headers=CHAT) as answer:
        assert answer.headers["content-type"] == kind
        for piece, arrived in zip(pieces, seen, strict=True):
            assert await answer.content.readexactly(len(piece)) == piece
            arrived.set()
        assert await answer.content.read() == b""
    outcome = await bench.outcome()
    assert (outcome.status, outcome.prompt_tokens, outcome.output_tokens) == (Status.OK, 3, 3)
    assert len(outcome.chunk_offsets_us) == 3
    assert gateway.metrics.modes == {"as_is": 1}


async def test_what_is_no_json_goes_through_as_it_is(bench):
    """Speech in, sound out: the form's own type, any size, and a prompt of no known length."""
    sound, form = (
        bytes(range(256)) * 4000,
        b'--b\r\ncontent-disposition: form-data; name="file"\r\n\r\n\0\xff\r\n--b--\r\n',
    )
    upstream = await bench.upstream(answering(sound, kind="audio/wav"))
    gateway = await bench.gateway(upstream.url)
    http = await bench.http(gateway.url)
    kind = "multipart/form-data; boundary=b"
    assert await post(http, "/v1/audio/translations", form, **{"content-type": kind}) == (200, sound)
    assert (upstream.requests[0].body, upstream.requests[0].headers["content-type"]) == (form, kind)
    outcome = await bench.outcome()
    assert (outcome.status, outcome.request.prompt_tokens, outcome.output_tokens) == (Status.OK, 1, None)


async def test_an_unknown_request_is_not_sent_twice(bench):
    """Nobody knows what it does: its 5xx goes to the client, while a refused connection is tried elsewhere."""
    upstream = await bench.upstream(answering({"oops": 1}, status="503 Busy"))
    gateway = await bench.gateway(upstream.url)
    assert (await post(await bench.http(gateway.url), "/v1/files", {}))[0] == 503
    assert len(upstream.requests) == 1
    assert (await bench.outcome()).error_class is ErrorClass.HTTP_5XX
    gone = await bench.upstream(answering({}))
    both = await bench.gateway(gone.url, upstream.url)
    await gone.stop()
    assert (await post(await bench.http(both.url), "/v1/files", {}))[0] == 503
    assert len(upstream.requests) == 2


@pytest.mark.parametrize("status", ["204 No Content", "307 Temporary Redirect", "404 Not Found"])
async def test_an_unknown_api_s_status_is_the_client_s(bench, status):
    async def script(request, peer):
        body = b"" if status.startswith("204") else b'{"error":"x"}'
        head = f"HTTP/1.1 {status}\r\nlocation: /there\r\n" + (f"content-length: {len(body)}\r\n" if body else "")
        await peer.send(f"{head}\r\n".encode() + body)

    gateway = await bench.gateway((await bench.upstream(script)).url)
    http = await bench.http(gateway.url)
    async with http.post("/load", data=b"{}", headers=CHAT, allow_redirects=False) as answer:
        assert (answer.status, answer.headers["location"]) == (int(status[:3]), "/there")


async def test_a_messages_stream_is_cut_with_an_event_that_its_clients_raise(bench):
    """They go by the event's name."""

    async def script(request, peer):
        await peer.send(SSE_HEAD)
        for event in MESSAGES_STREAM[:4]:
            await peer.chunk(event)
        await peer.gone()

    gateway = await bench.gateway((await bench.upstream(script)).url, limits={"total_timeout_s": 0.3})
    reader, writer = await bench.raw(gateway)
    body = json.dumps({**MESSAGES_BODY, "stream": True}).encode()
    writer.write(raw("POST", "/v1/messages", "x-lmperf-tenant: chat", body=body))
    got = b""
    async with asyncio.timeout(DEADLINE_S):
        with contextlib.suppress(ConnectionError):
            while piece := await reader.read(65536):
                got += piece
    name, data = got.split(b"event: error\n")[1].split(b"\n\n")[0].split(b": ", 1)
    told = json.loads(data)
    assert (name, told["type"], told["error"]["code"]) == (b"data", "error", "total_timeout")


async def test_a_key_in_x_api_key_names_its_tenant_and_ends_at_the_gateway(bench):
    """Where clients of the Messages API put it; with no keys configured it is the client's own and goes on."""
    keys = {"${env:A}": "key-a", "${env:UP}": "key-up"}
    upstream = await bench.upstream(answering(message()))
    keyed = (Tenant(name="chat"), Tenant(name="batch", identity=Identity(api_key="${env:A}")))
    gateway = await bench.gateway(upstream.url, tenants=keyed, key="${env:UP}", resolve=keys.__getitem__)
    http = await bench.http(gateway.url)
    for path in ("/v1/messages", "/tokenize", "/v1/chat/completions"):
        async with http.post(path, data=chat_body(stream=False), headers={"x-api-key": "key-a"}) as answer:
            assert answer.status == 200
        assert "key-a" not in str(upstream.requests[-1].headers)
        assert upstream.requests[-1].headers["authorization"] == "Bearer key-up"
        assert upstream.requests[-1].headers["x-lmperf-tenant"] == "batch"
        async with http.post(path, data=chat_body(), headers={"x-api-key": "key-b"}) as answer:
            assert answer.status == 401
    open_to_all = await bench.gateway(upstream.url)
    await post(await bench.http(open_to_all.url), "/v1/messages", MESSAGES_BODY, **{"x-api-key": "own"})
    assert upstream.requests[-1].headers["x-api-key"] == "own"


async def test_a_prompt_is_estimated_by_its_own_api(bench):
    """Answers to embeddings that a server counts dear leave the estimate of a chat as it was."""

    async def script(request, peer):
        await peer.answer(
            b'{"choices": [{"finish_reason": "stop"}], "usage": {"prompt_tokens": 9000, "total_tokens": 9000}}'
        )

    gateway = await bench.gateway((await bench.upstream(script)).url, fold=False)
    http = await bench.http(gateway.url)
    for path in ("/v1/embeddings", "/v1/embeddings", "/v1/chat/completions", "/v1/chat/completions"):
        await post(http, path, chat_body(stream=False))
    estimates = [(await bench.outcome(number)).request.prompt_tokens for number in (1, 2, 3, 4)]
    assert estimates[1] > estimates[0]
    assert estimates[2] < estimates[1], "the chat's first request knows nothing of the embeddings"
    assert estimates[3] > estimates[2]


def test_a_path_without_v1_is_that_with_it():
    for method, path in (("POST", "/messages"), ("POST", "/v1/messages/")):
        assert route_of(method, path) == route_of("POST", "/v1/messages")
