"""What the gateway must know of an API to queue it: the fields of a request, and how to read an answer."""

from __future__ import annotations

from abc import abstractmethod
from array import array
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeVar

import msgspec

from backends.gateway.fold import FoldError
from backends.gateway.refusal import Refusal
from backends.protocol import OnTokens
from backends.wire.answer import Answer, Counts
from backends.wire.faults import WireError
from backends.wire.tokens import tokens_per_chunk
from scheduler.request import ErrorClass, TokensSource

T = TypeVar("T")


class Whole(msgspec.Struct, frozen=True, kw_only=True):
    """What an answer tells of itself; in tokens, None where it does not."""

    prompt_tokens: int | None = None
    cached_prompt_tokens: int | None = None
    output_tokens: int | None = None
    finish_reason: str | None = None


def decoded(decode: Callable[[bytes], T], body: bytes) -> T | None:
    """None for a body that is not what ``decode`` reads."""
    try:
        return decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Folding:
    """How a stream becomes the answer of a request that does not stream. ``fields``: a request with no others folds, if those
    in ``absent`` are null, false or empty and those in ``one`` null or 1. ``fold``: the data of all events to the answer's
    body; raises FoldError, and what comes of taking a text for an object.
    """

    fields: frozenset[str]
    absent: frozenset[str]
    one: frozenset[str] = frozenset()
    fold: Callable[[Iterable[bytes]], bytes]

    def body(self, events: Iterable[bytes]) -> bytes:
        """The answer's body of the data of all events. Raises FoldError."""
        try:
            return self.fold(events)
        except (AttributeError, KeyError, TypeError) as error:
            raise FoldError("the stream's events are not those of this API") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """``path``: under which it is asked for upstream, None: whatever the client asked for. ``prompt``: fields that make up
    the prompt, in order; ``most``: fields that may limit the answer's tokens, the first one given counts. ``answer`` reads a
    stream, ``whole`` a JSON answer (None for what is none). ``repeats``: a request that failed may be sent once more.
    ``takes_priority``: vLLM reads a request's class from the body. ``chunks``: a stream is chunks of choices, and
    ``stream_options`` ask for its usage. ``folding`` None: what does not stream is not asked for as a stream either.
    ``typed_errors``: an error is an object of a type, its event named.
    """

    name: str
    path: str | None
    prompt: tuple[str, ...]
    most: tuple[str, ...]
    answer: Callable[[OnTokens], Answer]
    whole: Callable[[bytes], Whole | None]
    repeats: bool = True
    takes_priority: bool = False
    chunks: bool = False
    folding: Folding | None = None
    typed_errors: bool = False

    def error(self, refusal: Refusal) -> bytes:
        """Why a stream ends, as the event of it that its clients raise: OpenAI's go by the object in it, Anthropic's by the
        event's name."""
        refusal.typed = self.typed_errors
        name = b"event: error\n" if self.typed_errors else b""
        return name + b"data: " + refusal.body() + b"\n\n"


class EventAnswer:
    """An :class:`backends.wire.answer.Answer` of typed events: a stamp for each that brings output, counts at the end.

    For subclasses: ``_output`` an event with output, ``_told`` the counts so far, ``_over`` the answer's end, ``_failed`` the
    server's own word that it failed.
    """

    __slots__ = ("_on_tokens", "_told", "_whole", "chunk_ns", "fault", "finish_reason")

    def __init__(self, on_tokens: OnTokens) -> None:
        self._on_tokens = on_tokens
        self._told = Whole()
        self._whole = False
        self.chunk_ns = array("q")
        self.fault: WireError | None = None
        self.finish_reason: str | None = None

    @property
    def whole(self) -> bool:
        return self._whole

    def counts(self) -> Counts:
        told, chunks = self._told, len(self.chunk_ns)
        known = told.output_tokens is not None
        return Counts(
            chunk_tokens=tokens_per_chunk(chunks, array("i"), array("i"), told.output_tokens),
            prompt_tokens=told.prompt_tokens,
            cached_prompt_tokens=told.cached_prompt_tokens,
            output_tokens=told.output_tokens,
            source=TokensSource.USAGE if known else TokensSource.UNKNOWN,
        )

    def _output(self, now_ns: int) -> None:
        self.chunk_ns.append(now_ns)
        self._on_tokens(now_ns, None)

    def _over(self, finish_reason: str | None) -> None:
        self._whole = True
        self.finish_reason = finish_reason

    def _failed(self) -> None:
        self.fault = WireError(ErrorClass.SERVER_ERROR, "an error inside the stream")


class TypedAnswer(EventAnswer, Generic[T]):
    """Of events in JSON. For subclasses: ``_events`` decodes one; ``_take`` takes it, and is True when nothing more
    is to be read."""

    __slots__ = ()
    _events: ClassVar[msgspec.json.Decoder[Any]]

    def read(self, payload: bytes, now_ns: int) -> bool:
        try:
            event = self._events.decode(payload)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            return self._unreadable(payload, error)
        return self._take(event, now_ns)

    @abstractmethod
    def _take(self, event: T, now_ns: int) -> bool: ...

    def _unreadable(self, payload: bytes, error: Exception) -> bool:
        """An event that is no JSON: the closing mark of some servers, nothing, or a fault. Always True but for nothing."""
        text = payload.strip()
        if not text:
            return False
        if text != b"[DONE]":
            self.fault = WireError(ErrorClass.BAD_STREAM, f"not an event of this API's stream ({type(error).__name__})")
        return True
