"""What the readers of text formats share: opening (plain or gzip), lines with their numbers, exact times, clear
errors.
"""

from __future__ import annotations

import csv
import gzip
import zlib
from collections.abc import Iterator
from datetime import UTC, datetime
from decimal import Decimal, InvalidOperation
from functools import lru_cache
from pathlib import Path
from typing import IO, Any

import msgspec

from loadgen.trace.errors import TraceError
from loadgen.trace.rows import UNKNOWN
from tenants.measures.counts import MOST_TOKENS, believed

_HEAD_BYTES = 65_536

LONGEST_PROMPT = 100_000_000
"""Tokens. Ten times the longest context that a model is offered with; a fit prefills every prompt some hundred times."""

MOST_NS = 1 << 62
"""Of any time, so that sums and differences of two stay within 64 bits; 146 years."""


def _open(path: Path) -> IO[bytes]:
    with path.open("rb") as file:
        packed = file.read(2) == b"\x1f\x8b"
    return gzip.open(path, "rb") if packed else path.open("rb")  # type: ignore[return-value]  # a GzipFile reads as one


def head_of(path: Path) -> str:
    """The first 64 KiB of the file as text. Raises TraceError when it cannot be read or is not text."""
    try:
        with _open(path) as file:
            raw = file.read(_HEAD_BYTES)
    except (OSError, EOFError, zlib.error) as error:
        raise TraceError(path, f"cannot be read ({error})") from error
    if b"\0" in raw:
        raise TraceError(path, "a binary file, not a text trace")
    return raw.decode("utf-8-sig", errors="replace")


def lines_of(path: Path) -> Iterator[tuple[int, str]]:
    """(line number, text) of every line. Raises TraceError at a byte that is not UTF-8 and at a cut-off gzip stream."""
    number = 0
    try:
        with _open(path) as file:
            for number, raw in enumerate(file, start=1):
                yield number, raw.decode("utf-8-sig" if number == 1 else "utf-8").rstrip("\r\n")
    except UnicodeDecodeError as error:
        raise TraceError(path, f"not UTF-8 ({error.reason})", row=number) from error
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise TraceError(path, f"the compressed file is cut off or damaged ({error})", row=number + 1) from error
    except OSError as error:
        raise TraceError(path, f"cannot be read ({error})") from error


def csv_rows(path: Path) -> Iterator[tuple[int, dict[str, str]]]:
    """(line number, row by column name) of a CSV file with a header. Raises TraceError for a row of another width."""
    lines = lines_of(path)
    reader = csv.reader(text for _, text in lines)
    try:
        header = [name.strip() for name in next(reader)]
    except StopIteration:
        raise TraceError(path, "empty: not even a header") from None
    for row in reader:
        if not row:
            continue
        if len(row) != len(header):
            raise TraceError(path, f"{len(row)} fields, the header has {len(header)}", row=reader.line_num)
        yield reader.line_num, dict(zip(header, row, strict=True))


def json_rows(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """(line number, object) of a JSON Lines file. Raises TraceError for a line that is not an object."""
    decoder = msgspec.json.Decoder()
    for number, text in lines_of(path):
        if not text.strip():
            continue
        try:
            row = decoder.decode(text)
        except msgspec.DecodeError as error:
            raise TraceError(path, f"not JSON ({error})", row=number) from error
        if not isinstance(row, dict):
            raise TraceError(path, f"a JSON object is expected, got {type(row).__name__}", row=number)
        yield number, row


def whole(path: Path, row: int, column: str, value: object) -> int:
    """``value`` as a whole number from 0 to what 32 bits hold. Raises TraceError with the place."""
    number = _believed(path, row, column, value)
    if number is None:
        raise TraceError(path, f"{value!r} is not a whole number from 0 to {MOST_TOKENS:,}", row=row, column=column)
    return number


def tokens(path: Path, row: int, column: str, value: object) -> int:
    """``value`` as a count of tokens, UNKNOWN where it is a number and no count that can be believed
    (:mod:`tenants.measures.counts`). Raises TraceError with the place for what is no number: that is another column, or a
    damaged file."""
    number = _believed(path, row, column, value)
    return UNKNOWN if number is None else number


def prompt_tokens(path: Path, row: int, column: str, value: object) -> int:
    """As ``tokens``, of a prompt that a server has answered."""
    count = tokens(path, row, column, value)
    if count > LONGEST_PROMPT:
        raise TraceError(
            path,
            f"{count:,}: no server has answered a prompt of more than {LONGEST_PROMPT:,} tokens",
            row=row,
            column=column,
        )
    return count


def _believed(path: Path, row: int, column: str, value: object) -> int | None:
    try:
        number = Decimal(str(value).strip())
    except InvalidOperation as error:
        raise TraceError(path, f"{value!r} is not a number", row=row, column=column) from error
    # Compared before it is made an int: 1e999999999 would be a number of as many digits.
    if not number.is_finite() or not 0 <= number <= MOST_TOKENS or number != number.to_integral_value():
        return None
    return believed(int(number))


def scaled_ns(path: Path, row: int, column: str, value: object, ns_per_unit: int) -> int:
    """A number of some time unit as ns, in exact decimal arithmetic. Raises TraceError with the place."""
    try:
        number = Decimal(str(value).strip())
    except InvalidOperation as error:
        raise TraceError(path, f"{value!r} is not a time", row=row, column=column) from error
    # Compared before it is made an int, as above.
    if not number.is_finite() or abs(number) > MOST_NS // ns_per_unit:
        raise TraceError(path, f"{value!r} is not a time", row=row, column=column)
    return int((number * ns_per_unit).to_integral_value())


def iso_ns(path: Path, row: int, column: str, text: str) -> int:
    """An ISO 8601 time as ns since the epoch, with every digit of its fraction (Python's own parser keeps six).
    Without an offset it is taken as UTC. Raises TraceError with the place.
    """
    text = text.strip()
    try:
        second_ns = _second_ns(text[:19])
        rest = text[19:]
        fraction = ""
        if rest[:1] in {".", ","}:
            digits = len(rest) - len(rest[1:].lstrip("0123456789"))
            fraction, rest = rest[1:digits], rest[digits:]
            if not fraction:
                raise ValueError("no digits after the decimal point")
        return second_ns + int((fraction + "000000000")[:9]) - _offset_ns(rest)
    except ValueError as error:
        raise TraceError(
            path, f"{text!r} is not an ISO 8601 time such as 2024-05-10 00:00:00.0099300", row=row, column=column
        ) from error


@lru_cache(maxsize=4096)
def _second_ns(text: str) -> int:
    moment = datetime.fromisoformat(text)
    if len(text) != len("2024-05-10 00:00:00") or moment.tzinfo is not None:
        raise ValueError("a date and a time to the second are expected")
    return int(moment.replace(tzinfo=UTC).timestamp()) * 1_000_000_000


@lru_cache(maxsize=64)
def _offset_ns(text: str) -> int:
    if text in {"", "Z", "z"}:
        return 0
    offset = datetime.fromisoformat("2000-01-01T00:00:00" + text).utcoffset()
    if offset is None:
        raise ValueError(f"{text!r} is not an offset from UTC")
    return int(offset.total_seconds()) * 1_000_000_000
