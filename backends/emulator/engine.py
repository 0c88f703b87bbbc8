"""The server model in real time: admits what arrives, ends each step at its absolute time, hands out the tokens.

A step ends where the model says: the previous step's end plus its duration, never "now plus its duration". When the
loop is late, the next step is merely shorter to wait for; its end does not move. Likewise a request enters the engine's
queue when the model's front end has taken it in, counted from the instant at which it was received: it joins a step only
if that is not after the step's start, however late the loop came round. So the tokens' planned times are exactly those that
the simulator computes from the same arrivals; what the host adds is the *lateness*: from a step's planned end to its last
write, measured every step.

One alarm drives everything; there is no task and no object per token.
"""

from __future__ import annotations

import asyncio
from array import array
from collections import deque
from collections.abc import Callable
from typing import Protocol

from backends.emulator.metrics import EngineMetrics
from backends.wakeup import Wakeup
from scheduler.request import Request
from scheduler.server_model.plan import Plan
from scheduler.server_model.protocol import ServerModel, StepResult

Clock = Callable[[], int]


class TokenSink(Protocol):
    """Where a generation's tokens go; called once a step, on the loop."""

    def tokens(self, start: int, count: int) -> None:
        """Tokens ``start`` to ``start + count - 1`` of the answer exist now, one step's worth."""


class EngineFailedError(RuntimeError):
    """The engine's step failed; nothing more will be generated."""


class Generation:
    """One request in the engine. Times in ns on ``time.monotonic_ns``; ``token_ns`` (when each token was handed to the
    socket) and ``planned_ns`` (when the model says it existed) are kept only for the truth file. ``cached_tokens``: of its
    prompt, found in the prefix cache; None without one.
    """

    __slots__ = (
        "admitted",
        "cached_tokens",
        "done",
        "emitted",
        "first_ns",
        "last_ns",
        "output_tokens",
        "planned_ns",
        "preemptions",
        "received_ns",
        "request",
        "sink",
        "token_ns",
    )

    def __init__(
        self,
        request: Request,
        *,
        output_tokens: int,
        received_ns: int,
        sink: TokenSink,
        done: asyncio.Future[None],
        keep_times: bool = False,
    ) -> None:
        self.request = request
        self.output_tokens = output_tokens
        self.received_ns = received_ns
        self.sink = sink
        self.done = done
        self.admitted = False
        self.cached_tokens: int | None = None
        self.emitted = 0
        self.first_ns: int | None = None
        self.last_ns: int | None = None
        self.preemptions = 0
        self.token_ns: array[int] | None = array("q") if keep_times else None
        self.planned_ns: array[int] | None = array("q") if keep_times else None


