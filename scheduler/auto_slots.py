"""How many sequences to have outstanding, found while running: enough to keep the engine busy, few enough that no tenant's
TPOT limit breaks and that the order stays ours.

Every second: a = the worst tenant's share of requests with TPOT within 0.95 of its limit, over what finished in the last
6 s, of tenants with at least 8. If a < 0.98: D = max(least, 0.92 D), and nothing more for 3 s. Else, if something is queued:
D = min(most, D + 2). The margin makes room before a promise breaks: a rule that waits for broken limits keeps 98% where 99%
was promised. Additive increase, multiplicative decrease: too few slots waste the engine, too many break TPOT and hand the
order to it.

Several backends share one queue, and so the TPOT that D leads to: they have one D.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping

from scheduler.slot_control import Pace, SlotControl
from scheduler.slots import Slots
from tenants.tenant import Tenant

PERIOD_NS = 1_000_000_000
_WINDOW_NS = 6_000_000_000
_HOLD_NS = 3_000_000_000
_MIN_REQUESTS = 8
_TARGET = 0.98
_MARGIN = 0.95
_SHRINK = 0.92
_GROW = 2


class AutoSlots(SlotControl):
    """Follows the tenants' TPOT limits; tenants without one have no say."""

    period_ns = PERIOD_NS

    def __init__(
        self, tenants: Iterable[Tenant], slots: Mapping[str, Slots], least: int = 40, most: int = 128, now_ns: int = 0
    ) -> None:
        super().__init__(slots, least, most, now_ns)
        self._limits: dict[str, int] = {}
        self._recent: deque[tuple[int, str, bool]] = deque()
        self._hold_until_ns = 0
        self.set_tenants(tenants)

    def set_tenants(self, tenants: Iterable[Tenant]) -> None:
        self._limits = {t.name: t.slo.tpot_ns for t in tenants if t.slo.tpot_ns is not None}

    def observe_pace(self, pace: Pace) -> None:
        limit_ns = self._limits.get(pace.tenant)
        if limit_ns is not None:
            self._recent.append((pace.ended_ns, pace.tenant, pace.tpot_ns <= _MARGIN * limit_ns))

    def decide(self, now_ns: int, *, queued: bool) -> dict[str, int]:
        recent = self._recent
        while recent and recent[0][0] <= now_ns - _WINDOW_NS:
            recent.popleft()
        if now_ns < self._hold_until_ns or not self.slots:
            return {}
        counts: dict[str, list[int]] = {}
        for _, tenant, kept in recent:
            count = counts.setdefault(tenant, [0, 0])
            count[0] += kept
            count[1] += 1
        worst = min((kept / n for kept, n in counts.values() if n >= _MIN_REQUESTS), default=1.0)
        now = max(self.sequences(name) for name in self.slots)
        if worst < _TARGET:
            now = max(self._least, int(_SHRINK * now))
            self._hold_until_ns = now_ns + _HOLD_NS
        elif queued:
            now = min(self._most, now + _GROW)
        return dict.fromkeys(self.slots, now)
