"""Rows to requests and outcomes: the inverse of :mod:`loadgen.trace.encode`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from loadgen.recording.stamps import Gaps
from scheduler.request import ArrivalKind, ErrorClass, Outcome, Request, Status, TokensSource
from tenants.measures.columns import Int64s

_CHUNK_COLUMNS = ("chunk_offsets_us", "chunk_tokens")
_ROWS_AT_ONCE = 4096

_SAME_IN_REQUEST = (
    "tenant",
    "session_id",
    "turn",
    "attempt",
    "after_request_id",
    "think_ns",
    "cancel_after_ns",
    "arrival_ns",
    "max_tokens",
    "priority",
)
_SAME_IN_OUTCOME = (
    "enqueued_ns",
    "dispatched_ns",
    "connect_ns",
    "sent_ns",
    "first_token_ns",
    "last_token_ns",
    "finished_ns",
    "prompt_tokens",
    "cached_prompt_tokens",
    "output_tokens",
    "backend",
    "http_status",
    "max_itl_ns",
)


def rows_as_dicts(table: pa.Table) -> Iterator[dict[str, Any]]:
    """The rows of ``table`` without their chunks, converted a few thousand at a time."""
    plain = table.select([name for name in table.column_names if name not in _CHUNK_COLUMNS])
    for start in range(0, plain.num_rows, _ROWS_AT_ONCE):
        yield from plain.slice(start, _ROWS_AT_ONCE).to_pylist()


def request_of(row: dict[str, Any], target_output_tokens: int | None) -> Request:
    """The request of a row, to be replayed with ``target_output_tokens``."""
    return Request(
        id=row["request_id"],
        arrival_kind=ArrivalKind(row["arrival_kind"]),
        prompt_tokens=row["prompt_tokens"] or 0,
        target_output_tokens=target_output_tokens,
        prefix_blocks=tuple(row["prefix_blocks"] or ()),
        **{name: row[name] for name in _SAME_IN_REQUEST if row[name] is not None},
    )


def outcome_of(
    row: dict[str, Any], ended_ns: int, offsets_us: NDArray[np.int64] | None, tokens: NDArray[np.int32] | None
) -> Outcome:
    """The outcome of a row. Without ``tokens`` the count a chunk is known only when there are as many chunks as output
    tokens.
    """
    return Outcome(
        request=request_of(row, row["target_output_tokens"]),
        status=Status(row["status"]),
        ended_ns=ended_ns,
        error_class=None if row["error_class"] is None else ErrorClass(row["error_class"]),
        tokens_source=TokensSource(row["tokens_source"] or TokensSource.UNKNOWN),
        tokens_known=tokens is not None or offsets_us is None or len(offsets_us) == row["output_tokens"],
        chunk_offsets_us=offsets_us,
        chunk_tokens=tokens,
        **{name: row[name] for name in _SAME_IN_OUTCOME},
    )


def list_parts(column: pa.ListArray[Any]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(starts, values) of a list array: row r is values[starts[r]:starts[r + 1]]; a null row is empty."""
    lengths = np.asarray(column.value_lengths().fill_null(0).to_numpy(), dtype=np.int64)
    starts = np.concatenate(([0], np.cumsum(lengths)))
    return starts, np.asarray(column.flatten().to_numpy(), dtype=np.int64)


def gaps_of_lists(offsets_us: pa.ListArray[Any], chunk_tokens: pa.ListArray[Any], output_tokens: Int64s) -> Gaps:
    """All gaps between the chunks of rows. Tokens a chunk are as recorded; else 1 when there are as many chunks as
    output tokens; else unknown (0).
    """
    starts, flat = list_parts(offsets_us)
    token_starts, token_flat = list_parts(chunk_tokens)
    lengths = np.diff(starts)
    later = np.ones(len(flat), dtype=np.bool_)
    # The first chunk of a row gives no gap.
    later[starts[:-1][lengths > 0]] = False
    place = np.flatnonzero(later)
    owner = np.repeat(np.arange(len(lengths)), np.maximum(lengths - 1, 0))
    tokens = (lengths == output_tokens).astype(np.int64)[owner]
    told = (np.diff(token_starts) > 0)[owner]
    if told.any():
        at = token_starts[owner[told]] + place[told] - starts[owner[told]]
        tokens[told] = token_flat[at]
    return Gaps(owner, (flat[place] - flat[place - 1]) * 1000, tokens)


def encoded(column: pa.ChunkedArray[Any]) -> tuple[list[str], NDArray[np.int64]]:
    """A text column as (its distinct values in order of appearance, the index of each row's; -1 for null)."""
    words = [str(word) for word in column.unique().drop_null().to_pylist()]
    index = pc.index_in(column, value_set=pa.array(words, type=column.type))
    return words, np.asarray(index.fill_null(-1).to_numpy(), dtype=np.int64)