class Engine:
    """Runs ``model``. ``epoch_ns``: the clock's value that is 0 on the model's clock. ``on_failure`` is told of an
    exception in a step, after every waiting generation got it too.
    """

    def __init__(
        self,
        model: ServerModel,
        *,
        clock: Clock,
        epoch_ns: int,
        metrics: EngineMetrics,
        new_wakeup: Callable[[Callable[[], None]], Wakeup],
        on_failure: Callable[[BaseException], None],
    ) -> None:
        self._model = model
        self._clock = clock
        self._epoch_ns = epoch_ns
        self._metrics = metrics
        self._on_failure = on_failure
        self._wakeup = new_wakeup(self._on_alarm)
        self._generations: dict[int, Generation] = {}
        self._front_end = model.front_end
        self._received: deque[Generation] = deque()
        self._plan: Plan | None = None
        self._step_end_ns = 0
        self._last_end_ns = 0
        self.failure: BaseException | None = None

    @property
    def in_flight(self) -> int:
        return len(self._generations)

    def submit(self, generation: Generation) -> None:
        """Let a request in; calls must come in order of ``received_ns``. Its ``done`` resolves after its last token."""
        if self.failure is not None:
            raise EngineFailedError("the engine has failed") from self.failure
        self._generations[generation.request.id] = generation
        self._received.append(generation)
        if self._plan is None:
            self._await_entry()

    def abort(self, request_id: int) -> Generation | None:
        """Forget a request whose client is gone; None when it had ended."""
        generation = self._generations.pop(request_id, None)
        if generation is None:
            return None
        if generation.admitted:
            self._model.abort(request_id)
        else:
            self._front_end.drop(request_id)
        self._metrics.aborted += 1
        return generation

    def close(self) -> None:
        self._wakeup.close()
        self._cancel_all()

    def _on_alarm(self) -> None:
        try:
            now_ns = self._clock()
            if self._plan is not None:
                if now_ns < self._step_end_ns:
                    self._wakeup.arm(self._step_end_ns)
                    return
                self._end_step(self._plan)
                self._begin_step(self._step_end_ns)
            else:
                self._leave_idleness(now_ns)
        except Exception as error:  # noqa: BLE001 (kept, given to every waiting request and to the owner)
            self._fail(error)

    def _leave_idleness(self, now_ns: int) -> None:
        """Begin with the request that enters first, at the instant at which it did."""
        entry_ns = self._next_entry()
        if entry_ns is not None and entry_ns + self._epoch_ns <= now_ns:
            self._admit(self._front_end.enter(), entry_ns + self._epoch_ns)
            self._begin_step(entry_ns + self._epoch_ns)
        else:
            self._await_entry()

    def _admit(self, request_ids: list[int], boundary_ns: int) -> None:
        for request_id in request_ids:
            generation = self._generations[request_id]
            self._model.admit(generation.request, boundary_ns - self._epoch_ns, generation.output_tokens)
            generation.admitted = True

    def _begin_step(self, boundary_ns: int) -> None:
        """Plan the step that starts at ``boundary_ns`` with what has entered the queue by then."""
        plan = self._plan = self._model.plan(boundary_ns - self._epoch_ns)
        if plan is not None:
            self._front_end.start(plan)
            self._step_end_ns = plan.first_step_end_ns + self._epoch_ns
            self._wakeup.arm(self._step_end_ns)
        else:
            self._await_entry()

    def _next_entry(self) -> int | None:
        """Idle: when the next request enters. Nothing that is received after it is the front end's yet, for a step is in
        flight by then."""
        entry_ns = self._front_end.next_ns(None)
        while self._received and (entry_ns is None or self._received[0].received_ns - self._epoch_ns <= entry_ns):
            self._hand_over(None)
            entry_ns = self._front_end.next_ns(None)
        return entry_ns

    def _await_entry(self) -> None:
        entry_ns = self._next_entry()
        if entry_ns is None:
            self._wakeup.disarm()
        else:
            self._wakeup.arm(entry_ns + self._epoch_ns)

    def _hand_over(self, plan: Plan | None) -> None:
        """What was received first, to the front end, unless its client has gone."""
        generation = self._received.popleft()
        if generation.request.id in self._generations:
            self._front_end.send(generation.request.id, generation.received_ns - self._epoch_ns, plan)

    def _end_step(self, plan: Plan) -> None:
        while self._received and self._received[0].received_ns <= self._step_end_ns:
            self._hand_over(plan)
        self._admit(self._front_end.end(plan, 1), self._step_end_ns)
        result = self._model.commit(1, emitted=True)
        self._plan = None
        self._hand_out(result)
        self._last_end_ns = self._step_end_ns
        for preempted in result.preempted:
            generation = self._generations.get(preempted.id)
            if generation is not None:
                generation.preemptions += 1
        self._metrics.preemptions += len(result.preempted)
        self._metrics.step_ended(self._clock() - self._step_end_ns)

    def _hand_out(self, result: StepResult) -> None:
        """Give each sequence its tokens. Most had their last one when the step before ended: one gap, counted."""
        end_ns, last_end_ns = self._step_end_ns, self._last_end_ns
        generations, metrics, clock = self._generations, self._metrics, self._clock
        steady = total = 0
        for request_id, count in result.emitted.items():
            generation = generations[request_id]
            generation.sink.tokens(generation.emitted, count)
            if generation.token_ns is not None and generation.planned_ns is not None:
                written_ns = clock()
                for _ in range(count):
                    generation.token_ns.append(written_ns)
                    generation.planned_ns.append(end_ns)
            if generation.last_ns == last_end_ns:
                steady += 1
            elif generation.last_ns is None:
                generation.first_ns = end_ns
                metrics.first_token.observe(end_ns - generation.received_ns)
            else:
                metrics.inter_token.observe(end_ns - generation.last_ns)
            generation.last_ns = end_ns
            generation.emitted += count
            total += count
        if steady:
            metrics.inter_token.observe(end_ns - last_end_ns, steady)
        metrics.generation_tokens += total
        for sequence in result.finished:
            generation = self._generations.pop(sequence.id)
            generation.cached_tokens = sequence.cached_tokens
            self._finish(generation)

    def _finish(self, generation: Generation) -> None:
        self._metrics.finished += 1
        self._metrics.end_to_end.observe(self._step_end_ns - generation.received_ns)
        if not generation.done.done():
            generation.done.set_result(None)

    def _fail(self, error: BaseException) -> None:
        self.failure = error
        self._wakeup.disarm()
        for generation in self._generations.values():
            if not generation.done.done():
                failed = EngineFailedError(f"the engine failed: {error}")
                failed.__cause__ = error
                generation.done.set_exception(failed)
        self._generations.clear()
        self._received.clear()
        self._plan = None
        self._on_failure(error)

    def _cancel_all(self) -> None:
        for generation in self._generations.values():
            generation.done.cancel()
        self._generations.clear()
        self._received.clear()
        self._plan = None
