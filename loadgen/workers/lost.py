"""What a worker that died had taken on and never ended: computed, since it can tell nothing any more.

Its share of the workload is drawn again and fed the outcomes that its rows on disk hold, in their order: what was due by its
end and has no outcome was queued, in flight, or ended in its last moments before they reached the disk. What followed from
answers of those last moments cannot be drawn again, since when they came decides what followed: a shared queue has seen it, and
without one it is counted, by what the worker had told of itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile

from loadgen.workers.queue import Held
from loadgen.workload.source import Source
from scheduler.request import ErrorClass, Outcome, Request, Status


@dataclass(frozen=True, slots=True)
class Lost:
    """What went with a worker: ``requests``, in order of arrival, and ``nameless``: how many more it had told of, which
    followed answers that nobody knows any more."""

    requests: list[Request]
    nameless: int

    def __len__(self) -> int:
        return len(self.requests) + self.nameless


def lost_of(
    source: Source, outcomes: Sequence[Outcome], held: Mapping[int, Held], until_ns: int, released: int
) -> Lost:
    """``outcomes``: what the worker's rows hold; ``held``: what a shared queue knew of it, by request id; ``released``: how
    many requests it had told of."""
    missing = {request.id: request for request in without_outcome(source, outcomes, until_ns)}
    missing |= {i: each.request for i, each in held.items()}
    for outcome in outcomes:
        missing.pop(outcome.request.id, None)
    ordered = sorted(missing.values(), key=lambda request: (request.arrival_ns, request.id))
    return Lost(ordered, max(0, released - len(outcomes) - len(ordered)))


def without_outcome(source: Source, outcomes: Iterable[Outcome], until_ns: int) -> list[Request]:
    """Requests of ``source`` (a worker's share, not read from yet) that were due before ``until_ns`` and are not among
    ``outcomes``, in order of arrival; together with these no more than its limit.
    """
    ended = 0
    due = {request.id: request for request in source.start_closed(0)}
    due |= {request.id: request for request in takewhile(lambda r: r.arrival_ns < until_ns, source.absolute())}
    for outcome in outcomes:
        ended += 1
        due.pop(outcome.request.id, None)
        following = source.after(outcome)
        if following is not None:
            due[following.id] = following
    open_ = (request for request in due.values() if request.arrival_ns < until_ns)
    left = None if source.limit is None else max(0, source.limit - ended)
    return sorted(open_, key=lambda request: (request.arrival_ns, request.id))[:left]


def unfinished(request: Request, held: Held | None, ended_ns: int, detail: str) -> Outcome:
    """The outcome of a request that went with its worker; ``held``: what the shared queue knew of it."""
    return Outcome(
        request=request,
        status=Status.UNFINISHED,
        ended_ns=max(ended_ns, request.arrival_ns),
        error_class=ErrorClass.UNFINISHED,
        detail=detail,
        enqueued_ns=None if held is None else held.enqueued_ns,
        dispatched_ns=None if held is None else held.dispatched_ns,
    )
