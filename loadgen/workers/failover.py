"""The worker's end of the watch over several servers: it is the parent who decides which are down."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from backends.failover import TakesBack
from loadgen.workers.messages import Unreached
from scheduler.events import BackendState


class RemoteFailover(TakesBack):
    """``send`` takes what did not reach its backend to the parent, before the event that puts it back into the queue. What the
    parent says of the backends comes in through :meth:`state`: half a round trip old, so a request that finds two of two
    gone goes back once more than it would in one process, and fails then."""

    def __init__(self, names: Iterable[str], send: Callable[[Unreached], object]) -> None:
        super().__init__(names)
        self._send = send

    def state(self, told: BackendState) -> None:
        """A backend went down or came back."""
        self._up[told.backend] = told.up

    def _reached(self, name: str) -> None:
        """One refusal takes a backend out, so none are counted here that an answer would have to reset."""

    def _unreached(self, name: str, *, requeued: bool) -> None:
        self._send(Unreached(name, requeued))
