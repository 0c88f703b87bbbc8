"""The embedded server's HTTP side: the OpenAI endpoints, what vLLM serves beside them, and ``/lmperf/stats``.

A handler reads a request, hands it to the engine with a sink, and waits for the last token; tokens reach the socket
from the engine's step, not from here. A client that disconnects cancels its handler (the server runs with
``handler_cancellation``), which takes the sequence out of the engine.
"""

from __future__ import annotations

import asyncio
import hmac
import re
import time
import uuid
from collections.abc import Awaitable, Callable
from importlib import metadata

import msgspec
from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST

from backends.emulator.answers import Words, prepare_answer
from backends.emulator.chunks import DONE, StreamChunks, whole_answer
from backends.emulator.config import EmulatorConfig
from backends.emulator.core import Core
from backends.emulator.engine import EngineFailedError, Generation, TokenSink
from backends.emulator.errors import ApiError, error_body
from backends.emulator.metrics import render
from backends.emulator.requests import Ask, DetokenizeBody, Reader, TokenizeBody, decode_body
from backends.emulator.sinks import StreamSink, WholeSink
from backends.emulator.tokenizer import Tokenizer
from scheduler.request import Request

TENANT_HEADER = "x-lmperf-tenant"
DEFAULT_TENANT = "default"
_MAX_BODY_BYTES = 64 << 20
_MAX_NAME_CHARS = 128
_CLIENT_ID = re.compile(r"[\w.:/+=@-]{1,128}", re.ASCII)
_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def version() -> str:
    """The version that ``/version`` tells, with the project's name so that nobody takes it for an engine's."""
    try:
        return f"lmperf-emulator {metadata.version('lmperf')}"
    except metadata.PackageNotFoundError:
        return "lmperf-emulator (source checkout)"


