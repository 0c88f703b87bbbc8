"""Captures that are there twice: what is held out must not have been seen under another name."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from scheduler.calibration.observations import Int64s, Observations

_SAME = 0.9
"""Of a capture's requests found in another: a copy or a slice of it. Two runs share a request only by chance, a prompt and an
answer of equal lengths with equal times to the nanosecond."""


def repeated(captures: Sequence[Observations]) -> str:
    """Which two captures have the same requests; empty where none do."""
    rows = [_rows(seen) for seen in captures]
    for late, name in enumerate(seen.name for seen in captures):
        for early in range(late):
            fewer = min(len(rows[early]), len(rows[late]))
            shared = len(np.intersect1d(rows[early], rows[late]))
            if fewer and shared > _SAME * fewer:
                return (
                    f"{captures[early].name} and {name} hold the same requests ({shared:,} of {fewer:,}): what is held out "
                    "would have been seen; name each run once"
                )
    return ""


def _rows(seen: Observations) -> Int64s:
    """Each different request as one value of its lengths and times."""
    table = np.column_stack(
        [seen.prompt_tokens, seen.output_tokens, seen.first_ns - seen.sent_ns, seen.last_ns - seen.first_ns]
    )
    return np.unique(np.ascontiguousarray(table, dtype=np.int64).view([("", np.int64)] * table.shape[1]))
