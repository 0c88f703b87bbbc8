"""The rows of a long run as the measures read them, without holding them: a column is read from the store's file each
time that somebody asks for it, and goes when nobody looks at it any more.

All columns of a million requests are 86 MB, a copy of them for a tenant as much again, and no measure needs more than
a few of them at a time. Reading one takes some milliseconds. Few rows are read at once and kept.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loadgen.recording.store import Store
from tenants.measures.columns import PIECE_ROWS, Columns, Int64s

_ROWS_KEPT = 1 << 17
"""Up to this many rows (12 MB) are read at once."""

_NAMES = {
    "tenant": "tenant",
    "arrival_ns": "arrival",
    "end_ns": "end",
    "ttft_ns": "ttft",
    "backend_ttft_ns": "backend_ttft",
    "queue_ns": "queue",
    "tpot_ns": "tpot",
    "max_itl_ns": "max_itl",
    "e2e_ns": "e2e",
    "prompt_tokens": "prompt_tokens",
    "cached_prompt_tokens": "cached_prompt_tokens",
    "output_tokens": "output_tokens",
    "status": "status",
    "in_window": "in_window",
}


def columns_of_store(store: Store, tenants: tuple[str, ...]) -> Columns:
    """Every row that ``store`` holds now; what comes later is not in it."""
    if not store.on_disk or len(store) <= _ROWS_KEPT:
        return _read(store, tenants, 0, len(store), None)
    return StoredColumns(store, tenants, len(store), None)


def _read(store: Store, tenants: tuple[str, ...], start: int, stop: int, mask: NDArray[np.bool_] | None) -> Columns:
    return Columns(tenants, **{name: _column(store, name, start, stop, mask) for name in _NAMES})


def _column(store: Store, name: str, start: int, stop: int, mask: NDArray[np.bool_] | None) -> NDArray[Any]:
    values = store.column(_NAMES[name], start, stop, mask)
    return values.astype(np.int64, copy=False) if name.endswith("_tokens") else values


class StoredColumns(Columns):
    """The first ``n`` rows of ``store``, or those of them where ``mask`` is True."""

    __slots__ = ("_mask", "_n", "_rows", "_store")
    _store: Store
    _n: int
    _mask: NDArray[np.bool_] | None
    _rows: int

    def __init__(self, store: Store, tenants: tuple[str, ...], n: int, mask: NDArray[np.bool_] | None) -> None:
        put = object.__setattr__
        put(self, "tenants", tenants)
        put(self, "_store", store)
        put(self, "_n", n)
        put(self, "_mask", mask)
        put(self, "_rows", n if mask is None else int(mask.sum()))

    def __len__(self) -> int:
        return self._rows

    def select(self, mask: NDArray[np.bool_]) -> Columns:
        if mask.all():
            return self
        if self._mask is None:
            chosen = mask.copy()
        else:
            chosen = np.zeros(self._n, dtype=np.bool_)
            chosen[np.flatnonzero(self._mask)[mask]] = True
        if int(mask.sum()) <= _ROWS_KEPT:
            return _read(self._store, self.tenants, 0, self._n, chosen)
        return StoredColumns(self._store, self.tenants, self._n, chosen)

    def pieces(self, rows: int = PIECE_ROWS) -> Iterator[Columns]:
        for start in range(0, self._n, rows):
            stop = min(start + rows, self._n)
            mask = None if self._mask is None else self._mask[start:stop]
            if mask is None or mask.any():
                yield _read(self._store, self.tenants, start, stop, mask)

    def _load(self, name: str) -> NDArray[Any]:
        return _column(self._store, name, 0, self._n, self._mask)

    @property
    def tenant(self) -> NDArray[np.int32]:
        return self._load("tenant")

    @property
    def arrival_ns(self) -> Int64s:
        return self._load("arrival_ns")

    @property
    def end_ns(self) -> Int64s:
        return self._load("end_ns")

    @property
    def ttft_ns(self) -> Int64s:
        return self._load("ttft_ns")

    @property
    def backend_ttft_ns(self) -> Int64s:
        return self._load("backend_ttft_ns")

    @property
    def queue_ns(self) -> Int64s:
        return self._load("queue_ns")

    @property
    def tpot_ns(self) -> Int64s:
        return self._load("tpot_ns")

    @property
    def max_itl_ns(self) -> Int64s:
        return self._load("max_itl_ns")

    @property
    def e2e_ns(self) -> Int64s:
        return self._load("e2e_ns")

    @property
    def prompt_tokens(self) -> Int64s:
        return self._load("prompt_tokens")

    @property
    def cached_prompt_tokens(self) -> Int64s:
        return self._load("cached_prompt_tokens")

    @property
    def output_tokens(self) -> Int64s:
        return self._load("output_tokens")

    @property
    def status(self) -> NDArray[np.int8]:
        return self._load("status")

    @property
    def in_window(self) -> NDArray[np.bool_]:
        return self._load("in_window")
