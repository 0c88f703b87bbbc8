"""How many sequences to have outstanding, found while running: enough to keep the engine busy, few enough that no tenant's
TPOT limit breaks and that the order stays ours.

Every second: a = the worst tenant's share of requests with TPOT in its limit, over what finished in the last 6 s, of tenants
with at least 8. If a < 0.98: D = max(least, 0.92 D), and nothing more for 3 s. Else, if something is queued: D = min(most,
D + 2).
Additive increase, multiplicative decrease: too few slots waste the engine, too many break TPOT and hand the order to it.

The controller stands above the dispatcher and speaks to it through ``SlotsChanged``. Pure: outcomes and times come in.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from scheduler.events import SlotsChanged
from scheduler.request import Outcome, Status
from tenants.tenant import Tenant

PERIOD_NS = 1_000_000_000
_WINDOW_NS = 6_000_000_000
_HOLD_NS = 3_000_000_000
_MIN_REQUESTS = 8
_TARGET = 0.98
_SHRINK = 0.92
_GROW = 2


class AutoSlots:
    """``sequences`` is D now, of ``backend``; ``prefill_tokens`` (X) stays. Tenants without a TPOT limit have no say."""

    period_ns = PERIOD_NS

    def __init__(
        self,
        tenants: Iterable[Tenant],
        start: int,
        least: int = 40,
        most: int = 128,
        *,
        backend: str = "",
        prefill_tokens: int | None = None,
    ) -> None:
        if not 1 <= least <= most:
            raise ValueError(f"auto slots: 1 <= least <= most, got {least} and {most}")
        self.sequences = min(max(start, least), most)
        self._backend = backend
        self._prefill_tokens = prefill_tokens
        self._least = least
        self._most = most
        self._limits = {t.name: t.slo.tpot_ns for t in tenants if t.slo.tpot_ns is not None}
        self._recent: deque[tuple[int, str, bool]] = deque()
        self._hold_until_ns = 0

    def observe(self, outcome: Outcome) -> None:
        """Take in one finished request."""
        limit_ns = self._limits.get(outcome.request.tenant)
        tokens = outcome.output_tokens
        if limit_ns is None or outcome.status is not Status.OK or tokens is None or tokens < 2:
            return
        if outcome.first_token_ns is None or outcome.last_token_ns is None:
            return
        tpot_ns = (outcome.last_token_ns - outcome.first_token_ns) / (tokens - 1)
        self._recent.append((outcome.ended_ns, outcome.request.tenant, tpot_ns <= limit_ns))

    def decide(self, now_ns: int, *, queued: bool) -> int | None:
        """The new D, or None to leave it. To be asked every ``PERIOD_NS``."""
        recent = self._recent
        while recent and recent[0][0] <= now_ns - _WINDOW_NS:
            recent.popleft()
        if now_ns < self._hold_until_ns:
            return None
        counts: dict[str, list[int]] = {}
        for _, tenant, kept in recent:
            count = counts.setdefault(tenant, [0, 0])
            count[0] += kept
            count[1] += 1
        worst = min((kept / n for kept, n in counts.values() if n >= _MIN_REQUESTS), default=1.0)
        before = self.sequences
        if worst < _TARGET:
            self.sequences = max(self._least, int(_SHRINK * before))
            self._hold_until_ns = now_ns + _HOLD_NS
        elif queued:
            self.sequences = min(self._most, before + _GROW)
        return None if self.sequences == before else self.sequences

    def control(self, now_ns: int, *, queued: bool) -> list[SlotsChanged]:
        """The decision as the event that a driver hands to its dispatcher."""
        sequences = self.decide(now_ns, queued=queued)
        return [] if sequences is None else [SlotsChanged(now_ns, self._backend, sequences, self._prefill_tokens)]
