"""Tokens are reported in sum, by account, and only when a policy is about to look: that changes nothing it decides.

The reference reports every token by itself, at once. Weights are dyadic here and counts whole, so that sums of floats are exact
(with others the order of the additions may move an account in its last bit).
"""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sched_support import MS, POLICIES, S, WatchedDispatcher, WatchedPolicy, dispatcher, request, simulate, tenant
from test_server_model import Script, scripts

from scheduler.dispatcher import Dispatcher
from scheduler.events import (
    AnyAction,
    AnyEvent,
    Arrived,
    Cancelled,
    Dispatch,
    DispatchFailed,
    Finished,
    FirstToken,
    PolicyChanged,
    Progress,
    SlotsChanged,
    TenantsChanged,
)
from scheduler.policy import Policy
from scheduler.request import Request, Status
from scheduler.server_model.build import build_server
from scheduler.server_model.single import SingleServer
from scheduler.server_model.spec import ServerLimits, StepLaw

_NAMES = ("a", "b", "c")
_BY_TOKEN = ("vtc", "drr")


def _tenants(weights):
    return [tenant(name, weight, ttft_ms=300.0) for name, weight in zip(_NAMES, weights, strict=True)]


class Counting:
    """A dispatcher and whoever counts for it. ``eager``: every token is reported by itself, at once; else by account, before
    events that read accounts."""

    def __init__(self, core: Dispatcher, *, eager: bool) -> None:
        self.core, self.eager = core, eager
        self.account: dict[int, int] = {}
        self.untold: Counter[int] = Counter()
        self.told: Counter[int] = Counter()

    def tokens(self, now_ns: int, number: int, count: int) -> None:
        for _ in range(count):
            self.untold[number] += 1
            if self.eager:
                self.report(now_ns)

    def report(self, now_ns: int) -> None:
        counts: Counter[int] = Counter()
        for number, tokens in self.untold.items():
            counts[self.account[number]] += tokens
        self.told.update(self.untold)
        self.untold.clear()
        counts.pop(0, None)
        if counts:
            assert self.core.handle(Progress(now_ns, tuple(counts.items()))) == []

    def ended(self, number: int) -> int:
        """What was reported of its tokens."""
        self.untold.pop(number, None)
        return self.told.pop(number, 0)

    def handle(self, event: AnyEvent) -> list[AnyAction]:
        if self.core.reads_accounts(event):
            self.report(event.now_ns)
        actions = self.core.handle(event)
        for action in actions:
            if isinstance(action, Dispatch):
                self.account[action.request.id] = action.account
        return actions


@pytest.mark.parametrize("which", POLICIES)
@settings(max_examples=60, deadline=None, derandomize=True, database=None)
@given(data=st.data(), late=st.sampled_from(["keep", "demote", "shed"]), changes=st.booleans())
def test_reports_in_sum_and_in_time_are_reports_one_by_one(which, data, late, changes):
    """Same actions at every event of any sequence, and in the end the same accounts: whatever ends, fails after some tokens,
    is cancelled, or comes to be weighted or ordered otherwise."""
    weights = st.tuples(*[st.sampled_from([0.5, 1.0, 2.0, 8.0])] * 3)
    first = data.draw(weights)
    both = [
        Counting(dispatcher(_tenants(first), which, sequences=4, prefill_tokens=60, late=late), eager=eager)
        for eager in (True, False)
    ]
    kinds = ["arrive"] * 4 + ["tokens"] * 6 + ["end", "end", "fail", "cancel", "slots"]
    if changes:
        kinds += ["tenants", "policy"]
    running: dict[int, int] = {}
    queued: set[int] = set()
    now_ns = 0
    for number in range(data.draw(st.integers(10, 60))):
        now_ns += data.draw(st.sampled_from([0, 0, MS, 40 * MS, 400 * MS]))
        kind = data.draw(st.sampled_from(kinds))
        if kind in ("tokens", "end", "fail") and not running:
            kind = "arrive"
        one = data.draw(st.sampled_from(sorted(running))) if running else -1
        if kind == "tokens":
            count = data.draw(st.integers(1, 9))
            running[one] += count
            for counting in both:
                counting.tokens(now_ns, one, count)
            events: list[AnyEvent] = [FirstToken(now_ns, one)] * 2
        elif kind == "arrive":
            name, prompt = data.draw(st.sampled_from(_NAMES)), data.draw(st.integers(1, 64))
            queued.add(number)
            events = [Arrived(now_ns, request(number, name, now_ns, prompt))] * 2
        elif kind == "end":
            prompt, output = data.draw(st.integers(1, 64)), max(0, running.pop(one) + data.draw(st.integers(-3, 3)))
            events = [Finished(now_ns, one, Status.OK, prompt, output, counting.ended(one)) for counting in both]
        elif kind == "fail":
            del running[one]
            queued.add(one)
            events = [DispatchFailed(now_ns, one, retryable=True, reported_tokens=c.ended(one)) for c in both]
        elif kind == "cancel":
            events = [Cancelled(now_ns, data.draw(st.sampled_from(sorted(queued) or [-1])))] * 2
        elif kind == "slots":
            events = [SlotsChanged(now_ns, "a", data.draw(st.integers(1, 6)), None)] * 2
        elif kind == "tenants":
            events = [TenantsChanged(now_ns, tuple(_tenants(data.draw(weights))))] * 2
        else:
            events = [PolicyChanged(now_ns, data.draw(st.sampled_from(["vtc", "drr", "wfq"])), {"late": late})] * 2
        eager, summed = (counting.handle(event) for counting, event in zip(both, events, strict=True))
        assert summed == eager
        for action in eager:
            if isinstance(action, Dispatch):
                queued.discard(action.request.id)
                running[action.request.id] = 0
    for counting in both:
        counting.report(now_ns)
    eager_accounts, summed_accounts = (_accounts(counting.core) for counting in both)
    # A quantum of drr follows a moving average, which is not dyadic.
    assert summed_accounts == pytest.approx(eager_accounts, rel=1e-12, abs=1e-9)


