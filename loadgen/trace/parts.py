"""A trace of ours read some thousands of rows at a time, so that its length does not matter.

The same checks as for a whole trace. An id that occurs twice is found when all rows have been read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import copy
from functools import cached_property
from pathlib import Path
from typing import Self

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from loadgen.trace.check import check, check_ids
from loadgen.trace.open import conform, locate, reading
from loadgen.trace.reader import ENDED_COLUMNS, Trace
from loadgen.trace.schema import TraceMetadata, metadata_of

ROWS_AT_ONCE = 16_384


class TraceFile:
    """The trace at ``path``, a run's folder or a parquet file. ``rows_at_once``: of a part. Raises TraceError, here and
    while it is read.
    """

    def __init__(self, path: Path | str, *, rows_at_once: int = ROWS_AT_ONCE) -> None:
        self._rows_at_once = rows_at_once
        self.path = locate(Path(path))
        with reading(self.path), pq.ParquetFile(self.path) as file:
            self.metadata = metadata_of(file.schema_arrow, self.path)
            self._rows = int(file.metadata.num_rows)

    def __len__(self) -> int:
        return self._rows

    def parts(self) -> Iterator[Trace]:
        """All rows, in file order, each part checked."""
        ids = [np.empty(0, dtype=np.int64)]
        for part in self._read(None):
            check(part)
            ids.append(part.ints("request_id"))
            yield part
        check_ids(self.path, np.concatenate(ids))

    def narrow(self, *names: str) -> Iterator[Trace]:
        """All rows with these columns only, unchecked."""
        return self._read(names)

    @cached_property
    def tenants(self) -> tuple[str, ...]:
        """Their names, in the order in which the rows first name them."""
        return tuple(dict.fromkeys(name for part in self.narrow("tenant") for name in part.tenants))

    @cached_property
    def last_end_ns(self) -> int:
        """When the last outcome was known; 0 without rows."""
        return max((part.last_end_ns for part in self.narrow(*ENDED_COLUMNS)), default=0)

    @property
    def last_arrival_ns(self) -> int:
        """The last intended arrival; 0 without rows."""
        return max((part.last_arrival_ns for part in self.narrow("arrival_ns")), default=0)

    def with_metadata(self, metadata: TraceMetadata) -> Self:
        """The same rows under another header."""
        other = copy(self)
        other.metadata = metadata
        return other

    def _read(self, names: Sequence[str] | None) -> Iterator[Trace]:
        first_row = 0
        with reading(self.path), pq.ParquetFile(self.path) as file:
            present = set(file.schema_arrow.names)
            columns = None if names is None else [name for name in names if name in present]
            for group in range(file.num_row_groups):
                # One group at a time: over several the reader holds on to what it has read of each, and threads to
                # memory of their own.
                for batch in file.iter_batches(self._rows_at_once, [group], columns, use_threads=False):
                    table = conform(pa.Table.from_batches([batch]), self.path, names, first_row)
                    yield Trace(self.path, self.metadata, table, first_row)
                    first_row += len(batch)
        pa.default_memory_pool().release_unused()
