"""Rules that every policy keeps through any sequence of calls, checked against a plain model of the queue.

The model is a dict of queued and a dict of outstanding requests. Hypothesis chooses the calls; a twin of the policy gets
the same calls and must give the same answers.
"""

from __future__ import annotations

from collections import Counter

import msgspec
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from sched_support import MS, POLICIES, policy, request, tenant

from scheduler.request import Request

_NAMES = ("a", "b", "c", "d")
_LIMITS_MS = {"a": 200.0, "b": 500.0, "c": 2_000.0, "d": None}
_CLASSES = {"a": 1, "b": 0, "c": 1, "d": 2}
_ACCOUNTS = ("start_tag", "finish_tag", "counter", "deficit", "round")
_MARGIN_NS = 50 * MS
_PREFILL_RATE = 40_000


class PolicyMachine(RuleBasedStateMachine):
    def __init__(self, which: str, late: str) -> None:
        super().__init__()
        self.which, self.late = which, late
        self.now_ns = 0
        self.next_id = 0
        self.queued: dict[int, Request] = {}
        self.outstanding: dict[int, Request] = {}
        self.ended: set[int] = set()
        self.held: Request | None = None
        self.reported: Counter[int] = Counter()

    @initialize(weights=st.tuples(*[st.sampled_from([0.5, 1.0, 2.0, 3.0])] * 4))
    def start(self, weights):
        self.policy = policy(self.which, self._tenants(weights), late=self.late)
        self.twin = policy(self.which, self._tenants(weights), late=self.late)

    def _tenants(self, weights):
        return [
            tenant(name, weight, ttft_ms=_LIMITS_MS[name], priority=_CLASSES[name])
            for name, weight in zip(_NAMES, weights, strict=True)
        ]

    def _both(self, method, *args, after=()):
        """The same call on the policy and its twin: same calls, same answers."""
        answer = getattr(self.policy, method)(*args, self.now_ns, *after)
        assert getattr(self.twin, method)(*args, self.now_ns, *after) == answer
        self._take_expired()
        return answer

    def _take_expired(self):
        """Shedding gives up late requests only, and only where ``late: shed`` says so."""
        gone = self.policy.expired(self.now_ns)
        assert self.twin.expired(self.now_ns) == gone
        if gone:
            assert self.late == "shed"
            self.held = None
        for late in gone:
            assert self._late(late)
            del self.queued[late.id]
            self.ended.add(late.id)

    def _late(self, candidate: Request) -> bool:
        limit_ms = _LIMITS_MS[candidate.tenant]
        if limit_ms is None:
            return False
        prefill_ns = round(candidate.prompt_tokens * 1e9 / _PREFILL_RATE)
        return self.now_ns > candidate.arrival_ns + limit_ms * MS - _MARGIN_NS - prefill_ns

    def _of(self, name: str) -> list[Request]:
        mine = [r for r in self.queued.values() if r.tenant == name]
        return sorted(mine, key=lambda r: (r.arrival_ns, r.id))

    # -- what may happen ---------------------------------------------------------------------------------------------

    @rule(name=st.sampled_from(_NAMES), prompt=st.integers(1, 4_000), age_ms=st.sampled_from([0, 0, 0, 1, 300]))
    def enqueue(self, name, prompt, age_ms):
        arrival_ns = max(0, self.now_ns - age_ms * MS)
        new = request(self.next_id, name, arrival_ns, prompt)
        self.next_id += 1
        self.queued[new.id] = new
        self.held = None
        self._both("enqueue", new)

    @rule(ms=st.sampled_from([0.001, 1, 40, 400, 3_000]))
    def time_passes(self, ms):
        self.now_ns += round(ms * MS)

    @rule()
    def select(self):
        expected = self.held
        self.held = None
        chosen = self._both("select")
        if expected is not None:
            assert chosen == expected, "select gives what peek showed, also when time has passed"
        if chosen is None:
            assert not self.queued, "work-conserving: something queued is something served"
            return
        if expected is None:
            self._check_choice(chosen)
        del self.queued[chosen.id]
        self.outstanding[chosen.id] = chosen

    def _check_choice(self, chosen: Request) -> None:
        assert chosen.id in self.queued, "never invented, never twice"
        own = self._of(chosen.tenant)
        if self.late == "keep":
            assert chosen == own[0], "first in, first out within a tenant"
        elif self._late(chosen):
            assert self.late == "demote", "what can be shed is not served"
            assert all(self._late(other) for other in own), "late ones wait behind their tenant's others"
        else:
            assert chosen == next(r for r in own if not self._late(r))
        if self.late != "keep":
            return
        if self.which == "fifo":
            assert chosen == min(self.queued.values(), key=lambda r: (r.arrival_ns, r.id))
        elif self.which == "priority":
            assert chosen == min(self.queued.values(), key=lambda r: (_CLASSES[r.tenant], r.arrival_ns, r.id))
        elif self.which == "edf":
            assert chosen == min(self.queued.values(), key=self._deadline)

    @staticmethod
    def _deadline(candidate: Request) -> tuple[float, int, int]:
        limit_ms = _LIMITS_MS[candidate.tenant]
        due_ns = float("inf") if limit_ms is None else candidate.arrival_ns + limit_ms * MS
        return (due_ns, candidate.arrival_ns, candidate.id)

    @rule()
    def peek(self):
        before = self._accounts()
        shown = self._both("peek")
        if self.held is not None:
            assert shown == self.held, "held until select or another event"
        # Shedding may have taken what was shown away; then there is nothing to hold.
        self.held = shown if shown is not None and shown.id in self.queued else None
        assert (shown is None) == (not self.queued) or self.late == "shed"
        assert self._accounts() == before, "peek charges nothing"

    def _accounts(self):
        states = self.policy.snapshot()["tenants"]
        return {name: {k: v for k, v in state.items() if k in _ACCOUNTS} for name, state in states.items()}

    @precondition(lambda self: self.queued)
    @rule(data=st.data())
    def cancel(self, data):
        victim = data.draw(st.sampled_from(sorted(self.queued)))
        del self.queued[victim]
        self.ended.add(victim)
        self.held = None
        answer = self.policy.cancel(victim, self.now_ns)
        assert self.twin.cancel(victim, self.now_ns) is answer is True
        self._take_expired()

    @precondition(lambda self: self.outstanding or self.ended)
    @rule(data=st.data())
    def cancel_what_is_not_queued(self, data):
        stranger = data.draw(st.sampled_from(sorted([*self.outstanding, *self.ended])))
        assert self._both("cancel", stranger) is False

    @precondition(lambda self: self.outstanding)
    @rule(data=st.data())
    def requeue(self, data):
        back = self.outstanding.pop(data.draw(st.sampled_from(sorted(self.outstanding))))
        self.queued[back.id] = back
        self.held = None
        self._both("requeue", back, after=(self.reported.pop(back.id, 0),))

    @precondition(lambda self: self.outstanding)
    @rule(data=st.data(), tokens=st.integers(1, 50))
    def gives_tokens(self, data, tokens):
        running = data.draw(st.sampled_from(sorted(self.outstanding)))
        self.held = None
        self._both("on_first_token", running)
        self._both("on_progress", ((self.policy.account_of(running), tokens),))
        self.reported[running] += tokens

    @precondition(lambda self: self.outstanding)
    @rule(data=st.data(), tokens=st.sampled_from([0, 1, 10, 300]))
    def finish(self, data, tokens):
        done = self.outstanding.pop(data.draw(st.sampled_from(sorted(self.outstanding))))
        self.ended.add(done.id)
        self.held = None
        self._both("on_finish", done.id, done.prompt_tokens, tokens, after=(self.reported.pop(done.id, 0),))

    @rule(weights=st.tuples(*[st.sampled_from([0.25, 1.0, 4.0, 5.0])] * 4))
    def reconfigure(self, weights):
        self.held = None
        self._both("set_tenants", self._tenants(weights))

    @precondition(lambda self: self.queued)
    @rule()
    def a_tenant_with_queued_requests_stays(self):
        busy = next(iter(self.queued.values())).tenant
        rest = [t for t in self._tenants((1.0,) * 4) if t.name != busy]
        with pytest.raises(ValueError, match="queued"):
            self.policy.set_tenants(rest, self.now_ns)
        self.held = None
        for both in (self.policy, self.twin):
            both.set_tenants(self._tenants((1.0,) * 4), self.now_ns)
        self._take_expired()

    # -- what holds after every call ---------------------------------------------------------------------------------

    @invariant()
    def views_agree(self):
        if not hasattr(self, "policy"):
            return
        assert len(self.policy) == len(self.queued)
        assert sorted(r.id for r in self.policy) == sorted(self.queued), "no loss, no duplication"
        shown = self.policy.snapshot()
        assert shown["queued"] == len(self.queued)
        assert shown["outstanding"] == len(self.outstanding)
        for name, state in shown["tenants"].items():
            assert state["queued"] == len(self._of(name))
        msgspec.json.encode(shown)
        assert self.twin.snapshot() == shown

    def teardown(self):
        if not hasattr(self, "policy"):
            return
        served = []
        while (chosen := self.policy.select(self.now_ns)) is not None:
            served.append(chosen.id)
        shed = [r.id for r in self.policy.expired(self.now_ns)]
        assert sorted(served + shed) == sorted(self.queued), "everything queued is served once"


@pytest.mark.parametrize("late", ["keep", "demote", "shed"])
@pytest.mark.parametrize("which", POLICIES)
def test_rules_of_every_policy(which, late):
    """No loss, no duplication, work-conserving, FIFO within a tenant, cancel at any point, peek held, deterministic."""
    run_state_machine_as_test(
        lambda: PolicyMachine(which, late),
        settings=settings(
            max_examples=15,
            stateful_step_count=40,
            deadline=None,
            database=None,
            derandomize=True,
            suppress_health_check=list(HealthCheck),
        ),
    )
