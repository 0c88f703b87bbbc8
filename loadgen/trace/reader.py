"""Reading a trace of ours back: the header, the rows, the requests to replay, the columns to judge.

A file that is cut off, foreign, of a newer major version or inconsistent gives a TraceError that says which file, which
row and column, and why; nothing is guessed. A whole trace takes about 1 KiB a request in memory: what can work on a few
thousand rows at a time reads it by :mod:`loadgen.trace.parts`.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from loadgen.recording.stamps import ABSENT, STATUS_CODES, Gaps, Stamps, columns_of, measure, with_max_itl
from loadgen.trace.check import check, check_ids
from loadgen.trace.decode import encoded, gaps_of_lists, outcome_of, request_of, rows_as_dicts
from loadgen.trace.lengths import lengths_to_replay
from loadgen.trace.open import conform, locate, reading
from loadgen.trace.schema import TraceMetadata, metadata_of
from loadgen.trace.writer import ROWS_DIR, batches_of
from scheduler.request import Outcome, Request, Status
from tenants.measures.columns import Columns, Int64s, StatusCode

ENDED_COLUMNS = (
    "ended_ns",
    "finished_ns",
    "last_token_ns",
    "first_token_ns",
    "sent_ns",
    "dispatched_ns",
    "arrival_ns",
)
"""What tells when an outcome was known, the best first."""


def read_trace(path: Path | str) -> Trace:
    """The trace at ``path``: a run's folder or a parquet file. Raises TraceError."""
    file = locate(Path(path))
    with reading(file):
        table = pq.read_table(file, partitioning=None)
    trace = Trace(file, metadata_of(table.schema, file), conform(table, file))
    check(trace)
    check_ids(trace.path, trace.ints("request_id"))
    return trace


def read_streams(run_dir: Path, worker: str) -> Trace | None:
    """What the streams of one worker hold, in the order in which it wrote them, whole or cut off; None without any. Raises
    TraceError.
    """
    paths = sorted((run_dir / ROWS_DIR).glob(f"{worker}-*.arrow"), key=lambda path: int(path.stem.rpartition("-")[2]))
    batches = [batch for path in paths for batch in batches_of(path, [])]
    if not batches:
        return None
    metadata = metadata_of(batches[0].schema, paths[0])
    return Trace(paths[0], metadata, conform(pa.Table.from_batches(batches), paths[0]))


