"""A Policy where vLLM keeps its waiting requests: the methods of ``vllm.v1.core.sched.request_queue.RequestQueue``.

What the engine does to its queue, and what that is to a policy:

==================================  =================================================================================
engine                              policy
==================================  =================================================================================
``add_request``                     ``enqueue``, under the tenant that the request names
``peek_request``, then memory is    ``peek``, whose answer is held until it is popped or something else happens, and
allocated, then ``pop_request``     ``select``, which charges the tenant
``prepend_request``: preempted, or  ``requeue``: the charge is taken back and the request has its old place by arrival.
popped and not ready after all      (A preempted request is the engine's choice; where it waits is the policy's.)
``remove_request(s)``: aborted      ``cancel``
==================================  =================================================================================

An account follows a request until the engine frees it: ``progressed`` after each step, ``ended`` once.

``resume_first``: for policies that demote or shed what is late. Lateness is about the first token, so it says nothing about
a request that was preempted after that; it would break off, or stall, a stream that has begun. Such a request keeps its
charge and resumes before anything that the policy holds.

Two ways out of the queue end a request before it ran: the policy sheds it, or it names no known tenant and there is no
default. Both are *given up*: they count in ``len`` (so that the engine goes on to a step that tells their clients), never
in ``bool`` (nothing to schedule), until ``take_given_up``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum, auto

from backends.vllm_policy.clock import EngineClock
from backends.vllm_policy.engine_request import EngineRequest, named_tenant, scheduler_request
from scheduler.policy import Policy
from scheduler.request import Request


class Place(Enum):
    QUEUED = auto()
    RESUMING = auto()
    OUT = auto()
    NOWHERE = auto()


@dataclass(slots=True, eq=False)
class Entry:
    """One live request. ``tokens``: generated so far; ``told``: those that the policy was told of since its last select, under
    ``account``; ``begun``: the policy was told of the first token."""

    engine: EngineRequest
    request: Request
    place: Place = Place.QUEUED
    tokens: int = 0
    told: int = 0
    begun: bool = False
    account: int = 0


@dataclass(frozen=True, slots=True)
class GivenUp:
    """A request that will not run, and why, for people."""

    request: EngineRequest
    reason: str


class PolicyQueue:
    """See the module docstring. ``tenants``: the known names; the other arguments are those of the configuration."""

    def __init__(
        self,
        policy: Policy,
        *,
        tenants: Iterable[str],
        tenant_key: str,
        default_tenant: str | None,
        resume_first: bool,
        clock: EngineClock,
    ) -> None:
        self._policy = policy
        self._tenants = frozenset(tenants)
        self._tenant_key = tenant_key
        self._default_tenant = default_tenant
        self._resume_first = resume_first
        self._clock = clock
        self._entries: dict[str, Entry] = {}
        self._by_number: dict[int, Entry] = {}
        self._resuming: deque[Entry] = deque()
        self._given_up: list[GivenUp] = []
        self._held: Request | None = None
        self._next_number = 0

    # -- the engine's waiting queue ----------------------------------------------------------------------------------

    def add_request(self, request: EngineRequest) -> None:
        """Raises ValueError when it is queued already. One that is out begins its next turn (a streaming session)."""
        known = self._entries.get(request.request_id)
        if known is not None:
            if known.place is not Place.OUT:
                raise ValueError(f"request {request.request_id} is already queued")
            self.ended(request)
        named = named_tenant(request, self._tenant_key)
        tenant = named if named in self._tenants else self._default_tenant
        if tenant is None:
            self._refuse(request, named)
            return
        entry = Entry(
            request,
            scheduler_request(
                request,
                number=self._next_number,
                tenant=tenant,
                arrival_ns=self._clock.arrival_ns(request.arrival_time),
            ),
        )
        self._next_number += 1
        self._held = None
        self._policy.enqueue(entry.request, self._clock.now_ns())
        self._entries[request.request_id] = entry
        self._by_number[entry.request.id] = entry

    def peek_request(self) -> EngineRequest:
        """Raises IndexError when there is nothing to schedule."""
        if self._resuming:
            return self._resuming[0].engine
        head = self._head()
        if head is None:
            raise IndexError("peek from an empty queue")
        return self._by_number[head.id].engine

    def pop_request(self) -> EngineRequest:
        """Raises IndexError when there is nothing to schedule."""
        if self._resuming:
            entry = self._resuming.popleft()
        else:
            head = self._head()
            if head is None:
                raise IndexError("pop from an empty queue")
            self._held = None
            chosen = self._policy.select(self._clock.now_ns())
            assert chosen is head, "a policy selects what it let be peeked"
            entry = self._by_number[head.id]
            entry.told = 0
            entry.account = self._policy.account_of(head.id)
        entry.place = Place.OUT
        return entry.engine

    def prepend_request(self, request: EngineRequest) -> None:
        """What was popped comes back; what never was is added."""
        entry = self._entries.get(request.request_id)
        if entry is None or entry.place is not Place.OUT:
            self.add_request(request)
        elif self._resume_first and entry.begun:
            entry.place = Place.RESUMING
            self._resuming.appendleft(entry)
        else:
            entry.place = Place.QUEUED
            self._held = None
            self._policy.requeue(entry.request, self._clock.now_ns(), entry.told)

    def prepend_requests(self, requests: Iterable[EngineRequest]) -> None:
        for request in requests:
            self.prepend_request(request)

    def remove_request(self, request: EngineRequest) -> None:
        """Raises ValueError when it does not wait here."""
        if not self._remove(request):
            raise ValueError(f"request {request.request_id} is not queued")

    def remove_requests(self, requests: Iterable[EngineRequest]) -> None:
        """Those that wait here; the engine offers each of its queues the same ones."""
        for request in requests:
            self._remove(request)

    def __bool__(self) -> bool:
        return bool(self._resuming) or self._head() is not None

    def __len__(self) -> int:
        return len(self._resuming) + len(self._policy) + len(self._given_up)

    def __iter__(self) -> Iterator[EngineRequest]:
        """All that wait; the policy's order among tenants exists one request at a time, so this is not it."""
        for entry in self._resuming:
            yield entry.engine
        for request in self._policy:
            yield self._by_number[request.id].engine
        for given_up in self._given_up:
            yield given_up.request

    # -- accounts ----------------------------------------------------------------------------------------------------

    def progressed(self, new_tokens: Mapping[str, int]) -> None:
        """A step gave so many (> 0) tokens to each of these requests. One that a step overtook (it was preempted or ended
        meanwhile) is told when it runs again, or at its end."""
        now_ns = self._clock.now_ns()
        self._held = None
        counts: dict[int, int] = {}
        for request_id, tokens in new_tokens.items():
            entry = self._entries.get(request_id)
            if entry is None:
                continue
            entry.tokens += tokens
            if entry.place is not Place.OUT:
                continue
            if not entry.begun:
                entry.begun = True
                self._policy.on_first_token(entry.request.id, now_ns)
            if entry.account:
                counts[entry.account] = counts.get(entry.account, 0) + entry.tokens - entry.told
                entry.told = entry.tokens
        if counts:
            self._policy.on_progress(sorted(counts.items()), now_ns)

    def ended(self, request: EngineRequest) -> None:
        """The engine frees the request, however it ended. One that still waits, or was given up, leaves the queue."""
        self._remove(request)
        entry = self._entries.pop(request.request_id, None)
        if entry is None:
            return
        del self._by_number[entry.request.id]
        if entry.place is Place.OUT:
            self._held = None
            self._policy.on_finish(
                entry.request.id, entry.request.prompt_tokens, entry.tokens, self._clock.now_ns(), entry.told
            )

    def take_given_up(self) -> list[GivenUp]:
        """Those that will not run, each told once."""
        self._held = None
        self._shed(self._clock.now_ns())
        taken, self._given_up = self._given_up, []
        return taken

    def snapshot(self) -> dict[str, object]:
        """The policy's state as plain data."""
        return self._policy.snapshot()

    # -- inside ------------------------------------------------------------------------------------------------------

    def _head(self) -> Request | None:
        """What the policy would select, held over time as the policy holds it: a head that the engine has been shown and
        made room for is not shed before it is popped."""
        if self._held is None:
            now_ns = self._clock.now_ns()
            self._shed(now_ns)
            self._held = self._policy.peek(now_ns)
        return self._held

    def _shed(self, now_ns: int) -> None:
        if not self._policy.sheds:
            return
        for request in self._policy.expired(now_ns):
            entry = self._by_number[request.id]
            entry.place = Place.NOWHERE
            reason = f"it could no longer meet the TTFT limit of its tenant {request.tenant!r}"
            self._given_up.append(GivenUp(entry.engine, reason))

    def _refuse(self, request: EngineRequest, named: str | None) -> None:
        known = ", ".join(sorted(self._tenants))
        said = f"names no tenant in vllm_xargs.{self._tenant_key}" if named is None else f"names tenant {named!r}"
        reason = f"it {said}; known: {known}; there is no default_tenant"
        self._given_up.append(GivenUp(request, reason))

    def _remove(self, request: EngineRequest) -> bool:
        """True when it waited, or was given up and not yet taken. What resumed keeps its charge until it ends."""
        entry = self._entries.get(request.request_id)
        if entry is not None and entry.place is Place.QUEUED:
            self._held = None
            self._policy.cancel(entry.request.id, self._clock.now_ns())
            entry.place = Place.NOWHERE
            return True
        if entry is not None and entry.place is Place.RESUMING:
            self._resuming.remove(entry)
            entry.place = Place.OUT
            return True
        left = [given_up for given_up in self._given_up if given_up.request is not request]
        removed = len(left) < len(self._given_up)
        self._given_up = left
        return removed
