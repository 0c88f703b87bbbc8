"""One server model on the simulation's clock: a chain of events, one for each run of steps.

A run is cut at the end of the step in progress when something is admitted that could join the batch (the macro-step of
:mod:`scheduler.server_model.protocol`), so results are those of step-by-step simulation.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from scheduler.drivers.errors import SimulationError
from scheduler.events import FirstToken, PrefillProgress
from scheduler.gap_log import GapLog, gap_log
from scheduler.request import ErrorClass, Request, Status
from scheduler.server_model.plan import Plan
from scheduler.server_model.protocol import ServerModel
from scheduler.steplog import OnGaps

if TYPE_CHECKING:
    from scheduler.drivers.simulated import Flight, Simulation


_OK = Status.OK  # a member of an enum costs more to name than a call (Python 3.11)


class Replica:
    """One server model on the simulation's clock."""

    def __init__(self, name: str, model: ServerModel, simulation: Simulation, on_gaps: OnGaps | None) -> None:
        self.name = name
        self.model = model
        self.running: dict[int, Request] = {}
        self._simulation = simulation
        self._env = simulation.env
        self._plan: Plan | None = None
        self._steps = 0
        self._sent: dict[int, Flight] = {}
        self._entry_number = 0
        self._end_number = 0
        self._gathering = False  # more may be admitted at this instant before a step starts
        self.log: GapLog | None = None
        if on_gaps is not None:
            self.log = gap_log(model.tokens_a_step, on_gaps, simulation.counts_gaps)

    def admit(self, request: Request, account: int) -> None:
        self.model.admit(request, self._simulation.now_ns, output_tokens(request), account)
        self.running[request.id] = request
        if not self._gathering:
            self._let_join()

    def _let_join(self) -> None:
        """Somebody was admitted: a step starts, or the one in progress ends its run."""
        if self._plan is None:
            self._start()
        elif self._steps > 1 and self.model.may_start_now():
            self._cut()

    def send(self, flight: Flight) -> None:
        """A request leaves for this server; it is admitted when the front end has taken it in."""
        front_end, sent = self.model.front_end, self._sent
        idle = self._plan is None and not sent and not self._gathering
        if front_end.immediate or (idle and front_end.immediate_when_idle):
            self._simulation.reach(flight)
            return
        request_id = flight.request.id
        sent[request_id] = flight
        front_end.send(request_id, self._env.now_ns, self._plan)
        if len(sent) == 1:
            self._await_entry()

    def withdraw(self, flight: Flight) -> None:
        """The request is given up before it is admitted."""
        if self._sent.pop(flight.request.id, None) is not None:
            self.model.front_end.drop(flight.request.id)
            self._await_entry()

    def _await_entry(self) -> None:
        self._entry_number += 1
        if self._plan is not None and self._steps == 1:
            return  # whoever enters during a step joins the next: its end takes them in
        entry_ns = self.model.front_end.next_ns(self._plan)
        if entry_ns is not None:
            self._env.call_at(max(self._env.now_ns, entry_ns), self._on_entry, self._entry_number)

    def _on_entry(self, number: int) -> None:
        if number == self._entry_number:
            self._take_in(self.model.front_end.enter())
            if self._sent:
                self._await_entry()

    @property
    def waiting(self) -> int:
        """Requests in the engine's own queue by now."""
        if self._sent:
            self._take_in(self.model.front_end.entered(self._env.now_ns, self._plan))
        return self.model.waiting

    def _take_in(self, request_ids: list[int]) -> None:
        """Who enters at one instant joins one step."""
        if not request_ids:
            return
        gathering, self._gathering = self._gathering, True
        for request_id in request_ids:
            self._simulation.reach(self._sent.pop(request_id))
        self._gathering = gathering
        if not gathering:
            self._let_join()

    def _start(self) -> None:
        self._plan = self.model.plan(self._env.now_ns)
        if self._plan is not None:
            self._end_after(self._plan, self._plan.steps)
        if self._sent:
            if self._plan is not None:
                self.model.front_end.start(self._plan)
            self._await_entry()

    def _cut(self) -> None:
        """End the run in flight with the step in progress."""
        assert self._plan is not None, "only a run in flight is cut"
        steps = self._plan.steps_until(self._env.now_ns)
        if steps < self._steps:
            self._end_after(self._plan, steps)

    def _end_after(self, plan: Plan, steps: int) -> None:
        self._steps = steps
        self._end_number += 1
        # A model's step may have no length, and end in the ns before now.
        end_ns, now_ns = plan.end_ns(steps), self._env.now_ns
        # What comes in at the very instant at which a step ends joins the next one, whether the step is one of a run or not.
        self._env.call_last_at(max(now_ns, end_ns), self._on_end, self._end_number)

    def _on_end(self, number: int) -> None:
        if number != self._end_number:
            return
        plan = self._plan
        assert plan is not None, "an end belongs to a run in flight"
        if self._sent:
            self._take_in(self.model.front_end.end(plan, self._steps))
        self._plan = None
        result = self.model.commit(self._steps)
        simulation = self._simulation
        if self.log is not None:
            self.log.run(plan, self._steps, result)
        now_ns = self._env.now_ns
        self._gathering = True
        for sequence, tokens in result.reused:
            simulation.handle(PrefillProgress(now_ns, sequence.request.id, tokens))
        for sequence, tokens in result.prefilled:
            # A first token tells that its prompt is prefilled, here as in a live run.
            if sequence.prefill_left or sequence not in result.first_tokens:
                simulation.handle(PrefillProgress(now_ns, sequence.request.id, tokens))
        for sequence in result.first_tokens:
            simulation.handle(FirstToken(now_ns, sequence.request.id))
        for sequence in result.finished:
            del self.running[sequence.request.id]
            simulation.finished(self, sequence, _OK, None)
        self._gathering = False
        self._start()

    def _steps_done(self, now_ns: int) -> int:
        """Steps of the run in flight that have ended."""
        if self._plan is None:
            return 0
        reached = self._plan.steps_until(now_ns)
        return reached if self._plan.end_ns(reached) <= now_ns else reached - 1

    def abort(self, request: Request, status: Status, error_class: ErrorClass) -> None:
        now_ns = self._simulation.now_ns
        generated = self.model.tokens_of(request.id, now_ns)
        sequence = self.model.abort(request.id)
        if sequence is None:
            return
        if self._plan is not None:
            self._cut()
        if sequence.paused_ps is not None:
            sequence.last_ps = sequence.paused_ps
        elif sequence.first_ps is not None:
            # It decodes, and gave a token with the step that ended last.
            steps = self._steps_done(now_ns)
            sequence.last_ps = now_ns * 1000 if self._plan is None else self._plan.end_ps(steps)
            if self.log is not None:
                self.log.left(request, self._plan, steps, generated - sequence.generated)
        del self.running[request.id]
        sequence.generated = generated
        self._simulation.finished(self, sequence, status, error_class)


def output_tokens(request: Request) -> int:
    tokens = request.target_output_tokens if request.target_output_tokens is not None else request.max_tokens
    if tokens is None:
        raise SimulationError(
            f"request {request.id} of tenant {request.tenant!r} has neither target_output_tokens nor max_tokens: the "
            "simulator must know how long its answer is"
        )
    return tokens
