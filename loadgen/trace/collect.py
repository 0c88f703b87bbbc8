"""A few figures of every row of a trace as columns, read part by part."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loadgen.trace.reader import Trace


def collected(
    parts: Iterable[Trace], rows: int, of: Callable[[Trace], Mapping[str, NDArray[Any]]]
) -> dict[str, NDArray[Any]]:
    """What ``of`` takes from each part, one entry a row, as whole columns in file order; empty without parts. ``rows``: how
    many there are. Filled in place: no second copy of a column is ever held.
    """
    found: dict[str, NDArray[Any]] = {}
    done = 0
    for part in parts:
        taken = of(part)
        if not found:
            found = {name: np.empty(rows, dtype=column.dtype) for name, column in taken.items()}
        for name, column in taken.items():
            found[name][done : done + len(part)] = column
        done += len(part)
    return found


class TenantCodes:
    """Numbers tenants across parts, in the order in which rows first name them."""

    def __init__(self) -> None:
        self._codes: dict[str, int] = {}

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._codes)

    def of(self, part: Trace) -> NDArray[np.int32]:
        """Of each row of ``part``."""
        codes = np.array([self._codes.setdefault(name, len(self._codes)) for name in part.tenants], dtype=np.int32)
        return codes[part.words("tenant")[1]]
