"""The figures of every request of a run in compact arrays (about 110 B a request), grown a block at a time.

A run that has a folder lets full blocks go to a file there that has no name (so a killed run leaves nothing behind of
it), and memory does not grow with the run; without a folder they stay in memory.

Percentiles of a whole run come from histograms; these columns are for what needs the rows: attainment, intervals
(block bootstrap), fairness, time series, exact checks.
"""

from __future__ import annotations

import os
import tempfile
import weakref
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loadgen.recording.stamps import Measures, Stamps
from tenants.measures.columns import UNDEFINED
from tenants.measures.counts import COUNT_TYPE

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
    "prompt_tokens": COUNT_TYPE,
    "cached_prompt_tokens": COUNT_TYPE,
    "output_tokens": COUNT_TYPE,
}
_SIZES = {name: _BLOCK_ROWS * np.dtype(kind).itemsize for name, kind in _TYPES.items()}
_OFFSETS = dict(zip(_SIZES, accumulate(_SIZES.values(), initial=0), strict=False))
_BLOCK_BYTES = sum(_SIZES.values())


class _Spill:
    """Full blocks in a nameless file; the file goes with this object."""

    def __init__(self, folder: Path) -> None:
        self._fd, name = tempfile.mkstemp(prefix=".blocks-", dir=folder)
        Path(name).unlink()
        weakref.finalize(self, os.close, self._fd)
        self._blocks = 0

    def __len__(self) -> int:
        return self._blocks

    def write(self, block: dict[str, NDArray[Any]]) -> None:
        """Append one full block. OSError when the disk is full."""
        data = memoryview(b"".join(block[name].tobytes() for name in _TYPES))
        offset = self._blocks * _BLOCK_BYTES
        while data:
            written = os.pwrite(self._fd, data, offset)
            data, offset = data[written:], offset + written
        self._blocks += 1

    def read(self, number: int, name: str) -> NDArray[Any]:
        """One column of one block."""
        data = os.pread(self._fd, _SIZES[name], number * _BLOCK_BYTES + _OFFSETS[name])
        return np.frombuffer(data, dtype=_TYPES[name])


@dataclass(frozen=True, slots=True)
class SavedRows:
    """The rows of a store in a file of their own, for another process; see :meth:`Store.save`."""

    path: Path
    rows: int

    def blocks(self) -> Iterator[dict[str, NDArray[Any]]]:
        """All columns by name, some thousands of rows at a time. ValueError when the file is shorter than it was."""
        with self.path.open("rb") as file:
            for start in range(0, self.rows, _BLOCK_ROWS):
                n = min(_BLOCK_ROWS, self.rows - start)
                yield {
                    name: np.frombuffer(file.read(n * np.dtype(kind).itemsize), dtype=kind, count=n)
                    for name, kind in _TYPES.items()
                }

    def remove(self) -> None:
        self.path.unlink()


class Store:
    """Append-only; ``column`` joins the blocks. ``folder``: where full blocks go; None keeps them in memory."""

    def __init__(self, folder: Path | None = None) -> None:
        self._blocks: list[dict[str, NDArray[Any]]] = []
        self._spill = None if folder is None else _Spill(folder)
        self._used = _BLOCK_ROWS

    def __len__(self) -> int:
        spilt = 0 if self._spill is None else len(self._spill) * _BLOCK_ROWS
        return spilt + max(len(self._blocks) - 1, 0) * _BLOCK_ROWS + (self._used if self._blocks else 0)

    def append(self, stamps: Stamps, measures: Measures, in_window: NDArray[np.bool_]) -> None:
        """Unknown token counts and stamps are stored as UNDEFINED."""
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
            "cached_prompt_tokens": np.maximum(stamps.cached_prompt_tokens, UNDEFINED),
            "output_tokens": np.maximum(stamps.output_tokens, UNDEFINED),
        }
        self.extend(rows)

    def rows(self, start: int = 0, stop: int | None = None) -> dict[str, NDArray[Any]]:
        """Every column of the rows [start, stop) by its name here: what :meth:`extend` of another store takes."""
        return {name: self.column(name, start, stop) for name in _TYPES}

    def save(self, path: Path) -> SavedRows:
        """Every row into a file, in blocks of :meth:`extend`'s columns one after the other. OSError when the disk is full."""
        with path.open("wb") as file:
            for start in range(0, len(self), _BLOCK_ROWS):
                for column in self.rows(start, min(start + _BLOCK_ROWS, len(self))).values():
                    file.write(column.tobytes())
        return SavedRows(path, len(self))

    def extend(self, rows: Mapping[str, NDArray[Any]]) -> None:
        """Append rows that are columns already, e.g. another worker's."""
        done, n = 0, len(rows["tenant"])
        while done < n:
            if self._used == _BLOCK_ROWS:
                if self._spill is not None and self._blocks:
                    self._spill.write(self._blocks.pop())
                self._blocks.append({name: np.empty(_BLOCK_ROWS, dtype=kind) for name, kind in _TYPES.items()})
                self._used = 0
            take = min(n - done, _BLOCK_ROWS - self._used)
            block = self._blocks[-1]
            for name, values in rows.items():
                block[name][self._used : self._used + take] = values[done : done + take]
            self._used += take
            done += take

    def column(
        self, name: str, start: int = 0, stop: int | None = None, mask: NDArray[np.bool_] | None = None
    ) -> NDArray[Any]:
        """One column, by its name here, of the rows [start, stop) where ``mask`` (one entry for each of them; None: all)
        is True. Raises KeyError for another name.
        """
        stop = len(self) if stop is None else stop
        found = np.empty(stop - start if mask is None else int(mask.sum()), dtype=_TYPES[name])
        filled = 0
        for number in range(start // _BLOCK_ROWS, -(-stop // _BLOCK_ROWS)):
            first = number * _BLOCK_ROWS
            low, high = max(start, first), min(stop, first + _BLOCK_ROWS)
            chosen = None if mask is None else mask[low - start : high - start]
            if chosen is not None and not chosen.any():
                continue
            values = self._block(number, name)[low - first : high - first]
            values = values if chosen is None else values[chosen]
            found[filled : filled + len(values)] = values
            filled += len(values)
        return found

    @property
    def on_disk(self) -> bool:
        """True when full blocks go to a file."""
        return self._spill is not None

    def _block(self, number: int, name: str) -> NDArray[Any]:
        spilt = 0 if self._spill is None else len(self._spill)
        if self._spill is not None and number < spilt:
            return self._spill.read(number, name)
        return self._blocks[number - spilt][name]
