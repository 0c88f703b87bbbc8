"""ShareGPT request lengths as CSV: ``model, arrival_s, input_toks, output_toks`` (the model whose tokenizer
counted).
"""

from __future__ import annotations

from array import array
from pathlib import Path

import numpy as np

from loadgen.trace.public.text import csv_rows, scaled_ns, tokens
from loadgen.trace.rows import TraceRows, sorted_by_arrival

NAME = "sharegpt_lengths"
TITLE = "ShareGPT lengths (CSV: model, arrival_s, input_toks, output_toks)"
_REQUIRED = {"arrival_s", "input_toks", "output_toks"}


def matches(head: str) -> bool:
    return {name.strip() for name in head.partition("\n")[0].split(",")} >= _REQUIRED


def read(path: Path) -> TraceRows:
    """Raises TraceError with the row. The same requests stand there once a model: pick one with a tenant rule
    (``column: model``) and a slice.
    """
    arrival, prompt, output = array("q"), array("q"), array("q")
    models: list[str] = []
    for number, row in csv_rows(path):
        arrival.append(scaled_ns(path, number, "arrival_s", row["arrival_s"], 1_000_000_000))
        prompt.append(tokens(path, number, "input_toks", row["input_toks"]))
        output.append(tokens(path, number, "output_toks", row["output_toks"]))
        models.append(row.get("model", ""))
    return sorted_by_arrival(
        TraceRows(
            source=NAME,
            arrival_ns=np.array(arrival, dtype=np.int64),
            prompt_tokens=np.array(prompt, dtype=np.int64),
            output_tokens=np.array(output, dtype=np.int64),
            extra={"model": tuple(models)},
        ),
        from_first=False,
    )
