"""OpenAI-compatible servers: vLLM, SGLang, llama.cpp, gateways, and what imitates them.

Timed calls go through the wire client; everything else (which models, which abilities, tokenizing) is ordinary HTTP.
"""

from __future__ import annotations

import time
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any, Literal

import msgspec

from backends.engine_queue import METRICS_PATH, waiting_of
from backends.protocol import (
    AddedTokens,
    BackendError,
    BackendMetadata,
    Call,
    CallTimeouts,
    Capabilities,
    Clock,
    OnTokens,
    WireResult,
)
from backends.wire.client import WireClient
from backends.wire.faults import WireError
from backends.wire.options import WireOptions
from backends.wire.plain import PlainHttp, Reply
from backends.wire.pool import PoolStats
from backends.wire.url import parse_base_url
from scheduler.request import ErrorClass

Endpoint = Literal["chat", "completions"]
Prompt = str | Sequence[int] | Sequence[Mapping[str, object]]
"""Text, token ids (completions only), or the messages of a conversation (chat only)."""

PATHS: dict[Endpoint, str] = {"chat": "/v1/chat/completions", "completions": "/v1/completions"}
TENANT_HEADER = "x-lmperf-tenant"

_GLANCE_S = 2.0

_KINDS = {
    ErrorClass.DNS: "dns",
    ErrorClass.TLS: "tls",
    ErrorClass.REFUSED: "refused",
}


def build_call(
    request_id: int,
    prompt: Prompt,
    *,
    endpoint: Endpoint,
    model: str,
    max_tokens: int | None,
    ignore_eos: bool = False,
    min_tokens: bool = True,
    priority: int | None = None,
    tenant: str | None = None,
    api_key: str | None = None,
    headers: Mapping[str, str] | None = None,
    extra_body: Mapping[str, object] | None = None,
    continuous_usage: bool = False,
    return_token_ids: bool = False,
    base_url: str | None = None,
    timeouts: CallTimeouts | None = None,
) -> Call:
    """The call of one request, serialised once.

    ``ignore_eos`` asks for exactly ``max_tokens`` tokens (with ``min_tokens`` beside it unless that is False);
    ``continuous_usage`` and ``return_token_ids`` ask for what proves how many tokens a chunk held: set each only for a
    server that knows it. ``extra_body`` comes last: it replaces fields, and removes those that it sets to None.
    ``headers`` replace ours, whatever their case; ``api_key`` and header values are secrets, already resolved. Raises
    ValueError for a prompt that the endpoint cannot take.
    """
    body: dict[str, object] = {"model": model, **_prompt_fields(prompt, endpoint), "stream": True}
    options: dict[str, object] = {"include_usage": True}
    if continuous_usage:
        options["continuous_usage_stats"] = True
    body["stream_options"] = options
    if max_tokens is not None:
        body["max_tokens"] = max_tokens
    if ignore_eos:
        body["ignore_eos"] = True
        if min_tokens and max_tokens is not None:
            body["min_tokens"] = max_tokens
    if priority is not None:
        body["priority"] = priority
    if return_token_ids:
        body["return_token_ids"] = True
    for name, value in (extra_body or {}).items():
        if value is None:
            body.pop(name, None)
        else:
            body[name] = value
    return Call(
        request_id=request_id,
        path=PATHS[endpoint],
        body=msgspec.json.encode(body),
        headers=_headers(tenant=tenant, api_key=api_key, extra=headers),
        base_url=base_url,
        timeouts=timeouts,
    )


def _prompt_fields(prompt: Prompt, endpoint: Endpoint) -> dict[str, object]:
    if isinstance(prompt, str):
        return {"prompt": prompt} if endpoint == "completions" else {"messages": [{"role": "user", "content": prompt}]}
    of_ids = len(prompt) == 0 or isinstance(prompt[0], int)
    if of_ids and endpoint == "chat":
        raise ValueError("the chat endpoint takes no prompt of token ids; use endpoint 'completions' or text")
    if not of_ids and endpoint == "completions":
        raise ValueError("the completions endpoint takes no prompt of messages; use endpoint 'chat' or text")
    return {"prompt": list(prompt)} if of_ids else {"messages": list(prompt)}


