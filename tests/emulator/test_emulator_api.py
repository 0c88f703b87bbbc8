"""The embedded server speaks the OpenAI protocol: judged by the public ``openai`` client and by raw HTTP."""

import asyncio
import json
from dataclasses import replace

import aiohttp
import openai
import pytest

from backends.emulator.app import Api
from backends.emulator.server import EmulatorServer
from backends.emulator.tokenizer import VOCABULARY

MODEL = "fast-model"
HELLO = [{"role": "user", "content": "hello embedded server"}]
EXACT = {"ignore_eos": True}


async def events_of(response):
    """The data of each SSE event; each must be exactly one HTTP chunk, as a server that flushes each token sends it."""
    events = []
    async for data, ends_chunk in response.content.iter_chunks():
        if not data:
            continue
        assert ends_chunk
        assert data.startswith(b"data: ")
        assert data.endswith(b"\n\n")
        assert data.count(b"\n\n") == 1
        events.append(data[6:-2].decode())
    return events


async def stream(http, path, **body):
    async with http.post(path, json={"model": MODEL, "stream": True, **EXACT, **body}) as response:
        assert response.status == 200
        assert response.content_type == "text/event-stream"
        events = await events_of(response)
    assert events[-1] == "[DONE]"
    return [json.loads(event) for event in events[:-1]]


async def test_a_chat_stream_is_a_role_chunk_then_one_chunk_a_token_then_usage(client):
    """The role comes alone; the last token says why it ended; the usage trailer has no choices."""
    chunks = [
        chunk
        async for chunk in await client.chat.completions.create(
            model=MODEL,
            messages=HELLO,
            max_tokens=12,
            stream=True,
            stream_options={"include_usage": True},
            extra_body=EXACT,
        )
    ]
    role, *tokens, trailer = chunks
    assert (role.choices[0].delta.role, role.choices[0].delta.content) == ("assistant", "")
    assert len(tokens) == 12
    assert all(chunk.choices[0].delta.content.strip() in VOCABULARY for chunk in tokens)
    assert [chunk.choices[0].finish_reason for chunk in tokens] == [None] * 11 + ["length"]
    assert trailer.choices == []
    assert (trailer.usage.prompt_tokens, trailer.usage.completion_tokens, trailer.usage.total_tokens) == (6, 12, 18)
    assert len({chunk.id for chunk in chunks}) == 1
    assert all(chunk.usage is None for chunk in [role, *tokens])


@pytest.mark.parametrize("prompt", ["one two three", [11, 12, 13], ["one two three"], [[11, 12, 13]]])
async def test_a_completion_takes_text_or_token_ids_streamed_or_whole(client, prompt):
    """Both forms of an answer are the same answer, with the same count of tokens."""
    asked = {"model": MODEL, "prompt": prompt, "max_tokens": 9, "extra_body": EXACT}
    whole = await client.completions.create(**asked)
    chunks = [chunk async for chunk in await client.completions.create(**asked, stream=True)]
    assert whole.choices[0].text == "".join(chunk.choices[0].text for chunk in chunks)
    assert len(chunks) == len(whole.choices[0].text.split()) == 9
    assert (whole.usage.prompt_tokens, whole.usage.completion_tokens) == (3, 9)
    assert whole.choices[0].finish_reason == chunks[-1].choices[0].finish_reason == "length"


async def test_a_whole_chat_answer_equals_the_streamed_one(client):
    """Same request, same text, whichever way it is sent."""
    asked = {"model": MODEL, "messages": HELLO, "max_completion_tokens": 7, "extra_body": EXACT}
    whole = await client.chat.completions.create(**asked)
    parts = [
        chunk.choices[0].delta.content async for chunk in await client.chat.completions.create(**asked, stream=True)
    ]
    assert whole.choices[0].message.content == "".join(parts)
    assert whole.choices[0].message.role == "assistant"
    assert whole.usage.completion_tokens == 7


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
@pytest.mark.parametrize("tokens", [1, 2, 30])
async def test_every_chunk_is_one_http_chunk_and_valid_json(http, path, tokens):
    """The pre-encoded chunks of the middle look like those built one by one at either end."""
    body = {"messages": HELLO} if "chat" in path else {"prompt": "a b"}
    chunks = await stream(http, path, **body, max_tokens=tokens)
    generating = chunks[1:] if "chat" in path else chunks
    assert len(generating) == tokens
    shapes = {json.dumps(chunk | {"choices": [sorted(chunk["choices"][0])]}, sort_keys=True) for chunk in generating}
    assert len(shapes) == 1


