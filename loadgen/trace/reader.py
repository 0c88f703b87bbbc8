"""Reading a trace of ours back: the header, the rows, the requests to replay, the columns to judge.

A file that is cut off, foreign, of a newer major version or inconsistent gives a TraceError that says which file, which
row and column, and why; nothing is guessed.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from loadgen.recording.stamps import ABSENT, STATUS_CODES, Gaps, Stamps, columns_of, flat_gaps, measure, with_max_itl
from loadgen.trace.check import check
from loadgen.trace.decode import list_parts, outcome_of, request_of, rows_as_dicts
from loadgen.trace.errors import TraceError
from loadgen.trace.schema import TRACE_SCHEMA, TraceMetadata, metadata_of
from loadgen.trace.writer import ROWS_DIR, TRACE_FILE, batches_of
from scheduler.request import Outcome, Request, Status
from tenants.measures.columns import Columns, Int64s, StatusCode

_PARQUET_MAGIC = b"PAR1"


def read_trace(path: Path | str) -> Trace:
    """The trace at ``path``: a run's folder or a parquet file. Raises TraceError."""
    file = _locate(Path(path))
    try:
        with file.open("rb") as head:
            if head.read(4) != _PARQUET_MAGIC:
                raise TraceError(file, "not a parquet file; `lmperf trace import` reads foreign traces")
        table = pq.read_table(file, partitioning=None)
    except pa.ArrowInvalid as error:
        raise TraceError(
            file, f"cut off or damaged ({error}); a run's rows/*.arrow, if still there, can be merged again"
        ) from error
    except OSError as error:
        raise TraceError(file, f"cannot be read ({error})") from error
    metadata = metadata_of(table.schema, file)
    trace = Trace(file, metadata, _conform(table, file))
    check(trace)
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
    return Trace(paths[0], metadata, _conform(pa.Table.from_batches(batches), paths[0]))


def _locate(path: Path) -> Path:
    if path.is_dir():
        file = path / TRACE_FILE
        if file.is_file():
            return file
        if any((path / ROWS_DIR).glob("*.arrow")):
            raise TraceError(path, f"the run ended before its rows were merged: `lmperf report {path}` merges them")
        raise TraceError(path, f"a folder without {TRACE_FILE}: not the folder of a run")
    if not path.exists():
        raise TraceError(path, "no such file or folder")
    return path


def _conform(table: pa.Table, file: Path) -> pa.Table:
    """The table with our columns in our order and types; columns of a newer minor version are left out."""
    arrays = []
    for field in TRACE_SCHEMA:
        if field.name not in table.column_names:
            raise TraceError(file, "missing", column=field.name)
        column = table.column(field.name)
        if column.type != field.type:
            try:
                column = column.cast(field.type)
            except pa.ArrowInvalid as error:
                raise TraceError(file, f"is {column.type}, expected {field.type}", column=field.name) from error
        if not field.nullable and column.null_count:
            row = int(pc.index(column.is_null(), True).as_py()) + 1
            raise TraceError(file, "null where a value is required", row=row, column=field.name)
        arrays.append(column.combine_chunks() if column.num_chunks != 1 else column.chunk(0))
    return pa.Table.from_arrays(arrays, schema=TRACE_SCHEMA.with_metadata(table.schema.metadata))


