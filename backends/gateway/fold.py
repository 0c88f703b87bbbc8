"""Many events of a stream folded into the one JSON answer that a client expects who did not ask to stream.

:func:`fold` is that of the chunks of chat and completions; other APIs' are beside their dialects. Text parts are joined, lists
of parts appended, tool calls joined by their index, and of everything else the last word stands; so a field that is not known
here survives as well. ``usage`` is the server's last word on it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

_LATER = ("choices", "object", "usage")
_decode = msgspec.json.decode


class FoldError(ValueError):
    """The events do not make an answer."""


def fold(events: Iterable[bytes], *, chat: bool) -> bytes:
    """One answer of the kind ``chat.completion`` or ``text_completion``. Raises FoldError, and what comes of other objects."""
    answer: dict[str, Any] = {}
    usage: object = None
    choices: dict[int, dict[str, Any]] = {}
    for event in events:
        chunk = event_object(event)
        if chunk is None:
            continue
        for name, value in chunk.items():
            if name not in _LATER and (value is not None or name not in answer):
                answer[name] = value
        usage = chunk.get("usage") or usage
        for part in chunk.get("choices") or ():
            _add_choice(choices, part, chat=chat)
    if not choices:
        raise FoldError("the stream held no choice")
    answer["object"] = "chat.completion" if chat else "text_completion"
    answer["choices"] = [choices[index] for index in sorted(choices)]
    answer["usage"] = usage
    return msgspec.json.encode(answer)


def event_object(event: bytes) -> dict[str, Any] | None:
    """The object that an event's data is, None for the closing mark and empty ones. Raises FoldError."""
    if event.strip() in {b"", b"[DONE]"}:
        return None
    try:
        value = _decode(event)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise FoldError(f"an event is not JSON ({error})") from error
    if not isinstance(value, dict):
        raise FoldError("an event is no JSON object")
    return value


def _add_choice(choices: dict[int, dict[str, Any]], part: dict[str, Any], *, chat: bool) -> None:
    index = part.get("index", 0)
    empty: dict[str, Any] = {"message": {"role": "assistant", "content": None}} if chat else {"text": ""}
    choice = choices.setdefault(index, {"index": index, **empty, "logprobs": None, "finish_reason": None})
    for name, value in part.items():
        if name == "delta":
            for key, said in (value or {}).items():
                add_part(choice["message"], key, said)
        elif name == "text":
            choice["text"] += value or ""
        elif value is not None or name not in choice:
            choice[name] = value


def add_part(message: dict[str, Any], key: str, said: object) -> None:
    """Put one more piece of a field to what of it is there."""
    present = message.get(key)
    if said is None:
        message.setdefault(key, None)
    elif key == "role":
        message[key] = said
    elif key == "tool_calls" and isinstance(said, list):
        message[key] = _tool_calls(present or [], said)
    elif isinstance(said, str):
        message[key] = (present if isinstance(present, str) else "") + said
    elif isinstance(said, list):
        message[key] = (present if isinstance(present, list) else []) + said
    else:
        message[key] = said


def _tool_calls(present: list[dict[str, Any]], parts: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Parts of one index belong to one call: names and arguments come in pieces."""
    calls = dict(enumerate(present))
    for part in parts:
        call = calls.setdefault(part.get("index", len(calls)), {})
        for name, value in part.items():
            if name == "function" and isinstance(value, dict):
                function = call.setdefault("function", {})
                for key, text in value.items():
                    add_part(function, key, text)
            elif name != "index" and value is not None:
                call[name] = value
    return list(calls.values())