def _headers(*, tenant: str | None, api_key: str | None, extra: Mapping[str, str] | None) -> dict[str, str]:
    headers = {"content-type": "application/json", "accept": "text/event-stream"}
    if tenant is not None:
        headers[TENANT_HEADER] = tenant
    if api_key is not None:
        headers["authorization"] = f"Bearer {api_key}"
    headers.update({name.lower(): value for name, value in (extra or {}).items()})
    return headers


class OpenAIBackend:
    """A :class:`backends.protocol.ModelBackend` over HTTP.

    ``base_url``: ``localhost:8000``, with or without ``http://`` and ``/v1``. ``clock``: ns since the run's start;
    the monotonic clock if none is given. ``probe_generation``: allow :meth:`capabilities` to generate one token to
    find out what nothing else tells. BackendError (kind ``bad_url``) for a URL or proxy that cannot be used.
    """

    def __init__(
        self,
        base_url: str,
        *,
        api_key: str | None = None,
        headers: Mapping[str, str] | None = None,
        options: WireOptions | None = None,
        clock: Clock = time.monotonic_ns,
        probe_generation: bool = False,
    ) -> None:
        self._options = options or WireOptions()
        self._api_key = api_key
        self._extra_headers = dict(headers or {})
        try:
            self._base = parse_base_url(base_url)
            self._wire = WireClient(base_url, clock=clock, options=self._options)
        except ValueError as exc:
            raise BackendError(f"{exc}", kind="bad_url") from exc
        plain_headers = _headers(tenant=None, api_key=api_key, extra=headers)
        plain_headers["accept"] = "application/json"
        plain_headers.pop("content-type")
        self._http = PlainHttp(self._base, plain_headers, self._options)
        self._probe_generation = probe_generation
        self._metadata: BackendMetadata | None = None

    @property
    def base_url(self) -> str:
        """The normalised base URL, without ``/v1``."""
        return str(self._base)

    @property
    def stats(self) -> PoolStats:
        return self._wire.stats

    async def get_metadata(self) -> BackendMetadata:
        """Ask ``/v1/models`` and ``/version``. BackendError of kind dns, tls, refused, unreachable, unauthorized or
        not_openai.
        """
        models, max_model_len = served_models(await self._http.request("GET", "/v1/models"), self.base_url)
        version = (await self._http.request("GET", "/version")).json
        told = version.get("version") if isinstance(version, dict) else None
        self._metadata = BackendMetadata(
            kind="openai",
            base_url=self.base_url,
            models=models,
            version=told if isinstance(told, str) else None,
            max_model_len=max_model_len,
        )
        return self._metadata

    async def capabilities(self) -> Capabilities:
        """What the server offers; see :mod:`backends.probe` for how it is found out."""
        # Imported here because the probe uses this module's metadata reader.
        from backends.probe import find_capabilities  # noqa: PLC0415 (see above)

        model = None
        if self._probe_generation:
            metadata = self._metadata or await self.get_metadata()
            model = metadata.models[0] if metadata.models else None
        return await find_capabilities(self._http, generate_with=model)

    async def waiting(self) -> int:
        """Requests in the engine's own queue. BackendError (``no_waiting_count`` when its metrics do not tell)."""
        reply = await self._http.request("GET", METRICS_PATH, timeout_s=_GLANCE_S)
        return waiting_of(reply.status, reply.body, self.base_url)

    async def answers(self) -> bool:
        """Whether the server says that it is well, or says anything but that it is not. Never raises."""
        try:
            return (await self._http.request("GET", "/health", timeout_s=_GLANCE_S)).status < 500
        except BackendError:
            return False

    async def encode(self, text: str) -> list[int]:
        """Token ids of ``text`` alone, without the special tokens that a server puts before a prompt. BackendError of
        kind
        ``no_tokenizer`` when the server has no ``/tokenize``.
        """
        metadata = self._metadata or await self.get_metadata()
        body = {"prompt": text, "content": text, "add_special_tokens": False, "add_special": False}
        if metadata.models:
            body["model"] = metadata.models[0]
        reply = await self._http.request("POST", "/tokenize", body=body)
        value = reply.json
        tokens = value.get("tokens") if isinstance(value, dict) else None
        if reply.status != 200 or not isinstance(tokens, list) or not all(isinstance(t, int) for t in tokens):
            raise BackendError(
                f"{self.base_url}/tokenize answered HTTP {reply.status} without tokens; name a local tokenizer instead",
                kind="no_tokenizer",
            )
        return tokens

    async def added_tokens(self, model: str, endpoint: Endpoint) -> AddedTokens:
        """Prompt tokens that the server adds around a one-word text: its chat template, or what it puts before a prompt.
        All of them count as in front where the word's own tokens cannot be found between them. BackendError of kind
        ``no_tokenizer`` when ``/tokenize`` does not tell.
        """
        own = await self.encode("word")
        text: dict[str, object] = {"prompt": "word", "content": "word", "add_special_tokens": True}
        chat: dict[str, object] = {"messages": [{"role": "user", "content": "word"}], "add_generation_prompt": True}
        body = {"model": model, **(chat if endpoint == "chat" else text)}
        reply = await self._http.request("POST", "/tokenize", body=body)
        tokens = reply.json.get("tokens") if isinstance(reply.json, dict) else None
        if reply.status != 200 or not isinstance(tokens, list):
            raise BackendError(
                f"{self.base_url}/tokenize answered HTTP {reply.status} for a {endpoint} prompt", kind="no_tokenizer"
            )
        added = max(0, len(tokens) - len(own))
        # From the end, since a template's own text may hold the word before it.
        starts = (start for start in range(added, -1, -1) if tokens[start : start + len(own)] == own)
        front = next(starts, added)
        return AddedTokens(front, added - front)

    def build_call(
        self,
        request_id: int,
        prompt: Prompt,
        *,
        headers: Mapping[str, str] | None = None,
        api_key: str | None = None,
        **fields: Any,  # noqa: ANN401 (the keyword arguments of the function of the same name, typed there)
    ) -> Call:
        """:func:`build_call` with this backend's own key and headers where the caller gives none."""
        return build_call(
            request_id,
            prompt,
            api_key=self._api_key if api_key is None else api_key,
            headers={**self._extra_headers, **(headers or {})},
            **fields,
        )

    def generate(self, call: Call, on_tokens: OnTokens, *, each: bool = True) -> Coroutine[Any, Any, WireResult]:
        return self._wire.generate(call, on_tokens, each=each)

    async def warm_up(self, connections: int) -> None:
        try:
            await self._wire.warm_up(connections)
        except WireError as exc:
            kind = _KINDS.get(exc.error_class, "unreachable")
            raise BackendError(f"cannot open {connections} connections to {self.base_url}: {exc}", kind=kind) from exc

    async def close(self) -> None:
        await self._wire.close()
        await self._http.close()


