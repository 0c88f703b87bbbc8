"""What must be true of every row of a trace, whatever wrote it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from loadgen.recording.stamps import ABSENT
from loadgen.trace.decode import list_parts
from loadgen.trace.errors import TraceError
from scheduler.request import ArrivalKind, ErrorClass, Status, TokensSource
from tenants.measures.columns import Int64s

if TYPE_CHECKING:
    from loadgen.trace.reader import Trace

_STAMPS_IN_ORDER = ("enqueued_ns", "dispatched_ns", "sent_ns", "first_token_ns", "last_token_ns", "finished_ns")
_SUM_TOLERANCE_NS = 1000


def check(trace: Trace) -> None:
    """Raise TraceError at the first row of a trace, or of a part of one, that contradicts itself: an unknown word,
    stamps out of order in a row marked valid, chunk offsets that do not sum to last - first token within 1 us.
    """
    for name, known in (
        ("status", Status),
        ("arrival_kind", ArrivalKind),
        ("error_class", ErrorClass),
        ("tokens_source", TokensSource),
    ):
        words, codes = trace.words(name)
        # One entry more, for the code of null (-1), which is no bad word.
        bad = np.array([*(word not in set(known) for word in words), False], dtype=np.bool_)[codes]
        _refuse(trace, bad, name, f"not one of {', '.join(known)}")
    valid = trace.mask("valid")
    previous = np.full(len(trace), ABSENT, dtype=np.int64)
    for name in _STAMPS_IN_ORDER:
        stamp = trace.ints(name)
        early = valid & (stamp != ABSENT) & (stamp < previous)
        _refuse(trace, early, name, "lies before a stamp that precedes it, in a row marked valid")
        previous = np.maximum(previous, stamp)
    if len(trace):
        _check_chunks(trace)


def check_ids(path: Path, ids: Int64s) -> None:
    """Raise TraceError when an id of a trace, in file order, occurs twice."""
    if (np.diff(np.sort(ids)) != 0).all():
        return
    again = np.ones(len(ids), dtype=np.bool_)
    again[np.unique(ids, return_index=True)[1]] = False
    row = int(np.argmax(again)) + 1
    raise TraceError(path, "occurs twice; ids are unique in a run", row=row, column="request_id")


def _check_chunks(trace: Trace) -> None:
    starts, offsets = list_parts(trace.lists("chunk_offsets_us"))
    has = np.diff(starts) > 0
    last_us = np.zeros(len(has), dtype=np.int64)
    last_us[has] = offsets[starts[1:][has] - 1]
    first, last = trace.ints("first_token_ns"), trace.ints("last_token_ns")
    _refuse(trace, has & (first == ABSENT), "chunk_offsets_us", "chunks without a first token")
    both = has & (last != ABSENT)
    span = np.where(both, last - first, 0)
    off = both & (np.abs(last_us * 1000 - span) > _SUM_TOLERANCE_NS)
    _refuse(trace, off, "chunk_offsets_us", "its last offset differs from last_token - first_token by more than 1 us")
    tokens = trace.lists("chunk_tokens")
    uneven = np.asarray(tokens.is_valid(), dtype=np.bool_) & (np.diff(list_parts(tokens)[0]) != np.diff(starts))
    _refuse(trace, uneven, "chunk_tokens", "needs as many entries as chunk_offsets_us")


def _refuse(trace: Trace, bad: NDArray[np.bool_], column: str, problem: str) -> None:
    if bad.any():
        row = trace.first_row + int(np.argmax(bad)) + 1
        raise TraceError(trace.path, problem, row=row, column=column)
