"""What is between a client and the engine's queue: the server's front end, which reads requests and writes streams.

One thread does both. After each step it writes a chunk to every sequence that decodes, ``stream`` each; what is left of the
step goes to the requests that it is taking in, each of which needs ``work`` of that time. So a request enters ``work`` after
it was sent when the server is idle, and waits for many steps when short steps of many sequences keep the front end busy, until
a long step, one with a prefill, leaves it time. A front end that cannot keep up joins chunks: whatever the streams need, an
eighth of each step is left.

The clock of the requests, then, is the front end's free time: all advance alike, and enter in the order in which they were
sent. A request that is sent when so much free time has passed enters ``work`` later on that clock.
"""

from __future__ import annotations

from collections import deque

from scheduler.server_model.plan import Plan

LEAST_FREE = 8
"""A divisor: an eighth of each step is left to the requests, whatever the streams need."""


class FrontEnd:
    """``work_ps``: free time that a request needs; ``stream_ps``: time that a decoding sequence takes of each step. Calls come
    in order of time. ``plan``: the run in flight, None while the engine is idle; its owner says when one starts and ends.
    Whole ps: two drivers that tell the same get the same. ``immediate``: it holds nobody up; ``immediate_when_idle``: nobody
    who is sent while the engine is idle and nobody else is entering, so whoever is first begins a step alone."""

    __slots__ = (
        "_at_ps",
        "_entering",
        "_free_ps",
        "_step",
        "_stream_ps",
        "_work_ps",
        "immediate",
        "immediate_when_idle",
    )

    def __init__(self, work_ps: int = 0, stream_ps: int = 0) -> None:
        self._work_ps = work_ps
        self._stream_ps = stream_ps
        self.immediate_when_idle = not work_ps
        self.immediate = self.immediate_when_idle and not stream_ps
        self._entering: deque[tuple[int, int]] = deque()
        # ``_free_ps``: the free time up to ``_at_ps``, the start of step ``_step`` (from 0) of the run in flight or an
        # instant of idleness. Meaningless while nobody is entering.
        self._free_ps = 0
        self._at_ps = 0
        self._step = 0

    def __len__(self) -> int:
        """Requests that are sent and have not entered the engine's queue."""
        return len(self._entering)

    def send(self, request_id: int, now_ns: int, plan: Plan | None) -> None:
        """A request leaves for the server at ``now_ns``; its free time counts from then."""
        at_ps = now_ns * 1000
        if not self._entering:
            # Nobody counts: the free time before this step, or this instant, means nothing.
            self._step = 0 if plan is None or plan.steps == 1 else plan.steps_until(now_ns) - 1
            self._at_ps = at_ps if plan is None else plan.end_ps(self._step)
        self._entering.append((self._free_by(at_ps, plan) + self._work_ps, request_id))

    def drop(self, request_id: int) -> bool:
        """Forget a request; False when it is not here."""
        for entry in self._entering:
            if entry[1] == request_id:
                self._entering.remove(entry)
                return True
        return False

    def next_ns(self, plan: Plan | None) -> int | None:
        """When the next request enters, if the run in flight goes on to its end; None when none does before that."""
        if not self._entering:
            return None
        missing_ps = self._entering[0][0] - self._free_ps
        if plan is None:
            return (self._at_ps + max(0, missing_ps)) // 1000
        needed_ps, growth_ps = plan.decoders * self._stream_ps, plan.growth_ps
        end_ps, length_ps = self._at_ps, plan.first_ps + self._step * growth_ps
        for _ in range(self._step, plan.steps):
            end_ps += length_ps
            free_ps = max(length_ps - needed_ps, length_ps // LEAST_FREE)
            if missing_ps <= free_ps:
                return (end_ps - free_ps + max(0, missing_ps)) // 1000
            missing_ps -= free_ps
            length_ps += growth_ps
        return None

    def enter(self) -> list[int]:
        """The instant of ``next_ns`` has come: ids of the requests that enter at it."""
        return self._entered(self._entering[0][0])

    def entered(self, now_ns: int, plan: Plan | None) -> list[int]:
        """Ids of the requests that have entered by now, and have not been told before."""
        return self._entered(self._free_by(now_ns * 1000 + 999, plan)) if self._entering else []

    def start(self, plan: Plan) -> None:
        """A run begins; it need not be told while nobody is entering."""
        self._free_ps += max(0, plan.start_ps - self._at_ps)
        self._at_ps = plan.start_ps
        self._step = 0

    def end(self, plan: Plan, steps: int) -> list[int]:
        """The run in flight ends after ``steps``; returns the ids of requests that have entered by then. It need not be told
        while nobody is entering."""
        if not self._entering:
            return []
        self._advance(plan, steps)
        self._step = 0
        return self._entered(self._free_ps)

    def _entered(self, free_ps: int) -> list[int]:
        entering, found = self._entering, []
        while entering and entering[0][0] <= free_ps:
            found.append(entering.popleft()[1])
        return found

    def _free_by(self, at_ps: int, plan: Plan | None) -> int:
        """The free time up to an instant, no later than the end of the run in flight."""
        if plan is None:
            return self._free_ps + max(0, at_ps - self._at_ps)
        if plan.steps > 1:
            self._advance(plan, min(plan.steps - 1, plan.steps_until(at_ps // 1000) - 1))
        length_ps = plan.first_ps + self._step * plan.growth_ps
        free_ps = max(length_ps - plan.decoders * self._stream_ps, length_ps // LEAST_FREE)
        left_ps = max(0, self._at_ps + length_ps - at_ps)
        return self._free_ps + max(0, free_ps - left_ps)

    def _advance(self, plan: Plan, steps: int) -> None:
        """Count up to the end of step ``steps`` of the run in flight."""
        needed_ps, growth_ps = plan.decoders * self._stream_ps, plan.growth_ps
        length_ps = plan.first_ps + self._step * growth_ps
        for _ in range(self._step, steps):
            self._free_ps += max(length_ps - needed_ps, length_ps // LEAST_FREE)
            self._at_ps += length_ps
            length_ps += growth_ps
        self._step = max(self._step, steps)
