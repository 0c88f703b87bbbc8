"""What a server model makes of a captured workload: every request's first and last token, and the gaps between tokens.

The same times as :class:`scheduler.drivers.simulated.Simulation` with no queue of ours in front (a test says so), without
its dispatcher and events: a fit replays the captures hundreds of times.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from scheduler.calibration.observations import Int64s, Observations, blocks_of
from scheduler.gap_log import gap_log
from scheduler.request import Request
from scheduler.server_model.build import build_server
from scheduler.server_model.plan import Plan
from scheduler.server_model.spec import ServerLimits, StepLaw


@dataclass(frozen=True, slots=True)
class Replayed:
    """``times``: the simulated stamps, in the order of the observations; ``preemptions``: how often a sequence had to give
    its KV up."""

    times: Observations
    preemptions: int


def replay(seen: Observations, law: StepLaw, limits: ServerLimits, *, by_block: bool = False) -> Replayed:
    """Send the requests of ``seen`` again: open loop at their instants, closed loop (``seen.users``) each when a user is
    free. ``by_block``: count gaps apart for each block of requests, which takes a little longer, so that some of them can be
    taken with their gaps. Raises ValueError for a request that can never fit into the KV cache."""
    return _Replay(seen, law, limits, by_block=by_block).run()


class _Replay:
    def __init__(self, seen: Observations, law: StepLaw, limits: ServerLimits, *, by_block: bool) -> None:
        self._seen = seen
        known = seen.cached_tokens
        self._model = build_server(law, limits, cached=None if known is None else dict(enumerate(known.tolist())))
        self._front_end = self._model.front_end
        self._prompt = seen.prompt_tokens.tolist()
        self._output = seen.output_tokens.tolist()
        self._sent = seen.sent_ns.tolist()
        self._first = [0] * len(seen)
        self._last = [0] * len(seen)
        self._events: list[tuple[int, int]] = []
        self._entry_ns: int | None = None
        self._waiting_users = iter(range(0))
        self._plan: Plan | None = None
        self._steps = 0
        self._preemptions = 0
        self._by_block = by_block
        # A gap log counts by tenant; here a tenant is a block.
        self._block = [str(block) for block in blocks_of(len(seen)).tolist()] if by_block else ["0"] * len(seen)
        self._gaps: list[tuple[int, Int64s, Int64s]] = []
        self._log = gap_log(limits.tokens_a_step, self._on_gaps, lambda _: True)

    def run(self) -> Replayed:
        seen, events = self._seen, self._events
        begin = len(seen) if seen.users is None else min(seen.users, len(seen))
        events.extend((self._sent[i], i) for i in range(begin))
        heapq.heapify(events)
        self._waiting_users = iter(range(begin, len(seen)))
        while True:
            end_ns = None if self._plan is None else self._plan.end_ns(self._steps)
            entry_ns = self._entry_ns
            sent_ns = events[0][0] if events else None
            if (
                sent_ns is not None
                and (entry_ns is None or sent_ns < entry_ns)
                and (end_ns is None or sent_ns <= end_ns)
            ):
                self._send(*heapq.heappop(events))
            elif entry_ns is not None and (end_ns is None or entry_ns <= end_ns):
                self._take_in(entry_ns, self._front_end.enter())
                self._entry_ns = self._front_end.next_ns(self._plan)
            elif end_ns is not None:
                self._end(end_ns)
            else:
                break
        self._log.flush()
        # It holds this replay and is held by it: hundreds of them would wait for the collector of cycles.
        del self._log
        return Replayed(self._times(), self._preemptions)

    def _send(self, now_ns: int, index: int) -> None:
        self._sent[index] = now_ns
        self._front_end.send(index, now_ns, self._plan)
        if self._entry_ns is None:
            self._entry_ns = self._front_end.next_ns(self._plan)

    def _take_in(self, now_ns: int, indices: list[int]) -> None:
        for index in indices:
            request = Request(id=index, tenant=self._block[index], arrival_ns=now_ns, prompt_tokens=self._prompt[index])
            self._model.admit(request, now_ns, self._output[index])
        if not indices:
            return
        if self._plan is None:
            self._start(now_ns)
        elif self._steps > 1 and self._model.may_start_now():
            self._steps = min(self._steps, self._plan.steps_until(now_ns))

    def _start(self, now_ns: int) -> None:
        self._plan = self._model.plan(now_ns)
        if self._plan is not None:
            self._steps = self._plan.steps
            self._front_end.start(self._plan)
        self._entry_ns = self._front_end.next_ns(self._plan)

    def _end(self, now_ns: int) -> None:
        plan = self._plan
        assert plan is not None, "only a run in flight ends"
        self._take_in(now_ns, self._front_end.end(plan, self._steps))
        self._plan = None
        result = self._model.commit(self._steps)
        self._preemptions += len(result.preempted)
        self._log.run(plan, self._steps, result)
        for sequence in result.first_tokens:
            assert sequence.first_ps is not None, "it has a first token"
            self._first[sequence.id] = sequence.first_ps // 1000
        for sequence in result.finished:
            assert sequence.last_ps is not None, "it has a last token"
            self._last[sequence.id] = sequence.last_ps // 1000
            if self._seen.users is not None:
                self._next_of_user(now_ns)
        self._start(now_ns)

    def _next_of_user(self, now_ns: int) -> None:
        following = next(self._waiting_users, None)
        if following is not None:
            heapq.heappush(self._events, (now_ns + self._seen.turnaround_ns, following))

    def _on_gaps(self, tenant: str, gaps_ns: Int64s, counts: Int64s, tokens: int = 1, /) -> None:  # noqa: ARG002 (chunks)
        self._gaps.append((int(tenant), gaps_ns, counts))

    def _times(self) -> Observations:
        none = np.zeros(0, dtype=np.int64)
        gaps_ns = np.concatenate([none, *(gaps for _, gaps, _ in self._gaps)])
        counts = np.concatenate([none, *(counts for _, _, counts in self._gaps)])
        blocks = np.concatenate([none, *(np.full(len(gaps), block) for block, gaps, _ in self._gaps)])
        return replace(
            self._seen,
            sent_ns=_column(self._sent),
            first_ns=_column(self._first),
            last_ns=_column(self._last),
            gaps_ns=gaps_ns,
            gap_counts=counts,
            gap_blocks=blocks if self._by_block else None,
            of=0,
            left_out=0,
        )


def _column(values: list[int]) -> NDArray[np.int64]:
    return np.array(values, dtype=np.int64)
