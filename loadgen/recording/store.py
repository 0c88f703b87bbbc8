"""The figures of every request of a run in compact arrays (about 110 B a request), grown a block at a time.

Percentiles of a whole run come from histograms; these columns are for what needs the rows: attainment, intervals
(block bootstrap), fairness, time series, exact checks.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from loadgen.recording.stamps import Measures, Stamps
from tenants.measures.columns import UNDEFINED, Columns, Int64s

_BLOCK_ROWS = 8192

_TYPES: dict[str, type[np.generic]] = {
    "tenant": np.int32,
    "status": np.int8,
    "in_window": np.bool_,
    "arrival": np.int64,
    "end": np.int64,
    "dispatched": np.int64,
    "ttft": np.int64,
    "backend_ttft": np.int64,
    "queue": np.int64,
    "tpot": np.int64,
    "max_itl": np.int64,
    "e2e": np.int64,
    "lateness": np.int64,
    "prompt_tokens": np.int32,
    "output_tokens": np.int32,
}


class Store:
    """Append-only; ``column`` joins the blocks (the result is kept until more rows come)."""

    def __init__(self) -> None:
        self._blocks: list[dict[str, NDArray[Any]]] = []
        self._used = _BLOCK_ROWS
        self._joined: dict[str, NDArray[Any]] = {}

    def __len__(self) -> int:
        return max(len(self._blocks) - 1, 0) * _BLOCK_ROWS + (self._used if self._blocks else 0)

    def append(self, stamps: Stamps, measures: Measures, in_window: NDArray[np.bool_]) -> None:
        """Unknown token counts and stamps are stored as UNDEFINED."""
        self._joined.clear()
        rows: dict[str, NDArray[Any]] = {
            "tenant": stamps.tenant,
            "status": stamps.status,
            "in_window": in_window,
            "arrival": stamps.arrival,
            "end": stamps.ended,
            "dispatched": np.maximum(stamps.dispatched, UNDEFINED),
            "ttft": measures.ttft,
            "backend_ttft": measures.backend_ttft,
            "queue": measures.queue,
            "tpot": measures.tpot,
            "max_itl": measures.max_itl,
            "e2e": measures.e2e,
            "lateness": measures.lateness,
            "prompt_tokens": np.maximum(stamps.prompt_tokens, UNDEFINED),
            "output_tokens": np.maximum(stamps.output_tokens, UNDEFINED),
        }
        done, n = 0, len(stamps)
        while done < n:
            if self._used == _BLOCK_ROWS:
                self._blocks.append({name: np.empty(_BLOCK_ROWS, dtype=kind) for name, kind in _TYPES.items()})
                self._used = 0
            take = min(n - done, _BLOCK_ROWS - self._used)
            block = self._blocks[-1]
            for name, values in rows.items():
                block[name][self._used : self._used + take] = values[done : done + take]
            self._used += take
            done += take

    def column(self, name: str) -> NDArray[Any]:
        """One column over all rows, by its name here. Raises KeyError for another name."""
        if name not in self._joined:
            kind = _TYPES[name]
            parts = [block[name] for block in self._blocks]
            if parts:
                parts[-1] = parts[-1][: self._used]
            self._joined[name] = np.concatenate(parts) if parts else np.empty(0, dtype=kind)
        return self._joined[name]

    def ints(self, name: str) -> Int64s:
        return self.column(name).astype(np.int64, copy=False)

    def columns(self, tenants: tuple[str, ...]) -> Columns:
        return Columns(
            tenants=tenants,
            tenant=self.column("tenant"),
            arrival_ns=self.column("arrival"),
            end_ns=self.column("end"),
            ttft_ns=self.column("ttft"),
            backend_ttft_ns=self.column("backend_ttft"),
            queue_ns=self.column("queue"),
            tpot_ns=self.column("tpot"),
            max_itl_ns=self.column("max_itl"),
            e2e_ns=self.column("e2e"),
            prompt_tokens=self.ints("prompt_tokens"),
            output_tokens=self.ints("output_tokens"),
            status=self.column("status"),
            in_window=self.column("in_window"),
        )
