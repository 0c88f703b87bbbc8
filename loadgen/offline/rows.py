"""Rows of a trace without some tenants, or with one tenant more that is like another.

What points from row to row (the request whose end another waited for, prompt blocks, sessions) points where the rows then
are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loadgen.workload.replay import ReplayRows

_Ints = NDArray[np.int64]


def only_tenants(rows: ReplayRows, kept: Sequence[int]) -> ReplayRows:
    """The rows of the tenants numbered ``kept``, numbered anew in that order. A row whose cause went keeps its own time."""
    assert rows.tenant is not None, "a captured run names its tenants"
    number = {old: new for new, old in enumerate(kept)}
    mine = np.flatnonzero(np.isin(rows.tenant, list(kept)))
    taken = _taken(rows, mine)
    return replace(taken, tenant=np.array([number[int(code)] for code in rows.tenant[mine]], dtype=np.int64))


def with_copy(rows: ReplayRows, like: int, number: int, turn: float) -> ReplayRows:
    """``rows`` and once more those of tenant ``like``, as tenant ``number``, their times turned by a part of the span."""
    assert rows.tenant is not None, "a captured run names its tenants"
    mine = np.flatnonzero(rows.tenant == like)
    copy = _taken(rows, mine)
    first, last = int(rows.arrival_ns.min()), int(rows.arrival_ns.max())
    span = last - first + 1
    arrival = first + (copy.arrival_ns - first + round(turn * span)) % span
    after = copy.after_row
    if after is not None:
        # A cause that the turn has put behind its effect causes nothing; the effect keeps its own time.
        lost = (after >= 0) & (arrival[np.maximum(after, 0)] >= arrival)
        after = np.where(lost, -1, after)
        after = np.where(after >= 0, after + len(rows), -1)
    session = copy.session
    if session is not None and rows.session is not None:
        session = np.where(session >= 0, session + int(rows.session.max()) + 1, -1)
    codes = np.full(len(copy), number, dtype=np.int64)
    moved = replace(copy, arrival_ns=arrival, after_row=after, session=session, tenant=codes)
    return _joined(rows, moved)


def _taken(rows: ReplayRows, numbers: _Ints) -> ReplayRows:
    """The rows numbered ``numbers`` (ascending), with causes and prompt blocks pointing where they now are."""
    columns: dict[str, Any] = {}
    for each in fields(rows):
        column = getattr(rows, each.name)
        if column is not None and each.name not in ("block_offsets", "block_ids"):
            columns[each.name] = column[numbers]
    if rows.after_row is not None:
        place = np.full(len(rows) + 1, -1, dtype=np.int64)
        place[numbers] = np.arange(len(numbers))
        columns["after_row"] = place[rows.after_row[numbers]]
    if rows.block_offsets is not None and rows.block_ids is not None:
        sizes = np.diff(rows.block_offsets)[numbers]
        columns["block_offsets"] = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
        parts = [rows.block_ids[rows.block_offsets[i] : rows.block_offsets[i + 1]] for i in numbers]
        columns["block_ids"] = np.concatenate(parts) if parts else rows.block_ids[:0]
    return ReplayRows(**columns)


def _joined(rows: ReplayRows, more: ReplayRows) -> ReplayRows:
    """One after the other; both have the same columns."""
    columns: dict[str, Any] = {}
    for each in fields(rows):
        first, second = getattr(rows, each.name), getattr(more, each.name)
        if first is None:
            continue
        if each.name == "block_offsets":
            second = second[1:] + first[-1]
        columns[each.name] = np.concatenate([first, second])
    return ReplayRows(**columns)
