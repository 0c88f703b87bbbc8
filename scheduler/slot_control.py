"""What every controller of slots has in common: it stands above the dispatcher and speaks to it through ``SlotsChanged``.

The same controller runs beside a simulation, a live run and a gateway. Pure: outcomes, counts and times come in; every
``period_ns`` it is asked what to change. ``moves`` is how D went, for reports.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping

import msgspec

from scheduler.events import SlotsChanged
from scheduler.request import Outcome, Status
from scheduler.slots import Slots
from tenants.tenant import Tenant

_START = 64
_MOST_MOVES = 20_000
"""A gateway may run for months: of more moves, every other one of the older half is forgotten."""


class SlotMove(msgspec.Struct, frozen=True, kw_only=True):
    """From ``at_ns`` on, ``backend`` had ``sequences`` slots."""

    at_ns: int
    backend: str
    sequences: int


class Pace(msgspec.Struct, frozen=True, kw_only=True, gc=False, tag_field="type", tag="pace"):
    """How fast one whole answer of at least two tokens came: all that a controller reads of an outcome, so also what a worker
    tells of one to the process that has the queue. Stamps in ns since the run's start."""

    tenant: str
    dispatched_ns: int | None
    first_token_ns: int
    last_token_ns: int
    ended_ns: int
    output_tokens: int

    @property
    def tpot_ns(self) -> float:
        """Time per output token after the first."""
        return (self.last_token_ns - self.first_token_ns) / (self.output_tokens - 1)


def pace_of(outcome: Outcome) -> Pace | None:
    """None of a request that failed, and of an answer that came whole, which does not tell how long its tokens took."""
    first_ns, last_ns, tokens = outcome.first_token_ns, outcome.last_token_ns, outcome.output_tokens
    if outcome.status is not Status.OK or tokens is None or tokens < 2:
        return None
    if first_ns is None or last_ns is None or last_ns <= first_ns:
        return None
    return Pace(
        tenant=outcome.request.tenant,
        dispatched_ns=outcome.dispatched_ns,
        first_token_ns=first_ns,
        last_token_ns=last_ns,
        ended_ns=outcome.ended_ns,
        output_tokens=tokens,
    )


class SlotControl(ABC):
    """``slots``: those to start with, by backend; ``sequences`` is moved within [least, most], ``prefill_tokens`` (X) stays.

    ``reads_waiting``: it wants to be told, before each decision, how many requests wait inside the engines.
    """

    period_ns = 1_000_000_000
    reads_waiting = False

    def __init__(self, slots: Mapping[str, Slots], least: int, most: int, now_ns: int = 0) -> None:
        if not 1 <= least <= most:
            raise ValueError(f"auto slots: 1 <= least <= most, got {least} and {most}")
        self._least = least
        self._most = most
        self.slots: dict[str, Slots] = {}
        self.moves: list[SlotMove] = []
        for name, given in slots.items():
            start = _START if given.sequences is None else given.sequences
            self._keep(now_ns, name, Slots(sequences=self._within(start), prefill_tokens=given.prefill_tokens))

    def set_tenants(self, tenants: Iterable[Tenant]) -> None:  # noqa: B027 (not every rule reads it)
        """Other tenants, or other promises, from now on."""

    def observe(self, outcome: Outcome) -> None:
        """Take in one request that ended."""
        pace = pace_of(outcome)
        if pace is not None:
            self.observe_pace(pace)

    def observe_pace(self, pace: Pace) -> None:  # noqa: B027 (not every rule reads it)
        """The same, of what tells a pace."""

    def observe_waiting(self, backend: str, *, waiting: int, outstanding: int, now_ns: int) -> None:  # noqa: B027 (not every rule reads it)
        """``waiting`` of the ``outstanding`` requests at a backend stand in the engine's own queue."""

    @abstractmethod
    def decide(self, now_ns: int, *, queued: bool) -> dict[str, int]:
        """The new D of each backend that shall change. ``queued``: something waits in our queue."""

    def control(self, now_ns: int, *, queued: bool) -> list[SlotsChanged]:
        """The decision as the events that a driver hands to its dispatcher. To be asked every ``period_ns``."""
        events = []
        for name, sequences in self.decide(now_ns, queued=queued).items():
            slots = self.slots[name]
            if sequences != slots.sequences:
                self._keep(now_ns, name, Slots(sequences=sequences, prefill_tokens=slots.prefill_tokens))
                events.append(SlotsChanged(now_ns, name, sequences, slots.prefill_tokens))
        return events

    def _within(self, sequences: int) -> int:
        return min(max(sequences, self._least), self._most)

    def sequences(self, backend: str) -> int:
        """D of a backend now."""
        found = self.slots[backend].sequences
        assert found is not None, "a controlled backend has a limit"
        return found

    def _keep(self, now_ns: int, name: str, slots: Slots) -> None:
        assert slots.sequences is not None, "a controlled backend has a limit"
        self.slots[name] = slots
        self.moves.append(SlotMove(at_ns=now_ns, backend=name, sequences=slots.sequences))
        if len(self.moves) > _MOST_MOVES:
            del self.moves[1 : len(self.moves) // 2 : 2]
