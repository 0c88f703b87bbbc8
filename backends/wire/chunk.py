"""What one chunk of an OpenAI chat or completion stream says; only the fields that a measurement needs.

msgspec skips every other field while it decodes. Types are as wide as servers are: a field that one server sends as
text and another as a list is accepted as either, because only whether it is empty matters here.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec

from backends.wire.count import NOT_TOLD, ToldCount, count_of
from backends.wire.template import Template


class PromptDetails(msgspec.Struct, gc=False):
    cached_tokens: ToldCount = NOT_TOLD


class Usage(msgspec.Struct, gc=False):
    """Counts by the server: at the end, in a trailer chunk without choices, or so far on every chunk. Each in tokens, None
    where it is not told."""

    prompt_tokens: ToldCount = NOT_TOLD
    completion_tokens: ToldCount = NOT_TOLD
    prompt_tokens_details: PromptDetails | None = None

    def prompt(self) -> int | None:
        return count_of(self.prompt_tokens)

    def cached(self) -> int | None:
        """Prompt tokens that were found in the prefix cache."""
        details = self.prompt_tokens_details
        return None if details is None else count_of(details.cached_tokens)

    def output(self) -> int | None:
        return count_of(self.completion_tokens)


class Delta(msgspec.Struct, gc=False):
    """The new part of a chat answer. Every field but the role is generated output if it is not empty."""

    content: str | list[msgspec.Raw] | None = None
    reasoning_content: str | list[msgspec.Raw] | None = None
    reasoning: str | list[msgspec.Raw] | None = None
    tool_calls: list[msgspec.Raw] | None = None
    function_call: dict[str, msgspec.Raw] | None = None
    refusal: str | None = None
    token_ids: list[int] | None = None


class Choice(msgspec.Struct, gc=False):
    """``text`` is a completion's, ``delta`` a chat's. ``token_ids``: vLLM, when asked with ``return_token_ids``."""

    index: int = 0
    delta: Delta | None = None
    text: str | None = None
    token_ids: list[int] | None = None
    finish_reason: str | None = None


class Chunk(msgspec.Struct, gc=False):
    choices: list[Choice] | None = None
    usage: Usage | None = None
    error: Any = None


decode_chunk = msgspec.json.Decoder(Chunk).decode


def carries_output(choice: Choice) -> bool:
    """True when generated output came: text, reasoning, a tool call's part, a refusal, or token ids. A chunk with
    only a role, an empty delta or only usage is not a token.
    """
    delta = choice.delta
    if delta is not None:
        return bool(
            delta.content
            or delta.reasoning_content
            or delta.reasoning
            or delta.tool_calls
            or delta.function_call
            or delta.refusal
            or delta.token_ids
            or choice.token_ids
            or choice.text
        )
    return bool(choice.text or choice.token_ids)


def is_plain(choice: Choice) -> bool:
    """True for a choice that holds new text of the only answer and nothing else: no end, no token ids, no other index.
    False proves nothing.
    """
    delta = choice.delta
    if choice.finish_reason is not None or choice.index != 0 or choice.token_ids is not None:
        return False
    if delta is None:
        return bool(choice.text)
    return bool(delta.content) and delta.token_ids is None


_TEXT = re.compile(rb'"(?:content|text)": ?"([^"\\]+)"')
_ID = re.compile(rb'"token_ids": ?\[([0-9]+)\]')


def template_of(payload: bytes) -> Template | None:
    """What chunks like ``payload`` have in common, if it is one that holds new text of the only answer and nothing else
    but, at most, one token id behind it.

    Where the text stands is guessed from the bytes and proved by decoding what has others in its place.
    """
    text, number = _TEXT.search(payload), _ID.search(payload)
    if text is None:
        return None
    before, behind = payload[: text.start(1)], payload[text.end(1) :]
    if number is None:
        template = Template(before, None, behind)
    elif number.start() < text.end():
        return None
    else:
        template = Template(before, payload[text.end(1) : number.start(1)], payload[number.end(1) :])
    return template if _proved(template) else None


def _proved(template: Template) -> bool:
    for text, number in ((b"a", b"7"), (b"{b: [", b"1234")):
        middle = b"" if template.between is None else template.between + number
        try:
            chunk = decode_chunk(template.before + text + middle + template.after)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return False
        if chunk.error or chunk.usage is not None or chunk.choices is None or len(chunk.choices) != 1:
            return False
        choice = chunk.choices[0]
        told = [ids for ids in (choice.token_ids, choice.delta and choice.delta.token_ids) if ids is not None]
        if told != ([] if template.between is None else [[int(number)]]):
            return False
        if choice.index != 0 or choice.finish_reason is not None:
            return False
        if (choice.text if choice.delta is None else choice.delta.content) != text.decode():
            return False
    return True


def error_text(payload: bytes) -> str | None:
    """The message of an error object in any of the shapes that servers use, or None when ``payload`` is no error.

    Shapes: ``{"error": {"message": ...}}``, ``{"error": "..."}``, ``{"object": "error", "message": ...}``,
    ``{"message": ...}`` and ``{"detail": ...}`` (validation errors of Python servers).
    """
    try:
        value = msgspec.json.decode(payload)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    if not isinstance(value, dict):
        return None
    found = value.get("error") or value.get("message") or value.get("detail")
    if isinstance(found, dict):
        found = found.get("message") or found.get("type") or found
    if not found:
        return "an error without a message" if value.get("object") == "error" else None
    return found if isinstance(found, str) else msgspec.json.encode(found).decode()
