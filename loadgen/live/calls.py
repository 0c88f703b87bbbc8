"""Requests as they go on the wire, made before they are due.

Serialising a prompt inside the send loop would delay the sends behind it, so calls are made before the clock starts, and
from then on by a thread that keeps a bounded look-ahead (32 MB) filled. The thread makes one call at a time and lets go of
the interpreter in between, so the event loop waits for one prompt at most.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from backends.openai import Endpoint, build_call
from backends.protocol import Call, CallTimeouts
from loadgen.workload.prompts import PromptBuilder
from scheduler.request import Request

LOOK_AHEAD_BYTES = 32 << 20
REQUEST_ID_HEADER = "x-request-id"


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantWire:
    """How one tenant's requests look on the wire; secrets are resolved here and must never be written."""

    model: str
    endpoint: Endpoint
    api_key: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    base_url: str | None = None
    extra_body: Mapping[str, object] = field(default_factory=dict)
    ignore_eos: bool = True
    send_priority: bool = False
    continuous_usage: bool = False
    return_token_ids: bool = False
    timeouts: CallTimeouts | None = None


class CallMaker:
    """Makes the call of a request.

    Every call carries ``x-request-id: <run>-<request id>`` unless its tenant brings that header: servers log it and take
    it for their own id, so a row of the trace can be found in a server's log. ``run`` must be unique among the runs
    that a server sees at the same time, since an engine refuses an id that it already serves.
    """

    def __init__(self, wires: Mapping[str, TenantWire], prompts: PromptBuilder, run: str | None = None) -> None:
        self._wires = wires
        self._prompts = prompts
        self._run = run or secrets.token_hex(4)

    def make(self, request: Request) -> Call:
        """The call; its body asks for ``target_output_tokens`` (else ``max_tokens``) tokens."""
        wire = self._wires[request.tenant]
        tokens = request.target_output_tokens if wire.ignore_eos else None
        return build_call(
            request.id,
            self._prompts.build(request).content,
            endpoint=wire.endpoint,
            model=wire.model,
            max_tokens=tokens if tokens is not None else request.max_tokens,
            ignore_eos=wire.ignore_eos,
            priority=request.priority if wire.send_priority else None,
            tenant=request.tenant,
            api_key=wire.api_key,
            headers={REQUEST_ID_HEADER: f"{self._run}-{request.id}", **wire.headers},
            extra_body=wire.extra_body,
            continuous_usage=wire.continuous_usage,
            return_token_ids=wire.return_token_ids,
            base_url=wire.base_url,
            timeouts=wire.timeouts,
        )


class MakesCalls(Protocol):
    """What a run needs of a :class:`CallMaker`."""

    def make(self, request: Request) -> Call: ...


class LookAhead:
    """Iterates over ``requests`` and holds the call of each one that it has given out, until ``take``.

    ``hold`` and ``fill`` before the clock starts; then ``start`` the thread; ``close`` at the end. An iterator that is
    faster than the thread makes the call itself.
    """

    def __init__(
        self, requests: Iterator[Request], make: Callable[[Request], Call], limit_bytes: int = LOOK_AHEAD_BYTES
    ) -> None:
        self._requests = requests
        self._make = make
        self._limit_bytes = limit_bytes
        self._ready: deque[tuple[Request, Call]] = deque()
        # Two counts with one writer each: a difference that two threads change would lose updates.
        self._bytes_made = 0
        self._bytes_given = 0
        self._held_bytes = 0
        self._exhausted = False
        self._closed = False
        self._source = threading.Lock()
        self._room = threading.Event()
        self._given: dict[int, Call] = {}
        self._held: dict[int, Call] = {}
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    @property
    def bytes_ahead(self) -> int:
        """Bytes of bodies that are made and not given out yet."""
        return self._bytes_made - self._bytes_given

    def hold(self, requests: Iterable[Request]) -> None:
        """Make the calls of requests that come from elsewhere (those of closed-loop users), up to the limit; each once."""
        for request in requests:
            if self._held_bytes >= self._limit_bytes:
                return
            if request.id in self._held:
                continue
            call = self._make(request)
            self._held[request.id] = call
            self._held_bytes += len(call.body)

    def fill(self) -> None:
        """Make calls up to the limit; blocks."""
        while self.bytes_ahead < self._limit_bytes and self._make_one():
            pass

    def start(self) -> None:
        """Keep the look-ahead filled from a thread; nothing to do when all calls are made."""
        if not self._exhausted:
            self._thread = threading.Thread(target=self._keep_filled, name="lmperf-calls", daemon=True)
            self._thread.start()

    def close(self) -> None:
        self._closed = True
        self._room.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def take(self, request_id: int) -> Call | None:
        """The call of a request that was given out or held, once; None for any other."""
        call = self._held.pop(request_id, None)
        if call is None:
            return self._given.pop(request_id, None)
        self._held_bytes -= len(call.body)
        return call

    def __iter__(self) -> Iterator[Request]:
        while True:
            if not self._ready and not self._make_one():
                if self._ready:
                    continue
                if self._error is not None:
                    raise self._error
                return
            request, call = self._ready.popleft()
            self._bytes_given += len(call.body)
            self._given[request.id] = call
            self._room.set()
            yield request

    def _make_one(self) -> bool:
        """Make one more call; False when there are none left."""
        with self._source:
            if self._exhausted:
                return False
            request = next(self._requests, None)
            if request is None:
                self._exhausted = True
                return False
            call = self._make(request)
            self._bytes_made += len(call.body)
            self._ready.append((request, call))
            return True

    def _keep_filled(self) -> None:
        try:
            while not self._closed and not self._exhausted:
                if self.bytes_ahead >= self._limit_bytes:
                    self._room.clear()
                    self._room.wait(0.05)
                    continue
                self._make_one()
                time.sleep(0)
        except BaseException as error:  # noqa: BLE001 (handed to the run, which raises it)
            self._error = error
            self._exhausted = True