async def test_usage_and_token_ids_come_on_every_chunk_when_asked_for(http):
    """continuous_usage_stats counts up; token_ids are what /tokenize makes of the text; prompt ids come once."""
    chunks = await stream(
        http,
        "/v1/completions",
        prompt="known words only",
        max_tokens=5,
        return_token_ids=True,
        stream_options={"include_usage": True, "continuous_usage_stats": True},
    )
    *tokens, trailer = chunks
    assert [chunk["usage"]["completion_tokens"] for chunk in tokens] == [1, 2, 3, 4, 5]
    assert trailer["usage"] == {"prompt_tokens": 3, "completion_tokens": 5, "total_tokens": 8}
    ids = [token_id for chunk in tokens for token_id in chunk["choices"][0]["token_ids"]]
    text = "".join(chunk["choices"][0]["text"] for chunk in tokens)
    async with http.post("/tokenize", json={"prompt": text}) as response:
        assert (await response.json())["tokens"] == ids
    async with http.post("/tokenize", json={"prompt": "known words only"}) as response:
        assert [chunk["choices"][0].get("prompt_token_ids") for chunk in tokens] == [
            (await response.json())["tokens"],
            *[None] * 4,
        ]


async def test_a_stop_string_ends_a_stream_and_is_not_shown(client):
    """The text ends before it, and the reason is stop."""
    asked = {"model": MODEL, "prompt": "p", "max_tokens": 10, "extra_body": EXACT}
    words = (await client.completions.create(**asked)).choices[0].text.split()
    chunks = [chunk async for chunk in await client.completions.create(**asked, stop=[words[4]], stream=True)]
    assert "".join(chunk.choices[0].text for chunk in chunks).split() == words[:4]
    assert chunks[-1].choices[0].finish_reason == "stop"


async def test_the_served_model_is_listed_and_any_other_is_not_found(client):
    """404 with the message that clients know."""
    (model,) = [model async for model in client.models.list()]
    assert model.id == MODEL
    assert (await client.models.retrieve(MODEL)).id == MODEL
    with pytest.raises(openai.NotFoundError, match="The model `other` does not exist"):
        await client.chat.completions.create(model="other", messages=HELLO)
    with pytest.raises(openai.NotFoundError, match="The model `other` does not exist"):
        await client.models.retrieve("other")


@pytest.mark.parametrize(
    ("path", "body", "says", "param"),
    [
        ("/v1/completions", b"{not json", "not valid JSON", None),
        ("/v1/completions", b"[]", "Expected `object`", None),
        ("/v1/completions", b"{}", "missing required field `prompt`", None),
        ("/v1/chat/completions", b'{"messages": []}', "at least one message", "messages"),
        ("/v1/chat/completions", b'{"messages": [{"content": "x"}]}', "field `role`", "messages[0]"),
        ("/v1/completions", b'{"prompt": "x", "max_tokens": "many"}', "Expected `int | null`", "max_tokens"),
        ("/v1/completions", b'{"prompt": "x", "max_tokens": 0}', "at least 1", "max_tokens"),
        ("/v1/completions", b'{"prompt": "x", "min_tokens": 17}', "max_tokens (16)", "min_tokens"),
        ("/v1/completions", b'{"prompt": "x", "n": 2}', "n must be 1", "n"),
        ("/v1/completions", b'{"prompt": ""}', "empty prompt", "prompt"),
        ("/v1/completions", b'{"prompt": ["a", "b"]}', "one prompt a request", "prompt"),
        ("/v1/completions", b'{"prompt": [1, -2]}', "token ids", "prompt"),
        ("/v1/completions", b'{"prompt": [1, true]}', "token ids", "prompt"),
        ("/v1/completions", b'{"prompt": "x", "stop": ["a", ""]}', "empty string", "stop"),
        ("/v1/completions", b'{"prompt": "x", "echo": true}', "echo", "echo"),
        ("/v1/completions", b'{"prompt": "x", "seed": 99999999999999999999}', "64 bits", "seed"),
        ("/v1/completions", b'{"prompt": "x", "stream_options": {}}', "stream=true", "stream_options"),
        ("/v1/completions", b'{"prompt": "x", "max_tokens": 5000}', "maximum context length is 4096 tokens", "prompt"),
        ("/tokenize", b"{}", "either prompt or messages", "prompt"),
        ("/detokenize", b'{"tokens": ["x"]}', "Expected `int`", "tokens[0]"),
    ],
)
async def test_a_wrong_request_is_answered_400_in_the_openai_shape(http, path, body, says, param):
    """The message says what is wrong, param names the field, nothing reaches the engine."""
    async with http.post(path, data=body) as response:
        assert response.status == 400
        error = (await response.json())["error"]
    assert says in error["message"]
    assert (error["type"], error["code"], error["param"]) == ("BadRequestError", 400, param)
    async with http.get("/lmperf/stats") as response:
        assert (await response.json())["requests_received"] == 0


