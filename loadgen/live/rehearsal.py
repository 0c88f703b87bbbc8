"""A rehearsal before the clock starts: what runs for the first time is slow.

The first row on disk makes pyarrow load 100 to 200 ms of code, and the interpreter runs every function slowly until it
has run it some times; in mid-run the event loop, and with it every measured token, would wait for both. So the same code
runs once on made-up requests: dispatcher, driver, run loop and recorder, with a backend that answers at once.
"""

from __future__ import annotations

import tempfile
import time
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from backends.protocol import BackendMetadata, Call, Capabilities, OnTokens, WireResult
from loadgen.live.calls import LookAhead
from loadgen.live.engine import LiveRun
from loadgen.recorder import Recorder
from scheduler.dispatcher import Dispatcher
from scheduler.dispatcher_config import DispatcherConfig
from scheduler.drivers.live import LiveDriver
from scheduler.request import Outcome, Request, Status, TokensSource
from tenants.tenant import Tenant

_USERS = 16
_REQUESTS = 256
_CHUNKS = 8


@dataclass
class _Users:
    """A closed loop of made-up users."""

    tenants: tuple[Tenant, ...]
    block_tokens: int = 512
    expected_requests: float | None = _REQUESTS
    limit: int | None = _REQUESTS
    follows: bool = True
    made: int = field(default=0, init=False)

    def absolute(self) -> Iterator[Request]:
        return iter(())

    def start_closed(self, now_ns: int) -> list[Request]:
        return [self._request(now_ns) for _ in range(_USERS)]

    def after(self, outcome: Outcome) -> Request | None:
        return None if self.made >= _REQUESTS else self._request(outcome.ended_ns)

    def foresee(self, tenant: str, count: int) -> Sequence[Request]:  # noqa: ARG002 (the protocol's)
        return ()

    def _request(self, now_ns: int) -> Request:
        self.made += 1
        name = self.tenants[self.made % len(self.tenants)].name
        return Request(
            id=self.made, tenant=name, arrival_ns=now_ns, prompt_tokens=16, max_tokens=8, target_output_tokens=8
        )


class _AtOnce:
    """A backend that has every answer ready."""

    async def generate(self, call: Call, on_tokens: OnTokens, *, each: bool = True) -> WireResult:  # noqa: ARG002 (the protocol's)
        now_ns = time.monotonic_ns()
        on_tokens(now_ns, 1)
        return WireResult(
            status=Status.OK,
            ended_ns=now_ns,
            connect_ns=0,
            sent_ns=now_ns,
            finished_ns=now_ns,
            chunk_ns=array("q", range(now_ns, now_ns + _CHUNKS)),
            chunk_tokens=array("i", [1]) * _CHUNKS,
            prompt_tokens=16,
            output_tokens=_CHUNKS,
            tokens_source=TokensSource.USAGE,
        )

    async def get_metadata(self) -> BackendMetadata:
        return BackendMetadata(kind="rehearsal")

    async def capabilities(self) -> Capabilities:
        return Capabilities()

    async def encode(self, text: str) -> list[int]:
        return list(text.encode())

    async def warm_up(self, connections: int) -> None:
        """Nothing to open."""

    async def close(self) -> None:
        """Nothing to close."""


class _NoBody:
    def make(self, request: Request) -> Call:
        return Call(request_id=request.id, path="/", body=b"", headers={})


async def rehearse(config: DispatcherConfig) -> None:
    """Play a run of some hundred requests under ``config`` that nobody sees: nothing is sent, and its rows go to a folder
    that is deleted. Takes some tens of ms, and what must be loaded."""
    calls = _NoBody()
    source = _Users(config.tenants)
    with tempfile.TemporaryDirectory(prefix="lmperf-rehearsal-") as folder:
        recorder = Recorder(config.tenants, (0, 1 << 62), Path(folder))
        run = LiveRun(
            source,
            LiveDriver(Dispatcher(config), time.monotonic_ns),
            dict.fromkeys(config.backends, _AtOnce()),
            calls,
            time.monotonic_ns,
            num_prompts=_REQUESTS,
            ahead=LookAhead(source.absolute(), calls.make),
        )
        await run.run(recorder.on_outcome)
        recorder.flush()
        recorder.close_rows()
