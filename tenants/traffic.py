"""What a tenant sends: its arrival process and its prompt and output lengths, as data.

Drawn from in :mod:`loadgen.workload` with a seed of the tenant's own, so that changing one tenant never moves another's
arrivals or lengths.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum


class Process(StrEnum):
    """How requests arrive.

    Open loop: CONSTANT gaps; POISSON; GAMMA gaps of shape ``burstiness`` (1 = Poisson, below 1 burstier); BURST: bursts
    of ``burst_size`` at ``burst_rate`` requests/s, starting at Poisson epochs, or every ``burst_size / rate`` seconds
    when ``fixed_epochs``; RAMP: rate grows linearly from ``ramp_from`` to ``rate`` over the run; STEPS: piecewise
    constant rate; TRACE: timestamps of a trace. CLOSED: ``users`` who each send, wait for the answer, think, and send
    again.
    """

    CONSTANT = "constant"
    POISSON = "poisson"
    GAMMA = "gamma"
    BURST = "burst"
    RAMP = "ramp"
    STEPS = "steps"
    TRACE = "trace"
    CLOSED = "closed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrivals:
    """``rate``: mean requests/s over the whole run, idle phases included (None for STEPS, TRACE and CLOSED; for RAMP
    the rate at its end). With sessions it still counts requests: sessions start at ``rate`` / mean turns.

    ``on_s`` / ``period_s``: the process runs only in the first ``on_s`` of every ``period_s``, at the rate that keeps
    the mean. ``active``: parts of the run, as fractions of its duration, in which the tenant sends, again keeping
    the mean *within those parts* at ``rate``. ``steps``: (start fraction of the run, requests/s) pairs for STEPS.
    ``burstiness`` shapes the gaps of GAMMA, RAMP and STEPS. ``burst_rate`` None: the whole burst at one instant.
    ``think_s``: what a CLOSED user waits between an answer and the next request. ``failure_pause_s``: the least wait
    (of a user or a session) after a request that did not succeed; without it a user who is shed at once would come back
    at the same instant, for ever.
    """

    process: Process = Process.POISSON
    rate: float | None = None
    burstiness: float = 1.0
    burst_size: int = 1
    burst_rate: float | None = None
    fixed_epochs: bool = False
    ramp_from: float = 0.0
    steps: tuple[tuple[float, float], ...] = ()
    on_s: float | None = None
    period_s: float | None = None
    active: tuple[tuple[float, float], ...] = ()
    users: int | None = None
    think_s: float = 0.0
    failure_pause_s: float = 0.1

    def grown(self, factor: float) -> Arrivals:
        """The same process at ``factor`` times the rate (CLOSED: times the users, rounded, at least one)."""
        if not factor > 0:
            raise ValueError(f"a tenant's load can be multiplied by a number > 0 only, got {factor}")
        return replace(
            self,
            rate=None if self.rate is None else self.rate * factor,
            ramp_from=self.ramp_from * factor,
            steps=tuple((start, rate * factor) for start, rate in self.steps),
            users=None if self.users is None else max(1, round(self.users * factor)),
        )


class Distribution(StrEnum):
    FIXED = "fixed"
    UNIFORM = "uniform"
    NORMAL = "normal"
    LOGNORMAL = "lognormal"
    ZIPF = "zipf"
    MIXTURE = "mixture"
    EMPIRICAL = "empirical"


@dataclass(frozen=True, slots=True, kw_only=True)
class Lengths:
    """A distribution of token counts (ints >= ``low``).

    FIXED: ``mean``. UNIFORM: ints in [low, high]. NORMAL, LOGNORMAL: ``mean`` and ``cv`` (standard deviation / mean) of
    the distribution itself before clipping to [low, high]. ZIPF: exponent ``alpha`` over [low, high]. MIXTURE: its
    ``parts`` are (weight, Lengths). EMPIRICAL: uniform over ``values``.
    """

    distribution: Distribution = Distribution.FIXED
    mean: float = 1.0
    cv: float = 0.0
    low: int = 1
    high: int | None = None
    alpha: float = 1.5
    parts: tuple[tuple[float, Lengths], ...] = ()
    values: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Sessions:
    """Conversations: ``turns`` a session, the next turn ``think_s`` after the last answer; every turn's prompt holds
    the whole conversation so far. ``shared_prefix_tokens``: a system prompt that all sessions of the tenant begin with.
    """

    turns: Lengths
    think_s: float = 0.0
    shared_prefix_tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """One tenant's traffic. ``joint`` holds (prompt, output) pairs drawn together, in place of ``prompt``, ``output``.

    ``shared_prefix_tokens`` stand before every prompt, on top of its drawn length; each request takes one of
    ``shared_prefixes`` such prefixes. (With sessions, ``Sessions.shared_prefix_tokens`` are added to them.)
    ``max_tokens``: the limit the client sends; None: the drawn output length itself; a drawn length never exceeds it.
    ``cancel_share`` of the requests are cancelled by their client ``cancel_after_s`` after they arrived. The time-outs
    count from the arrival; None: none.
    """

    arrivals: Arrivals
    prompt: Lengths
    output: Lengths
    joint: tuple[tuple[int, int], ...] = ()
    sessions: Sessions | None = None
    shared_prefix_tokens: int = 0
    shared_prefixes: int = 1
    max_tokens: int | None = None
    cancel_share: float = 0.0
    cancel_after_s: float | None = None
    first_token_timeout_s: float | None = None
    timeout_s: float | None = None

    def grown(self, factor: float) -> Traffic:
        """The same traffic at ``factor`` times the rate: lengths and everything else untouched."""
        return replace(self, arrivals=self.arrivals.grown(factor))
