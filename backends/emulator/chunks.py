"""The bytes of an answer: SSE chunks of a stream in HTTP chunked framing, the JSON of a whole answer, usage counts.

A chunk holds what one step gave: one token, or several of an engine that speculates.

A token's chunk differs from its neighbours only in the word, so a stream's chunks are its prefix, the word and its
suffix, joined; and since all words of the vocabulary have one length, the HTTP chunk size is part of the prefix. That
is what makes a token cost a join and a write. Chunks that carry more (first, last, usage or token ids on each) are
built one by one.
"""

from __future__ import annotations

from typing import Any

import msgspec

from backends.emulator.answers import Answer
from backends.emulator.requests import Ask
from backends.emulator.tokenizer import VOCABULARY

DONE = b"data: [DONE]\n\n"
_WORD_BYTES = 1 + len(VOCABULARY[0])
_encode = msgspec.json.encode


def usage(ask: Ask, output_tokens: int, cached_tokens: int | None = None) -> dict[str, Any]:
    """``cached_tokens`` None: the engine keeps no blocks, and says nothing of them."""
    counts: dict[str, Any] = {
        "prompt_tokens": ask.prompt_tokens,
        "total_tokens": ask.prompt_tokens + output_tokens,
        "completion_tokens": output_tokens,
    }
    if cached_tokens is not None:
        counts["prompt_tokens_details"] = {"cached_tokens": cached_tokens}
    return counts


def framed(event: bytes) -> bytes:
    """An SSE event as one HTTP chunk."""
    return b"%x\r\n%b\r\n" % (len(event), event)


class StreamChunks:
    """The chunks of one stream."""

    def __init__(self, ask: Ask, answer: Answer, response_id: str, created_s: int) -> None:
        self._ask = ask
        self._answer = answer
        self._common = {
            "id": response_id,
            "object": "chat.completion.chunk" if ask.chat else "text_completion",
            "created": created_s,
            "model": ask.model,
        }
        self.plain = not (ask.continuous_usage or ask.token_ids or answer.pieces is not None)
        head, _, tail = self._event([self._choice("\x00", None)]).rpartition(b"\\u0000")
        size = len(head) + _WORD_BYTES + len(tail)
        self.prefix = b"%x\r\n%b" % (size, head)
        self.suffix = tail + b"\r\n"

    def role(self) -> bytes:
        """The chat endpoint's first chunk: a role and no output (SSE event, not framed)."""
        choice = {"index": 0, "delta": {"role": "assistant", "content": ""}, "logprobs": None, "finish_reason": None}
        extra: dict[str, Any] = {}
        if self._ask.token_ids:
            extra["prompt_token_ids"] = self._ask.prompt_ids
        if self._ask.continuous_usage:
            extra["usage"] = usage(self._ask, 0)
        return self._event([choice], **extra)

    def tokens(self, start: int, count: int) -> bytes:
        """The framed chunk of ``count`` tokens from ``start`` on; the last one says why the answer ends."""
        answer, end = self._answer, start + count
        last = end == answer.tokens
        text = "".join(answer.piece(index) for index in range(start, end))
        choice = self._choice(text, answer.finish_reason if last else None)
        if last and answer.stop_reason is not None:
            choice["stop_reason"] = answer.stop_reason
        if self._ask.token_ids:
            choice["token_ids"] = [answer.token_id(index) for index in range(start, end)]
            if start == 0 and not self._ask.chat:
                choice["prompt_token_ids"] = self._ask.prompt_ids
        extra = {"usage": usage(self._ask, end)} if self._ask.continuous_usage else {}
        return framed(self._event([choice], **extra))

    def usage_trailer(self, cached_tokens: int | None) -> bytes:
        """The chunk after the last token: usage and no choices (SSE event, not framed)."""
        return self._event([], usage=usage(self._ask, self._answer.tokens, cached_tokens))

    def _choice(self, text: str, finish_reason: str | None) -> dict[str, Any]:
        said: dict[str, Any] = {"delta": {"content": text}} if self._ask.chat else {"text": text}
        return {"index": 0, **said, "logprobs": None, "finish_reason": finish_reason}

    def _event(self, choices: list[dict[str, Any]], **extra: Any) -> bytes:  # noqa: ANN401 (JSON values)
        return b"data: %b\n\n" % _encode({**self._common, "choices": choices, **extra})


def whole_answer(ask: Ask, answer: Answer, response_id: str, created_s: int, cached_tokens: int | None = None) -> bytes:
    """The JSON body of an answer that was not streamed."""
    text = answer.text()
    said: dict[str, Any] = {"message": {"role": "assistant", "content": text}} if ask.chat else {"text": text}
    choice = {
        "index": 0,
        **said,
        "logprobs": None,
        "finish_reason": answer.finish_reason,
        "stop_reason": answer.stop_reason,
    }
    body: dict[str, Any] = {
        "id": response_id,
        "object": "chat.completion" if ask.chat else "text_completion",
        "created": created_s,
        "model": ask.model,
        "choices": [choice],
        "usage": usage(ask, answer.tokens, cached_tokens),
    }
    if ask.token_ids:
        choice["token_ids"] = [answer.token_id(index) for index in range(answer.tokens)]
        if ask.chat:
            body["prompt_token_ids"] = ask.prompt_ids
        else:
            choice["prompt_token_ids"] = ask.prompt_ids
    return _encode(body)
