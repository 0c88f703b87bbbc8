"""The workload of a run: every request of every tenant, as a stream in order of arrival.

Open loop: ``absolute`` streams the schedule. Closed loop: ``start_closed`` gives every user's first request, and
``after`` the request that follows an outcome (of a user, or the next turn of a session). The stream of a tenant depends
on the seed, its name and its own traffic only, so raising one tenant leaves the others' arrivals and lengths as they
were.

Ids: ``absolute`` counts from 0 in order of arrival. Closed-loop requests count from 0 too (from 2^32 beside open-loop
tenants), interleaved by tenant. Later turns of a session: see :mod:`loadgen.workload.sessions`. So an id names the same
request in a live run and in its simulation, whichever finished first; and in a run of several workers, each of which has a
:class:`~loadgen.workload.share.Share` of the arrivals and of the users, and what follows from them.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Protocol

import msgspec
import numpy as np

from loadgen.workload.arrivals import expected_arrivals
from loadgen.workload.blocks import BLOCK_TOKENS
from loadgen.workload.intensity import next_open_ns, open_parts
from loadgen.workload.sessions import Conversation, following
from loadgen.workload.share import WHOLE, Share
from loadgen.workload.streams import TenantStream
from scheduler.request import Outcome, Request, Status
from tenants.tenant import Tenant
from tenants.traffic import Traffic

CLOSED_IDS = 1 << 32
_BATCH = 4096
_SHARE_LEAST = 128


class Source(Protocol):
    """Where a run, live or simulated, gets its requests."""

    @property
    def tenants(self) -> tuple[Tenant, ...]: ...

    @property
    def block_tokens(self) -> int:
        """Tokens in each of ``Request.prefix_blocks``."""

    @property
    def expected_requests(self) -> float | None:
        """The mean number of requests of all workers; None when it depends on the server (closed loop without a
        limit)."""

    @property
    def limit(self) -> int | None:
        """The driver releases this many requests, the first ones in order of arrival, and no more; None: all. The source
        cannot keep to it: a schedule is made ahead, in a thread of its own, while what follows from answers turns up."""

    @property
    def follows(self) -> bool:
        """Whether any request comes because another one ended."""

    def absolute(self) -> Iterator[Request]:
        """The schedule, ascending by (arrival_ns, id), at most ``limit`` requests. May be called once."""

    def start_closed(self, now_ns: int) -> list[Request]:
        """The first request of every closed-loop user, ascending by (arrival_ns, id)."""

    def after(self, outcome: Outcome) -> Request | None:
        """What arrives because ``outcome`` happened; its arrival may lie in the future (think time). Read of the outcome:
        request, status, and when it ended."""

    def foresee(self, tenant: str, count: int) -> Sequence[Request]:
        """The next ``count`` requests that ``after`` will give for a closed-loop tenant, each once, their arrivals not known
        yet: so that what they say on the wire can be made while nothing waits for it. Fewer where that is not known.
        """


class Workload:
    """See the module docstring and :class:`Source`.

    ``duration_s``: requests arrive in [0, duration); None: until ``num_prompts`` requests were released (then no process
    may depend on the duration). ``growth``: tenant name -> factor on its load. ``share``: what of it is made here.
    Raises ValueError that says what is wrong.
    """

    def __init__(
        self,
        tenants: Sequence[tuple[Tenant, Traffic]],
        *,
        duration_s: float | None,
        seed: int = 0,
        num_prompts: int | None = None,
        growth: Mapping[str, float] | None = None,
        block_tokens: int = BLOCK_TOKENS,
        share: Share = WHOLE,
    ) -> None:
        _check(tenants, duration_s, num_prompts, growth or {})
        growth = growth or {}
        self._duration_s = math.inf if duration_s is None else duration_s
        self._end_ns = math.inf if duration_s is None else round(duration_s * 1e9)
        self._share = share
        self._limit_of_all = num_prompts
        self._limit = None if num_prompts is None else share.of_total(num_prompts)
        self._seed = seed
        self._block_tokens = block_tokens
        self._streams = [
            TenantStream(
                tenant,
                traffic.grown(growth.get(tenant.name, 1.0)),
                seed=seed,
                duration_s=self._duration_s,
                block_tokens=block_tokens,
            )
            for tenant, traffic in tenants
        ]
        self._by_name = {stream.tenant.name: stream for stream in self._streams}
        self._open = [stream for stream in self._streams if not stream.closed]
        self._closed = [stream for stream in self._streams if stream.closed]
        self._parts = {s.tenant.name: open_parts(s.traffic.arrivals, self._duration_s) for s in self._closed}
        self._closed_base = CLOSED_IDS if self._open else 0
        # Without a schedule nothing else is released, so that no more need be made than will be.
        self._closed_limit = None if self._open else self._limit
        self._made = 0
        self._next_user_request = _first_users(self._closed, share)
        self._places = {stream.tenant.name: place for place, stream in enumerate(self._closed)}
        self._foreseen: dict[str, deque[Request]] = {stream.tenant.name: deque() for stream in self._closed}
        self._conversations: dict[str, Conversation] = {}

    @property
    def tenants(self) -> tuple[Tenant, ...]:
        return tuple(stream.tenant for stream in self._streams)

    @property
    def block_tokens(self) -> int:
        return self._block_tokens

    @property
    def expected_requests(self) -> float | None:
        limit = self._limit_of_all
        if self._closed:
            return limit
        expected = sum(expected_arrivals(stream.traffic.arrivals, self._duration_s) for stream in self._open)
        return expected if limit is None else min(expected, limit)

    @property
    def limit(self) -> int | None:
        return self._limit

    @property
    def follows(self) -> bool:
        return bool(self._closed) or any(stream.traffic.sessions is not None for stream in self._streams)

    def absolute(self) -> Iterator[Request]:
        merged = self._merged()
        mine = merged if self._share.count == 1 else (r for r in merged if self._share.owns(r.id))
        return islice(mine, self._limit)

    def start_closed(self, now_ns: int) -> list[Request]:
        step = self._share.count
        users = [
            (i, stream)
            for stream in self._closed
            for i in range(self._next_user_request[stream.tenant.name], stream.traffic.arrivals.users or 0, step)
        ]
        first = []
        # By turns, so that a limit on the requests leaves no tenant without users.
        for _, stream in sorted(users, key=lambda user: user[0]):
            request = self._of_user(stream, now_ns)
            if request is not None:
                first.append(request)
        return sorted(first, key=lambda request: (request.arrival_ns, request.id))

    def after(self, outcome: Outcome) -> Request | None:
        previous = outcome.request
        stream = self._by_name.get(previous.tenant)
        if stream is None or outcome.status is Status.UNFINISHED:
            return None
        end_ns = end_of(outcome)
        pause_ns = 0 if outcome.status is Status.OK else round(stream.traffic.arrivals.failure_pause_s * 1e9)
        turn = self._next_turn(stream, previous, end_ns, pause_ns)
        if turn is not None:
            return turn
        if not stream.closed:
            return None
        think_ns = round(stream.traffic.arrivals.think_s * 1e9)
        request = self._of_user(stream, end_ns + max(think_ns, pause_ns))
        return None if request is None else following(request, previous, end_ns)

    def _merged(self) -> Iterator[Request]:
        """Batches up to the instant to which every tenant's arrivals are known: one sort a batch, so that ids, lengths
        and requests are made in bulk.
        """
        share = max(_SHARE_LEAST, _BATCH // max(1, len(self._open)))
        next_id = 0
        while True:
            heads = [(stream, due) for stream in self._open if len(due := stream.pending())]
            if not heads:
                return
            horizon = min(int(due[min(len(due), share) - 1]) for _, due in heads)
            taken = [(stream, stream.take_until(horizon)) for stream, due in heads if due[0] <= horizon]
            times = np.concatenate([due for _, due in taken])
            ranks = np.empty(len(times), dtype=np.int64)
            ranks[np.argsort(times, kind="stable")] = np.arange(len(times))
            batch: list[Request] = [None] * len(times)  # type: ignore[list-item]  # every place is filled below
            start = 0
            for stream, due in taken:
                places = ranks[start : start + len(due)]
                start += len(due)
                made = self._starts(stream, (places + next_id).tolist(), due.tolist())
                for place, request in zip(places.tolist(), made, strict=True):
                    batch[place] = request
            next_id += len(times)
            yield from batch

    def _starts(self, stream: TenantStream, ids: list[int], arrivals_ns: list[int]) -> list[Request]:
        turns = stream.turns(len(ids))
        if turns is None:
            return stream.requests(ids, arrivals_ns)
        return [self._converse(stream, n, i, t) for n, i, t in zip(turns, ids, arrivals_ns, strict=True)]

    def _converse(self, stream: TenantStream, turns: int, first_id: int, arrival_ns: int) -> Request:
        conversation = Conversation(
            stream, turns=turns, first_id=first_id, seed=self._seed, block_tokens=self._block_tokens
        )
        # A closed loop makes requests for its own users only; the schedule is drawn whole, and the rest of it is not ours.
        if turns > 1 and (stream.closed or self._share.owns(first_id)):
            self._conversations[conversation.session_id] = conversation
        return conversation.turn(0, arrival_ns)

    def _next_turn(self, stream: TenantStream, previous: Request, end_ns: int, pause_ns: int) -> Request | None:
        """The next turn of the session of ``previous``. It comes whatever became of the last one: else a policy that
        sheds would thin its own load.
        """
        if previous.session_id is None or stream.traffic.sessions is None:
            return None
        conversation = self._conversations.pop(previous.session_id, None)
        if conversation is None:
            return None
        arrival_ns = end_ns + max(round(stream.traffic.sessions.think_s * 1e9), pause_ns)
        if arrival_ns >= self._end_ns or not self._may_make():
            return None
        turn = previous.turn + 1
        if turn + 1 < conversation.turns:
            self._conversations[previous.session_id] = conversation
        return following(conversation.turn(turn, arrival_ns), previous, end_ns)

    def _of_user(self, stream: TenantStream, at_ns: int) -> Request | None:
        """A closed-loop request at ``at_ns``, or when the tenant is next active; None when the run is over by then."""
        name = stream.tenant.name
        arrival_ns = next_open_ns(self._parts[name], at_ns)
        if arrival_ns is None or arrival_ns >= self._end_ns or not self._may_make():
            return None
        foreseen = self._foreseen[name]
        if foreseen:
            return msgspec.structs.replace(foreseen.popleft(), arrival_ns=arrival_ns)
        return self._starts(stream, [self._next_closed_id(name)], [arrival_ns])[0]

    def foresee(self, tenant: str, count: int) -> Sequence[Request]:
        foreseen = self._foreseen.get(tenant)
        stream = self._by_name[tenant]
        if foreseen is None or stream.traffic.sessions is not None:
            return ()
        if self._closed_limit is not None:
            ahead = sum(map(len, self._foreseen.values()))
            count = min(count, self._closed_limit - self._made - ahead)
        if self._share.count == 1:
            requests = self._starts(stream, self._next_closed_ids(tenant, count), [0] * count) if count > 0 else []
        else:  # the lengths between two of ours are other workers'
            requests = [self._starts(stream, [self._next_closed_id(tenant)], [0])[0] for _ in range(count)]
        foreseen.extend(requests)
        return requests

    def _next_closed_id(self, tenant: str) -> int:
        number = self._next_user_request[tenant]
        self._next_user_request[tenant] = number + self._share.count
        # The requests between are other workers': request k has the k-th lengths, whoever makes it.
        stream = self._by_name[tenant]
        stream.pass_over(number - stream.made)
        return self._closed_base + number * len(self._closed) + self._places[tenant]

    def _next_closed_ids(self, tenant: str, count: int) -> list[int]:
        """Of a workload that is not shared: what :meth:`_next_closed_id` would give next."""
        first = self._next_user_request[tenant]
        self._next_user_request[tenant] = first + count
        base, step = self._closed_base + self._places[tenant], len(self._closed)
        return [base + number * step for number in range(first, first + count)]

    def _may_make(self) -> bool:
        if self._closed_limit is not None and self._made >= self._closed_limit:
            return False
        self._made += 1
        return True


def _first_users(closed: Sequence[TenantStream], share: Share) -> dict[str, int]:
    """By tenant, the first of its users that is in the share; users are dealt in turn, over all tenants."""
    first, before = {}, 0
    for stream in closed:
        first[stream.tenant.name] = share.first_user(before)
        before += stream.traffic.arrivals.users or 0
    return first


def end_of(outcome: Outcome) -> int:
    """The instant at which the client knew the answer, or that there will be none."""
    return outcome.ended_ns if outcome.finished_ns is None else outcome.finished_ns


def _check(
    tenants: Sequence[tuple[Tenant, Traffic]],
    duration_s: float | None,
    num_prompts: int | None,
    growth: Mapping[str, float],
) -> None:
    names = [tenant.name for tenant, _ in tenants]
    if not names:
        raise ValueError("the workload has no tenant; give at least one")
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(f"tenants named twice: {', '.join(twice)}; every tenant needs a name of its own")
    unknown = sorted(set(growth) - set(names))
    if unknown:
        raise ValueError(f"growth names unknown tenants: {', '.join(unknown)}; known: {', '.join(names)}")
    if duration_s is None and num_prompts is None:
        raise ValueError("the workload has no end; give duration_s, num_prompts or both")
    if duration_s is not None and not (math.isfinite(duration_s) and duration_s > 0):
        raise ValueError(f"duration_s is {duration_s}; a finite number of seconds > 0 would be right")
    if num_prompts is not None and num_prompts < 1:
        raise ValueError(f"num_prompts is {num_prompts}; at least 1 would be right")
