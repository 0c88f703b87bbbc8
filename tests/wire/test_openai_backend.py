"""The OpenAI adapter and the probes, against real aiohttp servers and scripted sockets."""

from __future__ import annotations

import asyncio
import json
import socket

import pytest
from aiohttp import web
from scripted_server import DONE, answering, text

from backends.openai import OpenAIBackend, build_call
from backends.probe import resolve_model, wait_ready
from backends.protocol import BackendError, BackendMetadata
from backends.wire.options import WireOptions
from scheduler.request import Status

MODELS = {"object": "list", "data": [{"id": "llama", "max_model_len": 4096}, {"id": "adapter"}]}
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"


def body_of(call):
    return json.loads(call.body)


def built(prompt="hello", **fields):
    return build_call(7, prompt, **{"endpoint": "chat", "model": "m", "max_tokens": 5, **fields})


def test_a_call_asks_for_a_stream_with_usage():
    """Chat: messages; completions: text or token ids; a stream with usage at its end."""
    call = built(tenant="chat-team", api_key="k")
    common = {"model": "m", "stream": True, "stream_options": {"include_usage": True}, "max_tokens": 5}
    assert (call.request_id, call.path) == (7, CHAT)
    assert body_of(call) == {**common, "messages": [{"role": "user", "content": "hello"}]}
    assert call.headers["authorization"] == "Bearer k"
    assert call.headers["x-lmperf-tenant"] == "chat-team"
    assert body_of(built(endpoint="completions")) == {**common, "prompt": "hello"}
    assert body_of(built([1, 2], endpoint="completions")) == {**common, "prompt": [1, 2]}
    turns = [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]
    assert body_of(built(turns))["messages"] == turns


def test_what_is_asked_for_beyond_that():
    """Exact lengths, priority, per-chunk usage, token ids: each only when asked."""
    body = body_of(built(ignore_eos=True, priority=3, continuous_usage=True, return_token_ids=True))
    assert (body["ignore_eos"], body["min_tokens"], body["priority"], body["return_token_ids"]) == (True, 5, 3, True)
    assert body["stream_options"] == {"include_usage": True, "continuous_usage_stats": True}
    assert "min_tokens" not in body_of(built(ignore_eos=True, min_tokens=False))


def test_extra_body_and_headers_have_the_last_word():
    """extra_body replaces and, with None, removes; a header replaces ours whatever its case."""
    body = body_of(built(extra_body={"max_tokens": None, "max_completion_tokens": 5, "model": "other"}))
    assert ("max_tokens" in body, body["max_completion_tokens"], body["model"]) == (False, 5, "other")
    headers = built(api_key="k", headers={"Authorization": "Token t"}).headers
    assert [value for name, value in headers.items() if name.lower() == "authorization"] == ["Token t"]


@pytest.mark.parametrize(("prompt", "endpoint"), [([1, 2], "chat"), ([{"role": "user"}], "completions")])
def test_a_prompt_that_an_endpoint_cannot_take(prompt, endpoint):
    """Token ids are for completions, messages for chat."""
    with pytest.raises(ValueError, match="endpoint"):
        built(prompt, endpoint=endpoint)


@pytest.mark.parametrize(
    ("text", "base"),
    [
        ("localhost:8000", "http://localhost:8000"),
        (" http://localhost:8000/v1/ ", "http://localhost:8000"),
        ("https://api.example.org/v1", "https://api.example.org"),
        ("https://host/team/v1", "https://host/team"),
        ("[::1]:8000", "http://[::1]:8000"),
        ("10.0.0.1", "http://10.0.0.1"),
        ("http://host:80", "http://host"),
    ],
)
async def test_base_urls_as_people_type_them(text, base):
    """With or without scheme, /v1, slashes and path."""
    assert OpenAIBackend(text).base_url == base


@pytest.mark.parametrize("text", ["", "ftp://host", "http://", "host:99999", "http://u:secret@host", "http://host?x=1"])
async def test_base_urls_that_cannot_be_used(text):
    """Refused with what would be right, and never with a password in the message."""
    with pytest.raises(BackendError) as caught:
        OpenAIBackend(text)
    assert caught.value.kind == "bad_url"
    assert "secret" not in str(caught.value)


@pytest.fixture
async def serve():
    """Serves {(method, path): json | status | handler} on a real socket; gives the base URL."""
    runners = []

    async def start(routes, port=0):
        async def handle(request):
            found = routes.get((request.method, request.path))
            if callable(found):
                return await found(request)
            if isinstance(found, int):
                return web.Response(status=found)
            if found is None:
                paths = {path for _, path in routes}
                return web.Response(status=405 if request.path in paths else 404)
            return web.json_response(found)

        app = web.Application()
        app.router.add_route("*", "/{tail:.*}", handle)
        runner = web.AppRunner(app)
        await runner.setup()
        runners.append(runner)
        site = web.TCPSite(runner, "127.0.0.1", port)
        await site.start()
        return f"http://127.0.0.1:{runner.addresses[0][1]}"

    yield start
    for runner in runners:
        await runner.cleanup()