async def test_unknown_paths_and_methods_are_errors_in_the_openai_shape(http):
    """Also what the router answers."""
    for method, path, status in (("GET", "/nope", 404), ("GET", "/v1/completions", 405)):
        async with http.request(method, path) as response:
            assert response.status == status
            assert (await response.json())["error"]["code"] == status


async def test_without_max_tokens_a_completion_has_at_most_16_and_a_chat_what_fits(client):
    """The defaults of the real servers."""
    completion = await client.completions.create(model=MODEL, prompt="x", extra_body=EXACT)
    assert completion.usage.completion_tokens == 16
    long = [{"role": "user", "content": "w " * 4080}]
    chat = await client.chat.completions.create(model=MODEL, messages=long, extra_body=EXACT)
    assert chat.usage.total_tokens == 4096


async def test_vllms_other_endpoints_answer_in_its_shape(http):
    """/health is empty, /version has a version, /tokenize and /detokenize are inverse, the chat template is told."""
    async with http.get("/health") as response:
        assert (response.status, await response.read()) == (200, b"")
    async with http.get("/version") as response:
        assert "lmperf-emulator" in (await response.json())["version"]
    async with http.post("/tokenize", json={"prompt": "some words", "return_token_strs": True}) as response:
        told = await response.json()
    assert (told["count"], told["max_model_len"], told["token_strs"]) == (2, 4096, ["some", "words"])
    async with http.post("/detokenize", json={"tokens": told["tokens"]}) as response:
        assert await response.json() == {"prompt": "some words"}
    async with http.post("/tokenize", json={"messages": HELLO}) as response:
        assert (await response.json())["count"] == 6


async def test_a_key_is_demanded_below_v1_only_when_the_server_has_one(config):
    """401 for none and for a wrong one; health and metrics stay open, as in vLLM."""
    async with EmulatorServer(replace(config, api_key="right key")) as server:
        for key, allowed in (("right key", True), ("wrong", False), ("right key2", False)):
            async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key=key, max_retries=0) as client:
                if allowed:
                    assert [model.id async for model in client.models.list()] == [MODEL]
                    continue
                with pytest.raises(openai.AuthenticationError):
                    await client.completions.create(model=MODEL, prompt="x")
        async with aiohttp.ClientSession(server.url) as http:
            for path, status in (("/v1/models", 401), ("/health", 200), ("/metrics", 200)):
                async with http.get(path) as response:
                    assert response.status == status
        assert "right key" not in repr(server.config)


async def stats_when(http, reached):
    """The server's stats as soon as they satisfy ``reached``."""
    async with asyncio.timeout(20):
        while True:
            async with http.get("/lmperf/stats") as response:
                told = await response.json()
            if reached(told):
                return told


