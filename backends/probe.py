"""Looking at a server before a run: is it ready, which model, what can it do. Cheap questions only.

Abilities are read from ``/openapi.json`` where there is one (vLLM, SGLang and other Python servers): which paths
exist and which fields their request bodies know. Elsewhere OPTIONS is asked on each path *and on one that surely does
not exist*: only an answer that differs from that control tells anything. One token is generated only if the caller
allows it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping

from backends.openai import PATHS, Endpoint, served_models
from backends.protocol import BackendError, BackendMetadata, Capabilities
from backends.wire.options import WireOptions
from backends.wire.plain import PlainHttp
from backends.wire.url import parse_base_url

OnProgress = Callable[[float, str], None]
"""``on_progress(elapsed_s, reason)``: called after each attempt that found the server not ready."""

_CONTROL = "/v1/lmperf-no-such-path"
_NOT_READY = frozenset({404, 405})
_FIRST_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 2.0


async def wait_ready(
    base_url: str,
    *,
    api_key: str | None = None,
    headers: Mapping[str, str] | None = None,
    options: WireOptions | None = None,
    timeout_s: float = 600.0,
    on_progress: OnProgress | None = None,
) -> BackendMetadata:
    """Poll ``/health`` and ``/v1/models`` until the server is ready; what it serves.

    A refused connection, a time-out, a 429 or a 5xx may pass and is waited for. A rejected key (unauthorized), an
    answer that is not OpenAI's (not_openai), TLS and names that do not resolve will not, and raise BackendError at
    once; so does the end of ``timeout_s``, with the last reason.
    """
    try:
        base = parse_base_url(base_url)
    except ValueError as exc:
        raise BackendError(f"{exc}", kind="bad_url") from exc
    sent = {name.lower(): value for name, value in (headers or {}).items()}
    if api_key is not None:
        sent.setdefault("authorization", f"Bearer {api_key}")
    http = PlainHttp(base, sent, options or WireOptions())
    start_s = time.monotonic()
    pause_s = _FIRST_PAUSE_S
    try:
        while True:
            left_s = timeout_s - (time.monotonic() - start_s)
            try:
                return await _look(http, max(0.05, min(5.0, left_s)))
            except BackendError as exc:
                if exc.kind not in {"refused", "unreachable"}:
                    raise
                elapsed_s = time.monotonic() - start_s
                if elapsed_s + pause_s > timeout_s:
                    message = f"{base} was not ready within {timeout_s:g} s; last: {exc}"
                    raise BackendError(message, kind=exc.kind) from exc
                if on_progress is not None:
                    on_progress(elapsed_s, str(exc))
            await asyncio.sleep(pause_s)
            pause_s = min(_LONGEST_PAUSE_S, 1.5 * pause_s)
    finally:
        await http.close()


async def _look(http: PlainHttp, timeout_s: float) -> BackendMetadata:
    """The metadata of a ready server; a server without ``/health`` is judged by its models alone."""
    health = await http.request("GET", "/health", timeout_s=timeout_s)
    if health.status == 429 or health.status >= 500:
        raise BackendError(f"{http.base}/health answered HTTP {health.status}: up, not ready yet")
    models = await http.request("GET", "/v1/models", timeout_s=timeout_s)
    if models.status == 429:
        raise BackendError(f"{http.base}/v1/models answered HTTP 429: too many requests at the moment")
    ids, max_model_len = served_models(models, str(http.base))
    return BackendMetadata(kind="openai", base_url=str(http.base), models=ids, max_model_len=max_model_len)


def resolve_model(metadata: BackendMetadata, wanted: str | None) -> str:
    """The id to send: ``wanted`` if it is served, else, with none wanted, the first that is (servers list the base
    model
    before its adapters). BackendError (unknown_model) lists the served ones.
    """
    served = ", ".join(metadata.models)
    if wanted is None:
        if not metadata.models:
            raise BackendError(f"{metadata.base_url} serves no model; load one, or name it", kind="unknown_model")
        return metadata.models[0]
    if metadata.models and wanted not in metadata.models:
        raise BackendError(
            f"{metadata.base_url} does not serve {wanted!r}; it serves: {served}; name one of them",
            kind="unknown_model",
        )
    return wanted


async def find_capabilities(http: PlainHttp, *, generate_with: str | None = None) -> Capabilities:
    """What the server offers, None where nothing told. ``generate_with``: a model of which one token may be generated
    to
    find out. Raises BackendError when there is no server.
    """
    schema = (await http.request("GET", "/openapi.json")).json
    if isinstance(schema, dict) and isinstance(schema.get("paths"), dict) and schema["paths"]:
        found = _from_schema(schema)
    else:
        chat, completions, tokenize = await _by_options(http, [PATHS["chat"], PATHS["completions"], "/tokenize"])
        found = Capabilities(chat=chat, completions=completions, tokenize=tokenize)
    if generate_with is not None:
        changes = {
            name: await _generates(http, name, generate_with)
            for name in PATHS
            if (found.chat if name == "chat" else found.completions) is None
        }
        found = Capabilities(**{name: getattr(found, name) for name in Capabilities.__struct_fields__} | changes)
    metrics = await http.request("GET", "/metrics")
    has_metrics = metrics.status == 200 and b"# TYPE" in metrics.body
    return Capabilities(
        **{name: getattr(found, name) for name in Capabilities.__struct_fields__ if name != "metrics"},
        metrics=has_metrics,
    )


def _from_schema(schema: Mapping[str, object]) -> Capabilities:
    paths = schema["paths"]
    fields: set[str] = set()
    for path in PATHS.values():
        fields |= _body_fields(schema, path)
    known = bool(fields)

    def has(name: str) -> bool | None:
        return name in fields if known else None

    there = paths if isinstance(paths, dict) else {}
    return Capabilities(
        chat=PATHS["chat"] in there,
        completions=PATHS["completions"] in there,
        tokenize="/tokenize" in there,
        stream_usage=has("stream_options"),
        ignore_eos=has("ignore_eos"),
        return_token_ids=has("return_token_ids"),
        priority=has("priority"),
    )


def _body_fields(schema: Mapping[str, object], path: str) -> set[str]:
    """Names of the properties of the POST body of ``path``; empty when the schema does not say."""
    node = _at(schema, "paths", path, "post", "requestBody", "content", "application/json", "schema")
    reference = _at(node, "$ref")
    if isinstance(reference, str):
        node = _at(schema, *reference.removeprefix("#/").split("/"))
    properties = _at(node, "properties")
    return set(properties) if isinstance(properties, dict) else set()


def _at(node: object, *keys: str) -> object:
    for key in keys:
        if not isinstance(node, Mapping):
            return None
        node = node.get(key)
    return node


async def _by_options(http: PlainHttp, paths: list[str]) -> list[bool | None]:
    control = (await http.request("OPTIONS", _CONTROL)).status
    statuses = [(await http.request("OPTIONS", path)).status for path in paths]
    if control != 404:
        return [None] * len(paths)  # every path is answered alike: nothing can be learnt
    told: list[bool | None] = [status != 404 for status in statuses]
    return told if any(told) else [None] * len(paths)


async def _generates(http: PlainHttp, endpoint: Endpoint, model: str) -> bool | None:
    prompt = {"prompt": "a"} if endpoint == "completions" else {"messages": [{"role": "user", "content": "a"}]}
    body = {"model": model, "max_tokens": 1, **prompt}
    status = (await http.request("POST", PATHS[endpoint], body=body)).status
    if status == 200:
        return True
    return False if status in _NOT_READY else None
