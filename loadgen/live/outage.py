"""Whether the server was still there at the end of a run.

A server that dies leaves a run whose last requests are all refused, reset or cut off. That says nothing of its latencies
and is no verdict on a tenant: the run names the moment and ends as one whose target failed. An answer, whatever it says
(also a refusal for load, 429 or 503), shows that the server lives; a time-out shows neither.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from scheduler.request import ErrorClass, Outcome, Status

UNREACHABLE = frozenset(
    {ErrorClass.REFUSED, ErrorClass.RESET, ErrorClass.DNS, ErrorClass.TLS, ErrorClass.CONNECT_TIMEOUT}
)
_NOBODY_BEHIND = frozenset({502, 504})
_PROOF = 3


@dataclass(frozen=True, slots=True)
class OutageState:
    """What one process saw: when its last answer came (None: never), how many requests found nobody since then, and when
    the last of them ended."""

    last_answer_ns: int | None
    lost: int
    last_lost_ns: int


class OutageWatch:
    """Stands before the recorder; keeps two instants and one count."""

    def __init__(self, on_outcome: Callable[[Outcome], None]) -> None:
        self._on_outcome = on_outcome
        self._last_answer_ns: int | None = None
        self._lost_since_answer = 0
        self._last_lost_ns = 0
        self._others: list[OutageState] = []

    def state(self) -> OutageState:
        """To be added elsewhere."""
        return OutageState(self._last_answer_ns, self._lost_since_answer, self._last_lost_ns)

    def add(self, other: OutageState) -> None:
        """What another process saw of the same server."""
        self._others.append(other)

    def __call__(self, outcome: Outcome) -> None:
        self._on_outcome(outcome)
        if outcome.error_class in UNREACHABLE or outcome.http_status in _NOBODY_BEHIND:
            self._lost_since_answer += 1
            self._last_lost_ns = max(self._last_lost_ns, outcome.ended_ns)
        elif outcome.status is Status.OK or (outcome.status is Status.FAILED and outcome.http_status is not None):
            self._last_answer_ns = max(self._last_answer_ns or 0, outcome.ended_ns)
            self._lost_since_answer = 0

    @property
    def stopped_ns(self) -> int | None:
        """The last answer before the requests that found nobody any more; 0 when none was ever given, None while the
        server answers."""
        return None if self.lost < _PROOF else self._last_answer()

    @property
    def lost(self) -> int:
        """Requests after the last answer that found nobody."""
        last_ns = self._last_answer()
        return sum(seen.lost for seen in (self.state(), *self._others) if seen.last_lost_ns > last_ns)

    def _last_answer(self) -> int:
        return max(seen.last_answer_ns or 0 for seen in (self.state(), *self._others))
