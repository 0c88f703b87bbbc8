"""The light form of a workload trace: what arrived, when, whose, and how long; no stamps of a server.

Public traces are read into it, :mod:`loadgen.trace.transform` and :mod:`loadgen.trace.tenant_rule` work on it, and it
turns into requests, or into a trace file of ours. Immutable: every operation gives a new one. Where a source also
measured the server (first token, gaps), the measurements ride along and stay on their row.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loadgen.trace.schema import TraceMetadata
from scheduler.request import Outcome, Request, Status, TokensSource
from tenants.measures.columns import Int64s

UNKNOWN = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What a client saw of each request, as the source has it. ``ttft_ns`` from ``sent_ns`` (UNKNOWN: none came);
    ``offsets_us``: chunks from the first token; ``ok``: it ended well.
    """

    sent_ns: Int64s
    ttft_ns: Int64s
    end_ns: Int64s
    offsets_us: tuple[NDArray[np.int64], ...]
    ok: NDArray[np.bool_]

    def shifted(self, by_ns: int) -> Measured:
        """The same, ``by_ns`` earlier."""
        return replace(self, sent_ns=self.sent_ns - by_ns, end_ns=self.end_ns - by_ns)

    def take(self, rows: NDArray[np.int64]) -> Measured:
        return Measured(
            sent_ns=self.sent_ns[rows],
            ttft_ns=self.ttft_ns[rows],
            end_ns=self.end_ns[rows],
            offsets_us=tuple(self.offsets_us[row] for row in rows),
            ok=self.ok[rows],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceRows:
    """Parallel arrays, in arrival order. ``arrival_ns`` from the first arrival's instant or the source's own zero;
    ``tenant`` indexes ``tenants``; token counts are UNKNOWN (-1) where the source has none. ``session`` is empty text
    for none. ``prefix_blocks[i]``: hashes of row i, each of ``prefix_block_tokens`` tokens. ``extra``: other columns of
    the source as text, for tenant rules. ``source``: the format's name. ``load_mode``: open or closed. ``notes``: what was
    done to the rows that a reader of results should know, sentences.
    """

    source: str
    arrival_ns: Int64s
    prompt_tokens: Int64s
    output_tokens: Int64s
    tenants: tuple[str, ...] = ("default",)
    tenant: NDArray[np.int32] = field(default_factory=lambda: np.empty(0, dtype=np.int32))
    session: tuple[str, ...] = ()
    turn: Int64s | None = None
    prefix_blocks: tuple[tuple[int, ...], ...] = ()
    prefix_block_tokens: int | None = None
    extra: dict[str, tuple[str, ...]] = field(default_factory=dict)
    measured: Measured | None = None
    load_mode: str = "open"
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        n = len(self.arrival_ns)
        if not len(self.tenant):
            object.__setattr__(self, "tenant", np.zeros(n, dtype=np.int32))
        lengths = {len(self.prompt_tokens), len(self.output_tokens), len(self.tenant), n}
        lengths |= {len(values) for values in (self.session, self.prefix_blocks, *self.extra.values()) if values}
        if len(lengths) != 1:
            raise ValueError(f"columns of unequal lengths: {sorted(lengths)}")

    def __len__(self) -> int:
        return len(self.arrival_ns)

    def take(self, rows: NDArray[np.int64]) -> TraceRows:
        """The rows with these numbers, in this order."""

        def pick(values: tuple[Any, ...]) -> tuple[Any, ...]:
            return tuple(values[row] for row in rows) if values else ()

        changes: dict[str, Any] = {
            "session": pick(self.session),
            "prefix_blocks": pick(self.prefix_blocks),
            "extra": {name: pick(values) for name, values in self.extra.items()},
            "measured": None if self.measured is None else self.measured.take(rows),
            "turn": None if self.turn is None else self.turn[rows],
        }
        for name in ("arrival_ns", "prompt_tokens", "output_tokens", "tenant"):
            changes[name] = getattr(self, name)[rows]
        return replace(self, **changes)

    def with_tenants(self, names: Sequence[str], codes: NDArray[np.int32]) -> TraceRows:
        return replace(self, tenants=tuple(names), tenant=codes)

    def column(self, name: str) -> tuple[str, ...]:
        """A column of the source as text. Raises KeyError naming the columns there are."""
        if name in self.extra:
            return self.extra[name]
        if name in {"prompt_tokens", "output_tokens"}:
            return tuple(str(value) for value in getattr(self, name))
        known = ", ".join([*self.extra, "prompt_tokens", "output_tokens"])
        raise KeyError(f"no column {name!r} in this trace; there are: {known}")

    def requests(self) -> Iterator[Request]:
        """The rows as requests, ids counted from 0."""
        for row in range(len(self)):
            output = int(self.output_tokens[row])
            yield Request(
                id=row,
                tenant=self.tenants[self.tenant[row]],
                arrival_ns=int(self.arrival_ns[row]),
                prompt_tokens=max(int(self.prompt_tokens[row]), 0),
                target_output_tokens=None if output < 0 else output,
                session_id=(self.session[row] or None) if self.session else None,
                turn=0 if self.turn is None else int(self.turn[row]),
                prefix_blocks=self.prefix_blocks[row] if self.prefix_blocks else (),
            )

    def outcomes(self) -> Iterator[Outcome]:
        """The rows as outcomes, so that they can be written as a trace of ours. Rows that nobody measured end as
        ``unfinished`` with nothing but their arrival: they are a workload, not a result.
        """
        for row, request in enumerate(self.requests()):
            yield self._outcome(row, request)

    def _outcome(self, row: int, request: Request) -> Outcome:
        seen, arrival = self.measured, request.arrival_ns
        if seen is None:
            return Outcome(request=request, status=Status.UNFINISHED, ended_ns=arrival)
        end, sent = int(seen.end_ns[row]), int(seen.sent_ns[row])
        if seen.ttft_ns[row] < 0:
            return Outcome(request=request, status=Status.FAILED, ended_ns=end, sent_ns=sent)
        offsets = seen.offsets_us[row]
        first = sent + int(seen.ttft_ns[row])
        ok = bool(seen.ok[row])
        output = int(self.output_tokens[row])
        return Outcome(
            request=request,
            status=Status.OK if ok else Status.FAILED,
            ended_ns=end,
            sent_ns=sent,
            first_token_ns=first,
            last_token_ns=first + int(offsets[-1]) * 1000 if len(offsets) else end,
            finished_ns=end if ok else None,
            output_tokens=output if output >= 0 else None,
            tokens_source=TokensSource.USAGE if output >= 0 else TokensSource.UNKNOWN,
            tokens_known=len(offsets) == output,
            chunk_offsets_us=offsets if len(offsets) else None,
        )

    def metadata(self) -> TraceMetadata:
        """The header of a trace file with these rows."""
        return TraceMetadata(
            kind="imported",
            load_mode=self.load_mode,
            queueing="target",
            prefix_block_tokens=self.prefix_block_tokens,
            end_ns=int(self.arrival_ns.max(initial=0)) + 1,
            source=self.source,
        )


def sorted_by_arrival(rows: TraceRows, *, from_first: bool = True) -> TraceRows:
    """The rows in arrival order (ties in file order), the first arrival at 0 if ``from_first``."""
    order = np.argsort(rows.arrival_ns, kind="stable")
    ordered = rows if (np.diff(rows.arrival_ns) >= 0).all() else rows.take(order)
    if not len(rows) or not from_first:
        return ordered
    zero = int(ordered.arrival_ns[0])
    if zero == 0:
        return ordered
    measured = None if ordered.measured is None else ordered.measured.shifted(zero)
    return replace(ordered, arrival_ns=ordered.arrival_ns - zero, measured=measured)
