"""OpenAI chat and completions."""

from __future__ import annotations

import msgspec

from backends.gateway.dialects.dialect import Dialect, Whole, decoded
from backends.wire.answer import OpenAiAnswer
from backends.wire.chunk import Usage


class _Choice(msgspec.Struct):
    finish_reason: str | None = None


class _Body(msgspec.Struct):
    usage: Usage | None = None
    choices: list[_Choice] | None = None


_decode = msgspec.json.Decoder(_Body).decode


def _whole(body: bytes) -> Whole | None:
    told = decoded(_decode, body)
    if told is None:
        return None
    usage = told.usage or Usage()
    details = usage.prompt_tokens_details
    return Whole(
        prompt_tokens=usage.prompt_tokens,
        cached_prompt_tokens=None if details is None else details.cached_tokens,
        output_tokens=usage.completion_tokens,
        finish_reason=next((c.finish_reason for c in told.choices or () if c.finish_reason), None),
    )


CHAT = Dialect(
    name="chat",
    path="/v1/chat/completions",
    prompt=("messages",),
    most=("max_completion_tokens", "max_tokens"),
    answer=OpenAiAnswer,
    whole=_whole,
    takes_priority=True,
    chunks=True,
)
COMPLETIONS = Dialect(
    name="completions",
    path="/v1/completions",
    prompt=("prompt",),
    most=("max_completion_tokens", "max_tokens"),
    answer=OpenAiAnswer,
    whole=_whole,
    takes_priority=True,
    chunks=True,
)
