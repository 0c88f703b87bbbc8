"""What a driver needs of a server model: admit, plan a run of steps, commit as many of them as really ran.

``plan`` puts a run of ``k`` equal steps in flight and says when each ends; ``commit(j)``, j <= k, makes the first ``j`` of
them real. A driver in real time commits one at a time. The simulator commits whole runs, cut short when something is
admitted that the next step should know: the *macro-step*. Both give the same times, to the picosecond, because step
times are whole picoseconds and a run's total is their exact sum.
"""

from __future__ import annotations

from typing import Protocol, TypeVar

from scheduler.request import Request
from scheduler.server_model.front_end import FrontEnd
from scheduler.server_model.plan import Plan


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
    def front_end(self) -> FrontEnd:
        """What a request passes before ``admit``; its driver tells it when runs start and end."""

    @property
    def waiting(self) -> int:
        """Requests in the engine's own queue."""

    @property
    def tokens_a_step(self) -> int:
        """The most tokens that a sequence gives in one step."""

    def admit(self, request: Request, now_ns: int, output_tokens: int, account: int = 0) -> None:
        """Into the engine's queue; it will give ``output_tokens`` (>= 1), to be reported under ``account``. Raises ValueError
        for one that can never fit."""

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
