"""OpenAI Responses: typed events; the last one, ``response.completed`` or ``response.incomplete``, holds the answer and its
``usage``. Every ``*.delta`` (text, reasoning, a refusal, a tool call's arguments) is output.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from backends.gateway.dialects.dialect import Dialect, Folding, TypedAnswer, Whole, decoded
from backends.gateway.fold import FoldError, event_object
from backends.wire.count import NOT_TOLD, ToldCount, count_of


class _Details(msgspec.Struct):
    cached_tokens: ToldCount = NOT_TOLD


class _Usage(msgspec.Struct):
    input_tokens: ToldCount = NOT_TOLD
    output_tokens: ToldCount = NOT_TOLD
    input_tokens_details: _Details | None = None


class _Incomplete(msgspec.Struct):
    reason: str | None = None


class _Response(msgspec.Struct):
    status: str | None = None
    usage: _Usage | None = None
    incomplete_details: _Incomplete | None = None


class _Event(msgspec.Struct):
    type: str = ""
    delta: Any = None
    response: _Response | None = None
    error: Any = None


_LAST = frozenset({"response.completed", "response.incomplete"})
_FAILED = frozenset({"response.failed", "response.cancelled", "error"})
_REASONS = {"max_output_tokens": "length"}
_decode_response = msgspec.json.Decoder(_Response).decode


def _told(response: _Response) -> Whole:
    usage = response.usage or _Usage()
    details = usage.input_tokens_details
    incomplete = response.incomplete_details
    reason = None if incomplete is None else incomplete.reason
    return Whole(
        prompt_tokens=count_of(usage.input_tokens),
        cached_prompt_tokens=None if details is None else count_of(details.cached_tokens),
        output_tokens=count_of(usage.output_tokens),
        finish_reason="stop" if reason is None else _REASONS.get(reason, reason),
    )


class ResponsesAnswer(TypedAnswer[_Event]):
    """A stream of Responses events."""

    __slots__ = ()
    _events = msgspec.json.Decoder(_Event)

    def _take(self, event: _Event, now_ns: int) -> bool:
        kind = event.type
        if kind.endswith(".delta"):
            if event.delta:
                self._output(now_ns)
            return False
        if kind in _LAST:
            self._told = _told(event.response or _Response())
            self._over(self._told.finish_reason)
            return True
        if kind in _FAILED or event.error:
            self._failed()
            return True
        return False


def _whole(body: bytes) -> Whole | None:
    response = decoded(_decode_response, body)
    return None if response is None else _told(response)


def _fold(events: Iterable[bytes]) -> bytes:
    """The last event holds the answer. A server that leaves the output out of it has sent it item by item."""
    items: list[object] = []
    for payload in events:
        event = event_object(payload) or {}
        kind, answer = event.get("type"), event.get("response")
        if kind == "response.output_item.done":
            items.append(event.get("item"))
        elif kind in _LAST and isinstance(answer, dict):
            return msgspec.json.encode(answer if answer.get("output") else answer | {"output": items})
    raise FoldError("the stream's last event holds no response")


_FIELDS = frozenset(
    {
        "model", "input", "instructions", "max_output_tokens", "stream", "temperature", "top_p", "top_k", "min_p", "seed",
        "stop", "repetition_penalty", "presence_penalty", "frequency_penalty", "ignore_eos", "skip_special_tokens",
        "chat_template_kwargs", "previous_response_id", "prompt", "prompt_cache_key", "prompt_cache_retention", "reasoning",
        "text", "truncation", "parallel_tool_calls", "max_tool_calls", "store", "user", "metadata", "safety_identifier",
        "service_tier", "background", "priority", "cache_salt", "vllm_xargs", "tools", "tool_choice", "include", "top_logprobs",
    }
)  # fmt: skip

RESPONSES = Dialect(
    name="responses",
    path="/v1/responses",
    prompt=("instructions", "input"),
    most=("max_output_tokens",),
    answer=ResponsesAnswer,
    whole=_whole,
    takes_priority=True,
    folding=Folding(fields=_FIELDS, absent=frozenset({"tools", "tool_choice", "include", "top_logprobs"}), fold=_fold),
)
