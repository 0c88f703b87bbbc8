"""Bodies of the OpenAI endpoints, as far as the embedded server acts on them, and what they ask for in one form.

Fields that change nothing here (sampling, penalties, logit bias, ...) are accepted and ignored, as are unknown ones.
"""

from __future__ import annotations

from array import array
from typing import Any, TypeVar

import msgspec

from backends.emulator.answers import AnswerRules
from backends.emulator.blocks import block_names
from backends.emulator.errors import ApiError, context_too_long, unknown_model
from backends.emulator.tokenizer import Tokenizer, chat_overhead, count_tokens

DEFAULT_COMPLETION_TOKENS = 16

_Body = TypeVar("_Body", bound=msgspec.Struct)


class StreamOptions(msgspec.Struct, frozen=True):
    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class Part(msgspec.Struct, frozen=True):
    type: str = "text"
    text: str | None = None


class Message(msgspec.Struct, frozen=True):
    role: str
    content: str | list[Part] | None = None

    @property
    def text(self) -> str:
        if isinstance(self.content, str):
            return self.content
        return " ".join(part.text for part in self.content or () if part.text is not None)


class _Common(msgspec.Struct, frozen=True, kw_only=True):
    model: str | None = None
    max_tokens: int | None = None
    min_tokens: int | None = None
    ignore_eos: bool | None = None
    stop: str | list[str] | None = None
    n: int | None = None
    seed: int | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    priority: int | None = None
    return_token_ids: bool | None = None
    temperature: float | None = None
    top_p: float | None = None


class ChatBody(_Common, frozen=True, kw_only=True):
    messages: list[Message]
    max_completion_tokens: int | None = None


class CompletionBody(_Common, frozen=True, kw_only=True):
    # Two list types in one union are beyond the decoder; _completion_prompt looks at what came.
    prompt: str | list[Any]
    echo: bool | None = None


class TokenizeBody(msgspec.Struct, frozen=True, kw_only=True):
    model: str | None = None
    prompt: str | None = None
    messages: list[Message] | None = None
    add_generation_prompt: bool = True
    return_token_strs: bool | None = None


class DetokenizeBody(msgspec.Struct, frozen=True, kw_only=True):
    tokens: list[int]
    model: str | None = None


class Ask(msgspec.Struct, frozen=True, kw_only=True):
    """What a generation request wants, whichever endpoint it came by. ``prompt_key``: bytes that stand for the prompt;
    ``prompt_ids`` only when the client wants token ids back; ``prefix_blocks``: names of its full blocks, only for an engine
    that keeps them.
    """

    chat: bool
    model: str
    prompt_tokens: int
    prompt_key: bytes
    prompt_ids: list[int] | None
    prefix_blocks: tuple[int, ...]
    rules: AnswerRules
    priority: int
    stream: bool
    include_usage: bool
    continuous_usage: bool
    token_ids: bool


def decode_body(data: bytes, kind: type[_Body]) -> _Body:
    """Decode a request's body or raise the 400 that says what is wrong in it."""
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.ValidationError as error:
        raise ApiError(400, f"Invalid request body: {error}", param=_path(str(error))) from error
    except msgspec.DecodeError as error:
        raise ApiError(400, f"The request body is not valid JSON: {error}") from error


def _path(message: str) -> str | None:
    """The field in msgspec's ``... - at `$.field```."""
    _, found, rest = message.partition("at `$.")
    return rest.rstrip("`") if found else None


