"""Any access log, CSV or JSON Lines, by a map from our names to its columns:
``arrival=ts,tenant=key,prompt_tokens=usage.in``.

Names of ours: ``arrival`` (ISO 8601, or seconds), ``arrival_ms``, ``arrival_us``, ``arrival_ns`` (numbers; exactly
one of the four), ``tenant``, ``prompt_tokens``, ``output_tokens``, ``session``, ``turn``. A dot reaches into a nested
JSON object. A token count that is empty, null or a number that no count can be is unknown; every other column of a CSV
stays available to tenant rules.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from loadgen.trace.errors import TraceError
from loadgen.trace.public.text import csv_rows, head_of, iso_ns, json_rows, scaled_ns, tokens, whole
from loadgen.trace.rows import UNKNOWN, TraceRows, sorted_by_arrival

NAME = "access_log"
_ARRIVALS = {"arrival": 1_000_000_000, "arrival_ms": 1_000_000, "arrival_us": 1_000, "arrival_ns": 1}
_OTHERS = ("tenant", "prompt_tokens", "output_tokens", "session", "turn")


def parse_map(text: str) -> dict[str, str]:
    """``arrival=ts,tenant=key`` as a mapping. Raises ValueError naming the known names."""
    mapping: dict[str, str] = {}
    for part in text.split(","):
        name, equals, column = (piece.strip() for piece in part.partition("="))
        known = ", ".join([*_ARRIVALS, *_OTHERS])
        if not equals or not column or name not in (*_ARRIVALS, *_OTHERS):
            raise ValueError(f"--map: {part.strip()!r} is not NAME=COLUMN with a NAME of: {known}")
        if name in mapping:
            raise ValueError(f"--map: {name} is given twice")
        mapping[name] = column
    if sum(name in mapping for name in _ARRIVALS) != 1:
        raise ValueError(f"--map: exactly one of {', '.join(_ARRIVALS)} is needed")
    return mapping


def read(path: Path, mapping: Mapping[str, str]) -> TraceRows:
    """``mapping`` as :func:`parse_map` gives it. Raises TraceError with the row and column."""
    clock = next(name for name in _ARRIVALS if name in mapping)
    arrival, prompt, output, turn = array("q"), array("q"), array("q"), array("q")
    names: list[str] = []
    sessions: list[str] = []
    others: dict[str, list[str]] = {}
    for number, row in _records(path):

        def value(name: str, row: Mapping[str, Any] = row, number: int = number) -> object:
            return _lookup(path, number, row, mapping[name]) if name in mapping else None

        def count(name: str, read: Callable[..., int] = tokens, number: int = number) -> int:
            found = value(name)
            return UNKNOWN if found in (None, "") else read(path, number, mapping[name], found)

        arrival.append(_arrival_ns(path, number, mapping[clock], value(clock), clock))
        prompt.append(count("prompt_tokens"))
        output.append(count("output_tokens"))
        turn.append(max(count("turn", whole), 0))
        names.append(str(value("tenant") or "default"))
        sessions.append("" if value("session") is None else str(value("session")))
        for column, text in row.items():
            if isinstance(text, str) and column not in mapping.values():
                others.setdefault(column, [""] * (len(names) - 1)).append(text)
        for texts in others.values():
            texts.extend([""] * (len(names) - len(texts)))
    tenants = tuple(dict.fromkeys(names)) or ("default",)
    codes = {name: code for code, name in enumerate(tenants)}
    return sorted_by_arrival(
        TraceRows(
            source=NAME,
            arrival_ns=np.array(arrival, dtype=np.int64),
            prompt_tokens=np.array(prompt, dtype=np.int64),
            output_tokens=np.array(output, dtype=np.int64),
            tenants=tenants,
            tenant=np.array([codes[name] for name in names], dtype=np.int32),
            session=tuple(sessions) if "session" in mapping else (),
            turn=np.array(turn, dtype=np.int64) if "turn" in mapping else None,
            extra={column: tuple(texts) for column, texts in others.items()},
        )
    )


def _records(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    return json_rows(path) if head_of(path).lstrip().startswith("{") else csv_rows(path)


def _lookup(path: Path, number: int, row: Mapping[str, Any], column: str) -> object:
    if column in row:
        return row[column]
    found: object = row
    for part in column.split("."):
        if not isinstance(found, dict) or part not in found:
            there = ", ".join(sorted(row))
            raise TraceError(path, f"no such column; this row has: {there}", row=number, column=column)
        found = found[part]
    return found


def _arrival_ns(path: Path, number: int, column: str, value: object, clock: str) -> int:
    text = str(value).strip()
    if clock == "arrival" and text[4:5] == "-":
        return iso_ns(path, number, column, text)
    return scaled_ns(path, number, column, text, _ARRIVALS[clock])
