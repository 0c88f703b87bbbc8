"""What a driver needs of a server model: admit, plan a run of steps, commit as many of them as really ran.

``plan`` puts a run of ``k`` equal steps in flight and says when each ends; ``commit(j)``, j <= k, makes the first ``j`` of
them real. A driver in real time commits one at a time. The simulator commits whole runs, cut short when something is
admitted that the next step should know: the *macro-step*. Both give the same times, to the picosecond, because step
times are whole picoseconds and a run's total is their exact sum.
"""

from __future__ import annotations

from math import isqrt
from typing import Protocol, TypeVar

from scheduler.request import Request


class Sequence:
    """One request inside the engine. Times in ps on the model's clock, None until reached.

    ``generated`` counts tokens as of its last change of state; a decoding sequence's present count is
    ``ServerModel.tokens_of``. ``paused_ps``: when it gave its last token before a preemption, while that lasts.
    ``cached_tokens``: prompt tokens that were resident when it first entered the batch (None: not yet, or no such cache).
    ``account``: what its tokens are reported under (0: nobody asks for them); ``reported``: how many were, once it has left;
    ``unreported``: see :mod:`scheduler.server_model.token_counts`.
    """

    __slots__ = (
        "account",
        "cached_tokens",
        "context",
        "decode_since",
        "finish_step",
        "first_ps",
        "generated",
        "last_ps",
        "order",
        "output_tokens",
        "paused_ps",
        "preemptions",
        "prefill_left",
        "reported",
        "request",
        "state",
        "unreported",
    )

    def __init__(self, request: Request, output_tokens: int, order: int, account: int = 0) -> None:
        self.request = request
        self.output_tokens = output_tokens
        self.order = order
        self.state = 0
        self.prefill_left = request.prompt_tokens
        self.context = 0
        self.generated = 0
        self.decode_since = 0
        self.finish_step = 0
        self.first_ps: int | None = None
        self.last_ps: int | None = None
        self.paused_ps: int | None = None
        self.preemptions = 0
        self.account = account
        self.reported = 0
        self.unreported = 0
        self.cached_tokens: int | None = None

    @property
    def id(self) -> int:
        return self.request.id


class Plan:
    """A run of ``steps`` equal-composition steps in flight, from ``start_ps``: step j (from 0) takes
    ``first_ps + j * growth_ps``. ``emitting``: ids of sequences that decode in each of them."""

    __slots__ = ("first_ps", "growth_ps", "start_ps", "steps")

    def __init__(self, start_ps: int, first_ps: int, growth_ps: int, steps: int) -> None:
        self.start_ps = start_ps
        self.first_ps = first_ps
        self.growth_ps = growth_ps
        self.steps = steps

    def end_ps(self, k: int) -> int:
        """End of the k-th step (k >= 1), exact."""
        return self.start_ps + k * self.first_ps + self.growth_ps * (k * (k - 1) // 2)

    def end_ns(self, k: int) -> int:
        """End of the k-th step on the ns clock (the last whole ns)."""
        return (self.start_ps + k * self.first_ps + self.growth_ps * (k * (k - 1) // 2)) // 1000

    @property
    def first_step_end_ns(self) -> int:
        return self.end_ns(1)

    def steps_until(self, now_ns: int) -> int:
        """The least k >= 1 with ``end_ns(k) >= now_ns``, at most ``steps``: where a run is cut when something arrives."""
        first, growth, wanted = self.first_ps, self.growth_ps, now_ns * 1000 - self.start_ps
        if self.steps == 1 or wanted <= first:
            return 1
        if not growth:
            return min(-(-wanted // first), self.steps)
        # The end of step k is a square in k: from the whole part of its root (or one less, isqrt rounds down) upward.
        linear = 2 * first - growth
        k = max(1, (isqrt(linear * linear + 8 * growth * wanted) - linear) // (2 * growth))
        while k * first + growth * (k * (k - 1) // 2) < wanted:
            k += 1
        return min(k, self.steps)


T = TypeVar("T")
Many = list[T] | tuple[()]


class StepResult:
    """What the committed steps brought. ``prefilled``: (sequence, prompt tokens) chunks; ``reused``: (sequence, prompt
    tokens) that were found in the prefix cache and need no prefill; ``first_tokens``: sequences whose
    first token came; ``finished``: sequences that gave their last token; ``preempted``: pushed back to the engine's queue
    when this run was planned; ``paused``: those of them that were decoding; ``resumed``: (sequence, its
    gap in ns) that gave a token again after a preemption; ``decoded``: (sequence, tokens) of a step in which a sequence may
    give several; ``emitted``: token counts by request id, kept only on demand."""

    __slots__ = (
        "decoded",
        "emitted",
        "end_ns",
        "finished",
        "first_tokens",
        "paused",
        "preempted",
        "prefilled",
        "resumed",
        "reused",
        "steps",
    )

    def __init__(self, end_ns: int, steps: int) -> None:
        self.end_ns = end_ns
        self.steps = steps
        # Most steps bring nothing but tokens: no lists for them.
        self.prefilled: Many[tuple[Sequence, int]] = ()
        self.first_tokens: Many[Sequence] = ()
        self.finished: Many[Sequence] = ()
        self.preempted: Many[Sequence] = ()
        self.paused: Many[Sequence] = ()
        self.resumed: Many[tuple[Sequence, int]] = ()
        self.reused: Many[tuple[Sequence, int]] = ()
        self.decoded: Many[tuple[Sequence, int]] = ()
        self.emitted: dict[int, int] = {}


class ServerModel(Protocol):
    """One replica. ``admit`` and ``abort`` may come while a run is in flight; they take effect at its next step."""

    @property
    def waiting(self) -> int:
        """Requests in the engine's own queue."""

    @property
    def tokens_a_step(self) -> int:
        """The most tokens that a sequence gives in one step."""

    def admit(self, request: Request, now_ns: int, output_tokens: int, account: int = 0) -> None:
        """Into the engine's queue; it will give ``output_tokens`` (>= 1), to be reported under ``account``. Raises ValueError
        for one that can never fit."""

    def entry_ns(self, in_flight: int) -> int:
        """What a request loses before the engine's queue, beyond the constant offset, when ``in_flight`` others have been
        sent to the server and have not ended: its front end is busy with them."""

    def may_start_now(self) -> bool:
        """True when the head of the engine's queue could join at the next step (so that a run is worth cutting)."""

    def plan(self, now_ns: int) -> Plan | None:
        """Put the next run in flight (again the same one until it is committed); None when there is nothing to run."""

    def commit(self, steps: int, *, emitted: bool = False) -> StepResult:
        """Make the first ``steps`` of the run in flight real."""

    def abort(self, request_id: int) -> Sequence | None:
        """Drop a sequence, wherever it is; returns it (with the tokens it had), None when it is not here."""

    def new_tokens(self, now_ns: int) -> list[tuple[int, int]]:
        """(account, tokens) that its sequences gave by ``now_ns`` and since this was asked last; none for those that gave
        nothing. What a sequence that has left did not tell of is not told any more: its ``reported`` says so."""

    def tokens_of(self, request_id: int, now_ns: int) -> int:
        """Output tokens of a running request by ``now_ns``, those of finished steps of the run in flight included."""
