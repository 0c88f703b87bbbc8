"""Continuous batching with chunked prefill: the engine of one replica, iteration by iteration.

Each step gives one token to every decoding sequence and spends what is left of the token budget on prefill, in order of
admission, chunk by chunk (Sarathi-Serve, OSDI 2024; vLLM's V1 scheduler). A prompt's last chunk yields the first token.
When the KV cache is full the sequence admitted last is preempted: it gives up its KV and returns to the head of the
engine's queue, to be prefilled again with what it had generated (recompute).

With ``limits.prefix_cache`` the KV that the batch holds is its contexts less what several share, and what is left of the
KV cache keeps blocks that nobody holds (:mod:`scheduler.server_model.prefix_cache`). The law still sees whole contexts:
attention reads shared tokens once for each sequence.

Cost a run, not a token: decoding sequences are kept as a count and a sum of contexts, and as a heap of the steps at which
they finish, so that k steps of unchanged composition are one jump (see :mod:`scheduler.server_model.protocol`).
"""

from __future__ import annotations

import heapq

from scheduler.extensible import mypyc_attr
from scheduler.request import Request
from scheduler.server_model.front_end import FrontEnd
from scheduler.server_model.plan import Plan
from scheduler.server_model.prefix_cache import BLOCK_TOKENS, PrefixCache
from scheduler.server_model.protocol import Sequence, StepResult
from scheduler.server_model.spec import PS_PER_US, ServerLimits, StepLaw
from scheduler.server_model.step_time import StepTime, attended_pairs
from scheduler.server_model.token_counts import TokenCounts

_WAITING, _PREFILL, DECODE, _GONE = 0, 1, 2, 3
_UNBOUNDED = 1 << 62