class Reader:
    """Turns bodies into :class:`Ask`; holds what that depends on: model name, context length, tokenizer, and whether the
    engine knows prompts by their blocks."""

    def __init__(self, *, model: str, max_model_len: int, tokenizer: Tokenizer, names_blocks: bool = False) -> None:
        self.model = model
        self.max_model_len = max_model_len
        self.tokenizer = tokenizer
        self.names_blocks = names_blocks

    def check_model(self, name: str | None) -> None:
        if name is not None and name != self.model:
            raise unknown_model(name)

    def chat(self, data: bytes) -> Ask:
        body = decode_body(data, ChatBody)
        self.check_model(body.model)
        if not body.messages:
            raise ApiError(400, "messages must hold at least one message, got none", param="messages")
        pairs = [(message.role, message.text) for message in body.messages]
        tokens = sum(count_tokens(text) for _, text in pairs) + chat_overhead(len(pairs))
        limit = body.max_completion_tokens if body.max_completion_tokens is not None else body.max_tokens
        return self._ask(
            body,
            chat=True,
            prompt_tokens=tokens,
            prompt_key=msgspec.json.encode(pairs),
            prompt_ids=self.tokenizer.encode_chat(pairs) if body.return_token_ids or self.names_blocks else None,
            max_tokens=self.max_model_len - tokens if limit is None else limit,
        )

    def completion(self, data: bytes) -> Ask:
        body = decode_body(data, CompletionBody)
        self.check_model(body.model)
        if body.echo:
            raise ApiError(400, "echo is not supported: send echo=false or leave it out", param="echo")
        prompt = _completion_prompt(body.prompt)
        if isinstance(prompt, str):
            tokens, key = count_tokens(prompt), prompt.encode("utf-8", "surrogatepass")
            ids = self.tokenizer.encode(prompt) if body.return_token_ids or self.names_blocks else None
        else:
            tokens, key, ids = len(prompt), array("q", prompt).tobytes(), prompt
        if tokens == 0:
            raise ApiError(400, "prompt must hold at least one token, got an empty prompt", param="prompt")
        return self._ask(
            body,
            chat=False,
            prompt_tokens=tokens,
            prompt_key=key,
            prompt_ids=ids,
            max_tokens=DEFAULT_COMPLETION_TOKENS if body.max_tokens is None else body.max_tokens,
        )

    def _ask(
        self,
        body: _Common,
        *,
        chat: bool,
        prompt_tokens: int,
        prompt_key: bytes,
        prompt_ids: list[int] | None,
        max_tokens: int,
    ) -> Ask:
        if body.n not in (None, 1):
            raise ApiError(400, f"n must be 1 (this server gives one answer a request), got {body.n}", param="n")
        if prompt_tokens + max(1, max_tokens) > self.max_model_len:
            raise context_too_long(self.max_model_len, prompt_tokens, max(1, max_tokens), chat=chat)
        if max_tokens < 1:
            raise ApiError(400, f"max_tokens must be at least 1, got {max_tokens}", param="max_tokens")
        min_tokens = body.min_tokens or 0
        if not 0 <= min_tokens <= max_tokens:
            raise ApiError(
                400, f"min_tokens must be between 0 and max_tokens ({max_tokens}), got {min_tokens}", param="min_tokens"
            )
        stop = (body.stop,) if isinstance(body.stop, str) else tuple(body.stop or ())
        if "" in stop:
            raise ApiError(400, "stop cannot contain an empty string", param="stop")
        options = body.stream_options
        if options is not None and not body.stream:
            raise ApiError(400, "stream_options needs stream=true", param="stream_options")
        return Ask(
            chat=chat,
            model=self.model,
            prompt_tokens=prompt_tokens,
            prompt_key=prompt_key,
            prompt_ids=prompt_ids if body.return_token_ids else None,
            prefix_blocks=block_names(prompt_ids) if self.names_blocks and prompt_ids is not None else (),
            rules=AnswerRules(
                max_tokens=max_tokens,
                min_tokens=min_tokens,
                ignore_eos=bool(body.ignore_eos),
                stop=stop,
                seed=_seed(body.seed),
            ),
            priority=body.priority or 0,
            stream=bool(body.stream),
            include_usage=options is not None and bool(options.include_usage),
            continuous_usage=options is not None and bool(options.continuous_usage_stats),
            token_ids=bool(body.return_token_ids),
        )


def _seed(seed: int | None) -> int | None:
    if seed is not None and not -(1 << 63) <= seed < 1 << 63:
        raise ApiError(400, f"seed must fit into 64 bits, got {seed}", param="seed")
    return seed


def _completion_prompt(prompt: str | list[Any]) -> str | list[int]:
    """One prompt: text, token ids, or a list that holds exactly one of these."""
    if isinstance(prompt, str):
        return prompt
    if len(prompt) == 1 and not isinstance(prompt[0], int):
        inner = prompt[0]
        if isinstance(inner, str):
            return inner
        prompt = inner if isinstance(inner, list) else prompt
    if all(type(item) is int and 0 <= item < 1 << 31 for item in prompt):
        return prompt
    if all(isinstance(item, str | list) for item in prompt):
        raise ApiError(400, f"prompt must be one prompt a request, got a list of {len(prompt)}", param="prompt")
    raise ApiError(400, "prompt must be a string or a list of token ids (integers in [0, 2^31))", param="prompt")
