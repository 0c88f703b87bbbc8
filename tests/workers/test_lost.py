"""Rules of what a dead worker left behind: exactly what was due and has no outcome."""

from __future__ import annotations

import heapq

from hypothesis import given, settings
from hypothesis import strategies as st

from loadgen.workers.lost import lost_of, unfinished, without_outcome
from loadgen.workers.queue import Held
from loadgen.workload.share import Share
from loadgen.workload.source import Workload
from scheduler.request import ErrorClass, Outcome, Status
from tenants.tenant import Tenant
from tenants.traffic import Arrivals, Distribution, Lengths, Process, Sessions, Traffic

S = 1_000_000_000
FIXED = Lengths(distribution=Distribution.FIXED, mean=9)
TENANTS = [
    (Tenant(name="open"), Traffic(arrivals=Arrivals(process=Process.POISSON, rate=30), prompt=FIXED, output=FIXED)),
    (
        Tenant(name="talk"),
        Traffic(
            arrivals=Arrivals(process=Process.POISSON, rate=20),
            prompt=FIXED,
            output=FIXED,
            sessions=Sessions(turns=Lengths(distribution=Distribution.UNIFORM, low=1, high=5), think_s=0.05),
        ),
    ),
    (Tenant(name="users"), Traffic(arrivals=Arrivals(process=Process.CLOSED, users=5), prompt=FIXED, output=FIXED)),
]


@settings(max_examples=30, deadline=None)
@given(
    index=st.integers(0, 2),
    died_ms=st.integers(0, 4000),
    service_ms=st.integers(1, 900),
    seed=st.integers(0, 9),
    num_prompts=st.none() | st.integers(3, 200),
)
def test_what_was_due_and_has_no_outcome_is_told_exactly(index, died_ms, service_ms, seed, num_prompts):
    """A worker is played up to its death: the requests released by then are those with an outcome and those told."""
    died_ns = died_ms * S // 1000

    def source():
        return Workload(TENANTS, duration_s=3, seed=seed, num_prompts=num_prompts, share=Share(index, 3))

    mine = source()
    # Every arrival and every end is an event; those before the death happened.
    events = [(r.arrival_ns, 0, r.id, r) for r in [*mine.start_closed(0), *mine.absolute()]]
    heapq.heapify(events)
    released, ended = {}, []
    while events and events[0][0] < died_ns:
        at_ns, kind, _, request = heapq.heappop(events)
        if kind == 0:
            if len(released) == mine.limit:
                continue
            released[request.id] = request
            heapq.heappush(events, (at_ns + service_ms * S // 1000, 1, request.id, request))
        else:
            outcome = Outcome(request=request, status=Status.OK, ended_ns=at_ns, finished_ns=at_ns)
            ended.append(outcome)
            following = mine.after(outcome)
            if following is not None:
                heapq.heappush(events, (following.arrival_ns, 0, following.id, following))
    found = without_outcome(source(), ended, died_ns)
    with_outcome = {outcome.request.id for outcome in ended}
    assert {r.id: r for r in found} == {i: r for i, r in released.items() if i not in with_outcome}
    assert [r.arrival_ns for r in found] == sorted(r.arrival_ns for r in found)


@settings(max_examples=30, deadline=None)
@given(kept=st.integers(0, 60), seed=st.integers(0, 9), shared=st.booleans())
def test_what_followed_from_lost_answers_is_counted(kept, seed, shared):
    """Rows of the last answers are gone, and with them what told the next requests of users and sessions: rows, names and
    the count of the nameless are together what the worker had released. A shared queue has seen all of them."""

    def source():
        return Workload(TENANTS, duration_s=3, seed=seed)

    mine = source()
    events = [(r.arrival_ns, 0, r.id, r) for r in [*mine.start_closed(0), *mine.absolute()]]
    heapq.heapify(events)
    released, ended = [], []
    while events and events[0][0] < S:
        at_ns, kind, _, request = heapq.heappop(events)
        if kind == 0:
            released.append(request)
            heapq.heappush(events, (at_ns + S // 10, 1, request.id, request))
            continue
        ended.append(Outcome(request=request, status=Status.OK, ended_ns=at_ns, finished_ns=at_ns))
        following = mine.after(ended[-1])
        if following is not None:
            heapq.heappush(events, (following.arrival_ns, 0, following.id, following))
    held = {r.id: Held(0, r, r.arrival_ns) for r in released if shared}
    on_disk = ended[:kept]
    lost = lost_of(source(), on_disk, held, S, len(released))
    assert len(on_disk) + len(lost) == len(released)
    rows = {outcome.request.id for outcome in on_disk}
    assert {r.id for r in lost.requests} <= {r.id for r in released} - rows
    assert lost.nameless == 0 or not shared
    assert lost.nameless == 0 or kept < len(ended)
    nothing_told = lost_of(source(), on_disk, held, S, 0)
    assert (nothing_told.requests, nothing_told.nameless) == (lost.requests, 0)


def test_it_counts_as_unfinished_with_what_the_queue_knew():
    request = next(iter(Workload(TENANTS, duration_s=3).absolute()))
    held = Held(0, request, request.arrival_ns + 5, request.arrival_ns + 9)
    outcome = unfinished(request, held, 2 * S, "worker w0 died")
    assert (outcome.status, outcome.error_class) == (Status.UNFINISHED, ErrorClass.UNFINISHED)
    assert (outcome.enqueued_ns, outcome.dispatched_ns) == (held.enqueued_ns, held.dispatched_ns)
    assert (outcome.ended_ns, outcome.detail) == (2 * S, "worker w0 died")
    assert unfinished(request, None, 2 * S, "").dispatched_ns is None
