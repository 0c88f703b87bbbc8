"""Azure LLM inference traces, 2023 and 2024 (github.com/Azure/AzurePublicDataset): CSV, plain or gzip.

Columns ``TIMESTAMP, ContextTokens, GeneratedTokens``. 2023: naive times with seven digits (ticks of 100 ns); 2024: six
digits and an offset. Every digit is kept: cutting them to 10 ms would make arrivals clump.
"""

from __future__ import annotations

from array import array
from pathlib import Path

import numpy as np

from loadgen.trace.public.text import csv_rows, iso_ns, tokens
from loadgen.trace.rows import TraceRows, sorted_by_arrival

NAME = "azure"
TITLE = "Azure LLM 2023/2024 (CSV: TIMESTAMP, ContextTokens, GeneratedTokens)"
_COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")


def matches(head: str) -> bool:
    first = head.partition("\n")[0].strip()
    return [name.strip() for name in first.split(",")] == list(_COLUMNS)


def read(path: Path) -> TraceRows:
    """Raises TraceError with the row of anything that is not as documented."""
    arrival, prompt, output = array("q"), array("q"), array("q")
    for number, row in csv_rows(path):
        arrival.append(iso_ns(path, number, "TIMESTAMP", row["TIMESTAMP"]))
        prompt.append(tokens(path, number, "ContextTokens", row["ContextTokens"]))
        output.append(tokens(path, number, "GeneratedTokens", row["GeneratedTokens"]))
    return sorted_by_arrival(
        TraceRows(
            source=NAME,
            arrival_ns=np.array(arrival, dtype=np.int64),
            prompt_tokens=np.array(prompt, dtype=np.int64),
            output_tokens=np.array(output, dtype=np.int64),
        )
    )
