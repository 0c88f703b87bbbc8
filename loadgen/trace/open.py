"""A trace file as arrow gives it: found, readable, and with our columns; whatever is wrong with it as a TraceError."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from loadgen.trace.errors import TraceError
from loadgen.trace.schema import TRACE_SCHEMA
from loadgen.trace.writer import ROWS_DIR, TRACE_FILE
from tenants.measures.counts import MOST_TOKENS

_PARQUET_MAGIC = b"PAR1"
_TOLD_COUNTS = frozenset({"prompt_tokens", "cached_prompt_tokens", "output_tokens", "target_output_tokens"})


def locate(path: Path) -> Path:
    """The file of the trace at ``path``, a run's folder or a file. Raises TraceError."""
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


@contextmanager
def reading(file: Path) -> Iterator[None]:
    """While ``file`` is opened or read: a TraceError for a foreign, damaged or unreadable one."""
    try:
        with file.open("rb") as head:
            if head.read(4) != _PARQUET_MAGIC:
                raise TraceError(file, "not a parquet file; `lmperf trace import` reads foreign traces")
        yield
    except pa.ArrowInvalid as error:
        raise TraceError(
            file, f"cut off or damaged ({error}); a run's rows/*.arrow, if still there, can be merged again"
        ) from error
    except OSError as error:
        raise TraceError(file, f"cannot be read ({error})") from error


def conform(table: pa.Table, file: Path, names: Sequence[str] | None = None, first_row: int = 0) -> pa.Table:
    """The table with our columns (``names``: only those) in our order and types; columns of a newer minor version are
    left out, and a count of tokens that cannot be believed is null. ``first_row``: the number of its first row in the file.
    """
    fields = [field for field in TRACE_SCHEMA if names is None or field.name in names]
    arrays = []
    for field in fields:
        if field.name not in table.column_names:
            raise TraceError(file, "missing", column=field.name)
        column = table.column(field.name)
        if column.type != field.type:
            try:
                column = column.cast(field.type)
            except pa.ArrowInvalid as error:
                raise TraceError(file, f"is {column.type}, expected {field.type}", column=field.name) from error
        if not field.nullable and column.null_count:
            row = first_row + int(pc.index(column.is_null(), True).as_py()) + 1
            raise TraceError(file, "null where a value is required", row=row, column=field.name)
        if field.name in _TOLD_COUNTS:
            believable = pc.and_(pc.greater_equal(column, 0), pc.less_equal(column, MOST_TOKENS))
            column = pc.if_else(believable, column, pa.scalar(None, field.type))
        arrays.append(column.combine_chunks() if column.num_chunks != 1 else column.chunk(0))
    return pa.Table.from_arrays(arrays, schema=pa.schema(fields).with_metadata(table.schema.metadata))
