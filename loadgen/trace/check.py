"""What must be true of every row of a trace, whatever wrote it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from loadgen.recording.stamps import ABSENT
from loadgen.trace.decode import list_parts
from loadgen.trace.errors import TraceError
from scheduler.request import ArrivalKind, ErrorClass, Status, TokensSource

if TYPE_CHECKING:
    from loadgen.trace.reader import Trace

_STAMPS_IN_ORDER = ("enqueued_ns", "dispatched_ns", "sent_ns", "first_token_ns", "last_token_ns", "finished_ns")
_SUM_TOLERANCE_NS = 1000


def check(trace: Trace) -> None:
    """Raise TraceError at the first row that contradicts itself: an unknown word, an id that occurs twice, stamps out
    of order in a row marked valid, chunk offsets that do not sum to last - first token within 1 us.
    """
    for name, known in (
        ("status", Status),
        ("arrival_kind", ArrivalKind),
        ("error_class", ErrorClass),
        ("tokens_source", TokensSource),
    ):
        words = {str(member) for member in known} | {None}
        bad = np.array([value not in words for value in trace.values(name)], dtype=np.bool_)
        _refuse(trace, bad, name, f"not one of {', '.join(known)}")
    ids = trace.ints("request_id")
    again = np.ones(len(ids), dtype=np.bool_)
    again[np.unique(ids, return_index=True)[1]] = False
    _refuse(trace, again, "request_id", "occurs twice; ids are unique in a run")
    valid = trace.mask("valid")
    previous = np.full(len(ids), ABSENT, dtype=np.int64)
    for name in _STAMPS_IN_ORDER:
        stamp = trace.ints(name)
        early = valid & (stamp != ABSENT) & (stamp < previous)
        _refuse(trace, early, name, "lies before a stamp that precedes it, in a row marked valid")
        previous = np.maximum(previous, stamp)
    if len(ids):
        _check_chunks(trace)


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
        raise TraceError(trace.path, problem, row=int(np.argmax(bad)) + 1, column=column)