class Trace:
    """A trace in memory: ``metadata``, the arrow ``table`` (columns as in :mod:`loadgen.trace.schema`) and views of
    it.
    """

    def __init__(self, path: Path, metadata: TraceMetadata, table: pa.Table) -> None:
        self.path = path
        self.metadata = metadata
        self.table = table
        self.tenants: tuple[str, ...] = tuple(dict.fromkeys(self.values("tenant")))
        self._gaps: Gaps | None = None

    def __len__(self) -> int:
        return int(self.table.num_rows)

    def values(self, name: str) -> list[Any]:
        """A column as Python values, None for null."""
        values: list[Any] = self.table.column(name).to_pylist()
        return values

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
            output = self.ints("output_tokens")
            owners: list[int] = []
            offsets: list[NDArray[np.int64]] = []
            tokens: list[NDArray[Any] | int] = []
            if len(self):
                starts, flat = list_parts(self.lists("chunk_offsets_us"))
                token_column = self.lists("chunk_tokens")
                token_starts, token_flat = list_parts(token_column)
                for row in np.flatnonzero(np.diff(starts) >= 2):
                    begin, end = int(starts[row]), int(starts[row + 1])
                    owners.append(int(row))
                    offsets.append(flat[begin:end])
                    known = token_starts[row + 1] > token_starts[row]
                    tokens.append(
                        token_flat[token_starts[row] : token_starts[row + 1]]
                        if known
                        else int(end - begin == output[row])
                    )
            self._gaps = flat_gaps(owners, offsets, tokens)
        return self._gaps

    def stamps(self) -> Stamps:
        """The stamps of all rows; tenant codes index ``tenants``."""
        codes = {name: code for code, name in enumerate(self.tenants)}
        status = [int(STATUS_CODES[Status(value)]) for value in self.values("status")]
        code = np.array(status, dtype=np.int8)
        planned = (code == StatusCode.CANCELLED) & (self.ints("cancel_after_ns") != ABSENT)
        code[planned] = StatusCode.CANCEL_PLANNED
        return Stamps(
            tenant=np.array([codes[name] for name in self.values("tenant")], dtype=np.int32),
            status=code,
            arrival=self.ints("arrival_ns"),
            enqueued=self.ints("enqueued_ns"),
            dispatched=self.ints("dispatched_ns"),
            connect=self.ints("connect_ns"),
            sent=self.ints("sent_ns"),
            first=self.ints("first_token_ns"),
            last=self.ints("last_token_ns"),
            finished=self.ints("finished_ns"),
            ended=self._ended(),
            prompt_tokens=self.ints("prompt_tokens"),
            output_tokens=self.ints("output_tokens"),
            max_itl=self.ints("max_itl_ns"),
        )

    def _ended(self) -> Int64s:
        """When each outcome was known: as recorded, else its last stamp (a trace of another tool)."""
        ended = self.ints("ended_ns")
        for name in ("finished_ns", "last_token_ns", "first_token_ns", "sent_ns", "dispatched_ns", "arrival_ns"):
            ended = np.where(ended == ABSENT, self.ints(name), ended)
        return ended

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
        output, target = self.ints("output_tokens"), self.ints("target_output_tokens")
        stamps = self.stamps()
        true = (stamps.status == StatusCode.OK) & (output != ABSENT)
        lengths = np.where(true, output, target)
        imputed = lengths == ABSENT
        rng = np.random.default_rng(seed)
        for code in np.unique(stamps.tenant[imputed]):
            rows = imputed & (stamps.tenant == code)
            pool = output[true & (stamps.tenant == code)]
            pool = pool if len(pool) else output[true]
            lengths[rows] = rng.choice(pool, int(rows.sum())) if len(pool) else 1
        return lengths, imputed

    def requests(self, seed: int = 0) -> Iterator[Request]:
        """The requests to replay, in arrival order; ``target_output_tokens`` as :meth:`replay_lengths` gives them."""
        lengths, _ = self.replay_lengths(seed)
        order = np.lexsort((self.ints("request_id"), self.ints("arrival_ns")))
        for row, values in zip(order, rows_as_dicts(self.table.take(order)), strict=True):
            yield request_of(values, int(lengths[row]))

    def outcomes(self) -> Iterator[Outcome]:
        """The rows as outcomes, in file order: what a recorder is fed with to summarise a trace again."""
        ended = self._ended()
        for row, values in enumerate(rows_as_dicts(self.table)):
            offsets, tokens = self.chunks(row)
            yield outcome_of(values, int(ended[row]), offsets, tokens)
