"""The lengths of all steps of a replica, and how many of each tenant's sequences were decoding in each.

A request's inter-token gaps are the lengths of the steps between its first and its last token. Kept as differences (one
entry where a sequence starts to decode, one where it stops), so the gaps of a whole tenant cost O(1) a request, and are
counted with numpy when the log is flushed: never an object or an append per token.
"""

from __future__ import annotations

from itertools import chain
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from scheduler.server_model.plan import Plan


class OnGaps(Protocol):
    """Where gaps go."""

    def __call__(self, tenant: str, gaps_ns: NDArray[np.int64], counts: NDArray[np.int64], tokens: int = 1, /) -> None:
        """``counts[i]`` gaps of ``gaps_ns[i]``, each before a chunk of ``tokens`` tokens."""


class StepLog:
    """Steps from ``base + 1`` on (step indices count from 1, as the server model does)."""

    def __init__(self, on_gaps: OnGaps, flush_steps: int = 1 << 16) -> None:
        self._on_gaps = on_gaps
        self._flush_steps = flush_steps
        self._base = 0
        self._steps = 0
        self._runs: list[tuple[int, int, int]] = []
        self._decoding: dict[str, int] = {}
        self._starts: dict[str, list[int]] = {}
        self._stops: dict[str, list[int]] = {}

    def run(self, plan: Plan, steps: int) -> None:
        """``steps`` steps of ``plan`` were committed. Call before the sequences that they start or stop."""
        if self._steps >= self._flush_steps:
            self.flush()
        self._runs.append((plan.first_ps, plan.growth_ps, steps))
        self._steps += steps

    def starts(self, tenant: str, step: int) -> None:
        """A sequence gave a token at the end of ``step`` and decodes from the next step on."""
        self._starts.setdefault(tenant, []).append(step + 1)

    def stops(self, tenant: str, step: int) -> None:
        """A sequence's last step was ``step``."""
        self._stops.setdefault(tenant, []).append(step + 1)

    def single(self, tenant: str, gap_ns: int) -> None:
        """One gap that is no step: over a preemption."""
        self._on_gaps(tenant, np.array([gap_ns], dtype=np.int64), np.ones(1, dtype=np.int64))

    def flush(self) -> None:
        """Hand over the gaps of all logged steps and forget them."""
        if not self._steps:
            return
        flat = np.fromiter(chain.from_iterable(self._runs), dtype=np.int64, count=3 * len(self._runs))
        first, growth, counts = flat.reshape(-1, 3).T
        starts = np.cumsum(counts) - counts
        position = np.arange(self._steps, dtype=np.int64) - np.repeat(starts, counts)
        gaps_ns = (np.repeat(first, counts) + np.repeat(growth, counts) * position) // 1000
        for tenant in set(self._starts) | set(self._decoding):
            self._flush_tenant(tenant, gaps_ns)
        self._base += self._steps
        self._steps = 0
        self._runs.clear()

    def _flush_tenant(self, tenant: str, gaps_ns: NDArray[np.int64]) -> None:
        """Steps base+1 .. base+steps; changes beyond the last logged step are kept for the next flush."""
        size = self._steps + 2
        change = np.zeros(size, dtype=np.int64)
        change[1] += self._decoding.get(tenant, 0)
        for entries, sign in ((self._starts, 1), (self._stops, -1)):
            steps = np.array(entries.get(tenant, ()), dtype=np.int64) - self._base
            known = steps < size
            np.add.at(change, steps[known], sign)
            entries[tenant] = [int(step) for step in steps[~known] + self._base]
        decoding = np.cumsum(change)
        counts = decoding[1 : self._steps + 1]
        self._decoding[tenant] = int(decoding[size - 1])
        busy = counts > 0
        if busy.any():
            self._on_gaps(tenant, gaps_ns[busy], counts[busy])