@pytest.fixture
async def backend():
    made = []

    def make(*args, **fields):
        made.append(OpenAIBackend(*args, **fields))
        return made[-1]

    yield make
    for one in made:
        await one.close()


async def test_metadata(serve, backend):
    """Models, length and version; a server without /version is fine."""
    url = await serve({("GET", "/v1/models"): MODELS, ("GET", "/version"): {"version": "0.11"}})
    assert await backend(f"{url}/v1").get_metadata() == BackendMetadata(
        kind="openai", base_url=url, models=("llama", "adapter"), version="0.11", max_model_len=4096
    )
    plain = await serve({("GET", "/v1/models"): {"data": [{"id": "a"}]}})
    metadata = await backend(plain).get_metadata()
    assert (metadata.models, metadata.version, metadata.max_model_len) == (("a",), None, None)


async def test_the_key_is_sent_with_every_question(serve, backend):
    """Authorization goes along; without it the error says so."""

    async def models(request):
        return (
            web.json_response(MODELS)
            if request.headers.get("Authorization") == "Bearer k"
            else web.Response(status=401)
        )

    url = await serve({("GET", "/v1/models"): models})
    assert (await backend(url, api_key="k").get_metadata()).models == ("llama", "adapter")
    with pytest.raises(BackendError, match="API key") as caught:
        await backend(url).get_metadata()
    assert caught.value.kind == "unauthorized"


@pytest.mark.parametrize("answer", [{"hello": 1}, [], 404, 302])
async def test_a_server_that_is_something_else(serve, backend, answer):
    """An answer without a list of models: not_openai."""
    url = await serve({("GET", "/v1/models"): answer})
    with pytest.raises(BackendError, match=url) as caught:
        await backend(url).get_metadata()
    assert caught.value.kind == "not_openai"


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