def served_models(reply: Reply, base_url: str) -> tuple[tuple[str, ...], int | None]:
    """Ids and the first ``max_model_len`` of a reply to ``/v1/models``. BackendError: unauthorized, unreachable (5xx),
    not_openai.
    """
    where = f"{base_url}/v1/models"
    if reply.status in {401, 403}:
        message = f"{where} answered HTTP {reply.status}: give a valid API key (--api-key)"
        raise BackendError(message, kind="unauthorized")
    if reply.status >= 500:
        raise BackendError(f"{where} answered HTTP {reply.status}: the server is up but not ready, or failing")
    if 300 <= reply.status < 400:
        message = f"{where} answered HTTP {reply.status}, a redirect; give the base URL that it leads to"
        raise BackendError(message, kind="not_openai")
    value = reply.json
    data = value.get("data") if isinstance(value, dict) else None
    if reply.status != 200 or not isinstance(data, list):
        raise BackendError(
            f"{where} answered HTTP {reply.status}, {reply.content_type or 'no content type'}, and no list of models: "
            "not an OpenAI-compatible server, or the wrong path in the base URL",
            kind="not_openai",
        )
    rows = [row for row in data if isinstance(row, dict) and isinstance(row.get("id"), str)]
    lengths = [row["max_model_len"] for row in rows if isinstance(row.get("max_model_len"), int)]
    return tuple(row["id"] for row in rows), lengths[0] if lengths else None
