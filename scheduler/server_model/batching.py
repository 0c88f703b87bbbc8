"""Continuous batching with chunked prefill: the engine of one replica, iteration by iteration.

Each step gives one token to every decoding sequence and spends what is left of the token budget on prefill, in order of
admission, chunk by chunk (Sarathi-Serve, OSDI 2024; vLLM's V1 scheduler). A prompt's last chunk yields the first token.
When the KV cache is full the sequence admitted last is preempted: it gives up its KV and returns to the head of the
engine's queue, to be prefilled again with what it had generated (recompute).

With ``limits.async_scheduling`` (vLLM's default today) the engine plans one step ahead: while step k runs on the
accelerator, the host already chooses step k + 1 and launches it, and only then hands out the tokens of step k. So

* a prompt that enters during a step joins not the next step but the one after;
* with D_k the instant at which the tokens of step k are handed out, G_k its end on the accelerator and h the time to launch
  a step with prefill (a step of decodes alone replays a recorded graph, and costs the host next to nothing)::

      G_k = max(G_(k-1) + t_k, D_(k-1) + tail if step k has prefill)        D_k = max(G_k, D_(k-1) + h if step k + 1 has)

  Streams therefore see a long gap *before* the step with the prefill, and a short one in it. ``launch_tail_us`` is what the
  accelerator still has to do once the host has launched the last kernel of a step that it waited for.

Cost a run, not a token: decoding sequences are kept as a count and a sum of contexts, and as a heap of the steps at which
they finish, so that k steps of unchanged composition are one jump (see :mod:`scheduler.server_model.protocol`).
"""

from __future__ import annotations

import heapq

from scheduler.request import Request
from scheduler.server_model.protocol import Plan, Sequence, StepResult
from scheduler.server_model.spec import ServerLimits, StepLaw
from scheduler.server_model.step_time import StepTime

_WAITING, _PREFILL, _DECODE, _GONE = 0, 1, 2, 3
_UNBOUNDED = 1 << 62


