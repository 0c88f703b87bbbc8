"""A stream's events to what is measured: a stamp per chunk with output, the counts, and whether the answer is whole.

An answer is whole when ``[DONE]`` came or every choice gave a finish reason. The hot path (:meth:`OpenAiAnswer.read`)
does only what must be done as data arrives; all counting is left for the end.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from typing import Protocol

import msgspec

from backends.protocol import OnTokens
from backends.wire.chunk import Usage, carries_output, decode_chunk, error_text, is_plain, template_of
from backends.wire.faults import WireError
from backends.wire.template import Raised, Taker, Template, taker
from backends.wire.tokens import tokens_per_chunk
from scheduler.request import ErrorClass, TokensSource

_ABORTED = frozenset({"error", "abort", "aborted", "cancelled"})
_SHOWN = 300


class Answer(Protocol):
    """What a dialect of streaming must tell; one a request.

    ``fault`` is set once the server said that it failed or sent what cannot be read. ``whole``: the answer came to
    its end.
    """

    chunk_ns: array[int]
    fault: WireError | None
    finish_reason: str | None

    def read(self, payload: bytes, now_ns: int) -> bool:
        """Take one event. True when nothing more is to be read: the closing mark or a fault came."""

    @property
    def whole(self) -> bool: ...

    def counts(self) -> Counts: ...


class TimedAnswer(Answer, Protocol):
    """An answer whose chunks may be taken without being read, where they look like the last one."""

    def template(self, payload: bytes) -> Template | None:
        """What the chunks like ``payload`` look like; None where each must be read."""

    def taker(self, template: Template, otherwise: Taker, raised: Raised, *, upper: bool, each: bool) -> Taker:
        """Does with chunks of ``template`` what :meth:`read` does with their payloads; see :mod:`backends.wire.template`.
        ``each`` False: nobody is told of them until :meth:`tell_rest`."""

    def tell_rest(self) -> None:
        """Tell of all chunks that nobody was told of."""


AnswerFactory = Callable[[OnTokens], TimedAnswer]


class Counts(msgspec.Struct, frozen=True, kw_only=True):
    """Token counts of a finished answer; ``chunk_tokens`` is None when unknown."""

    chunk_tokens: array[int] | None
    prompt_tokens: int | None
    cached_prompt_tokens: int | None
    output_tokens: int | None
    source: TokensSource


class OpenAiAnswer:
    """OpenAI chat and completion streams, and the servers that imitate them."""

    __slots__ = (
        "_done",
        "_finished",
        "_ids",
        "_on_tokens",
        "_running_usage",
        "_told",
        "_top_index",
        "_usage",
        "chunk_ns",
        "fault",
        "finish_reason",
    )

    def __init__(self, on_tokens: OnTokens) -> None:
        self._on_tokens = on_tokens
        self.chunk_ns = array("q")
        self.fault: WireError | None = None
        self.finish_reason: str | None = None
        self._done = False
        self._told = 0
        self._finished = 0
        self._top_index = 0
        self._ids = array("i")
        self._running_usage = array("i")
        self._usage: Usage | None = None

    def read(self, payload: bytes, now_ns: int) -> bool:
        try:
            chunk = decode_chunk(payload)
        except (msgspec.DecodeError, UnicodeDecodeError) as exc:
            return self._not_a_chunk(payload, exc)
        usage = chunk.usage
        if usage is not None:
            self._usage = usage
        choices = chunk.choices
        if not choices or chunk.error:
            if choices is not None and usage is not None and not chunk.error:
                return False  # usage alone, as every stream that was asked for it has once
            return self._no_choices(payload)
        if len(choices) == 1 and usage is None and is_plain(choices[0]):
            # Nearly every chunk of nearly every server: one stamp, and nothing more to learn from it.
            self.chunk_ns.append(now_ns)
            self._told += 1
            self._on_tokens(now_ns, None)
            return False
        output = False
        ids = 0
        for choice in choices:
            if carries_output(choice):
                output = True
                told = choice.token_ids or (choice.delta.token_ids if choice.delta is not None else None)
                if told:
                    ids += len(told)
            self._top_index = max(self._top_index, choice.index)
            if choice.finish_reason:
                self._finish(choice.finish_reason)
        if output:
            self._stamp(now_ns, ids, usage)
        return self.fault is not None

    def _stamp(self, now_ns: int, ids: int, usage: Usage | None) -> None:
        self.chunk_ns.append(now_ns)
        k: int | None = None
        so_far = None if usage is None else usage.output()
        if so_far is not None:
            running = self._running_usage
            k = so_far - (running[-1] if running else 0)
            if k < 0 or len(running) + 1 != len(self.chunk_ns):
                k = None
            running.append(so_far)
        if ids:
            self._ids.append(ids)
            k = ids
        self._told += 1
        self._on_tokens(now_ns, k)

    def template(self, payload: bytes) -> Template | None:
        return template_of(payload)

    def tell_rest(self) -> None:
        rest = len(self.chunk_ns) - self._told
        if rest > 0:
            self._told += rest
            self._on_tokens(self.chunk_ns[-1], rest)

    def taker(self, template: Template, otherwise: Taker, raised: Raised, *, upper: bool, each: bool) -> Taker:
        return taker(
            template,
            upper=upper,
            stamp=self.chunk_ns.append,
            count=self._ids.append,
            on_tokens=self._on_tokens if each else None,
            otherwise=otherwise,
            raised=raised,
        )

    @property
    def whole(self) -> bool:
        return self._done or self._finished > self._top_index

    def counts(self) -> Counts:
        chunks = len(self.chunk_ns)
        usage = self._usage or Usage()
        output, source = usage.output(), TokensSource.USAGE
        if output is None:
            if chunks and len(self._ids) == chunks:
                output, source = sum(self._ids), TokensSource.TOKEN_IDS
            else:
                source = TokensSource.UNKNOWN
        return Counts(
            chunk_tokens=tokens_per_chunk(chunks, self._ids, self._running_usage, output),
            prompt_tokens=usage.prompt(),
            cached_prompt_tokens=usage.cached(),
            output_tokens=output,
            source=source,
        )

    def _finish(self, reason: str) -> None:
        self._finished += 1
        self.finish_reason = reason
        if reason in _ABORTED:
            self.fault = WireError(
                ErrorClass.SERVER_ERROR, f"the server ended the answer with finish_reason {reason!r}"
            )

    def _no_choices(self, payload: bytes) -> bool:
        """An error object, or an object of another kind, which is skipped."""
        message = error_text(payload)
        if message is None:
            return False
        self.fault = WireError(ErrorClass.SERVER_ERROR, f"error inside the stream: {message[:_SHOWN]}")
        return True

    def _not_a_chunk(self, payload: bytes, exc: Exception) -> bool:
        """The closing mark is looked for only here: it is no JSON object, so the hot path need not compare for it."""
        text = payload.strip()
        if text == b"[DONE]":
            self._done = True
            return True
        if not text:
            return False
        message = error_text(payload)
        if message is not None:
            self.fault = WireError(ErrorClass.SERVER_ERROR, f"error inside the stream: {message[:_SHOWN]}")
            return True
        shown = text[:80].decode(errors="replace")
        self.fault = WireError(ErrorClass.BAD_STREAM, f"not a chunk of an OpenAI stream ({exc}): {shown!r}")
        return True
