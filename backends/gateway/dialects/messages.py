"""Anthropic Messages: typed events; ``message_start`` counts the prompt, the last ``message_delta`` the output.

The prompt is ``input_tokens`` and what was read from or written to the cache, which that count leaves out. A block's signature
and citations are no generated tokens.
"""

from __future__ import annotations

import msgspec

from backends.gateway.dialects.dialect import Dialect, Folding, TypedAnswer, Whole, decoded
from backends.gateway.dialects.messages_fold import fold
from backends.wire.count import NOT_TOLD, ToldCount, count_of, is_told
from tenants.measures.counts import believed


class _Usage(msgspec.Struct):
    input_tokens: ToldCount = NOT_TOLD
    output_tokens: ToldCount = NOT_TOLD
    cache_read_input_tokens: ToldCount = NOT_TOLD
    cache_creation_input_tokens: ToldCount = NOT_TOLD


class _Message(msgspec.Struct):
    usage: _Usage | None = None
    stop_reason: str | None = None


class _Delta(msgspec.Struct):
    text: str | None = None
    thinking: str | None = None
    partial_json: str | None = None
    stop_reason: str | None = None


class _Event(msgspec.Struct):
    type: str = ""
    delta: _Delta | None = None
    message: _Message | None = None
    usage: _Usage | None = None


_REASONS = {"end_turn": "stop", "stop_sequence": "stop", "max_tokens": "length", "tool_use": "tool_calls"}
_decode_message = msgspec.json.Decoder(_Message).decode


def _reason(told: str | None) -> str | None:
    return None if told is None else _REASONS.get(told, told)


def _with(before: Whole, usage: _Usage) -> Whole:
    """``before`` with what ``usage`` tells: a later count of the prompt replaces an earlier one unless it is 0."""
    read, output = count_of(usage.cache_read_input_tokens), count_of(usage.output_tokens)
    return Whole(
        prompt_tokens=_prompt(usage) or before.prompt_tokens,
        cached_prompt_tokens=before.cached_prompt_tokens if read is None else read,
        output_tokens=before.output_tokens if output is None else output,
    )


def _prompt(usage: _Usage) -> int | None:
    """The sum of the parts that are told; None when one of those cannot be believed."""
    total = 0
    for field in (usage.input_tokens, usage.cache_read_input_tokens, usage.cache_creation_input_tokens):
        count = count_of(field)
        if count is not None:
            total += count
        elif is_told(field):
            return None
    return believed(total)


class MessagesAnswer(TypedAnswer[_Event]):
    """A stream of Messages events."""

    __slots__ = ()
    _events = msgspec.json.Decoder(_Event)

    def _take(self, event: _Event, now_ns: int) -> bool:
        kind, delta = event.type, event.delta
        if kind == "content_block_delta":
            if delta is not None and (delta.text or delta.thinking or delta.partial_json):
                self._output(now_ns)
        elif kind == "message_start":
            if event.message is not None and event.message.usage is not None:
                started = _with(self._told, event.message.usage)
                # Servers write 0, or 1, here: the output is counted by message_delta.
                self._told = msgspec.structs.replace(started, output_tokens=None)
        elif kind == "message_delta":
            if event.usage is not None:
                self._told = _with(self._told, event.usage)
            if delta is not None and delta.stop_reason is not None:
                self._over(_reason(delta.stop_reason))
        elif kind == "message_stop":
            self._over(self.finish_reason)
            return True
        elif kind == "error":
            self._failed()
            return True
        return False


def _whole(body: bytes) -> Whole | None:
    message = decoded(_decode_message, body)
    if message is None:
        return None
    told = _with(Whole(), message.usage or _Usage())
    return msgspec.structs.replace(told, finish_reason=_reason(message.stop_reason))


_FIELDS = frozenset(
    {
        "model", "system", "messages", "max_tokens", "stream", "temperature", "top_p", "top_k", "min_p", "seed",
        "stop_sequences", "thinking", "metadata", "service_tier", "output_config", "output_format", "cache_control",
        "inference_geo", "chat_template_kwargs", "ignore_eos", "tools", "tool_choice",
    }
)  # fmt: skip

MESSAGES = Dialect(
    name="messages",
    path="/v1/messages",
    prompt=("system", "messages"),
    most=("max_tokens",),
    answer=MessagesAnswer,
    whole=_whole,
    folding=Folding(fields=_FIELDS, absent=frozenset({"tools", "tool_choice"}), fold=fold),
    typed_errors=True,
)