class Trace:
    """A trace in memory, or a part of one: ``metadata``, the arrow ``table`` (columns as in
    :mod:`loadgen.trace.schema`) and views of it. ``first_row``: the number of its first row in the file.
    """

    def __init__(self, path: Path, metadata: TraceMetadata, table: pa.Table, first_row: int = 0) -> None:
        self.path = path
        self.metadata = metadata
        self.table = table
        self.first_row = first_row
        self._gaps: Gaps | None = None

    @cached_property
    def tenants(self) -> tuple[str, ...]:
        """Their names, in the order in which the rows first name them."""
        return tuple(self.words("tenant")[0])

    def __len__(self) -> int:
        return int(self.table.num_rows)

    def parts(self) -> Iterator[Trace]:
        """All rows; in memory they are one part."""
        yield self

    def narrow(self, *names: str) -> Iterator[Trace]:  # noqa: ARG002 (a file reads these columns only)
        """The same, as :meth:`loadgen.trace.parts.TraceFile.narrow`."""
        yield self

    def values(self, name: str) -> list[Any]:
        """A column as Python values, None for null."""
        values: list[Any] = self.table.column(name).to_pylist()
        return values

    def words(self, name: str) -> tuple[list[str], NDArray[np.int64]]:
        """A text column as (its distinct values in order of appearance, the index of each row's; -1 for null)."""
        return encoded(self.table.column(name))

    def lists(self, name: str) -> pa.ListArray[Any]:
        """A list column as one arrow array."""
        column: Any = self.table.column(name)
        array: pa.ListArray[Any] = column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
        return array

    def mask(self, name: str) -> NDArray[np.bool_]:
        """A boolean column without nulls."""
        return np.asarray(self.table.column(name).to_numpy(), dtype=np.bool_)

    def ints(self, name: str) -> Int64s:
        """An integer column as int64, ABSENT for null."""
        column: Any = self.table.column(name).cast(pa.int64()).fill_null(pa.scalar(ABSENT, pa.int64()))
        return np.asarray(column.to_numpy(), dtype=np.int64)

    def chunks(self, row: int) -> tuple[NDArray[np.int64] | None, NDArray[np.int32] | None]:
        """(offsets in us from the first token, tokens a chunk) of one row; None where unknown."""
        offsets = self.lists("chunk_offsets_us")[row]
        tokens = self.lists("chunk_tokens")[row]
        return (
            np.asarray(offsets.values.to_numpy(), dtype=np.int64) if offsets.is_valid else None,
            np.asarray(tokens.values.to_numpy(), dtype=np.int32) if tokens.is_valid else None,
        )

    def gaps(self) -> Gaps:
        """All gaps between chunks. Tokens a chunk are as recorded; else 1 when there are as many chunks as output
        tokens; else unknown.
        """
        if self._gaps is None:
            self._gaps = gaps_of_lists(
                self.lists("chunk_offsets_us"), self.lists("chunk_tokens"), self.ints("output_tokens")
            )
        return self._gaps

    def statuses(self) -> NDArray[np.int8]:
        """How each row ended, as a :class:`StatusCode`."""
        statuses, status = self.words("status")
        code = np.array([STATUS_CODES[Status(value)] for value in statuses], dtype=np.int8)[status]
        planned = (code == StatusCode.CANCELLED) & (self.ints("cancel_after_ns") != ABSENT)
        code[planned] = StatusCode.CANCEL_PLANNED
        return code

    def stamps(self) -> Stamps:
        """The stamps of all rows; tenant codes index ``tenants``."""
        return Stamps(
            tenant=self.words("tenant")[1].astype(np.int32),
            status=self.statuses(),
            arrival=self.ints("arrival_ns"),
            enqueued=self.ints("enqueued_ns"),
            dispatched=self.ints("dispatched_ns"),
            connect=self.ints("connect_ns"),
            sent=self.ints("sent_ns"),
            first=self.ints("first_token_ns"),
            last=self.ints("last_token_ns"),
            finished=self.ints("finished_ns"),
            ended=self.ended(),
            prompt_tokens=self.ints("prompt_tokens"),
            cached_prompt_tokens=self.ints("cached_prompt_tokens"),
            output_tokens=self.ints("output_tokens"),
            max_itl=self.ints("max_itl_ns"),
        )

    def ended(self) -> Int64s:
        """When each outcome was known: as recorded, else its last stamp (a trace of another tool)."""
        ended = self.ints(ENDED_COLUMNS[0])
        for name in ENDED_COLUMNS[1:]:
            if not (ended == ABSENT).any():
                break
            ended = np.where(ended == ABSENT, self.ints(name), ended)
        return ended

    @property
    def last_end_ns(self) -> int:
        """When the last outcome was known; 0 without rows."""
        return int(self.ended().max(initial=0))

    @property
    def last_arrival_ns(self) -> int:
        """The last intended arrival; 0 without rows."""
        return int(self.ints("arrival_ns").max(initial=0))

    def in_window(self) -> NDArray[np.bool_]:
        return ~self.mask("warmup")

    def columns(self) -> Columns:
        """The rows as the measures read them: equal to what the recorder of the run held."""
        stamps = self.stamps()
        return columns_of(stamps, measure(stamps, with_max_itl(stamps, self.gaps())), self.tenants, self.in_window())

    def replay_lengths(self, seed: int = 0) -> tuple[Int64s, NDArray[np.bool_]]:
        """(output length to replay, imputed) of each row. The truth is what a request that ended OK produced; else the
        length drawn before sending; else one drawn from the tenant's true lengths (from all when it has none, 1 when
        there are none at all), which is flagged.
        """
        stamps = self.stamps()
        return lengths_to_replay(
            self.ints("output_tokens"), self.ints("target_output_tokens"), stamps.status, stamps.tenant, seed
        )

    def requests(self, seed: int = 0) -> Iterator[Request]:
        """The requests to replay, in arrival order; ``target_output_tokens`` as :meth:`replay_lengths` gives them."""
        lengths, _ = self.replay_lengths(seed)
        order = np.lexsort((self.ints("request_id"), self.ints("arrival_ns")))
        for row, values in zip(order, rows_as_dicts(self.table.take(order)), strict=True):
            yield request_of(values, int(lengths[row]))

    def outcomes(self) -> Iterator[Outcome]:
        """The rows as outcomes, in file order: what a recorder is fed with to summarise a trace again."""
        ended = self.ended()
        for row, values in enumerate(rows_as_dicts(self.table)):
            offsets, tokens = self.chunks(row)
            yield outcome_of(values, int(ended[row]), offsets, tokens)
