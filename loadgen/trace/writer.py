"""Rows on their way to disk: streamed while the run lasts, merged into one parquet file at its end.

A parquet file has no footer before it is closed, so a killed run would leave nothing readable. Rows therefore go to
``rows/<worker>-<n>.arrow`` first: Arrow IPC streams, whose batches each stand on their own. A batch is written whole
and flushed to the operating system, so what a killed process loses is at most its buffer; a batch cut in the middle (a
full disk, a power cut) is dropped by :func:`merge_rows`, which says so.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, NamedTuple, Self

import pyarrow as pa
import pyarrow.parquet as pq

from loadgen.recording.stamps import Gaps, Stamps, gaps_of, stamps_of
from loadgen.steps import Steps, finished
from loadgen.trace.encode import RowEncoder
from loadgen.trace.errors import TraceError
from loadgen.trace.schema import TRACE_SCHEMA, TraceMetadata, metadata_of, with_metadata
from scheduler.request import Outcome
from tenants.tenant import Tenant

ROWS_DIR = "rows"
TRACE_FILE = "requests.parquet"

_MERGE_ROWS = 16_384
_MERGE_BYTES = 32 << 20


class RowWriter:
    """Streams the rows of one worker. ``add`` buffers; a batch is written when ``flush_rows`` are buffered or when
    ``flush_ns`` have passed between the ends of outcomes (the run loop calls ``flush`` too, so that a quiet server does
    not hold rows back). A new file begins after ``rotate_bytes``.
    """

    def __init__(
        self,
        run_dir: Path,
        metadata: TraceMetadata,
        tenants: Sequence[Tenant],
        window_ns: tuple[int, int],
        *,
        worker: str = "main",
        flush_rows: int = 256,
        flush_ns: int | None = 2_000_000_000,
        rotate_bytes: int = 256 << 20,
    ) -> None:
        if not re.fullmatch(r"[A-Za-z0-9_]+", worker):
            raise ValueError(f"worker name {worker!r}: use letters, digits and underscores (it names a file)")
        self._dir = run_dir / ROWS_DIR
        self._dir.mkdir(parents=True, exist_ok=True)
        self._schema = with_metadata(TRACE_SCHEMA, metadata)
        self._encoder = RowEncoder(tenants, window_ns, self._schema)
        self._worker = worker
        self._flush_rows = flush_rows
        self._flush_ns = flush_ns
        self._rotate_bytes = rotate_bytes
        self._buffer: list[Outcome] = []
        self._flushed_ns: int | None = None
        self._number = self._next_number()
        self._file: BinaryIO | None = None
        self._stream: pa.RecordBatchStreamWriter | None = None

    def add(self, outcome: Outcome) -> None:
        self._buffer.append(outcome)
        if len(self._buffer) >= self._flush_rows:
            self.flush(outcome.ended_ns)
        elif self._flush_ns is not None:
            if self._flushed_ns is None:
                self._flushed_ns = outcome.ended_ns
            elif outcome.ended_ns - self._flushed_ns >= self._flush_ns:
                self.flush(outcome.ended_ns)

    def write(self, outcomes: Sequence[Outcome]) -> None:
        """Write ``outcomes`` as one batch now, without buffering."""
        finished(self.steps(outcomes, stamps_of(outcomes, lambda _: 0), gaps_of(outcomes)))

    def steps(self, outcomes: Sequence[Outcome], stamps: Stamps, gaps: Gaps) -> Steps[None]:
        """The same in steps; the batch is with the operating system after the last. ``stamps``, ``gaps``: of ``outcomes``."""
        if not outcomes:
            return
        batch = yield from self._encoder.steps(outcomes, stamps, gaps)
        stream, file = self._open()
        stream.write_batch(batch)
        file.flush()
        if file.tell() >= self._rotate_bytes:
            self._close_file()

    def write_header(self) -> None:
        """Leave a stream without rows, so that a run in which nothing arrived still has a (valid, empty) trace."""
        self._open()
        self._close_file()

    def flush(self, now_ns: int | None = None) -> None:
        """Hand every buffered row to the operating system."""
        if now_ns is not None:
            self._flushed_ns = now_ns
        outcomes, self._buffer = self._buffer, []
        self.write(outcomes)

    def close(self) -> None:
        self.flush()
        self._close_file()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _next_number(self) -> int:
        taken = [int(path.stem.rpartition("-")[2]) for path in self._dir.glob(f"{self._worker}-*.arrow")]
        return max(taken, default=-1) + 1

    def _open(self) -> tuple[pa.RecordBatchStreamWriter, BinaryIO]:
        if self._file is None or self._stream is None:
            path = self._dir / f"{self._worker}-{self._number}.arrow"
            self._number += 1
            self._file = path.open("wb")
            self._stream = pa.ipc.new_stream(self._file, self._schema)
        return self._stream, self._file

    def _close_file(self) -> None:
        if self._stream is not None and self._file is not None:
            self._stream.close()
            self._file.close()
        self._stream = None
        self._file = None


class Merged(NamedTuple):
    """What :func:`merge_rows` did: the file, its rows, and one line for everything that had to be left out."""

    path: Path
    rows: int
    dropped: tuple[str, ...]


def merge_rows(run_dir: Path, *, metadata: TraceMetadata | None = None, keep: bool = False) -> Merged:
    """Merge ``rows/*.arrow`` of ``run_dir`` into ``requests.parquet``, in bounded memory.

    ``metadata`` replaces the header of the streams (the end of a run knows more than its start). The streams are
    deleted afterwards unless ``keep`` or unless something was left out. Rows keep the order of their streams, and every
    row group its own. Raises TraceError when there is no stream, or when none can be read.
    """
    paths = sorted((run_dir / ROWS_DIR).glob("*.arrow"), key=_by_worker_and_number)
    if not paths:
        raise TraceError(run_dir / ROWS_DIR, "no *.arrow stream to merge: nothing recorded, or merged already")
    target = run_dir / TRACE_FILE
    partial = target.with_suffix(".parquet.partial")
    dropped: list[str] = []
    rows = waiting_rows = waiting_bytes = 0
    writer: pq.ParquetWriter | None = None
    schema: pa.Schema | None = None
    pending: list[pa.RecordBatch] = []

    def write_pending() -> None:
        if writer is not None and pending:
            writer.write_table(pa.Table.from_batches(pending, schema), row_group_size=_MERGE_ROWS)
            pending.clear()

    try:
        for path in paths:
            for batch in batches_of(path, dropped):
                if writer is None or schema is None:
                    schema = with_metadata(batch.schema, metadata or metadata_of(batch.schema, path))
                    writer = pq.ParquetWriter(partial, schema, compression="zstd")
                pending.append(batch.replace_schema_metadata(schema.metadata))
                rows += batch.num_rows
                waiting_rows += batch.num_rows
                waiting_bytes += batch.nbytes
                if waiting_rows >= _MERGE_ROWS or waiting_bytes >= _MERGE_BYTES:
                    write_pending()
                    waiting_rows = waiting_bytes = 0
        if writer is None:
            raise TraceError(run_dir / ROWS_DIR, "no stream has a readable header: " + "; ".join(dropped))
        write_pending()
    finally:
        if writer is not None:
            writer.close()
    pending.clear()
    pa.default_memory_pool().release_unused()
    partial.replace(target)
    if not keep and not dropped:
        for path in paths:
            path.unlink()
        (run_dir / ROWS_DIR).rmdir()
    return Merged(target, rows, tuple(dropped))


def _by_worker_and_number(path: Path) -> tuple[str, int]:
    worker, _, number = path.stem.rpartition("-")
    return worker, int(number) if number.isdigit() else 0


def batches_of(path: Path, dropped: list[str]) -> Iterator[pa.RecordBatch]:
    """The complete batches of one stream; what is cut off is noted in ``dropped``."""
    whole = 0
    with path.open("rb") as file:
        try:
            reader = pa.ipc.open_stream(file)
        except (pa.ArrowInvalid, OSError) as error:
            dropped.append(f"{path.name}: no readable header ({_first_line(error)}), 0 batches kept")
            return
        metadata_of(reader.schema, path)
        # A stream without rows still says how the run was made.
        yield pa.RecordBatch.from_pylist([], schema=reader.schema)
        while True:
            try:
                batch = reader.read_next_batch()
                batch.validate(full=True)
            except StopIteration:
                return
            except (pa.ArrowInvalid, OSError) as error:
                dropped.append(f"{path.name}: the last batch is cut off ({_first_line(error)}); {whole} kept")
                return
            whole += 1
            yield batch


def _first_line(error: BaseException) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
