"""The parent's end: one dispatcher for all workers, and which worker a request belongs to."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec

from loadgen.workers.messages import Aborted, Granted, QueueAnswer, QueueEvent, Refused
from scheduler.dispatcher import Dispatcher
from scheduler.drivers.live import WakeTimer
from scheduler.events import (
    Abort,
    AnyAction,
    AnyEvent,
    Arrived,
    BackendState,
    Cancelled,
    Dispatch,
    DispatchFailed,
    Expire,
    Finished,
    Reject,
    Tick,
    WakeAt,
)
from scheduler.request import Request, Status

_REMEMBERED_NS = 5_000_000_000
"""More than the 2 s after which a worker's rows are on disk at the latest."""


@dataclass(slots=True)
class Held:
    """A request that is queued or dispatched, or was until a moment ago; ``dispatched_ns`` None: queued."""

    worker: int
    request: Request
    enqueued_ns: int
    dispatched_ns: int | None = None


class SharedQueue:
    """``answer(worker, message)`` takes decisions back. Events keep the stamps of their worker, but for those that come in
    behind a later one of another worker: time never goes back for the dispatcher.
    """

    def __init__(
        self, dispatcher: Dispatcher, now_ns: Callable[[], int], answer: Callable[[int, QueueAnswer], object]
    ) -> None:
        self.dispatcher = dispatcher
        self._now_ns = now_ns
        self._answer = answer
        self._held: dict[int, Held] = {}
        self._ended: deque[tuple[int, Held]] = deque()
        self._last_ns = 0
        self._wake = WakeTimer(asyncio.get_running_loop(), now_ns, self._tick)

    def take(self, worker: int, events: Sequence[QueueEvent]) -> None:
        """Take in a worker's events, in their order."""
        for event in events:
            if isinstance(event, Arrived):
                self._held[event.request.id] = Held(worker, event.request, event.now_ns)
            elif isinstance(event, Finished):
                self._end(event.request_id)
            elif isinstance(event, Cancelled):
                held = self._held.get(event.request_id)
                if held is not None and held.dispatched_ns is None:
                    self._end(event.request_id)
            elif isinstance(event, DispatchFailed):
                self._failed(event)
            self.handle(event)

    def drop(self, worker: int) -> list[Held]:
        """A worker is gone: its requests leave the queue and free their slots. What it had here, oldest first, and what
        ended in its last seconds, whose rows may not have reached the disk.
        """
        lost = [held for held in self._held.values() if held.worker == worker]
        # Those that wait first, or the slots of the others would be granted to them.
        for held in sorted(lost, key=lambda held: held.dispatched_ns is not None):
            request_id = held.request.id
            del self._held[request_id]
            if held.dispatched_ns is None:
                self.handle(Cancelled(self._last_ns, request_id))
            else:
                self.handle(Finished(self._last_ns, request_id, Status.UNFINISHED, held.request.prompt_tokens, 0))
        lost += [held for _, held in self._ended if held.worker == worker]
        return sorted(lost, key=lambda held: (held.request.arrival_ns, held.request.id))

    def at(self) -> int:
        """A time for an event of the parent's own: now, never before the last event's."""
        return max(self._last_ns, self._now_ns())

    def set_backend_state(self, backend: str, *, up: bool) -> None:
        self.handle(BackendState(self.at(), backend, up))

    def handle(self, event: AnyEvent) -> None:
        """Hand an event over, of a worker or of whoever moves the slots, and send what is decided to the workers."""
        if event.now_ns < self._last_ns:
            event = msgspec.structs.replace(event, now_ns=self._last_ns)
        self._last_ns = event.now_ns
        for action in self.dispatcher.handle(event):
            self._carry_out(action, event.now_ns)

    def close(self) -> None:
        """Stop the wake-up timer."""
        self._wake.close()

    def _end(self, request_id: int) -> None:
        held, ended = self._held.pop(request_id, None), self._ended
        if held is not None:
            ended.append((self._last_ns, held))
        while ended and ended[0][0] < self._last_ns - _REMEMBERED_NS:
            ended.popleft()

    def _failed(self, event: DispatchFailed) -> None:
        held = self._held.get(event.request_id)
        if held is not None and event.retryable:
            held.dispatched_ns = None
        elif held is not None:
            self._end(event.request_id)

    def _carry_out(self, action: AnyAction, now_ns: int) -> None:
        if isinstance(action, WakeAt):
            self._wake.set(action.at_ns)
            return
        request_id = action.request.id if isinstance(action, Dispatch) else action.request_id
        held = self._held.get(request_id)
        if held is None:
            return
        answer: QueueAnswer
        match action:
            case Dispatch(backend=backend, account=account):
                held.dispatched_ns = now_ns
                answer = Granted(request_id, backend, account, now_ns)
            case Reject(reason=reason, retry_after_ns=retry_after_ns):
                self._end(request_id)
                answer = Refused(request_id, reason, retry_after_ns, now_ns)
            case Expire(reason=reason):
                self._end(request_id)
                answer = Refused(request_id, reason, None, now_ns)
            case Abort(reason=reason):
                answer = Aborted(request_id, reason)
        self._answer(held.worker, answer)

    def _tick(self) -> None:
        self.handle(Tick(self.at()))
