"""Results of vLLM's ``bench serve --save-result --save-detailed``: one JSON object with parallel lists.

Read: ``input_lens``, ``output_lens``, ``ttfts``, ``itls`` (s; gaps between chunks), ``start_times`` (s, monotonic
clock), ``errors`` (empty text: none), and, of newer versions, ``queue_times`` (s waited for ``--max-concurrency``
before the start) and ``latencies``. The arrival is start - queue time: leaving that wait out would hide the overload
that caused it.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from loadgen.trace.errors import TraceError
from loadgen.trace.public.capture import chunk_offsets_us
from loadgen.trace.public.text import lines_of, prompt_tokens, scaled_ns, tokens
from loadgen.trace.rows import UNKNOWN, Measured, TraceRows, sorted_by_arrival
from tenants.measures.columns import Int64s

NAME = "vllm_bench"
TITLE = "vLLM `bench serve --save-result --save-detailed` (one JSON object: input_lens, ttfts, itls, start_times, ...)"
_DETAILED = ("input_lens", "output_lens", "ttfts", "itls", "start_times", "errors")
_LONGER = 10.0
_OPTIONAL = ("queue_times", "latencies")


def matches(head: str) -> bool:
    return head.lstrip().startswith("{") and '"request_throughput"' in head and '"total_input_tokens"' in head


def read(path: Path) -> TraceRows:
    """Raises TraceError with the row (the position in the lists) and the list."""
    result = _load(path)
    missing = [name for name in _DETAILED if name not in result]
    if missing:
        # Without --save-detailed all lists of a figure a request are missing.
        why = "was it written without --save-detailed?" if "ttfts" in missing else "was it written by an older vLLM?"
        raise TraceError(path, f"no {', '.join(missing)}: {why}")
    lists = {name: _list(path, name, result[name]) for name in _DETAILED}
    n = len(lists["start_times"])
    for name in _OPTIONAL:
        lists[name] = _list(path, name, result.get(name) or [0.0] * n)
    for name, values in lists.items():
        if len(values) != n:
            raise TraceError(path, f"{len(values)} entries, start_times has {n}", column=name)
    failed = np.array([bool(error) for error in lists["errors"]], dtype=np.bool_)
    sent = _filled(_ns(path, "start_times", lists["start_times"]), failed)
    _within_duration(path, result.get("duration"), sent[~failed])
    waited = _ns(path, "queue_times", lists["queue_times"])
    ttft = _ns(path, "ttfts", lists["ttfts"])
    offsets = [
        chunk_offsets_us(path, row, "itls", gaps, us_per_unit=1_000_000)
        for row, gaps in enumerate(lists["itls"], start=1)
    ]
    # A failed request has a first token only when one was stamped.
    reached = ~failed | (ttft > 0)
    spans = np.array([int(chunks[-1]) * 1000 for chunks in offsets], dtype=np.int64)
    latency = _ns(path, "latencies", lists["latencies"])
    output = _counts(path, "output_lens", lists["output_lens"], tokens)
    rows = TraceRows(
        source=NAME,
        arrival_ns=sent - waited,
        prompt_tokens=_counts(path, "input_lens", lists["input_lens"], prompt_tokens),
        output_tokens=np.where(failed | (output <= 0), UNKNOWN, output),
        measured=Measured(
            sent_ns=sent,
            ttft_ns=np.where(reached, ttft, UNKNOWN),
            end_ns=sent + np.maximum(latency, np.where(reached, ttft + spans, 0)),
            offsets_us=tuple(offsets),
            ok=~failed,
        ),
        load_mode="closed" if result.get("max_concurrency") and str(result.get("request_rate")) == "inf" else "open",
    )
    return sorted_by_arrival(rows)


def _load(path: Path) -> dict[str, Any]:
    text = "\n".join(line for _, line in lines_of(path))
    try:
        result = msgspec.json.decode(text)
    except msgspec.DecodeError as error:
        raise TraceError(
            path, f"not one JSON object ({error}); a file of several results must be split first"
        ) from error
    if not isinstance(result, dict):
        raise TraceError(path, "one JSON object is expected")
    return result


def _list(path: Path, column: str, values: object) -> list[Any]:
    if not isinstance(values, list):
        raise TraceError(path, f"{values!r}: a list is expected, with an entry a request", column=column)
    return values


def _ns(path: Path, column: str, values: list[Any]) -> Int64s:
    """Of seconds >= 0."""
    found = [scaled_ns(path, row, column, value, 1_000_000_000) for row, value in enumerate(values, start=1)]
    wrong = next((row for row, value in enumerate(found, start=1) if value < 0), None)
    if wrong is not None:
        raise TraceError(path, f"{values[wrong - 1]!r} s: no such time is below 0", row=wrong, column=column)
    return np.array(found, dtype=np.int64)


def _counts(path: Path, column: str, values: list[Any], count: Callable[[Path, int, str, object], int]) -> Int64s:
    return np.array([count(path, row, column, value) for row, value in enumerate(values, start=1)], dtype=np.int64)


def _within_duration(path: Path, duration_s: object, sent: Int64s) -> None:
    """Starts in another unit than the run's ``duration`` would be a load that nobody offered."""
    if isinstance(duration_s, int | float) and duration_s > 0 and len(sent):
        span_s = int(sent.max() - sent.min()) / 1e9
        if span_s > _LONGER * duration_s:
            problem = f"they span {span_s:,.6g} s, and the run took {duration_s:,.6g}: seconds are expected"
            raise TraceError(path, problem, column="start_times")


def _filled(starts: Int64s, failed: NDArray[np.bool_]) -> NDArray[np.int64]:
    """A request that failed before it was stamped has start 0: it is placed at the start of the one before it."""
    stamped = (starts > 0) | ~failed
    known = np.where(stamped, np.arange(len(starts)), -1)
    index = np.maximum.accumulate(known)
    first = int(np.argmax(stamped)) if stamped.any() else 0
    return starts[np.where(index < 0, first, index)]
