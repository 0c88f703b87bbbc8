"""What calibration reads of a captured trace: the stamps, lengths and gaps of requests that ended OK.

A fit replays its captures hundreds of times, so it reads at most some ten thousand requests: of a longer run a stretch of
consecutive ones from its middle, since what else the server was doing must be known. Those that are read are chosen from two
columns; the rest of the trace is passed over part by part.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lmperf.wiring.header import header_plan, run_name, run_names
from loadgen.trace.collect import TenantCodes, collected
from loadgen.trace.errors import TraceError
from loadgen.trace.parts import TraceFile
from loadgen.trace.reader import Trace
from scheduler.calibration.observations import BLOCKS, Observations, blocks_of
from scheduler.calibration.step_law import CalibrationError
from tenants.measures.columns import Int64s, StatusCode
from tenants.tenant import Tenant

MOST_REQUESTS = 20_000
"""What all captures of one fit together are read to."""

_LEAST_OF_ONE = 2_000
_ROUNDED_NS = 10_000
_STAMPS = ("sent_ns", "first_token_ns", "last_token_ns", "prompt_tokens", "output_tokens")
_GOOD = (*_STAMPS, "status", "cancel_after_ns", "backend")
_ALL = (*_GOOD, "cached_prompt_tokens", "chunk_offsets_us", "chunk_tokens", "tenant", "arrival_ns")


def observations(traces: Sequence[TraceFile | Trace], *, most: int = MOST_REQUESTS) -> list[Observations]:
    """Of several traces, together at most about ``most`` requests. Raises CalibrationError."""
    share = max(_LEAST_OF_ONE, most // max(1, len(traces)))
    names = run_names([trace.path for trace in traces])
    return [
        seen
        for trace, name in zip(traces, names, strict=True)
        for seen in observations_by_server(trace, most=share, called=name)
    ]


def observations_by_server(
    trace: TraceFile | Trace, *, most: int = MOST_REQUESTS, called: str | None = None
) -> list[Observations]:
    """Apart for each server of a run on several: a step is one engine's, and so is what it batches. Which user of a closed
    loop went where is not known, so their requests count as they came. At most ``most`` of each server. ``called``: what
    the run is called, if not as its folder.

    Raises CalibrationError when no request has a first token."""
    servers = _Servers()
    found = collected(
        trace.narrow(*_GOOD), len(trace), lambda part: {"sent": part.ints("sent_ns"), "of": servers.of(part)}
    )
    if not found or not (found["of"] >= 0).any():
        raise CalibrationError(
            f"{trace.path}: no request with a first token, so no server model can be fitted to it; name one with "
            "--server-model FILE|PRESET"
        )
    groups = servers.groups(found["of"])
    left_out = {name: servers.left_out(found["of"], name) for name in groups}
    rows = {name: _middle(mine, found["sent"], most) for name, mine in groups.items()}
    del found
    kept = _Kept(trace, np.concatenate(list(rows.values())))
    called = called or run_name(trace.path)
    closed = trace.metadata.load_mode == "closed" and None in groups
    return [
        kept.observations(
            called if name is None else f"{called} on {name}",
            chosen,
            closed=closed,
            of=len(groups[name]),
            left_out=left_out[name],
        )
        for name, chosen in rows.items()
    ]


_NEVER_SENT = np.iinfo(np.int16).min


class _Servers:
    """Numbers servers across parts: 0 is no name."""

    def __init__(self) -> None:
        self._numbers: dict[str | None, int] = {None: 0}

    def of(self, part: Trace) -> NDArray[np.int16]:
        """Whose each row is; of one that was sent and calibration cannot read, the number's complement (below 0), so that it
        is counted; _NEVER_SENT for one that no server saw."""
        words, index = part.words("backend")
        numbers = [*(self._numbers.setdefault(name, len(self._numbers)) for name in words), 0]
        first, last = part.ints("first_token_ns"), part.ints("last_token_ns")
        good = (part.statuses() == StatusCode.OK) & (first >= 0) & (last >= first) & (part.ints("sent_ns") >= 0)
        good &= (part.ints("output_tokens") > 0) & (part.ints("prompt_tokens") > 0)
        mine = np.array(numbers, dtype=np.int16)[index]
        # With any stamp a server saw it, though it cannot have answered before it was asked.
        seen = np.maximum.reduce([first, last, part.ints("sent_ns")]) >= 0
        return np.where(good, mine, np.where(seen, ~mine, _NEVER_SENT)).astype(np.int16)

    def left_out(self, numbers: NDArray[np.int16], name: str | None) -> int:
        """How many rows of a server (None: of all) were sent and cannot be read."""
        if name is None:
            return int(((numbers < 0) & (numbers != _NEVER_SENT)).sum())
        return int((numbers == ~np.int16(self._numbers[name])).sum())

    def groups(self, numbers: NDArray[np.int16]) -> dict[str | None, Int64s]:
        """The rows of each server of several, by name; of one server all that can be read (None)."""
        named = sorted(name for name in self._numbers if name is not None)
        found: dict[str | None, Int64s] = {}
        if len(named) > 1:
            found |= {name: np.flatnonzero(numbers == self._numbers[name]) for name in named}
        found = {name: rows for name, rows in found.items() if len(rows)}
        return found or {None: np.flatnonzero(numbers >= 0)}


def _middle(rows: Int64s, sent_ns: Int64s, most: int) -> Int64s:
    """In order of sending, the ``most`` in the middle."""
    ordered = rows[np.argsort(sent_ns[rows], kind="stable")]
    skipped = max(0, len(ordered) - most) // 2
    return ordered[skipped : skipped + most]


class _Kept:
    """The rows of a trace that were chosen (``rows``: their numbers), and the gaps of each."""

    def __init__(self, trace: TraceFile | Trace, rows: Int64s) -> None:
        read = np.zeros(len(trace), dtype=np.bool_)
        read[rows] = True
        self._place = np.cumsum(read, dtype=np.int32) - 1
        self._gaps: list[Int64s] = []
        self._owners: list[Int64s] = []
        codes = TenantCodes()
        parts: list[dict[str, NDArray[Any]]] = [self._part(part, rows, codes) for part, rows in _chosen(trace, read)]
        self._columns = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
        promised = _promised(trace)
        self._tenants = tuple(promised.get(name, Tenant(name=name)) for name in codes.names)

    def _part(self, part: Trace, chosen: NDArray[np.bool_], codes: TenantCodes) -> dict[str, NDArray[Any]]:
        gaps = part.gaps()
        mine = chosen[gaps.owner]
        self._gaps.append(gaps.gap_ns[mine])
        self._owners.append(self._place[part.first_row + gaps.owner[mine]].astype(np.int64))
        columns = {name: part.ints(name)[chosen] for name in (*_STAMPS, "cached_prompt_tokens", "arrival_ns")}
        return columns | {"tenant": codes.of(part)[chosen]}

    def observations(self, name: str, rows: Int64s, *, closed: bool, of: int, left_out: int) -> Observations:
        """Of the rows numbered ``rows`` in the trace, in order of sending; ``of``: how many there were to choose from;
        ``left_out``: how many more were sent."""
        places = self._place[rows]
        sent, first, last, prompt, output = (self._columns[column][places] for column in _STAMPS)
        users, turnaround_ns = _users_of(sent, last) if closed else (None, 0)
        block = np.full(len(self._columns["sent_ns"]), -1, dtype=np.int64)
        block[places] = blocks_of(len(places))
        values, counts, blocks = self._counted_gaps(block)
        cached = np.clip(self._columns["cached_prompt_tokens"][places], 0, prompt - 1)
        return Observations(
            name,
            sent,
            first,
            last,
            prompt,
            output,
            users=users,
            turnaround_ns=turnaround_ns,
            gaps_ns=values if len(values) else None,
            gap_counts=counts if len(values) else None,
            gap_blocks=blocks if len(values) else None,
            cached_tokens=cached if cached.any() else None,
            tenants=self._tenants,
            tenant=self._columns["tenant"][places].astype(np.int64),
            waited_ns=np.maximum(sent - self._columns["arrival_ns"][places], 0),
            of=of,
            left_out=left_out,
        )

    def _counted_gaps(self, block: Int64s) -> tuple[Int64s, Int64s, Int64s]:
        """The different gaps of each block, how often each is there, and in which block; ``block``: of each row, -1: none."""
        of = np.concatenate([block[owners] for owners in self._owners] or [block[:0]])
        gaps = np.concatenate(self._gaps or [block[:0]])
        found = [(number, *np.unique(gaps[of == number], return_counts=True)) for number in range(BLOCKS)]
        return (
            np.concatenate([values for _, values, _ in found]),
            np.concatenate([counts for _, _, counts in found]),
            np.concatenate([np.full(len(values), number, dtype=np.int64) for number, values, _ in found]),
        )


def _promised(trace: TraceFile | Trace) -> dict[str, Tenant]:
    """The tenants that the header's scenario has, with what they were promised, by name."""
    try:
        plan = header_plan(trace)
    except TraceError:
        # The stamps, which are what is asked for, can be read without the scenario.
        return {}
    return {} if plan is None else {each.tenant.name: each.tenant for each in plan.tenants}


def _chosen(trace: TraceFile | Trace, read: NDArray[np.bool_]) -> Iterator[tuple[Trace, NDArray[np.bool_]]]:
    """The parts that have a chosen row, and which of their rows are."""
    for part in trace.narrow(*_ALL):
        rows = read[part.first_row : part.first_row + len(part)]
        if rows.any():
            yield part, rows


def _users_of(sent_ns: Int64s, last_ns: Int64s) -> tuple[int, int]:
    """How many users a closed loop had (the most requests at once), and how long one takes from answer to next request
    (median; the k-th request after the first of every user follows the k-th answer)."""
    change = np.concatenate([np.ones(len(sent_ns), dtype=np.int64), -np.ones(len(last_ns), dtype=np.int64)])
    # The answer comes before the request that it allows, whose stamp may be earlier by what a sum of gaps was rounded.
    order = np.lexsort((change, np.concatenate([sent_ns, last_ns - _ROUNDED_NS])))
    users = int(np.cumsum(change[order]).max())
    waits = sent_ns[users:] - np.sort(last_ns)[: len(sent_ns) - users]
    return users, max(0, int(np.median(waits))) if len(waits) else 0