class ContinuousBatch:
    """See :class:`scheduler.server_model.protocol.ServerModel`. Not thread-safe; deterministic."""

    def __init__(self, law: StepLaw, limits: ServerLimits) -> None:
        self.limits = limits
        self.law = law
        self._time = StepTime(law)
        self._kv_limit = _UNBOUNDED if limits.kv_tokens is None else limits.kv_tokens
        self._ahead = limits.async_scheduling
        self._clock_ps = 0
        self._gpu_ps = 0
        self._gpu_end_ps: int | None = None
        self._order = 0
        self.step = 0
        self._waiting: list[tuple[int, int, Sequence]] = []
        self._by_id: dict[int, Sequence] = {}
        self._running: dict[int, Sequence] = {}
        self._prefilling: list[Sequence] = []
        self._decoders = 0
        self._decode_kv = 0
        self._prefill_kv = 0
        self._finishing: list[tuple[int, int, Sequence]] = []
        self._plan: Plan | None = None
        self._chunks: list[tuple[Sequence, int]] = []
        self._next_chunks: list[tuple[Sequence, int]] = []
        self._preempted: list[Sequence] = []
        self._paused: list[Sequence] = []

    @property
    def running(self) -> int:
        """Sequences in the batch."""
        return len(self._running)

    @property
    def waiting(self) -> int:
        """Requests in the engine's queue."""
        return len(self._by_id) - len(self._running)

    @property
    def kv_tokens(self) -> int:
        """KV tokens held by the batch."""
        return self._decode_kv + self._prefill_kv

    @property
    def kv_capacity(self) -> int | None:
        return self.limits.kv_tokens

    def entry_ns(self, in_flight: int) -> int:
        return self._time.entry_ns * in_flight

    def admit(self, request: Request, now_ns: int, output_tokens: int) -> None:  # noqa: ARG002 (the model's clock rules)
        if output_tokens < 1 or request.prompt_tokens < 1:
            raise ValueError(
                f"request {request.id}: a server needs at least one prompt and one output token, got "
                f"{request.prompt_tokens} and {output_tokens}"
            )
        if request.prompt_tokens + output_tokens > self._kv_limit:
            raise ValueError(
                f"request {request.id}: {request.prompt_tokens} + {output_tokens} tokens can never fit into a KV cache of "
                f"{self._kv_limit} tokens"
            )
        if request.id in self._by_id:
            raise ValueError(f"request {request.id} is already in this server")
        sequence = Sequence(request, output_tokens, self._order)
        self._order += 1
        self._by_id[request.id] = sequence
        self._push_waiting(sequence)

    def _push_waiting(self, sequence: Sequence) -> None:
        priority = sequence.request.priority if self.limits.priority_queue else 0
        heapq.heappush(self._waiting, (priority, sequence.order, sequence))

    def _next_waiting(self) -> Sequence | None:
        while self._waiting:
            sequence = self._waiting[0][2]
            if sequence.state == _WAITING:
                return sequence
            heapq.heappop(self._waiting)
        return None

    def may_start_now(self) -> bool:
        head = self._next_waiting()
        return (
            head is not None
            and len(self._running) < self.limits.max_num_seqs
            and self._decode_kv + self._prefill_kv + self._decoders < self._kv_limit
        )

    def plan(self, now_ns: int) -> Plan | None:
        if self._plan is not None:
            return self._plan
        idle = not self._running
        if idle:
            self._clock_ps = self._gpu_ps = max(self._clock_ps, now_ns * 1000)
        if self._next_chunks:
            self._chunks = [c for c in self._next_chunks if c[0].state == _PREFILL]
            self._next_chunks = []
        self._make_room()
        start_ps = self._clock_ps
        chosen_now = not (self._ahead and (self._chunks or self._decoders))
        if chosen_now:
            self._schedule_prefill(self._chunks, flying=False)
            if self._chunks:
                start_ps += self._time.launch_ps + (self._time.idle_ps if idle else 0)
        if not self._running:
            return None
        if self._ahead:
            self._schedule_prefill(self._next_chunks, flying=True)
        step_ps = self._step_ps()
        if not self._chunks and not self._next_chunks and self._gpu_ps == self._clock_ps:
            self._plan = Plan(self._clock_ps, step_ps, self._time.growth_ps * self._decoders, self._steps_alike())
            return self._plan
        gpu_ps = self._gpu_ps + step_ps
        if self._chunks:
            gpu_ps = max(gpu_ps, start_ps + self._time.tail_ps)
        self._gpu_end_ps = gpu_ps
        end_ps = max(gpu_ps, start_ps + self._time.launch_ps) if self._next_chunks else max(gpu_ps, self._clock_ps)
        self._plan = Plan(self._clock_ps, end_ps - self._clock_ps, 0, 1)
        return self._plan

    def _step_ps(self) -> int:
        """The law, for the step about to run."""
        tokens = pairs = 0
        for sequence, chunk in self._chunks:
            tokens += chunk
            pairs += chunk * (2 * sequence.context + chunk)
        return self._time.step_ps(tokens, pairs, self._decoders, self._decode_kv)

    def _steps_alike(self) -> int:
        """How many steps of decodes alone can follow one another before a sequence ends or the KV cache is full."""
        finishing = self._finishing
        while finishing[0][2].finish_step != finishing[0][0] or finishing[0][2].state != _DECODE:
            heapq.heappop(finishing)
        steps = finishing[0][0] - self.step
        return min(steps, max(1, (self._kv_limit - self.kv_tokens) // self._decoders))

    def _make_room(self) -> None:
        """Preempt the sequences admitted last until every decoding one has room for its next token (and, when none
        decodes, until the oldest prompt can go on)."""
        while (used := self.kv_tokens + sum(n for _, n in self._chunks)) + self._decoders > self._kv_limit or (
            not self._decoders and not self._chunks and len(self._running) > 1 and used == self._kv_limit
        ):
            victim = next(reversed(self._running.values()))
            if victim.state == _DECODE:
                victim.paused_ps = self._clock_ps
                self._paused.append(victim)
            self._chunks = [c for c in self._chunks if c[0] is not victim]
            self._leave_batch(victim)
            victim.state = _WAITING
            victim.prefill_left = victim.request.prompt_tokens + victim.generated
            victim.preemptions += 1
            self._push_waiting(victim)
            self._preempted.append(victim)

    def _leave_batch(self, sequence: Sequence) -> None:
        del self._running[sequence.request.id]
        if sequence.state == _DECODE:
            done = self.step - sequence.decode_since
            sequence.generated += done
            self._decoders -= 1
            self._decode_kv -= sequence.context + done
        else:
            self._prefill_kv -= sequence.context
            self._prefilling.remove(sequence)
        sequence.context = 0

    def _schedule_prefill(self, chunks: list[tuple[Sequence, int]], *, flying: bool) -> None:
        """Choose a step's chunks. ``flying``: ``self._chunks`` runs first, so what it takes, and one more token for each
        sequence that decodes, are spoken for."""
        decoders, room = self._decoders, self._kv_limit - self.kv_tokens - self._decoders
        in_flight: dict[Sequence, int] = {}
        if flying:
            in_flight = dict(self._chunks)
            decoders += sum(sequence.prefill_left == tokens for sequence, tokens in self._chunks)
            room -= sum(in_flight.values()) + 2 * decoders - self._decoders
        budget = self.limits.max_num_batched_tokens - decoders
        total = 0
        for sequence in self._prefilling:
            left = sequence.prefill_left - in_flight.get(sequence, 0)
            if not left:
                continue
            tokens = min(left, budget - total, room - total)
            if tokens <= 0:
                break
            chunks.append((sequence, tokens))
            total += tokens
        while total < budget and total < room and len(self._running) < self.limits.max_num_seqs:
            head = self._next_waiting()
            if head is None:
                break
            heapq.heappop(self._waiting)
            head.state = _PREFILL
            self._running[head.request.id] = head
            self._prefilling.append(head)
            tokens = min(head.prefill_left, budget - total, room - total)
            chunks.append((head, tokens))
            total += tokens

    def commit(self, steps: int, *, emitted: bool = False) -> StepResult:
        plan = self._plan
        if plan is None or not 1 <= steps <= plan.steps:
            raise ValueError(f"commit({steps}): the run in flight has {0 if plan is None else plan.steps} steps")
        self._plan = None
        self.step += steps
        self._clock_ps = plan.end_ps(steps)
        self._gpu_ps = self._clock_ps if self._gpu_end_ps is None else self._gpu_end_ps
        self._gpu_end_ps = None
        result = StepResult(self._clock_ps // 1000, steps)
        if self._preempted:
            result.preempted, self._preempted = self._preempted, []
            result.paused, self._paused = self._paused, []
        self._decode_kv += self._decoders * steps
        if emitted:
            for sequence in self._running.values():
                if sequence.state == _DECODE:
                    result.emitted[sequence.request.id] = steps
        if self._chunks:
            self._commit_chunks(result, emitted=emitted)
        self._commit_finished(result)
        return result

    def _commit_chunks(self, result: StepResult, *, emitted: bool) -> None:
        chunks, self._chunks = self._chunks, []
        for sequence, tokens in chunks:
            if sequence.state != _PREFILL:
                continue
            sequence.prefill_left -= tokens
            sequence.context += tokens
            self._prefill_kv += tokens
            result.prefilled.append((sequence, tokens))
            if sequence.prefill_left == 0:
                self._start_decoding(sequence, result)
                if emitted:
                    result.emitted[sequence.request.id] = 1

    def _start_decoding(self, sequence: Sequence, result: StepResult) -> None:
        self._prefilling.remove(sequence)
        self._prefill_kv -= sequence.context
        sequence.context += 1
        sequence.generated += 1
        sequence.state = _DECODE
        sequence.decode_since = self.step
        if sequence.first_ps is None:
            sequence.first_ps = self._clock_ps
            result.first_tokens.append(sequence)
        elif sequence.paused_ps is not None:
            result.resumed.append((sequence, (self._clock_ps - sequence.paused_ps) // 1000))
            sequence.paused_ps = None
        self._decoders += 1
        self._decode_kv += sequence.context
        sequence.finish_step = self.step + sequence.output_tokens - sequence.generated
        heapq.heappush(self._finishing, (sequence.finish_step, sequence.order, sequence))

    def _commit_finished(self, result: StepResult) -> None:
        finishing = self._finishing
        while finishing and finishing[0][0] <= self.step:
            finish_step, _, sequence = heapq.heappop(finishing)
            if sequence.state != _DECODE or sequence.finish_step != finish_step:
                continue
            self._leave_batch(sequence)
            sequence.state = _GONE
            sequence.last_ps = self._clock_ps
            del self._by_id[sequence.request.id]
            result.finished.append(sequence)

    def abort(self, request_id: int) -> Sequence | None:
        sequence = self._by_id.pop(request_id, None)
        if sequence is None:
            return None
        if sequence.state in (_PREFILL, _DECODE):
            self._leave_batch(sequence)
        sequence.state = _GONE
        return sequence

    def _steps_by(self, now_ns: int) -> int:
        """Steps ended by ``now_ns``, those of the run in flight included."""
        plan = self._plan
        if plan is None or plan.first_step_end_ns > now_ns:
            return self.step
        reached = plan.steps_until(now_ns)
        return self.step + (reached if plan.end_ns(reached) <= now_ns else reached - 1)

    def new_tokens(self, now_ns: int) -> list[tuple[int, int]]:
        step = self._steps_by(now_ns)
        found = []
        for request_id, sequence in self._by_id.items():
            tokens = sequence.generated
            if sequence.state == _DECODE:
                tokens += step - sequence.decode_since
            if tokens > sequence.reported:
                found.append((request_id, tokens - sequence.reported))
                sequence.reported = tokens
        return found

    def tokens_of(self, request_id: int, now_ns: int) -> int:
        sequence = self._by_id.get(request_id)
        if sequence is None:
            return 0
        if sequence.state != _DECODE:
            return sequence.generated
        return sequence.generated + self._steps_by(now_ns) - sequence.decode_since
