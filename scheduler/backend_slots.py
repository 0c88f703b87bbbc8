"""What occupies the slots of one backend."""

from __future__ import annotations

from scheduler.request import Request
from scheduler.slots import Slots

_UNLIMITED = 1 << 62


class BackendSlots:
    """The slots of one backend and what occupies them. ``outstanding``: prompt tokens left to prefill, by request id.
    ``work``: what the outstanding requests cost together, in thousandths of a cost unit."""

    __slots__ = (
        "_most_prefill",
        "_most_sequences",
        "_slots",
        "_works",
        "name",
        "outstanding",
        "prefill_outstanding",
        "up",
        "work",
    )

    def __init__(self, name: str, slots: Slots) -> None:
        self.name = name
        self.slots = slots
        self.up = True
        self.outstanding: dict[int, int] = {}
        self.prefill_outstanding = 0
        self.work = 0
        self._works: dict[int, int] = {}

    @property
    def slots(self) -> Slots:
        return self._slots

    @slots.setter
    def slots(self, slots: Slots) -> None:
        self._slots = slots
        self._most_sequences = _UNLIMITED if slots.sequences is None else slots.sequences
        self._most_prefill = _UNLIMITED if slots.prefill_tokens is None else slots.prefill_tokens

    def has_room(self) -> bool:
        return (
            self.up and len(self.outstanding) < self._most_sequences and self.prefill_outstanding < self._most_prefill
        )

    def occupy(self, request: Request, work: int = 0) -> None:
        self.outstanding[request.id] = request.prompt_tokens
        self.prefill_outstanding += request.prompt_tokens
        if work:
            self._works[request.id] = work
            self.work += work

    def prefilled(self, request_id: int, tokens: int | None = None) -> None:
        """``tokens`` (None: all that is left) of a request's prompt are prefilled."""
        left = self.outstanding[request_id]
        done = left if tokens is None else min(tokens, left)
        self.outstanding[request_id] = left - done
        self.prefill_outstanding -= done

    def release(self, request_id: int) -> None:
        self.prefill_outstanding -= self.outstanding.pop(request_id)
        self.work -= self._works.pop(request_id, 0)

    def load(self) -> tuple[int, int]:
        """What "least outstanding work" compares."""
        return (self.work, len(self.outstanding))