class Api:
    """The handlers; one a server."""

    def __init__(self, config: EmulatorConfig, core: Core) -> None:
        self._config = config
        self._core = core
        self._tokenizer = Tokenizer()
        self._words = Words(config.seed)
        self._reader = Reader(
            model=config.served_name,
            max_model_len=config.context_tokens,
            tokenizer=self._tokenizer,
            names_blocks=config.server_model.limits.prefix_cache,
        )
        self._started_s = int(time.time())
        self._next_id = 0

    def application(self) -> web.Application:
        app = web.Application(client_max_size=_MAX_BODY_BYTES, middlewares=[self._guard])
        app.router.add_get("/v1/models", self.models)
        app.router.add_get("/v1/models/{model:.+}", self.model)
        app.router.add_post("/v1/chat/completions", self.chat)
        app.router.add_post("/v1/completions", self.completion)
        app.router.add_post("/tokenize", self.tokenize)
        app.router.add_post("/detokenize", self.detokenize)
        app.router.add_get("/health", self.health)
        app.router.add_get("/version", self.version)
        app.router.add_get("/metrics", self.metrics)
        app.router.add_get("/lmperf/stats", self.stats)
        return app

    @web.middleware
    async def _guard(self, request: web.Request, handler: _Handler) -> web.StreamResponse:
        """Checks the key where vLLM does (below ``/v1``) and gives every error the OpenAI shape."""
        try:
            if self._config.api_key is not None and request.path.startswith("/v1"):
                self._check_key(request)
            return await handler(request)
        except ApiError as error:
            return _error(error.status, str(error), param=error.param)
        except web.HTTPRequestEntityTooLarge:
            return _error(413, f"The request body is larger than {_MAX_BODY_BYTES >> 20} MiB")
        except web.HTTPException as error:
            if error.status < 400:
                raise
            return _error(error.status, f"{request.method} {request.path}: {error.reason}")
        except EngineFailedError as error:
            return _error(503, str(error))

    def _check_key(self, request: web.Request) -> None:
        scheme, _, given = request.headers.get("Authorization", "").partition(" ")
        expected = (self._config.api_key or "").encode()
        if scheme.lower() != "bearer" or not hmac.compare_digest(given.strip().encode("utf-8", "replace"), expected):
            raise ApiError(401, "Incorrect or missing API key: send it as 'Authorization: Bearer KEY'")

    async def models(self, request: web.Request) -> web.Response:  # noqa: ARG002 (the framework's signature)
        return _json({"object": "list", "data": [self._model_card()]})

    async def model(self, request: web.Request) -> web.Response:
        self._reader.check_model(request.match_info["model"])
        return _json(self._model_card())

    def _model_card(self) -> dict[str, object]:
        return {
            "id": self._config.served_name,
            "object": "model",
            "created": self._started_s,
            "owned_by": "lmperf",
            "root": self._config.served_name,
            "parent": None,
            "max_model_len": self._config.context_tokens,
        }

    async def chat(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        received_ns = time.monotonic_ns()
        return await self._generate(request, self._reader.chat(body), received_ns)

    async def completion(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        received_ns = time.monotonic_ns()
        return await self._generate(request, self._reader.completion(body), received_ns)

    async def _generate(self, request: web.Request, ask: Ask, received_ns: int) -> web.StreamResponse:
        if ask.stream and request.version < (1, 1):
            raise ApiError(400, "a stream needs HTTP/1.1 (chunked transfer); send stream=false", param="stream")
        if self._core.failure is not None:
            raise EngineFailedError(f"the engine failed: {self._core.failure}")
        answer = prepare_answer(self._words, self._config.output, ask.prompt_key, ask.rules)
        client_id = _client_id(request)
        response_id = ("chatcmpl-" if ask.chat else "cmpl-") + (client_id or uuid.uuid4().hex)
        created_s = int(time.time())
        if not ask.stream:
            generation = self._submit(ask, answer.tokens, received_ns, WholeSink(), tenant=_tenant(request))
            await self._finish(generation, response_id, client_id)
            return _raw_json(whole_answer(ask, answer, response_id, created_s, generation.cached_tokens))

        chunks = StreamChunks(ask, answer, response_id, created_s)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
        response.headers["Cache-Control"] = "no-cache"
        response.enable_chunked_encoding()
        # Before the engine knows the request: its tokens go straight to the socket and must not overtake the headers.
        await response.prepare(request)
        if ask.chat:
            await response.write(chunks.role())
        transport = request.transport
        if transport is None:
            raise ConnectionResetError("the client left before its stream began")
        sink = StreamSink(transport, chunks, answer)
        generation = self._submit(ask, answer.tokens, received_ns, sink, tenant=_tenant(request))
        try:
            await self._finish(generation, response_id, client_id)
        except EngineFailedError as error:
            await response.write(b"data: %b\n\n" % error_body(500, str(error)))
        else:
            if ask.include_usage:
                await response.write(chunks.usage_trailer(generation.cached_tokens))
        await response.write(DONE)
        await response.write_eof()
        return response

    def _submit(self, ask: Ask, output_tokens: int, received_ns: int, sink: TokenSink, *, tenant: str) -> Generation:
        self._next_id += 1
        request = Request(
            id=self._next_id,
            tenant=tenant,
            arrival_ns=self._core.model_time_ns(received_ns),
            prompt_tokens=ask.prompt_tokens,
            max_tokens=ask.rules.max_tokens,
            target_output_tokens=output_tokens,
            priority=ask.priority,
            prefix_blocks=ask.prefix_blocks,
        )
        return self._core.submit(request, output_tokens=output_tokens, received_ns=received_ns, sink=sink)

    async def _finish(self, generation: Generation, response_id: str, client_id: str | None) -> None:
        """Wait for the last token; a client that leaves first takes its sequence along."""
        try:
            await generation.done
        except asyncio.CancelledError:
            self._core.abandon(generation, response_id, client_id)
            raise
        self._core.finished(generation, response_id, client_id)

    async def tokenize(self, request: web.Request) -> web.Response:
        body = decode_body(await request.read(), TokenizeBody)
        self._reader.check_model(body.model)
        if (body.prompt is None) == (body.messages is None):
            raise ApiError(400, "send either prompt or messages", param="prompt")
        if body.messages is not None:
            pairs = [(message.role, message.text) for message in body.messages]
            ids = self._tokenizer.encode_chat(pairs, add_generation_prompt=body.add_generation_prompt)
        else:
            ids = self._tokenizer.encode(body.prompt or "")
        texts = [self._tokenizer.piece(token_id) for token_id in ids] if body.return_token_strs else None
        return _json(
            {"count": len(ids), "max_model_len": self._config.context_tokens, "tokens": ids, "token_strs": texts}
        )

    async def detokenize(self, request: web.Request) -> web.Response:
        body = decode_body(await request.read(), DetokenizeBody)
        self._reader.check_model(body.model)
        return _json({"prompt": self._tokenizer.decode(body.tokens)})

    async def health(self, request: web.Request) -> web.Response:  # noqa: ARG002 (the framework's signature)
        if self._core.failure is not None:
            return _error(503, f"the engine failed: {self._core.failure}")
        return web.Response()

    async def version(self, request: web.Request) -> web.Response:  # noqa: ARG002 (the framework's signature)
        return _json({"version": version()})

    async def metrics(self, request: web.Request) -> web.Response:  # noqa: ARG002 (the framework's signature)
        return web.Response(body=render(self._core.registry), headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def stats(self, request: web.Request) -> web.Response:  # noqa: ARG002 (the framework's signature)
        return _raw_json(msgspec.json.encode(self._core.stats()))


def _tenant(request: web.Request) -> str:
    return request.headers.get(TENANT_HEADER, "")[:_MAX_NAME_CHARS] or DEFAULT_TENANT


def _client_id(request: web.Request) -> str | None:
    """The client's own request id, kept only in a form that is safe to give back."""
    given = request.headers.get("X-Request-Id")
    return given if given is not None and _CLIENT_ID.fullmatch(given) else None


def _json(value: object) -> web.Response:
    return _raw_json(msgspec.json.encode(value))


def _raw_json(body: bytes) -> web.Response:
    return web.Response(body=body, content_type="application/json")


def _error(status: int, message: str, *, param: str | None = None) -> web.Response:
    headers = {"WWW-Authenticate": "Bearer"} if status == 401 else None
    return web.Response(
        status=status, body=error_body(status, message, param=param), content_type="application/json", headers=headers
    )
