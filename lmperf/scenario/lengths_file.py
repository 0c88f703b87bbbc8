"""Prompt and output lengths from the columns of a CSV file with a header line, plain or gzip."""

from __future__ import annotations

import csv
import gzip
from collections.abc import Iterator
from pathlib import Path


class LengthsFileError(ValueError):
    """A lengths file that cannot be used; the message says which file, which row, and what would be right."""


def read_columns(file: Path, columns: tuple[str | None, str | None]) -> tuple[list[int] | None, list[int] | None]:
    """The token counts in ``columns`` (None: not asked for), row by row. Raises LengthsFileError."""
    opener = gzip.open if file.suffix == ".gz" else open
    try:
        with opener(file, "rt", encoding="utf-8-sig", newline="") as handle:
            return _columns(file, csv.reader(handle), columns)
    except FileNotFoundError:
        raise LengthsFileError(f"there is no file {file}; check the path") from None
    except (OSError, EOFError, UnicodeDecodeError, csv.Error) as error:
        raise LengthsFileError(f"{file} cannot be read ({error}); a CSV file, plain or .gz, would be right") from error


def _columns(
    file: Path, rows: Iterator[list[str]], columns: tuple[str | None, str | None]
) -> tuple[list[int] | None, list[int] | None]:
    header = [name.strip() for name in next(rows, [])]
    missing = [name for name in columns if name is not None and name not in header]
    if missing:
        raise LengthsFileError(f"{file} has no column {missing[0]!r}; it has {', '.join(header) or 'none'}")
    places = [None if name is None else header.index(name) for name in columns]
    prompts: list[int] = []
    outputs: list[int] = []
    for number, row in enumerate(rows, start=2):
        if not row:
            continue
        for place, counts in zip(places, (prompts, outputs), strict=True):
            if place is not None:
                counts.append(_count(file, number, row[place] if place < len(row) else ""))
    if not prompts and not outputs:
        raise LengthsFileError(f"{file} has no rows; one token count a row would be right")
    return (None if places[0] is None else prompts, None if places[1] is None else outputs)


def _count(file: Path, line: int, text: str) -> int:
    if not text.strip().isdecimal() or int(text) < 1:
        raise LengthsFileError(
            f"{file}, line {line}: {text!r} is not a token count; a whole number >= 1 would be right"
        )
    return int(text)
