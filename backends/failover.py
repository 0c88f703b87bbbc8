"""Several backends behind one live queue: which are down, what happens to requests that did not reach one, and when one is
back.

A backend that refuses ``refusals`` connections in a row is down: it gets nothing until a probe finds it up. One refusal is
enough by default, for a server that refuses has the least outstanding work and would draw every request. A request that
never reached its backend goes back into the queue, once; whatever was sent is never sent again by us, since its server may
have worked on it. The last backend that is up is never taken out: with nowhere else to go a refused request has failed, as
with a single server.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Protocol

from backends.protocol import WireResult
from scheduler.drivers.live import Ticket
from scheduler.request import ErrorClass

UNREACHABLE = frozenset({ErrorClass.REFUSED, ErrorClass.DNS, ErrorClass.TLS, ErrorClass.CONNECT_TIMEOUT})
Probe = Callable[[], Awaitable[bool]]
"""Whether a server that was down answers again. Never raises."""


class LiveQueue(Protocol):
    """A queue in front of several backends."""

    def set_backend_state(self, backend: str, *, up: bool) -> None: ...


class TakesBack(ABC):
    """What becomes of requests that did not reach their backend, as far as it is known which others are up. ``names``: of the
    backends; all are up at first."""

    def __init__(self, names: Iterable[str]) -> None:
        self._up = dict.fromkeys(names, True)

    def is_up(self, name: str) -> bool:
        return self._up[name]

    def takes_back(self, ticket: Ticket, result: WireResult, *, again: bool) -> bool:
        """Whether the request is in the queue again, and its ticket to be awaited; ``again``: it was before. To be told
        of every result."""
        name = ticket.backend
        if name not in self._up:
            return False
        if result.error_class not in UNREACHABLE:
            self._reached(name)
            return False
        requeued = self._others(name) and not again and result.sent_ns is None
        self._unreached(name, requeued=requeued)
        if requeued:
            ticket.failed_to_dispatch(retryable=True)
        return requeued

    def _others(self, name: str) -> bool:
        return any(up for other, up in self._up.items() if other != name)

    @abstractmethod
    def _reached(self, name: str) -> None: ...

    @abstractmethod
    def _unreached(self, name: str, *, requeued: bool) -> None: ...


class Failover(TakesBack):
    """``probes`` by backend name. ``run`` beside the run, until it is cancelled. ``on_state`` is told which backend went down
    or came back. ``downs``: how often each went down; ``requeued``: requests that went back into the queue."""

    def __init__(
        self,
        queue: LiveQueue,
        probes: Mapping[str, Probe],
        *,
        refusals: int = 1,
        period_s: float = 0.5,
        on_state: Callable[[str, bool], object] = lambda _name, _up: None,
    ) -> None:
        if refusals < 1 or period_s <= 0:
            raise ValueError(f"failover: refusals must be >= 1 and the period > 0, got {refusals} and {period_s} s")
        super().__init__(probes)
        self.downs = dict.fromkeys(probes, 0)
        self.requeued = 0
        self._queue = queue
        self._probes = dict(probes)
        self._refusals = refusals
        self._period_s = period_s
        self._on_state = on_state
        self._in_a_row = dict.fromkeys(probes, 0)
        self._changed = asyncio.Event()

    def unreached(self, name: str, *, requeued: bool) -> None:
        """Somebody else's request did not reach the backend; ``requeued``: and went back into the queue."""
        self._unreached(name, requeued=requeued)

    def _reached(self, name: str) -> None:
        self._in_a_row[name] = 0

    def _unreached(self, name: str, *, requeued: bool) -> None:
        self._in_a_row[name] += 1
        self.requeued += requeued
        if self._others(name) and self._in_a_row[name] >= self._refusals:
            self._set(name, up=False)

    async def run(self) -> None:
        """Probe what is down, every period."""
        while True:
            await self._changed.wait()
            await asyncio.sleep(self._period_s)
            down = [name for name, up in self._up.items() if not up]
            answers = await asyncio.gather(*(self._probes[name]() for name in down))
            for name, up in zip(down, answers, strict=True):
                if up:
                    self._in_a_row[name] = 0
                    self._set(name, up=True)
            if all(self._up.values()):
                self._changed.clear()

    def _set(self, name: str, *, up: bool) -> None:
        if self._up[name] == up:
            return
        self._up[name] = up
        self.downs[name] += not up
        self._queue.set_backend_state(name, up=up)
        self._on_state(name, up)
        if not up:
            self._changed.set()

    def notes(self) -> list[str]:
        """What a reader should know."""
        found = [
            f"backend {name} refused connections and was taken out {'once' if times == 1 else f'{times} times'}"
            + ("" if self._up[name] else "; it was not back when the run ended")
            for name, times in self.downs.items()
            if times
        ]
        if self.requeued:
            found.append(f"{self.requeued} requests that had not reached their backend were queued once more")
        return found