async def test_unusable_servers_by_kind(bench, backend):
    """Refused, unresolvable, TLS to a server without it, a server that hangs up: each by name, with what to do."""

    async def hangs_up(peer):
        await peer.reader.read(1)
        peer.close()

    async def plain(peer):
        await peer.reader.read(1)
        await peer.send(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    silent, not_tls = await bench.server(hangs_up), await bench.server(plain)
    cases = {
        f"127.0.0.1:{free_port()}": "refused",
        "no-such-host.invalid": "dns",
        not_tls.url.replace("http:", "https:"): "tls",
        silent.url: "unreachable",
    }
    for url, kind in cases.items():
        with pytest.raises(BackendError) as caught:
            await backend(url).get_metadata()
        assert caught.value.kind == kind, str(caught.value)
        if kind != "unreachable":
            with pytest.raises(BackendError) as caught:
                await backend(url).warm_up(2)
            assert caught.value.kind == kind


def fastapi_schema():
    """As vLLM publishes it: bodies by reference."""
    fields = ("stream_options", "ignore_eos", "priority", "return_token_ids")
    body = {"content": {"application/json": {"schema": {"$ref": "#/components/schemas/Chat"}}}}
    return {
        "paths": {CHAT: {"post": {"requestBody": body}}, "/tokenize": {"post": {}}},
        "components": {"schemas": {"Chat": {"properties": {name: {} for name in fields}}}},
    }


async def test_capabilities_from_the_schema(serve, backend):
    """Paths and body fields of /openapi.json; metrics by their text."""

    async def metrics(request):
        return web.Response(text="# TYPE vllm:num_requests_waiting gauge\n")

    url = await serve({("GET", "/openapi.json"): fastapi_schema(), ("GET", "/metrics"): metrics})
    found = await backend(url).capabilities()
    assert (found.chat, found.completions, found.tokenize, found.metrics) == (True, False, True, True)
    assert (found.stream_usage, found.ignore_eos, found.priority, found.return_token_ids) == (True, True, True, True)


async def test_capabilities_without_a_schema(serve, backend):
    """405 against 404 tells which paths exist; what nothing tells is None, not False."""
    url = await serve({("POST", CHAT): {}, ("GET", "/v1/models"): MODELS})
    found = await backend(url).capabilities()
    assert (found.chat, found.completions, found.tokenize) == (True, False, False)
    assert (found.stream_usage, found.ignore_eos, found.metrics) == (None, None, False)


async def test_a_server_that_answers_every_path_alike_tells_nothing(serve, backend):
    """OPTIONS is 200 everywhere (CORS): unknown; with permission, one token is generated to find out."""
    asked = []

    async def chat(request):
        asked.append(await request.json())
        return web.json_response({})

    alike = {("OPTIONS", path): 200 for path in (CHAT, COMPLETIONS, "/tokenize", "/v1/lmperf-no-such-path")}
    url = await serve({**alike, ("POST", CHAT): chat, ("GET", "/v1/models"): MODELS})
    found = await backend(url).capabilities()
    assert (found.chat, found.completions, asked) == (None, None, [])
    found = await backend(url, probe_generation=True).capabilities()
    assert (found.chat, found.completions) == (True, False)
    assert [(body["model"], body["max_tokens"]) for body in asked] == [("llama", 1)]


async def test_encode(serve, backend):
    """The server's own tokenizer, without special tokens; where there is none, a clear error."""

    async def tokenize(request):
        body = await request.json()
        return web.json_response({"tokens": [len(body["prompt"]), int(body["add_special_tokens"])]})

    url = await serve({("POST", "/tokenize"): tokenize, ("GET", "/v1/models"): MODELS})
    assert await backend(url).encode("four") == [4, 0]
    without = await serve({("GET", "/v1/models"): MODELS})
    with pytest.raises(BackendError, match="tokenizer") as caught:
        await backend(without).encode("x")
    assert caught.value.kind == "no_tokenizer"


@pytest.mark.parametrize(
    ("around", "front", "behind"),
    [
        ([1, 2, 70, 71, 3], 2, 1),
        ([70, 71, 5, 70, 71, 6, 7], 3, 2),
        ([1, 2, 99, 98, 3], 3, 0),
        ([70, 71], 0, 0),
        ([70], 0, 0),
    ],
    ids=["both sides", "the word in the template", "merged with it", "nothing", "fewer"],
)
async def test_what_a_server_adds_is_told_by_side(serve, backend, around, front, behind):
    """Where the text's own tokens stand, the last time; all in front where they cannot be found."""

    async def tokenize(request):
        return web.json_response({"tokens": around if "messages" in await request.json() else [70, 71]})

    url = await serve({("POST", "/tokenize"): tokenize, ("GET", "/v1/models"): MODELS})
    assert await backend(url).added_tokens("m", "chat") == (front, behind)


async def test_a_backend_generates(bench, backend):
    """Its own key and headers go into its calls; sockets are warm before."""
    server = await bench.server(answering(text("a"), text("b", "stop"), DONE))
    openai = backend(server.url, api_key="k", headers={"x-team": "t"}, options=WireOptions(token_timeout_s=10))
    await openai.warm_up(2)
    call = openai.build_call(1, "hi", endpoint="chat", model="m", max_tokens=2)
    assert (call.headers["authorization"], call.headers["x-team"]) == ("Bearer k", "t")
    result = await openai.generate(call, lambda now_ns, k: None)
    assert (result.status, len(result.chunk_ns), openai.stats.opened) == (Status.OK, 2, 2)


async def test_wait_ready_waits_for_a_server_that_comes_up(serve):
    """Refused, then 503, then ready; every attempt is reported with its reason."""
    port, reasons, health, started = free_port(), [], [503, 200], []

    async def healthy(request):
        return web.Response(status=health.pop(0) if len(health) > 1 else health[0])

    def progress(elapsed_s, reason):
        reasons.append(reason)
        if not started:
            started.append(
                asyncio.create_task(serve({("GET", "/health"): healthy, ("GET", "/v1/models"): MODELS}, port))
            )

    metadata = await wait_ready(f"127.0.0.1:{port}", timeout_s=30, on_progress=progress)
    assert metadata.models == ("llama", "adapter")
    assert "refused" in reasons[0]
    assert any("503" in reason for reason in reasons)


@pytest.mark.parametrize(("answer", "kind"), [(401, "unauthorized"), (403, "unauthorized"), (404, "not_openai")])
async def test_wait_ready_gives_up_at_once_on_what_waiting_cannot_mend(serve, answer, kind):
    """A rejected key or another kind of server: one attempt, no waiting."""
    url = await serve({("GET", "/v1/models"): answer})
    attempts = []
    with pytest.raises(BackendError) as caught:
        await wait_ready(url, timeout_s=60, on_progress=lambda *seen: attempts.append(seen))
    assert (caught.value.kind, attempts) == (kind, [])


async def test_wait_ready_says_what_it_last_saw():
    """At the end of its time: the last reason, and its kind."""
    with pytest.raises(BackendError, match=r"not ready within 0\.3 s; last: .*refused") as caught:
        await wait_ready(f"127.0.0.1:{free_port()}", timeout_s=0.3)
    assert caught.value.kind == "refused"


def test_resolve_model():
    """The wanted one if served, else the first; an unknown one lists those that are."""
    metadata = BackendMetadata(kind="openai", base_url="http://h", models=("a", "b"))
    assert (resolve_model(metadata, None), resolve_model(metadata, "b")) == ("a", "b")
    with pytest.raises(BackendError, match="serves: a, b") as caught:
        resolve_model(metadata, "c")
    assert caught.value.kind == "unknown_model"
    empty = BackendMetadata(kind="openai", base_url="http://h")
    with pytest.raises(BackendError, match="no model"):
        resolve_model(empty, None)
    assert resolve_model(empty, "x") == "x"
