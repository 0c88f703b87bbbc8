"""A stream of Messages events folded into one message: blocks by their index, each the sum of its deltas."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from backends.gateway.fold import FoldError, add_part, event_object

_Object = dict[str, Any]


def fold(events: Iterable[bytes]) -> bytes:
    """The message's JSON. What a piece of a kind that is not known here brings is joined like a text. Raises FoldError."""
    message: _Object | None = None
    blocks: dict[int, _Object] = {}
    inputs: dict[int, str] = {}
    for payload in events:
        event = event_object(payload) or {}
        kind = event.get("type")
        if kind == "message_start":
            message = dict(_part(event, "message"))
        elif kind == "content_block_start":
            blocks[_index(event)] = dict(_part(event, "content_block"))
        elif kind == "content_block_delta":
            index = _index(event)
            if index not in blocks:
                raise FoldError("a delta of a block that never began")
            _add_delta(blocks[index], index, _part(event, "delta"), inputs)
        elif kind == "message_delta" and message is not None:
            message |= _part(event, "delta")
            used = event.get("usage")
            if isinstance(used, dict):
                message["usage"] = (message.get("usage") or {}) | {k: v for k, v in used.items() if v is not None}
    if message is None:
        raise FoldError("the stream never began a message")
    for index, text in inputs.items():
        blocks[index]["input"] = _input(text)
    message["content"] = [blocks[index] for index in sorted(blocks)]
    return msgspec.json.encode(message)


def _add_delta(block: _Object, index: int, delta: _Object, inputs: dict[int, str]) -> None:
    for name, said in delta.items():
        if name == "partial_json":
            inputs[index] = inputs.get(index, "") + str(said)
        elif name == "citation":
            add_part(block, "citations", [said])
        elif name != "type":
            add_part(block, name, said)


def _part(event: _Object, name: str) -> _Object:
    part = event.get(name)
    if not isinstance(part, dict):
        raise FoldError(f"an event without its {name}")
    return part


def _index(event: _Object) -> int:
    index = event.get("index")
    if not isinstance(index, int):
        raise FoldError("an event of a block without its index")
    return index


def _input(text: str) -> object:
    try:
        return msgspec.json.decode(text or "{}")
    except (msgspec.DecodeError, RecursionError) as error:
        raise FoldError("the input of a tool is not JSON") from error
