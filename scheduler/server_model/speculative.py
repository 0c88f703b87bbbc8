"""Continuous batching in which a step gives a sequence several tokens: speculative decoding.

Each decoding sequence takes its drafts and one more token of the step's budget and of the KV cache, and emits as many as
:mod:`scheduler.server_model.speculation` says. A step's time is the law's: drafting and verifying belong to ``a`` and ``c`` of
a server that does it, so calibrate on that server. Contexts grow unevenly, so a run is one step, at a cost of O(sequences).
"""

from __future__ import annotations

import heapq

from scheduler.request import Request
from scheduler.server_model.batching import DECODE, ContinuousBatch
from scheduler.server_model.prefix_cache import BLOCK_TOKENS, PrefixCache
from scheduler.server_model.protocol import Sequence, StepResult
from scheduler.server_model.spec import ServerLimits, StepLaw
from scheduler.server_model.speculation import Speculation


class SpeculativeBatch(ContinuousBatch):
    """See the module docstring. ``generated`` and ``context`` of a decoding sequence are always as of the last step."""

    def __init__(
        self,
        law: StepLaw,
        limits: ServerLimits,
        block_tokens: int = BLOCK_TOKENS,
        cache: PrefixCache | None = None,
    ) -> None:
        super().__init__(law, limits, block_tokens, cache)
        self._speculation = Speculation(limits.speculative_tokens, limits.speculative_acceptance)
        self._account_of: dict[int, int] = {}

    def admit(self, request: Request, now_ns: int, output_tokens: int, account: int = 0) -> None:
        # Not to the counts of the plain batch, where every step gives a sequence one token.
        super().admit(request, now_ns, output_tokens)
        if account:
            self._account_of[request.id] = account

    def _steps_alike(self) -> int:
        return 1

    def _tokens(self, sequence: Sequence) -> int:
        """What a decoding sequence gives in its next step."""
        drawn = self._speculation.tokens(sequence.request.id, sequence.generated)
        return min(drawn, sequence.output_tokens - sequence.generated)

    def _commit_decodes(self, result: StepResult, steps: int, *, emitted: bool) -> None:  # noqa: ARG002 (1)
        decoded: list[tuple[Sequence, int]] = []
        for sequence in self._running.values():
            if sequence.state != DECODE:
                continue
            tokens = self._tokens(sequence)
            sequence.generated += tokens
            sequence.context += tokens
            sequence.decode_since = self.step
            self._decode_kv += tokens
            decoded.append((sequence, tokens))
            if sequence.generated == sequence.output_tokens and sequence.finish_step != self.step:
                sequence.finish_step = self.step
                heapq.heappush(self._finishing, (self.step, sequence.order, sequence))
        result.decoded = decoded
        if emitted:
            result.emitted.update({sequence.request.id: tokens for sequence, tokens in decoded})

    def _has(self, sequence: Sequence, now_ns: int) -> int:
        """A sequence's tokens by ``now_ns``, those of a step that has ended and is not committed yet included."""
        ended = self._steps_by(now_ns) > self.step
        return sequence.generated + (self._tokens(sequence) if ended and sequence.state == DECODE else 0)

    def new_tokens(self, now_ns: int) -> list[tuple[int, int]]:
        found: dict[int, int] = {}
        for request_id, account in list(self._account_of.items()):
            sequence = self._by_id.get(request_id)
            if sequence is None:
                del self._account_of[request_id]
                continue
            tokens = self._has(sequence, now_ns)
            if tokens > sequence.reported:
                found[account] = found.get(account, 0) + tokens - sequence.reported
                sequence.reported = tokens
        return list(found.items())

    def tokens_of(self, request_id: int, now_ns: int) -> int:
        sequence = self._by_id.get(request_id)
        return 0 if sequence is None else self._has(sequence, now_ns)
