"""Client-side captures of one server (gzip JSON Lines): a first line ``{"meta": ...}``, then one object a request in
order of sending: ``sent_s`` (from the first), ``prompt_tokens``, ``output_tokens``, ``ttft_s`` (from sending),
``itl_ms`` (the gap before each further chunk; several tokens may arrive in one).

There is no schedule in them, so the arrival is the sending.
"""

from __future__ import annotations

from array import array
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loadgen.trace.errors import TraceError
from loadgen.trace.public.text import MOST_NS, json_rows, prompt_tokens, scaled_ns, tokens
from loadgen.trace.rows import UNKNOWN, Measured, TraceRows, sorted_by_arrival

NAME = "capture"
TITLE = 'server capture (JSONL: {"meta": ...}, then sent_s, prompt_tokens, output_tokens, ttft_s, itl_ms)'
_KEYS = ("sent_s", "prompt_tokens", "output_tokens", "ttft_s", "itl_ms")
_SECOND_NS = 1_000_000_000


def matches(first: dict[str, Any]) -> bool:
    return isinstance(first.get("meta"), dict) or first.keys() >= set(_KEYS)


def read(path: Path) -> TraceRows:
    """Raises TraceError with the row."""
    sent, prompt, output, ttft, end = (array("q") for _ in range(5))
    offsets: list[NDArray[np.int64]] = []
    closed = False
    for number, row in json_rows(path):
        if "meta" in row:
            closed = str(row["meta"].get("load", "")).startswith("closed")
            continue
        missing = [key for key in _KEYS if key not in row]
        if missing:
            raise TraceError(path, "missing", row=number, column=missing[0])
        sent.append(scaled_ns(path, number, "sent_s", row["sent_s"], _SECOND_NS))
        prompt.append(prompt_tokens(path, number, "prompt_tokens", row["prompt_tokens"]))
        output.append(tokens(path, number, "output_tokens", row["output_tokens"]) or UNKNOWN)
        ttft.append(scaled_ns(path, number, "ttft_s", row["ttft_s"], _SECOND_NS))
        if ttft[-1] < 0:
            raise TraceError(
                path, f"{row['ttft_s']!r} s: a first token comes after its request, >= 0", row=number, column="ttft_s"
            )
        offsets.append(chunk_offsets_us(path, number, "itl_ms", row["itl_ms"], us_per_unit=1000))
        end.append(sent[-1] + ttft[-1] + int(offsets[-1][-1]) * 1000)
    sent_ns = np.array(sent, dtype=np.int64)
    return sorted_by_arrival(
        TraceRows(
            source=NAME,
            arrival_ns=sent_ns,
            prompt_tokens=np.array(prompt, dtype=np.int64),
            output_tokens=np.array(output, dtype=np.int64),
            measured=Measured(
                sent_ns=sent_ns,
                ttft_ns=np.array(ttft, dtype=np.int64),
                end_ns=np.array(end, dtype=np.int64),
                offsets_us=tuple(offsets),
                ok=np.ones(len(sent_ns), dtype=np.bool_),
            ),
            load_mode="closed" if closed else "open",
        )
    )


def chunk_offsets_us(path: Path, row: int, column: str, gaps: object, *, us_per_unit: int) -> NDArray[np.int64]:
    """Offsets of all chunks from the first (0 first) from the gaps between them; each offset is rounded once from the
    exact sum. Raises TraceError with the place.
    """
    try:
        values = np.asarray(gaps, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise TraceError(path, "a list of numbers is expected", row=row, column=column) from error
    if values.ndim != 1 or not np.isfinite(values).all() or (values < 0).any():
        raise TraceError(path, "a list of gaps >= 0 is expected", row=row, column=column)
    if values.sum() * us_per_unit > MOST_NS // 1000:
        raise TraceError(path, "gaps that come to more than a time can hold", row=row, column=column)
    return np.concatenate(([0], np.rint(np.cumsum(values) * us_per_unit))).astype(np.int64)
