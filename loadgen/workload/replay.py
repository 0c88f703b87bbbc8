"""A trace played again as a workload: its rows at their times, sped up, cut, and grown tenant by tenant.

Growing tenant j by k: the gaps between its rows are divided by k and its rows are cycled, so that it fills the same
span with k times the requests; a tenant that is not grown keeps its times to the nanosecond. With span T and row times
t_i, cycle c plays row i at (t_i + c T) / k. Prompt blocks get new names in every cycle: else a grown tenant would find
its own earlier cycle in the server's prefix cache.

Rows that came *because* another request had finished (``after_row``) have no time of their own: they arrive at that
request's finish plus their think time, wherever that falls in this run. ``recorded=True`` plays them at their recorded
times instead.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import islice
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from loadgen.workload.blocks import mix
from loadgen.workload.sessions import TURN_SHIFT, following
from loadgen.workload.share import WHOLE, Share
from loadgen.workload.source import end_of
from scheduler.request import Outcome, Request, Status
from tenants.tenant import Tenant

Int64s = NDArray[np.int64]
_Number = TypeVar("_Number", bound=np.generic)

_BATCH = 4096
MOONCAKE_BLOCK_TOKENS = 512


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayRows:
    """Rows of a trace as parallel arrays, shape (n,), in any order; times in ns from any origin.

    ``tenant`` indexes the tenants of the workload (None: all rows are the first one's). ``max_tokens``: None means the
    output length. ``block_offsets`` (n + 1,) and ``block_ids``: row i has the blocks
    ``block_ids[block_offsets[i]:block_offsets[i + 1]]``. ``session``: -1 or the number of the session; ``turn`` in it.
    ``after_row``: -1 or the row whose end this one waited for, then ``think_ns`` long. ``cancel_after_ns``: -1 or when
    the client gives up.
    """

    arrival_ns: Int64s
    prompt_tokens: Int64s
    output_tokens: Int64s
    tenant: NDArray[np.integer] | None = None
    max_tokens: Int64s | None = None
    block_offsets: Int64s | None = None
    block_ids: Int64s | None = None
    session: Int64s | None = None
    turn: Int64s | None = None
    after_row: Int64s | None = None
    think_ns: Int64s | None = None
    cancel_after_ns: Int64s | None = None

    def __len__(self) -> int:
        return len(self.arrival_ns)


class TraceWorkload:
    """A :class:`loadgen.workload.source.Source` that replays ``rows``.

    ``start_ns`` / ``end_ns``: the slice of the trace's own time that is played (its start becomes 0); default: from the
    first row to one mean gap past the last. ``speed``: gaps are divided by it. ``growth``: tenant name -> factor.
    ``num_prompts``: at most so many requests are to be released. ``share``: what of it is made here. Raises ValueError that
    says what is wrong.
    """

    def __init__(
        self,
        rows: ReplayRows,
        tenants: Sequence[Tenant],
        *,
        speed: float = 1.0,
        start_ns: int | None = None,
        end_ns: int | None = None,
        growth: Mapping[str, float] | None = None,
        num_prompts: int | None = None,
        block_tokens: int = MOONCAKE_BLOCK_TOKENS,
        recorded: bool = False,
        share: Share = WHOLE,
    ) -> None:
        self._tenants = tuple(tenants)
        self._block_tokens = block_tokens
        self._rows = rows
        _check(rows, self._tenants, speed, growth or {})
        self._tenant = np.zeros(len(rows), dtype=np.int64) if rows.tenant is None else rows.tenant
        start = int(rows.arrival_ns.min()) if start_ns is None else start_ns
        end = _natural_end(rows.arrival_ns) if end_ns is None else end_ns
        if end <= start:
            raise ValueError(
                f"the slice ends at {end} ns, not after its start at {start} ns; a later end would be right"
            )
        inside = (rows.arrival_ns >= start) & (rows.arrival_ns < end)
        if not inside.any():
            raise ValueError(
                f"no row of the trace arrives in [{start}, {end}) ns; a slice that holds rows would be right"
            )
        self.span_ns = round((end - start) / speed)
        self._waits = np.zeros(len(rows), dtype=np.bool_)
        self._next_row: Int64s | None = None
        if rows.after_row is not None and not recorded:
            self._find_waiting(rows.after_row, inside)
        factors = np.array([(growth or {}).get(tenant.name, 1.0) for tenant in self._tenants])
        self._refuse_growing_users(factors)
        self._schedule(np.flatnonzero(inside & ~self._waits), start, speed, factors)
        self._share = share
        self._limit_of_all = num_prompts
        self._limit = None if num_prompts is None else share.of_total(num_prompts)
        self._row_of: dict[int, tuple[int, int]] = {}

    def _find_waiting(self, after_row: Int64s, inside: NDArray[np.bool_]) -> None:
        """A row whose cause lies outside the slice, or has another row waiting already, is played at its own time: it
        would never come otherwise.
        """
        waiting = (after_row >= 0) & inside
        waiting[waiting] = inside[after_row[waiting]]
        rows = np.flatnonzero(waiting)
        causes, first = np.unique(after_row[rows], return_index=True)
        if not len(rows):
            return
        self._waits[rows[first]] = True
        self._next_row = np.full(len(after_row), -1, dtype=np.int64)
        self._next_row[causes] = rows[first]

    def _next_of(self, row: int) -> int:
        """The row that waits for this one; -1: none."""
        return -1 if self._next_row is None else int(self._next_row[row])

    def _refuse_growing_users(self, factors: NDArray[np.float64]) -> None:
        """The gaps of a closed loop are the server's answer times: there is nothing to divide by k."""
        users = self._waits if self._rows.session is None else self._waits & (self._rows.session < 0)
        for index in np.unique(self._tenant[users]).tolist():
            if factors[index] != 1.0:
                raise ValueError(
                    f"tenant {self._tenants[index].name!r} is a closed loop in this trace, so its load cannot be "
                    f"multiplied by {factors[index]}; recorded arrivals, or another tenant, would be right"
                )

    def _schedule(self, played: Int64s, start: int, speed: float, factors: NDArray[np.float64]) -> None:
        times: list[Int64s] = []
        rows: list[NDArray[np.int32]] = []
        cycles: list[NDArray[np.int32]] = []
        for tenant, factor in enumerate(factors.tolist()):
            own = played[self._tenant[played] == tenant]
            at = self._rows.arrival_ns[own] - start
            if speed != 1.0:
                at = np.rint(at / speed).astype(np.int64)
            for cycle in range(int(np.ceil(factor))):
                # As floats until those beyond the span are gone: they may be beyond 64 bits. What is kept is right to the ns.
                when = at if factor == 1.0 else np.rint((at + float(cycle * self.span_ns)) / factor)
                keep = when < self.span_ns
                times.append(when[keep].astype(np.int64))
                rows.append(own[keep].astype(np.int32))
                cycles.append(np.full(int(keep.sum()), cycle, dtype=np.int32))
            del own, at, when, keep
        order = np.argsort(np.concatenate(times), kind="stable")
        self._at, self._row, self._cycle = _taken(times, order), _taken(rows, order), _taken(cycles, order)

    @property
    def tenants(self) -> tuple[Tenant, ...]:
        return self._tenants

    @property
    def block_tokens(self) -> int:
        return self._block_tokens

    @property
    def expected_requests(self) -> float | None:
        if self._next_row is None:
            return len(self._at) if self._limit_of_all is None else min(self._limit_of_all, len(self._at))
        return self._limit_of_all

    @property
    def limit(self) -> int | None:
        return self._limit

    @property
    def follows(self) -> bool:
        return self._next_row is not None

    def absolute(self) -> Iterator[Request]:
        return islice(self._scheduled(), self._limit)

    def _scheduled(self) -> Iterator[Request]:
        as_they_are = self._share.count == 1 and self._next_row is None
        for first in range(0, len(self._at), _BATCH):
            batch = slice(first, first + _BATCH)
            made = self._requests(first, self._at[batch], self._row[batch], self._cycle[batch])
            if as_they_are:
                yield from made
                continue
            for request, row, cycle in zip(made, self._row[batch].tolist(), self._cycle[batch].tolist(), strict=True):
                if not self._share.owns(request.id):
                    continue
                if self._next_of(row) >= 0:
                    self._row_of[request.id] = (row, cycle)
                yield request

    def start_closed(self, now_ns: int) -> list[Request]:  # noqa: ARG002 (the protocol's: a trace starts at its first row)
        """None: the first request of every user is a row with a time of its own."""
        return []

    def after(self, outcome: Outcome) -> Request | None:
        previous = outcome.request
        row, cycle = self._row_of.pop(previous.id, (-1, 0))
        if row < 0 or outcome.status is Status.UNFINISHED:
            return None
        row = self._next_of(row)
        end_ns = end_of(outcome)
        arrival_ns = end_ns + (0 if self._rows.think_ns is None else int(self._rows.think_ns[row]))
        if arrival_ns >= self.span_ns:
            return None
        request_id = previous.id + (1 << TURN_SHIFT)
        one = np.array([row])
        request = self._requests(request_id, np.array([arrival_ns]), one, np.array([cycle]))[0]
        if self._next_of(row) >= 0:
            self._row_of[request_id] = (row, cycle)
        return following(request, previous, end_ns)

    def foresee(self, tenant: str, count: int) -> Sequence[Request]:  # noqa: ARG002 (the protocol's: which row follows is the answers' choice)
        return ()

    def _requests(
        self, first_id: int, at: Int64s, row: NDArray[np.integer], cycle: NDArray[np.integer]
    ) -> list[Request]:
        rows = self._rows
        output = np.maximum(rows.output_tokens[row], 1)
        limit = output if rows.max_tokens is None else rows.max_tokens[row]
        tenants = [self._tenants[i] for i in self._tenant[row].tolist()]
        session = _column(rows.session, row)
        return [
            Request(
                id=first_id + n,
                tenant=tenant.name,
                arrival_ns=arrival_ns,
                prompt_tokens=prompt,
                max_tokens=most,
                target_output_tokens=target,
                priority=tenant.priority,
                ttl_ns=tenant.limits.ttl_ns,
                session_id=_session_id(tenant.name, number, copy),
                turn=max(turn, 0),
                cancel_after_ns=None if cancel < 0 else cancel,
                prefix_blocks=self._blocks(i, copy),
            )
            for n, (i, copy, tenant, arrival_ns, prompt, most, target, number, turn, cancel) in enumerate(
                zip(
                    row.tolist(),
                    cycle.tolist(),
                    tenants,
                    at.tolist(),
                    np.maximum(rows.prompt_tokens[row], 1).tolist(),
                    limit.tolist(),
                    output.tolist(),
                    session,
                    _column(rows.turn, row),
                    _column(rows.cancel_after_ns, row),
                    strict=True,
                )
            )
        ]

    def _blocks(self, row: int, cycle: int) -> tuple[int, ...]:
        offsets, ids = self._rows.block_offsets, self._rows.block_ids
        if offsets is None or ids is None:
            return ()
        names = ids[offsets[row] : offsets[row + 1]].tolist()
        return tuple(names) if cycle == 0 else tuple(_renamed(name, cycle) for name in names)


def _renamed(name: int, cycle: int) -> int:
    """A block's name in a later cycle; the 16 bits that a mixed name has room for come round, so what is above is mixed in."""
    mixed = mix(name + (cycle << 48))
    return (mix(mixed + (cycle >> 16)) if cycle >> 16 else mixed) >> 1


def _taken(parts: list[NDArray[_Number]], order: Int64s) -> NDArray[_Number]:
    """The parts as one, in this order; they are let go of, since a long trace has many of these columns."""
    whole = np.concatenate(parts)
    parts.clear()
    return whole[order]


def _column(column: Int64s | None, row: NDArray[np.integer]) -> list[int]:
    values: list[int] = [-1] * len(row) if column is None else column[row].tolist()
    return values


def _session_id(tenant: str, number: int, cycle: int) -> str | None:
    if number < 0:
        return None
    return f"{tenant}/{number}" if cycle == 0 else f"{tenant}/{number}.{cycle}"


def _natural_end(arrival_ns: Int64s) -> int:
    """One mean gap past the last row, so that a cycled trace keeps its rate across the seam."""
    first, last = int(arrival_ns.min()), int(arrival_ns.max())
    return last + max(1, round((last - first) / max(1, len(arrival_ns) - 1)))


def _check(rows: ReplayRows, tenants: tuple[Tenant, ...], speed: float, growth: Mapping[str, float]) -> None:
    n = len(rows)
    if n == 0:
        raise ValueError("the trace has no rows; at least one would be right")
    if not tenants:
        raise ValueError("the replay has no tenant; give at least one")
    for field in fields(rows):
        column = getattr(rows, field.name)
        expected = {"block_offsets": n + 1, "block_ids": None}.get(field.name, n)
        if column is not None and expected is not None and len(column) != expected:
            raise ValueError(f"{field.name} has {len(column)} entries for {n} rows; {expected} would be right")
    if rows.tenant is not None and (rows.tenant.min() < 0 or rows.tenant.max() >= len(tenants)):
        raise ValueError(
            f"tenant indexes run from {int(rows.tenant.min())} to {int(rows.tenant.max())}; "
            f"0 to {len(tenants) - 1} would be right ({len(tenants)} tenants)"
        )
    if not speed > 0:
        raise ValueError(f"speed is {speed}; a number > 0 would be right (2 plays twice as fast)")
    names = {tenant.name for tenant in tenants}
    for name, factor in growth.items():
        if name not in names:
            raise ValueError(f"growth names the unknown tenant {name!r}; known: {', '.join(sorted(names))}")
        if not factor > 0:
            raise ValueError(f"growth of {name!r} is {factor}; a number > 0 would be right")
