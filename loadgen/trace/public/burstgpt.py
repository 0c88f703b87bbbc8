"""BurstGPT (github.com/HPMLL/BurstGPT): CSV with ``Timestamp, Model, Request tokens, Response tokens, Total tokens, Log
Type``, in later files also ``Session ID`` and ``Elapsed time``. Times in seconds from the start of the collection.

A response of 0 tokens is how the source marks a failed request: its true output length is unknown.
"""

from __future__ import annotations

from array import array
from pathlib import Path

import numpy as np

from loadgen.trace.public.text import csv_rows, scaled_ns, tokens
from loadgen.trace.rows import UNKNOWN, TraceRows, sorted_by_arrival

NAME = "burstgpt"
TITLE = "BurstGPT (CSV: Timestamp, Model, Request tokens, Response tokens, ...)"
_REQUIRED = {"Timestamp", "Model", "Request tokens", "Response tokens"}


def matches(head: str) -> bool:
    return {name.strip() for name in head.partition("\n")[0].split(",")} >= _REQUIRED


def read(path: Path) -> TraceRows:
    """Raises TraceError with the row. ``model`` and ``log_type`` are columns for tenant rules."""
    arrival, prompt, output = array("q"), array("q"), array("q")
    models: list[str] = []
    kinds: list[str] = []
    sessions: list[str] = []
    for number, row in csv_rows(path):
        arrival.append(scaled_ns(path, number, "Timestamp", row["Timestamp"], 1_000_000_000))
        prompt.append(tokens(path, number, "Request tokens", row["Request tokens"]))
        output.append(tokens(path, number, "Response tokens", row["Response tokens"]) or UNKNOWN)
        models.append(row["Model"])
        kinds.append(row.get("Log Type", ""))
        sessions.append(row.get("Session ID", ""))
    return sorted_by_arrival(
        TraceRows(
            source=NAME,
            arrival_ns=np.array(arrival, dtype=np.int64),
            prompt_tokens=np.array(prompt, dtype=np.int64),
            output_tokens=np.array(output, dtype=np.int64),
            session=tuple(sessions) if any(sessions) else (),
            extra={"model": tuple(models), "log_type": tuple(kinds)},
        )
    )
