"""The gaps between a stream's chunks on one replica, from what each run of steps brought.

Where a step gives a sequence one token the gaps are step lengths, counted in bulk (:mod:`scheduler.steplog`). Where it may
give several, a chunk of k tokens is one gap of the step's length that ended with k tokens.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Protocol

import numpy as np

from scheduler.request import Request
from scheduler.server_model.plan import Plan
from scheduler.server_model.protocol import StepResult
from scheduler.steplog import OnGaps, StepLog

_FLUSH_ENTRIES = 1 << 14


class GapLog(Protocol):
    """``counts``, which every log is made with, says of which requests gaps are wanted."""

    def run(self, plan: Plan, steps: int, result: StepResult) -> None:
        """``steps`` steps of ``plan`` were committed and brought ``result``."""

    def left(self, request: Request, plan: Plan | None, steps: int, tokens: int) -> None:
        """A decoding sequence is dropped while ``plan`` is in flight: ``steps`` of it had ended, and it had ``tokens``
        from them."""

    def flush(self) -> None:
        """Hand over everything that is not handed over yet."""


class StepGaps:
    """One token a step."""

    def __init__(self, on_gaps: OnGaps, counts: Callable[[Request], bool]) -> None:
        self._log = StepLog(on_gaps)
        self._counts = counts
        self._steps = 0

    def run(self, plan: Plan, steps: int, result: StepResult) -> None:
        log, counts = self._log, self._counts
        for sequence in result.paused:
            if counts(sequence.request):
                log.stops(sequence.request.tenant, self._steps)
        self._steps += steps
        log.run(plan, steps)
        for sequence in result.first_tokens:
            if counts(sequence.request):
                log.starts(sequence.request.tenant, self._steps)
        for sequence, gap_ns in result.resumed:
            if counts(sequence.request):
                log.single(sequence.request.tenant, gap_ns)
                log.starts(sequence.request.tenant, self._steps)
        for sequence in result.finished:
            if counts(sequence.request):
                log.stops(sequence.request.tenant, self._steps)

    def left(self, request: Request, plan: Plan | None, steps: int, tokens: int) -> None:  # noqa: ARG002 (steps say it)
        if self._counts(request):
            self._log.stops(request.tenant, self._steps + steps)

    def flush(self) -> None:
        self._log.flush()


class ChunkGaps:
    """Several tokens a step, one step a run."""

    def __init__(self, on_gaps: OnGaps, counts: Callable[[Request], bool]) -> None:
        self._on_gaps = on_gaps
        self._counts = counts
        self._found: Counter[tuple[str, int, int]] = Counter()

    def run(self, plan: Plan, steps: int, result: StepResult) -> None:
        if steps != 1:
            raise ValueError(f"steps that give several tokens come one at a time, got a run of {steps}")
        found, counts, gap_ns = self._found, self._counts, plan.first_ps // 1000
        for sequence, tokens in result.decoded:
            if counts(sequence.request):
                found[sequence.request.tenant, tokens, gap_ns] += 1
        for sequence, gap_ns in result.resumed:
            if counts(sequence.request):
                found[sequence.request.tenant, 1, gap_ns] += 1
        if len(found) >= _FLUSH_ENTRIES:
            self.flush()

    def left(self, request: Request, plan: Plan | None, steps: int, tokens: int) -> None:
        if plan is not None and steps and tokens and self._counts(request):
            self._found[request.tenant, tokens, plan.first_ps // 1000] += 1

    def flush(self) -> None:
        groups: dict[tuple[str, int], list[tuple[int, int]]] = {}
        for (tenant, tokens, gap_ns), count in self._found.items():
            groups.setdefault((tenant, tokens), []).append((gap_ns, count))
        self._found.clear()
        for (tenant, tokens), pairs in groups.items():
            gaps = np.array(pairs, dtype=np.int64)
            self._on_gaps(tenant, gaps[:, 0], gaps[:, 1], tokens)


def gap_log(tokens_a_step: int, on_gaps: OnGaps, counts: Callable[[Request], bool]) -> GapLog:
    """The log for a server whose steps give a sequence at most ``tokens_a_step`` tokens."""
    return StepGaps(on_gaps, counts) if tokens_a_step == 1 else ChunkGaps(on_gaps, counts)
