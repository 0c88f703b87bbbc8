"""The ModelBackend protocol and the plain data it speaks.

A backend is told *what to send* (:class:`Call`) and tells *what came back and when* (:class:`WireResult`). It knows neither
arrival, queue nor tenant; :mod:`backends.outcome` joins its result with the scheduler's stamps.
"""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Awaitable, Callable, Mapping
from typing import NamedTuple, Protocol

import msgspec

from scheduler.request import ErrorClass, Status, TokensSource

Clock = Callable[[], int]
"""Returns ns since the run's start, from a monotonic clock."""

OnTokens = Callable[[int, int | None], None]
"""``on_tokens(received_ns, n_tokens)``: called as a chunk with output arrives; None when the count is not known yet. Of several
chunks that are told of together, those whose count is not known are counted as one token each."""


class CallTimeouts(msgspec.Struct, frozen=True, kw_only=True):
    """Of one call, s, in place of the backend's own: opening a connection for it, and from one chunk with output to the next
    (None: no limit)."""

    connect_s: float
    between_tokens_s: float | None


class Call(msgspec.Struct, frozen=True, kw_only=True):
    """One request as it goes on the wire: ready-made bytes, found by its request id.

    ``path`` is relative to the backend's base URL unless ``base_url`` (a tenant's own) is given. ``headers`` holds resolved
    secrets and must never be written anywhere. ``timeouts``: None leaves the backend's.
    """

    request_id: int
    path: str
    body: bytes
    headers: Mapping[str, str]
    base_url: str | None = None
    timeouts: CallTimeouts | None = None


class WireResult(msgspec.Struct, frozen=True, kw_only=True):
    """What one call came to. Stamps in ns since the run's start, None where not reached; ``connect_ns`` is a duration.

    ``chunk_ns``: receipt of each chunk that carried output; ``chunk_tokens``: how many tokens each carried, None when
    unknown. ``tokens_known`` is False when only the total is known (then ITL is null and only inter-chunk gaps are shown).
    """

    status: Status
    ended_ns: int
    error_class: ErrorClass | None = None
    detail: str | None = None
    http_status: int | None = None
    retry_after_s: float | None = None
    connect_ns: int | None = None
    sent_ns: int | None = None
    finished_ns: int | None = None
    chunk_ns: array[int]
    chunk_tokens: array[int] | None = None
    tokens_known: bool = True
    prompt_tokens: int | None = None
    cached_prompt_tokens: int | None = None
    output_tokens: int | None = None
    tokens_source: TokensSource = TokensSource.UNKNOWN
    finish_reason: str | None = None


_SO_FAR = "lmperf_so_far"


class SoFar(NamedTuple):
    """How far a call had come when it was cancelled: the stamps of :class:`WireResult`."""

    connect_ns: int | None = None
    sent_ns: int | None = None


def leave_so_far(so_far: SoFar, cancelled: asyncio.CancelledError) -> None:
    """Attach it to the exception, which is then raised on as it is: time-outs and task groups know none but the plain one."""
    setattr(cancelled, _SO_FAR, so_far)


def so_far_of(cancelled: asyncio.CancelledError) -> SoFar:
    """What :func:`leave_so_far` attached; unknown stamps of any other."""
    left: SoFar = getattr(cancelled, _SO_FAR, SoFar())
    return left


class Capabilities(msgspec.Struct, frozen=True, kw_only=True):
    """What a server was found to offer; None means it was not asked."""

    chat: bool | None = None
    completions: bool | None = None
    stream_usage: bool | None = None
    ignore_eos: bool | None = None
    return_token_ids: bool | None = None
    tokenize: bool | None = None
    priority: bool | None = None
    metrics: bool | None = None


class AddedTokens(NamedTuple):
    """Prompt tokens that a server adds around the content of a one-message conversation, or of a text."""

    front: int
    behind: int

    @property
    def total(self) -> int:
        return self.front + self.behind


class BackendMetadata(msgspec.Struct, frozen=True, kw_only=True):
    """Who answered: kind of backend, its URL, the models it serves, its version if it tells."""

    kind: str
    base_url: str | None = None
    models: tuple[str, ...] = ()
    version: str | None = None
    max_model_len: int | None = None


class ModelBackend(Protocol):
    """A place where requests run. All methods but ``generate`` may raise :class:`BackendError`."""

    async def get_metadata(self) -> BackendMetadata: ...

    async def capabilities(self) -> Capabilities: ...

    async def encode(self, text: str) -> list[int]:
        """Token ids of ``text`` by the server's own tokenizer."""

    def generate(self, call: Call, on_tokens: OnTokens, *, each: bool = True) -> Awaitable[WireResult]:
        """Run one call. Never raises for what a server or network does: that is in the result. Cancelling the awaitable
        closes the stream, and the exception may tell how far it had come (:func:`leave_so_far`). ``each``: ``on_tokens`` is
        told of every chunk as it arrives; else only the first need be, and the others are before the call ends."""

    async def warm_up(self, connections: int) -> None:
        """Open ``connections`` sockets (or what stands for them) before the clock starts."""

    async def close(self) -> None: ...


class BackendError(Exception):
    """A server could not be used at all. ``kind`` says how; the message says what, where and what would be right."""

    def __init__(self, message: str, *, kind: str = "unreachable") -> None:
        super().__init__(message)
        self.kind = kind
