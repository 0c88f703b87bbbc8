"""The one error of every trace reader: which file, which row and column, and what is wrong there."""

from __future__ import annotations

from pathlib import Path


class TraceError(Exception):
    """A trace could not be used. ``row`` is 1-based: the line of a text file, the data row of a parquet file."""

    def __init__(self, path: Path | str, problem: str, *, row: int | None = None, column: str | None = None) -> None:
        where = str(path)
        if row is not None:
            where += f", row {row}"
        if column is not None:
            where += f", column {column!r}"
        super().__init__(f"{where}: {problem}")
        self.path = Path(path)
        self.problem = problem
        self.row = row
        self.column = column
