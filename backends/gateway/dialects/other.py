"""Whatever else makes a server work: embeddings, scores, speech, an engine's own way to generate, what nobody knows yet.

Read as far as servers agree: ``usage`` in OpenAI's or Anthropic's names, and the counts that engines write beside a native
answer (SGLang ``meta_info``; llama.cpp ``tokens_evaluated``, ``tokens_predicted``; Ollama ``prompt_eval_count``,
``eval_count``). A ``usage`` without a word of output (embeddings, scores) means that there is none.
"""

from __future__ import annotations

from typing import Any

import msgspec

from backends.gateway.dialects.dialect import Dialect, EventAnswer, Whole, decoded


class _Usage(msgspec.Struct):
    prompt_tokens: Any = None
    input_tokens: Any = None
    total_tokens: Any = None
    completion_tokens: Any = None
    output_tokens: Any = None


class _Body(msgspec.Struct):
    usage: _Usage | None = None
    meta_info: _Usage | None = None
    tokens_evaluated: Any = None
    tokens_predicted: Any = None
    prompt_eval_count: Any = None
    eval_count: Any = None


_decode = msgspec.json.Decoder(_Body).decode


def _count(*values: object) -> int | None:
    """The first that is a count."""
    return next((v for v in values if isinstance(v, int) and not isinstance(v, bool) and v >= 0), None)


def _told(body: bytes) -> Whole | None:
    """None where nothing is told."""
    told = decoded(_decode, body)
    if told is None:
        return None
    usage = told.usage or told.meta_info or _Usage()
    prompt = _count(usage.prompt_tokens, usage.input_tokens, told.tokens_evaluated, told.prompt_eval_count)
    output = _count(usage.completion_tokens, usage.output_tokens, told.tokens_predicted, told.eval_count)
    total = _count(usage.total_tokens)
    if output is None and (prompt is not None or total is not None):
        output = 0
    if prompt is None and total is not None:
        prompt = max(0, total - (output or 0))
    return None if output is None else Whole(prompt_tokens=prompt, output_tokens=output)


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
