"""The worker's end of the shared queue: the interface of the live driver, with the dispatcher in another process.

Everything goes as in :class:`scheduler.drivers.live.LiveDriver`, but a decision comes back a round trip later than its event.
So a grant may meet a request that was given up meanwhile: it is handed back as a dispatch that never reached its backend.
"""

from __future__ import annotations

from collections.abc import Callable

from loadgen.workers.messages import Granted, QueueAnswer, Refused
from scheduler.dispatcher import Dispatcher
from scheduler.dispatcher_config import DispatcherConfig
from scheduler.drivers.live import LiveDriver
from scheduler.events import AnyAction, AnyEvent, DispatchFailed

_PROGRESS_S = 0.02


class _Forwarding(Dispatcher):
    """Decides nothing: hands every event on. The policy it builds tells whether progress is wanted."""

    def __init__(self, config: DispatcherConfig, send: Callable[[AnyEvent], object]) -> None:
        super().__init__(config)
        self._send = send

    def handle(self, event: AnyEvent) -> list[AnyAction]:
        self._send(event)
        return []

    def reads_accounts(self, event: AnyEvent) -> bool:  # noqa: ARG002 (the queue is elsewhere)
        return True


class RemoteDriver(LiveDriver):
    """``send``: takes events to the parent, in order. Its answers come in through :meth:`take`.

    Where the policy counts progress, it is reported every 20 ms as well: the events that the parent selects after are
    mostly other workers'.
    """

    def __init__(self, config: DispatcherConfig, now_ns: Callable[[], int], send: Callable[[AnyEvent], object]) -> None:
        super().__init__(_Forwarding(config, send), now_ns)
        counts_tokens = self.dispatcher.policy.wants_progress
        self._progress_timer = self.loop.call_later(_PROGRESS_S, self._progress) if counts_tokens else None

    def take(self, answer: QueueAnswer) -> None:
        """Carry out what the dispatcher decided."""
        ticket = self._tickets.get(answer.request_id)
        if isinstance(answer, Granted):
            if ticket is None:
                self.handle(DispatchFailed(self.at(), answer.request_id, retryable=False))
            else:
                ticket.grant(answer.backend, answer.account, answer.now_ns)
        elif ticket is None:
            return
        elif isinstance(answer, Refused):
            del self._tickets[answer.request_id]
            ticket.refuse(answer.reason, answer.retry_after_ns, answer.now_ns)
        else:
            ticket.abort(answer.reason)

    def close(self) -> None:
        super().close()
        if self._progress_timer is not None:
            self._progress_timer.cancel()
            self._progress_timer = None

    def _progress(self) -> None:
        if self.unreported:
            self._report_progress(self.at())
        self._progress_timer = self.loop.call_later(_PROGRESS_S, self._progress)
