"""A server that works on one request at a time, for a service time that is given: the server of queueing theory.

It makes the closed forms testable (M/M/1, M/D/1, M/G/1, Cobham; M/M/c with c of them). A request is one step; its first
token is its last.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from scheduler.request import Request
from scheduler.server_model.front_end import FrontEnd
from scheduler.server_model.plan import Plan
from scheduler.server_model.protocol import Sequence, StepResult


class SingleServer:
    """``service_ns(request)`` gives each request's service time. Implements ``ServerModel``."""

    def __init__(self, service_ns: Callable[[Request], int]) -> None:
        self._service_ns = service_ns
        self._queue: deque[Sequence] = deque()
        self._plan: Plan | None = None
        self._admitted = 0
        self.front_end = FrontEnd()

    @property
    def waiting(self) -> int:
        return len(self._queue) - (self._plan is not None)

    @property
    def tokens_a_step(self) -> int:
        return 1

    def admit(self, request: Request, now_ns: int, output_tokens: int, account: int = 0) -> None:  # noqa: ARG002 (part of the protocol)
        self._queue.append(Sequence(request, output_tokens, self._admitted))
        self._admitted += 1

    def may_start_now(self) -> bool:
        return False

    def plan(self, now_ns: int) -> Plan | None:
        if self._plan is None and self._queue:
            self._plan = Plan(now_ns * 1000, int(self._service_ns(self._queue[0].request)) * 1000, 0, 1)
        return self._plan

    def commit(self, steps: int, *, emitted: bool = False) -> StepResult:
        plan = self._plan
        if plan is None or steps != 1:
            raise ValueError(f"commit({steps}): the run in flight has {0 if plan is None else 1} steps")
        self._plan = None
        sequence = self._queue.popleft()
        sequence.first_ps = sequence.last_ps = plan.end_ps(1)
        sequence.generated = sequence.output_tokens
        result = StepResult(plan.end_ns(1), 1)
        result.prefilled = [(sequence, sequence.request.prompt_tokens)]
        result.first_tokens = [sequence]
        result.finished = [sequence]
        if emitted:
            result.emitted[sequence.id] = sequence.output_tokens
        return result

    def abort(self, request_id: int) -> Sequence | None:
        """Only a request that has not begun can be dropped: service is non-preemptive."""
        for position, sequence in enumerate(self._queue):
            if sequence.id == request_id and (position or self._plan is None):
                del self._queue[position]
                return sequence
        return None

    def new_tokens(self, now_ns: int) -> list[tuple[int, int]]:  # noqa: ARG002 (part of the protocol)
        return []

    def tokens_of(self, request_id: int, now_ns: int) -> int:  # noqa: ARG002 (part of the protocol)
        return 0