def _accounts(core: Dispatcher) -> dict[str, float]:
    states = core.policy.snapshot()["tenants"]
    return {
        f"{name}.{key}": state[key]
        for name, state in states.items()
        for key in ("counter", "deficit", "start_tag", "finish_tag")
        if key in state
    }


@pytest.mark.parametrize("which", _BY_TOKEN)
def test_requests_of_one_tenant_share_an_account_and_others_do_not(which):
    core = dispatcher(_tenants((1.0, 2.0, 1.0)), which, sequences=None)
    accounts = [core.handle(Arrived(0, request(n, "aabbc"[n])))[0].account for n in range(5)]
    assert accounts[0] == accounts[1] != accounts[2] == accounts[3] != accounts[4]
    assert 0 not in accounts


def test_policies_that_charge_at_dispatch_ask_for_no_tokens():
    for which in POLICIES.keys() - _BY_TOKEN:
        core = dispatcher(_tenants((1.0, 1.0, 1.0)), which)
        assert core.handle(Arrived(0, request(0, "a")))[0].account == 0


def test_a_new_policy_is_not_charged_for_what_the_one_before_dispatched():
    """Nor is the old account mistaken for one of the new policy's."""
    core = dispatcher(_tenants((1.0, 1.0, 1.0)), "vtc", sequences=None)
    (before,) = core.handle(Arrived(0, request(0, "a")))
    core.handle(PolicyChanged(1, "vtc", {}))
    (after,) = core.handle(Arrived(2, request(1, "b", prompt=10)))
    assert after.account != before.account
    core.handle(Progress(3, ((before.account, 500), (after.account, 4))))
    assert {k: v for k, v in _accounts(core).items() if v} == {"b.counter": 10 + 2 * 4}
    core.handle(PolicyChanged(4, "fifo", {}))
    assert core.handle(Progress(5, ((before.account, 1), (after.account, 1)))) == []


def test_an_account_keeps_the_weight_that_it_was_opened_at():
    """And the next dispatch of its tenant has another; what runs on is charged as before, what comes as the tenant is now."""
    core = dispatcher(_tenants((1.0, 1.0, 1.0)), "vtc", sequences=None)
    (old,) = core.handle(Arrived(0, request(0, "a", prompt=8)))
    core.handle(TenantsChanged(1, tuple(_tenants((4.0, 1.0, 1.0)))))
    (new,) = core.handle(Arrived(2, request(1, "a", prompt=8)))
    core.handle(Progress(3, ((old.account, 16), (new.account, 16))))
    assert _accounts(core)["a.counter"] == (8 + 32) / 1 + (8 + 32) / 4


# -- the server model counts -----------------------------------------------------------------------------------------


@settings(max_examples=300, deadline=None, derandomize=True, database=None)
@given(script=scripts(), data=st.data())
def test_a_server_counts_what_its_sequences_gave(script, data):
    """At any instant, also in mid-run, through preemptions and aborts: by account, what each of its sequences has since the
    last report; and one that left was reported as far as it had been by then."""
    instants = data.draw(st.lists(st.integers(0, 900_000_000), max_size=40))
    model = script.server()
    happenings = sorted(script.happenings + [(at, "report", -1, 0, 0, 0) for at in instants], key=lambda h: h[0])
    live: dict[int, int] = {}
    told: Counter[int] = Counter()

    def happen(now_ns: int) -> None:
        _, kind, number, prompt, output, priority = happenings.pop(0)
        if kind == "admit":
            what = request(number, "a", now_ns, prompt, output, priority=priority, prefix_blocks=script.blocks[number])
            live[number] = number % 4
            model.admit(what, now_ns, output, live[number])
        elif kind == "abort":
            sequence = model.abort(number)
            if sequence is not None:
                assert sequence.reported == told[number]
                del live[number]
        else:
            expected: Counter[int] = Counter()
            for running, account in live.items():
                if account:
                    has = model.tokens_of(running, now_ns)
                    expected[account] += has - told[running]
                    told[running] = has
            assert Counter(dict(model.new_tokens(now_ns))) == +expected

    now_ns = 0
    while True:
        plan = model.plan(now_ns)
        if plan is None:
            if not happenings:
                break
            now_ns = max(now_ns, happenings[0][0])
            happen(now_ns)
            continue
        steps = plan.steps
        while happenings and happenings[0][0] < plan.end_ns(steps):
            at_ns, kind = happenings[0][:2]
            if kind != "report":
                steps = min(steps, plan.steps_until(at_ns))
            happen(at_ns)
        result = model.commit(steps)
        now_ns = result.end_ns
        for sequence in result.finished:
            assert sequence.reported == told[sequence.id]
            del live[sequence.id]
    assert not live


