"""Whatever else makes a server work: embeddings, scores, speech, an engine's own way to generate, what nobody knows yet.

Read as far as servers agree: ``usage`` in OpenAI's or Anthropic's names, and the counts that engines write beside a native
answer (SGLang ``meta_info``; llama.cpp ``tokens_evaluated``, ``tokens_predicted``; Ollama ``prompt_eval_count``,
``eval_count``). A ``usage`` without a word of output (embeddings, scores) means that there is none; a word that cannot be
believed leaves it unknown.
"""

from __future__ import annotations

import msgspec

from backends.gateway.dialects.dialect import Dialect, EventAnswer, Whole, decoded
from backends.wire.count import NOT_TOLD, ToldCount, count_of, is_told


class _Usage(msgspec.Struct):
    prompt_tokens: ToldCount = NOT_TOLD
    input_tokens: ToldCount = NOT_TOLD
    total_tokens: ToldCount = NOT_TOLD
    completion_tokens: ToldCount = NOT_TOLD
    output_tokens: ToldCount = NOT_TOLD


class _Body(msgspec.Struct):
    usage: _Usage | None = None
    meta_info: _Usage | None = None
    tokens_evaluated: ToldCount = NOT_TOLD
    tokens_predicted: ToldCount = NOT_TOLD
    prompt_eval_count: ToldCount = NOT_TOLD
    eval_count: ToldCount = NOT_TOLD


_decode = msgspec.json.Decoder(_Body).decode


def _count(*fields: ToldCount) -> int | None:
    """The first that is a count."""
    return next((count for field in fields if (count := count_of(field)) is not None), None)


def _told(body: bytes) -> Whole | None:
    """None where nothing is told."""
    told = decoded(_decode, body)
    if told is None:
        return None
    usage = told.usage or told.meta_info or _Usage()
    prompt = _count(usage.prompt_tokens, usage.input_tokens, told.tokens_evaluated, told.prompt_eval_count)
    outputs = (usage.completion_tokens, usage.output_tokens, told.tokens_predicted, told.eval_count)
    output = _count(*outputs)
    total = _count(usage.total_tokens)
    if output is None and not any(map(is_told, outputs)) and (prompt is not None or total is not None):
        output = 0
    if prompt is None and total is not None and output is not None:
        prompt = max(0, total - output)
    return None if prompt is None and output is None else Whole(prompt_tokens=prompt, output_tokens=output)


class OtherAnswer(EventAnswer):
    """Every event is output, since it cannot be told what it holds; the message's end is the answer's."""

    __slots__ = ()

    def read(self, payload: bytes, now_ns: int) -> bool:
        if payload.strip() in {b"", b"[DONE]"}:
            return False
        told = _told(payload)
        if told is not None:
            self._told = told
        self._output(now_ns)
        return False

    @property
    def whole(self) -> bool:
        return True


OTHER = Dialect(
    name="other",
    path=None,
    prompt=(),
    most=("max_completion_tokens", "max_tokens", "max_output_tokens", "max_new_tokens", "n_predict"),
    answer=OtherAnswer,
    whole=_told,
    repeats=False,
)