@pytest.mark.parametrize("streaming", [True, False])
async def test_a_client_that_disconnects_takes_its_sequence_out_of_the_engine(server, http, streaming):
    """No tokens are generated for nobody, and the KV cache is free again."""
    body = {"model": MODEL, "prompt": "x", "max_tokens": 4000, "stream": streaming, **EXACT}
    payload = json.dumps(body).encode()
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%b" % (len(payload), payload))
    await stats_when(http, lambda told: told["generation_tokens"] >= 3)
    if streaming:
        await reader.readuntil(b"data: ")
    writer.close()
    await writer.wait_closed()
    told = await stats_when(http, lambda told: told["requests_aborted"] == 1)
    assert told["generation_tokens"] < 4000
    assert (told["requests_running"], told["requests_waiting"], told["kv_tokens"]) == (0, 0, 0)


async def test_a_connection_is_kept_for_the_next_request(server):
    """Two requests on one socket: the stream ends with a last chunk, not with the connection."""
    body = json.dumps({"prompt": "x", "max_tokens": 3, "stream": True}).encode()
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    for _ in range(2):
        writer.write(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))
        answer = await reader.readuntil(b"0\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 200")
        assert answer.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")
    writer.close()
    await writer.wait_closed()


async def test_a_stream_needs_http_1_1(server):
    """An HTTP/1.0 client is told so: it cannot read chunks."""
    body = b'{"prompt": "x", "stream": true}'
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(b"POST /v1/completions HTTP/1.0\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))
    answer = await reader.read()
    assert b" 400 " in answer.partition(b"\r\n")[0]
    assert b"HTTP/1.1" in answer.partition(b"\r\n\r\n")[2]
    writer.close()
    await writer.wait_closed()


async def test_the_headers_of_a_stream_come_before_its_first_token(server):
    """A client can tell the wait for headers from the wait for a token: no token exists yet when they are sent."""
    body = b'{"prompt": "x", "max_tokens": 2, "stream": true}'
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))
    first = await reader.read(65536)
    assert first.startswith(b"HTTP/1.1 200")
    assert b"data:" not in first
    writer.close()
    await writer.wait_closed()


@pytest.mark.parametrize(("given", "kept"), [("run-7/42", True), ('evil"id\\', False), ("x" * 200, False)])
async def test_a_clients_request_id_becomes_the_answers_if_it_is_safe(http, given, kept):
    """X-Request-Id joins a client's rows with the server's; anything odd is replaced."""
    async with http.post("/v1/completions", json={"prompt": "x"}, headers={"X-Request-Id": given}) as response:
        answer_id = (await response.json())["id"]
    assert (answer_id == f"cmpl-{given}") is kept


async def test_an_engine_failure_is_an_error_in_the_stream_and_in_health(server, http):
    """A client must never take a broken stream for a success."""

    class Broken:
        def __init__(self, model):
            self._model = model

        def commit(self, steps, *, emitted=False):
            raise ArithmeticError("no such step")

        def __getattr__(self, name):
            return getattr(self._model, name)

    server._core._engine._model = Broken(server._core._model)
    async with http.post("/v1/completions", json={"prompt": "x", "stream": True}) as response:
        events = await events_of(response)
    assert "no such step" in json.loads(events[0])["error"]["message"]
    async with http.get("/health") as response:
        assert response.status == 503
    for streaming in (True, False):
        async with http.post("/v1/completions", json={"prompt": "x", "stream": streaming}) as response:
            assert response.status == 503
    with pytest.raises(ArithmeticError):
        await server.failure()


def test_every_route_is_one_that_was_decided_on(config):
    """The surface of the server is this list; a new path is added here on purpose."""
    routes = {
        (route.method, route.resource.canonical)
        for route in Api(config, core=None).application().router.routes()
        if route.method != "HEAD"
    }
    assert routes == {
        ("GET", "/v1/models"),
        ("GET", "/v1/models/{model}"),
        ("POST", "/v1/chat/completions"),
        ("POST", "/v1/completions"),
        ("POST", "/tokenize"),
        ("POST", "/detokenize"),
        ("GET", "/health"),
        ("GET", "/version"),
        ("GET", "/metrics"),
        ("GET", "/lmperf/stats"),
    }