@mypyc_attr(allow_interpreted_subclasses=True)
class ContinuousBatch:
    """See :class:`scheduler.server_model.protocol.ServerModel`. Not thread-safe; deterministic. ``block_tokens``: what each
    of ``Request.prefix_blocks`` stands for; ``cache`` in place of one of its own. One token a step:
    :func:`scheduler.server_model.build.build_server` chooses."""

    def __init__(
        self,
        law: StepLaw,
        limits: ServerLimits,
        block_tokens: int = BLOCK_TOKENS,
        cache: PrefixCache | None = None,
    ) -> None:
        self.limits = limits
        self.law = law
        self._time = StepTime(law)
        self.front_end = FrontEnd(law.offset_ns * 1000, round(law.stream_us * PS_PER_US))
        self._kv_limit = _UNBOUNDED if limits.kv_tokens is None else limits.kv_tokens
        self._longest = _UNBOUNDED if limits.longest is None else limits.longest
        self._max_num_seqs = limits.max_num_seqs
        self._cache = cache or (PrefixCache(block_tokens) if limits.prefix_cache else None)
        self._width = limits.tokens_a_step
        self._clock_ps = 0
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
        self._preempted: list[Sequence] = []
        self._paused: list[Sequence] = []
        self._reused: list[tuple[Sequence, int]] = []
        self._room = self._growth = 0
        self._counts = TokenCounts()

    @property
    def tokens_a_step(self) -> int:
        return self._width

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
        """KV tokens held by the batch; what several sequences share counts once."""
        held = self._decode_kv + self._prefill_kv
        return held if self._cache is None else held - self._cache.shared_tokens

    @property
    def kv_capacity(self) -> int | None:
        return self.limits.kv_tokens

    def resident_blocks(self) -> frozenset[int]:
        """Names of the blocks that a prompt could find; none without a prefix cache."""
        return frozenset() if self._cache is None else self._cache.resident()

    def admit(self, request: Request, now_ns: int, output_tokens: int, account: int = 0) -> None:  # noqa: ARG002 (the model's clock rules)
        if output_tokens < 1 or request.prompt_tokens < 1:
            raise ValueError(
                f"request {request.id}: a server needs at least one prompt and one output token, got "
                f"{request.prompt_tokens} and {output_tokens}"
            )
        if request.prompt_tokens + output_tokens > self._longest:
            drafts = "" if self._width == 1 else f" + {self._width - 1} drafted"
            raise ValueError(
                f"request {request.id}: {request.prompt_tokens} + {output_tokens}{drafts} tokens can never fit into a KV "
                f"cache of {self._kv_limit} tokens"
            )
        if request.id in self._by_id:
            raise ValueError(f"request {request.id} is already in this server")
        sequence = Sequence(request, output_tokens, self._order, account)
        self._order += 1
        self._by_id[request.id] = sequence
        self._push_waiting(sequence)

    def _push_waiting(self, sequence: Sequence) -> None:
        priority = sequence.request.priority if self.limits.priority_queue else 0
        heapq.heappush(self._waiting, (priority, sequence.order, sequence))

    def _next_waiting(self) -> Sequence | None:
        waiting = self._waiting
        while waiting:
            sequence = waiting[0][2]
            if sequence.state == _WAITING:
                return sequence
            heapq.heappop(waiting)
        return None

    def may_start_now(self) -> bool:
        return (
            len(self._running) < self._max_num_seqs
            and self._next_waiting() is not None
            and self.kv_tokens + self._decoders * self._width < self._kv_limit
        )

    def plan(self, now_ns: int) -> Plan | None:
        if self._plan is not None:
            return self._plan
        if not self._running:
            self._clock_ps = max(self._clock_ps, now_ns * 1000)
        if self.kv_tokens + self._decoders * self._width >= self._kv_limit:
            self._make_room()
        prefills = self._prefilling or self._waiting or self._cache is not None
        prefill_tokens = self._schedule_prefill() if prefills else 0
        if not self._running:
            return None
        step_ps = self._time.step_ps(prefill_tokens, self._decoders, self._decode_kv)
        if prefill_tokens:
            if self._time.attended_ps:
                pairs = sum(attended_pairs(tokens, sequence.context) for sequence, tokens in self._chunks)
                step_ps += self._time.attended_ps * pairs
            self._plan = Plan(self._clock_ps, step_ps, 0, 1, self._decoders)
        else:
            growth_ps = self._time.growth_ps * self._decoders
            self._plan = Plan(self._clock_ps, step_ps, growth_ps, self._steps_alike(), self._decoders)
        return self._plan

    def _steps_alike(self) -> int:
        """How many steps of decodes alone can follow one another: until a sequence ends or the KV cache is full."""
        finishing = self._finishing
        while finishing[0][2].finish_step != finishing[0][0] or finishing[0][2].state != DECODE:
            heapq.heappop(finishing)
        if self._cache is not None and self._cache.idle_tokens and self.may_start_now():
            return 1  # an eviction may make the prompt that waits hold less, and so let it in
        steps = finishing[0][0] - self.step
        room = self._kv_limit - self.kv_tokens
        return steps if steps * self._decoders <= room else max(1, room // self._decoders)

    def _make_room(self) -> None:
        """Preempt the sequences admitted last until every decoding one has room for its next token (and, when none
        decodes, until the oldest prompt can go on)."""
        limit = self._kv_limit
        while (used := self.kv_tokens) + self._decoders * self._width > limit or (
            used == limit and not self._decoders and len(self._running) > 1
        ):
            victim = next(reversed(self._running.values()))
            if victim.state == DECODE:
                victim.paused_ps = self._clock_ps
                self._paused.append(victim)
            self._leave_batch(victim)
            victim.state = _WAITING
            victim.prefill_left = victim.request.prompt_tokens + victim.generated
            victim.preemptions += 1
            self._push_waiting(victim)
            self._preempted.append(victim)

    def _leave_batch(self, sequence: Sequence) -> None:
        del self._running[sequence.request.id]
        if self._cache is not None:
            self._cache.release(sequence.request.id)
        if sequence.state == DECODE:
            done = self.step - sequence.decode_since
            sequence.generated += done
            self._decoders -= 1
            self._decode_kv -= sequence.context + done
            if sequence.account:
                self._counts.stops(sequence, self.step)
        else:
            self._prefill_kv -= sequence.context
            self._prefilling.remove(sequence)
        sequence.context = 0

    def _schedule_prefill(self) -> int:
        """Choose the step's chunks; returns their tokens."""
        chunks, cache = self._chunks, self._cache
        decoding = self._decoders * self._width
        room = self._kv_limit - self.kv_tokens - decoding
        budget = self.limits.max_num_batched_tokens - decoding
        total = 0
        if cache is not None:
            cache.settle()
            cache.fit(room)
        for sequence in self._prefilling:
            tokens = min(sequence.prefill_left, budget - total, room - total)
            if tokens <= 0:
                break
            chunks.append((sequence, tokens))
            total += tokens
            if cache is not None:
                cache.computed(sequence.request, sequence.context + tokens)
                cache.fit(room - total)
        while total < budget and total < room and len(self._running) < self._max_num_seqs:
            head = self._next_waiting()
            if head is None:
                break
            if cache is not None:
                pinned = self._reuse(cache, head, room - total)
                if pinned is None:
                    break
                room -= pinned
            heapq.heappop(self._waiting)
            head.state = _PREFILL
            self._running[head.request.id] = head
            self._prefilling.append(head)
            tokens = min(head.prefill_left, budget - total, room - total)
            chunks.append((head, tokens))
            total += tokens
            if cache is not None:
                cache.computed(head.request, head.context + tokens)
                cache.fit(room - total)
        self._room, self._growth = room - total, decoding
        return total

    def _reuse(self, cache: PrefixCache, sequence: Sequence, room: int) -> int | None:
        """Let a sequence that enters the batch hold what is resident of its prompt; returns the tokens of it that nobody
        held before, None when they would leave no room to go on with."""
        hits, idle = cache.hits(sequence.request, sequence.prefill_left)
        pinned, reused = idle * cache.block_tokens, hits * cache.block_tokens
        if pinned >= room:
            return None
        cache.hold(sequence.request, hits)
        sequence.context = reused
        sequence.prefill_left -= reused
        self._prefill_kv += reused
        if sequence.cached_tokens is None:
            sequence.cached_tokens = reused
        if reused:
            self._reused.append((sequence, reused))
        return pinned

    def commit(self, steps: int, *, emitted: bool = False) -> StepResult:
        plan = self._plan
        if plan is None or not 1 <= steps <= plan.steps:
            raise ValueError(f"commit({steps}): the run in flight has {0 if plan is None else plan.steps} steps")
        self._plan = None
        self.step += steps
        self._clock_ps = plan.end_ps(steps)
        result = StepResult(self._clock_ps // 1000, steps)
        if self._preempted:
            result.preempted, self._preempted = self._preempted, []
            result.paused, self._paused = self._paused, []
        if self._cache is not None:
            self._cache.fit(self._room - (steps - 1) * self._growth)
            self._cache.settle()
            result.reused = [found for found in self._reused if found[0].state == _PREFILL]
            self._reused.clear()
        self._commit_decodes(result, steps, emitted=emitted)
        if self._chunks:
            self._commit_chunks(result, emitted=emitted)
        if self._finishing and self._finishing[0][0] <= self.step:
            self._commit_finished(result)
        return result

    def _commit_decodes(self, result: StepResult, steps: int, *, emitted: bool) -> None:
        self._decode_kv += self._decoders * steps
        if emitted:
            for sequence in self._running.values():
                if sequence.state == DECODE:
                    result.emitted[sequence.request.id] = steps

    def _commit_chunks(self, result: StepResult, *, emitted: bool) -> None:
        chunks, self._chunks = self._chunks, []
        prefilled: list[tuple[Sequence, int]] = []
        first_tokens: list[Sequence] = []
        resumed: list[tuple[Sequence, int]] = []
        for sequence, tokens in chunks:
            if sequence.state != _PREFILL:
                continue
            sequence.prefill_left -= tokens
            sequence.context += tokens
            self._prefill_kv += tokens
            prefilled.append((sequence, tokens))
            if sequence.prefill_left == 0:
                if sequence.first_ps is None:
                    sequence.first_ps = self._clock_ps
                    first_tokens.append(sequence)
                elif sequence.paused_ps is not None:
                    resumed.append((sequence, (self._clock_ps - sequence.paused_ps) // 1000))
                    sequence.paused_ps = None
                self._start_decoding(sequence)
                if emitted:
                    result.emitted[sequence.request.id] = 1
        result.prefilled, result.first_tokens, result.resumed = prefilled, first_tokens, resumed

    def _start_decoding(self, sequence: Sequence) -> None:
        self._prefilling.remove(sequence)
        self._prefill_kv -= sequence.context
        sequence.context += 1
        sequence.generated += 1
        sequence.state = DECODE
        sequence.decode_since = self.step
        self._decoders += 1
        self._decode_kv += sequence.context
        sequence.finish_step = self.step + sequence.output_tokens - sequence.generated
        heapq.heappush(self._finishing, (sequence.finish_step, sequence.order, sequence))
        if sequence.account:
            self._counts.starts(sequence, self.step)

    def _commit_finished(self, result: StepResult) -> None:
        finishing = self._finishing
        finished: list[Sequence] = []
        while finishing and finishing[0][0] <= self.step:
            finish_step, _, sequence = heapq.heappop(finishing)
            if sequence.state != DECODE or sequence.finish_step != finish_step:
                continue
            self._leave_batch(sequence)
            sequence.state = _GONE
            sequence.last_ps = self._clock_ps
            del self._by_id[sequence.request.id]
            if sequence.account:
                self._counts.leaves(sequence)
            finished.append(sequence)
        result.finished = finished

    def abort(self, request_id: int) -> Sequence | None:
        sequence = self._by_id.pop(request_id, None)
        if sequence is None:
            return None
        if sequence.state in (_PREFILL, DECODE):
            self._leave_batch(sequence)
        sequence.state = _GONE
        if sequence.account:
            self._counts.leaves(sequence)
        return sequence

    def _steps_by(self, now_ns: int) -> int:
        """Steps ended by ``now_ns``, those of the run in flight included."""
        plan = self._plan
        if plan is None or plan.first_step_end_ns > now_ns:
            return self.step
        reached = plan.steps_until(now_ns)
        return self.step + (reached if plan.end_ns(reached) <= now_ns else reached - 1)

    def new_tokens(self, now_ns: int) -> list[tuple[int, int]]:
        return self._counts.take(self._steps_by(now_ns))

    def tokens_of(self, request_id: int, now_ns: int) -> int:
        sequence = self._by_id.get(request_id)
        if sequence is None or sequence.state != DECODE:
            return sequence.generated if sequence else 0
        return sequence.generated + self._steps_by(now_ns) - sequence.decode_since
