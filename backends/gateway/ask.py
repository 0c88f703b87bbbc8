"""What a client's generation request asks for, and the body that goes upstream in its place.

The body's fields are kept as the bytes that came (msgspec.Raw): only those that the gateway sets are new, and a body that
needs none goes on untouched. Four ways to answer:

* PASS: the client streams; bytes pass through as they come. ``usage`` is asked for where the client did not, and the chunk
  that brings it is taken out again;
* FOLD: the client does not stream, but the upstream is asked to, so that the first token is seen and the prefill slot
  freed; the events are folded into one answer. Only for bodies whose every field is known to fold;
* WHOLE: neither: tools, log probabilities, several choices, a field that is not known here. Nothing tells of its first token,
  so it holds its prefill slot to its end: freed by a guess, the slot would be no limit;
* AS_IS: body and answer of an API that is not known here, untouched both.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, auto
from typing import Any

import msgspec

from backends.gateway.dialects.dialect import Dialect
from backends.gateway.dialects.openai import COMPLETIONS
from backends.gateway.dialects.other import OTHER
from backends.gateway.dialects.responses import RESPONSES
from backends.gateway.refusal import Reason, Refusal
from backends.wire.count import NOT_TOLD, count_of

_PREFIX_BYTES = 1024
_ABSENT = frozenset({b"null", b"false", b"[]"})

_decode_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


class Mode(Enum):
    """See the module docstring."""

    PASS = auto()
    FOLD = auto()
    WHOLE = auto()
    AS_IS = auto()

    @property
    def shows_tokens(self) -> bool:
        """Whether the upstream is asked for a stream whose tokens are seen as they come."""
        return self in {Mode.PASS, Mode.FOLD}


class Ask(msgspec.Struct, frozen=True, kw_only=True):
    """``prompt_tokens`` is known only for a prompt of token ids. ``strip_usage``: the client did not ask for the usage
    chunk that the upstream was asked for. ``prefix``: the first kilobyte of the prompt; nothing of a shorter one, which an
    upstream's prefix cache saves little of.
    """

    mode: Mode
    dialect: Dialect
    prompt_bytes: int
    prompt_tokens: int | None
    max_tokens: int | None
    strip_usage: bool
    body: bytes
    prefix: bytes = b""


def read_ask(data: bytes, *, dialect: Dialect, fold: bool, count_tokens: bool, priority: int | None) -> Ask:
    """``priority`` None: leave the field as it is. Raises Refusal (400) for what is no JSON object, streams oddly or would be
    worked on after its answer; all other judgement is the upstream's. Of an unknown API nothing is judged.
    """
    if dialect is OTHER:
        return _read_other(data)
    try:
        fields = _decode_fields(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Refusal(400, Reason.BAD_BODY, f"the request body must be a JSON object: {error}") from error
    if dialect is RESPONSES and _flag(fields, "background"):
        raise Refusal(
            400,
            Reason.BAD_REQUEST,
            "a background response is worked on outside the queue, after its answer; send it without background",
        )
    folds = fold and count_tokens and _folds(fields, dialect)
    mode = Mode.PASS if _flag(fields, "stream") else Mode.FOLD if folds else Mode.WHOLE
    prompt = b"".join(_raw(fields, name) for name in dialect.prompt if name in fields)
    changes: dict[str, Any] = {} if priority is None or not dialect.takes_priority else {"priority": priority}
    strip_usage = False
    if mode is Mode.FOLD:
        changes["stream"] = True
        if dialect.chunks:
            changes["stream_options"] = {"include_usage": True}
    elif mode is Mode.PASS and count_tokens and dialect.chunks:
        options = _options(fields)
        if not options.get("include_usage"):
            strip_usage = True
            changes["stream_options"] = {**options, "include_usage": True}
    return Ask(
        mode=mode,
        dialect=dialect,
        prompt_bytes=len(prompt),
        prefix=_prefix(prompt),
        prompt_tokens=_ids(prompt) if dialect is COMPLETIONS else None,
        max_tokens=_most(fields, dialect),
        strip_usage=strip_usage,
        body=msgspec.json.encode({**fields, **changes}) if changes else data,
    )


def _read_other(data: bytes) -> Ask:
    """A body that is a JSON object is a prompt as a whole; of any other (speech, a form) the bytes say nothing of tokens."""
    try:
        fields = _decode_fields(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        fields = {}
    return Ask(
        mode=Mode.AS_IS,
        dialect=OTHER,
        prompt_bytes=len(data) if fields else 0,
        prompt_tokens=None,
        max_tokens=_most(fields, OTHER),
        strip_usage=False,
        body=data,
    )


def _prefix(prompt: bytes) -> bytes:
    return prompt[:_PREFIX_BYTES] if len(prompt) >= _PREFIX_BYTES else b""


def _most(fields: Mapping[str, msgspec.Raw], dialect: Dialect) -> int | None:
    return next((most for name in dialect.most if (most := count_of(fields.get(name, NOT_TOLD)))), None)


def _flag(fields: Mapping[str, msgspec.Raw], name: str) -> bool:
    value = _raw(fields, name)
    if value not in {b"true", b"false", b"null"}:
        raise Refusal(400, Reason.BAD_BODY, f"{name} must be true or false")
    return value == b"true"


def _options(fields: Mapping[str, msgspec.Raw]) -> dict[str, Any]:
    raw = _raw(fields, "stream_options")
    try:
        return msgspec.json.decode(raw, type=dict[str, Any] | None) or {}
    except (msgspec.ValidationError, RecursionError) as error:
        raise Refusal(400, Reason.BAD_BODY, "stream_options must be an object") from error


def _folds(fields: Mapping[str, msgspec.Raw], dialect: Dialect) -> bool:
    how = dialect.folding
    if how is None or not fields.keys() <= how.fields:
        return False
    if any(_raw(fields, name) not in {b"null", b"1"} for name in how.one):
        return False
    if any(_raw(fields, name) not in _ABSENT for name in how.absent):
        return False
    return dialect is not COMPLETIONS or _is_one_prompt(_raw(fields, "prompt"))


def _is_one_prompt(prompt: bytes) -> bool:
    """A list of texts, or of lists, has an answer each; folding knows of one."""
    return prompt[:1] == b'"' or _ids(prompt) is not None


def _ids(text: bytes) -> int | None:
    if text[:1] != b"[" or not text[1:64].lstrip()[:1].isdigit():
        return None
    return text.count(b",") + 1


def _raw(fields: Mapping[str, msgspec.Raw], name: str) -> bytes:
    value = fields.get(name)
    return b"null" if value is None else bytes(memoryview(value)).strip()