# -- the simulator reports -------------------------------------------------------------------------------------------

_LAW = StepLaw(a_us=5_000.0, b_us=21.7, c_us=0.35, d_us=0.038)


@pytest.mark.parametrize("kv", [None, 260])
@pytest.mark.parametrize("drafts", [0, 2])
@settings(max_examples=25, deadline=None, derandomize=True, database=None)
@given(data=st.data())
def test_every_selection_of_a_simulation_sees_the_tokens_given_before_it(data, drafts, kv):
    """One tenant is never lifted: its counter is the prompts dispatched and twice the tokens given, all of those before that
    instant and none of after it."""
    jobs, at_ns = [], 0
    for number in range(data.draw(st.integers(5, 40))):
        at_ns += data.draw(st.integers(0, 30 * MS))
        cancel_ns = data.draw(st.sampled_from([None, None, None, 90 * MS]))
        prompt, output = data.draw(st.integers(1, 60)), data.draw(st.integers(1, 60))
        jobs.append(request(number, "a", at_ns, prompt, output, cancel_after_ns=cancel_ns))
    limits = ServerLimits(max_num_seqs=8, max_num_batched_tokens=64, kv_tokens=kv, speculative_tokens=drafts)
    model = build_server(_LAW, limits)
    core = dispatcher([tenant("a", ttft_ms=None)], "vtc", sequences=6, kind=WatchedDispatcher)
    running: dict[int, int] = {}
    begun: set[int] = set()
    prompts = ended = 0
    ended_now: Counter[int] = Counter()
    selections = 0

    def checked_select(policy: Policy, now_ns: int) -> Request | None:
        nonlocal prompts, selections
        if len(policy):
            selections += 1
            counter = policy.snapshot()["tenants"]["a"]["counter"]
            before, by_now = (sum(model.tokens_of(n, at) for n in running) for at in (now_ns - 1, now_ns))
            # One that has left the server at this instant, whose end is not told yet, may have been reported in part.
            by_now += sum(length for n, length in running.items() if n in begun and not model.tokens_of(n, now_ns))
            assert prompts + 2 * (ended - ended_now[now_ns] + before) <= counter <= prompts + 2 * (ended + by_now)
        chosen = policy.select(now_ns)
        if chosen is not None:
            prompts += chosen.prompt_tokens
            running[chosen.id] = chosen.target_output_tokens
        return chosen

    def watched(event: AnyEvent) -> None:
        nonlocal ended
        if isinstance(event, Finished):
            running.pop(event.request_id)
            ended += event.output_tokens
            ended_now[event.now_ns] += event.output_tokens
        elif isinstance(event, FirstToken):
            begun.add(event.request_id)

    core.policy, core.before = WatchedPolicy(core.policy, checked_select), watched
    outcomes = simulate(core, {"a": model}, jobs)
    assert selections >= sum(o.dispatched_ns is not None for o in outcomes)
    spent = sum(o.request.prompt_tokens + 2 * o.output_tokens for o in outcomes if o.dispatched_ns is not None)
    assert core.policy.snapshot()["tenants"]["a"]["counter"] == spent


def test_a_server_without_steps_is_charged_at_the_end():
    """A single server gives all tokens with the last: what was not reported is charged when the request ends."""
    core = dispatcher([tenant("a", ttft_ms=None)], "vtc")
    simulate(core, {"a": SingleServer(lambda _: S)}, [request(n, "a", n, 10, 20) for n in range(3)])
    assert _accounts(core)["a.counter"] == 3 * (10 + 2 * 20)


def test_the_scripts_report_in_mid_run():
    """The property above is not vacuous: a long run is reported of before it is committed."""
    script = Script(ServerLimits(max_num_seqs=2), [(0, "admit", 1, 10, 50, 0)], {1: ()})
    model = script.server()
    model.admit(request(1, "a", 0, 10, 50), 0, 50, 7)
    now_ns = model.commit(model.plan(0).steps).end_ns
    plan = model.plan(now_ns)
    assert plan.steps == 49
    assert model.new_tokens(plan.end_ns(10)) == [(7, 11)]
    assert model.new_tokens(plan.end_ns(10)) == []
    assert model.new_tokens(plan.end_ns(12) - 1) == [(7, 1)]
