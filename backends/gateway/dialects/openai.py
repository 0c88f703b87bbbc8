"""OpenAI chat and completions."""

from __future__ import annotations

from functools import partial

import msgspec

from backends.gateway.dialects.dialect import Dialect, Folding, Whole, decoded
from backends.gateway.fold import fold
from backends.wire.answer import OpenAiAnswer
from backends.wire.chunk import Usage

_FIELDS = frozenset(
    {
        "model", "messages", "prompt", "max_tokens", "max_completion_tokens", "min_tokens", "stream", "temperature",
        "top_p", "top_k", "min_p", "typical_p", "frequency_penalty", "presence_penalty", "repetition_penalty",
        "length_penalty", "seed", "stop", "stop_token_ids", "ignore_eos", "logit_bias", "bad_words",
        "allowed_token_ids", "skip_special_tokens", "spaces_between_special_tokens", "include_stop_str_in_output",
        "truncate_prompt_tokens", "add_generation_prompt", "continue_final_message", "add_special_tokens",
        "chat_template", "chat_template_kwargs", "include_reasoning", "reasoning_effort", "response_format",
        "structured_outputs", "guided_json", "guided_regex", "guided_choice", "guided_grammar", "user", "priority",
        "cache_salt", "vllm_xargs", "metadata", "store", "safety_identifier", "prompt_cache_key", "service_tier",
        "verbosity", "n", "best_of", "logprobs", "echo", "tools", "tool_choice", "functions", "suffix",
    }
)  # fmt: skip
_ONE = frozenset({"n", "best_of"})
_ABSENT = frozenset({"logprobs", "echo", "tools", "tool_choice", "functions", "suffix"})


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
    return Whole(
        prompt_tokens=usage.prompt(),
        cached_prompt_tokens=usage.cached(),
        output_tokens=usage.output(),
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
    folding=Folding(fields=_FIELDS, one=_ONE, absent=_ABSENT, fold=partial(fold, chat=True)),
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
    folding=Folding(fields=_FIELDS, one=_ONE, absent=_ABSENT, fold=partial(fold, chat=False)),
)
