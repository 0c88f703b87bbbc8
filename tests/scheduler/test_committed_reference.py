"""``committed`` against a reference written from its published rule, in brute force: no heap, no lazy accrual.

Every pick of the policy, and the account that pays for it, must be the reference's on random traffic.
"""

from __future__ import annotations

import numpy as np
import pytest
from sched_support import MS, request, tenant

from scheduler.policies.build import PolicyContext, build_policy

_H = 2.0
_START = 300.0
_MARGIN_NS = 50 * MS
_LIMITS_MS = {"a": 300.0, "b": 900.0, "c": 3_000.0}
_WEIGHTS = {"a": 1.0, "b": 2.0, "c": 5.0}


class Reference:
    """Q (on time) and L (late) a tenant, credit cr, fair tag F; C learnt over windows of at least 2 s never empty."""

    def __init__(self, order: str) -> None:
        self.order = order
        self.on_time = {n: [] for n in _WEIGHTS}
        self.late = {n: [] for n in _WEIGHTS}
        self.c = _START
        self.credit = {n: _H * self._rate(n) for n in _WEIGHTS}
        self.tag = dict.fromkeys(_WEIGHTS, 0.0)
        self.estimate = dict.fromkeys(_WEIGHTS, 10.0)
        self.virtual = 0.0
        self.charged: dict[int, tuple[str, float, bool]] = {}
        self.now_ns = 0
        self.since_ns: int | None = None
        self.window_cost = 0.0

    def _rate(self, name: str) -> float:
        return _WEIGHTS[name] / sum(_WEIGHTS.values()) * self.c

    def _queued(self, name: str) -> bool:
        return bool(self.on_time[name] or self.late[name])

    def _move_to(self, now_ns: int) -> None:
        """Accrue, then close the window of the rate if it is long enough."""
        for name in _WEIGHTS:
            gained = self.credit[name] + self._rate(name) * (now_ns - self.now_ns) / 1e9
            self.credit[name] = min(gained, _H * self._rate(name)) if now_ns > self.now_ns else self.credit[name]
        self.now_ns = now_ns
        if not any(self._queued(n) for n in _WEIGHTS):
            self.since_ns = None
        elif self.since_ns is None:
            self.since_ns, self.window_cost = now_ns, 0.0
        elif now_ns - self.since_ns >= 2_000_000_000:
            self.c += 0.2 * (self.window_cost * 1e9 / (now_ns - self.since_ns) - self.c)
            self.since_ns, self.window_cost = now_ns, 0.0

    def enqueue(self, new, now_ns: int) -> None:
        self._move_to(now_ns)
        if not self._queued(new.tenant):
            memory = _H * self.c / sum(_WEIGHTS.values())
            self.tag[new.tenant] = max(self.tag[new.tenant], self.virtual - memory)
        self.on_time[new.tenant].append(new)
        self.on_time[new.tenant].sort(key=lambda r: (r.arrival_ns, r.id))

    def _deadline(self, r) -> float:
        return r.arrival_ns + _LIMITS_MS[r.tenant] * MS

    def select(self, now_ns: int):
        self._move_to(now_ns)
        for name, queue in self.on_time.items():
            while queue and self._deadline(queue[0]) < now_ns + _MARGIN_NS + round(
                queue[0].prompt_tokens * 1e9 / 40_000
            ):
                self.late[name].append(queue.pop(0))
                self.late[name].sort(key=lambda r: (r.arrival_ns, r.id))
        entitled = [n for n in _WEIGHTS if self.on_time[n] and self.credit[n] > 0]
        if entitled:
            heads = [self.on_time[n][0] for n in entitled]
            if self.order == "deadline":
                best = min(heads, key=lambda r: (self._deadline(r), r.arrival_ns, r.id))
            else:
                most = max(self.credit[n] / _WEIGHTS[n] for n in entitled)
                equal = [r for r in heads if self.credit[r.tenant] / _WEIGHTS[r.tenant] > most - 1e-6]
                best = min(equal, key=lambda r: (r.arrival_ns, r.id))
            self.on_time[best.tenant].pop(0)
        else:
            heads = [(self.on_time[n] or self.late[n])[0] for n in _WEIGHTS if self._queued(n)]
            if not heads:
                return None
            best = min(heads, key=lambda r: (self.tag[r.tenant], r.arrival_ns, r.id))
            (self.on_time[best.tenant] or self.late[best.tenant]).pop(0)
        cost = best.prompt_tokens + 2 * self.estimate[best.tenant]
        if entitled:
            self.credit[best.tenant] -= cost
        else:
            self.virtual = max(self.virtual, self.tag[best.tenant])
            self.tag[best.tenant] += cost / _WEIGHTS[best.tenant]
        if self.since_ns is not None:
            self.window_cost += cost
        self.charged[best.id] = (best.tenant, cost, bool(entitled))
        return best

    def finish(self, done, output: int, now_ns: int) -> None:
        self._move_to(now_ns)
        name, cost, by_credit = self.charged.pop(done.id)
        delta = done.prompt_tokens + 2 * output - cost
        if by_credit:
            self.credit[name] -= delta
        else:
            self.tag[name] += delta / _WEIGHTS[name]
        self.estimate[name] += 0.05 * (output - self.estimate[name])


@pytest.mark.parametrize("order", ["deadline", "credit"])
@pytest.mark.parametrize("seed", range(4))
def test_every_pick_is_the_rule_s(order, seed):
    """Credit, demotion, both picks, the correction at the end and the learnt rate, over 1,500 random events."""
    rng = np.random.default_rng(seed)
    options = {"order": order, "horizon_s": _H, "start_rate": _START}
    queue = build_policy("committed", options, PolicyContext())
    queue.set_tenants([tenant(n, w, ttft_ms=_LIMITS_MS[n]) for n, w in _WEIGHTS.items()], 0)
    reference = Reference(order)
    now_ns = number = 0
    running: list = []
    picked_by_credit = picks = 0
    for _ in range(1_500):
        now_ns += int(rng.integers(1, 60)) * MS
        if rng.random() < 0.5:
            name = ("a", "a", "a", "b", "c")[rng.integers(5)]
            new = request(number, name, now_ns, int(rng.integers(1, 120)))
            number += 1
            queue.enqueue(new, now_ns)
            reference.enqueue(new, now_ns)
        elif len(running) < 3:
            got = queue.select(now_ns)
            assert got == reference.select(now_ns)
            if got is not None:
                running.append(got)
                picks += 1
                picked_by_credit += reference.charged[got.id][2]
        else:
            done = running.pop(int(rng.integers(len(running))))
            output = int(rng.integers(1, 30))
            queue.on_finish(done.id, done.prompt_tokens, output, now_ns)
            reference.finish(done, output, now_ns)
    assert 0 < picked_by_credit < picks, "both rules were exercised"
    assert abs(reference.c - _START) > 1, "the rate was learnt"


def test_equal_credit_goes_to_the_older_request():
    """All credits full: order ``credit`` serves by arrival, whatever the weights round to."""
    names = [f"t{i}" for i in range(9)]
    weights = [1.0, 3.0, 7.0, 0.3, 11.0, 1.7, 13.0, 0.9, 5.0]
    queue = build_policy("committed", {"order": "credit"}, PolicyContext())
    queue.set_tenants([tenant(n, w) for n, w in zip(names, weights, strict=True)], 0)
    for number, name in enumerate(reversed(names)):
        queue.enqueue(request(number, name, number), number)
    assert [queue.select(100).id for _ in names] == list(range(len(names)))
