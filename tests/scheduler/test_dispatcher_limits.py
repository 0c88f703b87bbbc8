"""Admission: queue limits, token buckets, contracts, deadlines; each refusal with its reason and, if known, a retry hint."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sched_support import MS, S, dispatcher, request, tenant

from scheduler.bucket import TokenBucket
from scheduler.events import Arrived, Cancelled, Dispatch, Finished, Reject, RejectReason, TenantsChanged
from scheduler.request import Status
from tenants.tenant import Contract, QueueLimits


def _limited(**limits):
    return tenant("a", limits=QueueLimits(**limits))


def _reason(actions):
    return next((a.reason for a in actions if isinstance(a, Reject)), None)


def test_a_full_queue_refuses():
    """``max_queued`` counts those that wait, not those that run, and per tenant."""
    core = dispatcher([_limited(max_queued=2), tenant("b")], sequences=1)
    for number in range(3):
        assert _reason(core.handle(Arrived(0, request(number, "a")))) is None
    assert _reason(core.handle(Arrived(0, request(3, "a")))) is RejectReason.QUEUE_FULL
    assert _reason(core.handle(Arrived(0, request(4, "b")))) is None
    core.handle(Cancelled(0, 1))
    assert _reason(core.handle(Arrived(0, request(5, "a")))) is None


def test_requests_per_second_with_burst_and_retry_hint():
    """2 requests/s with one second of burst: two at once, the third after half a second, and it is told so."""
    core = dispatcher([_limited(requests_per_s=2.0)], sequences=None)
    actions = [core.handle(Arrived(0, request(n, "a")))[0] for n in range(3)]
    assert [type(a) for a in actions] == [Dispatch, Dispatch, Reject]
    assert actions[2] == Reject(2, RejectReason.RATE_LIMIT, S // 2)
    assert _reason(core.handle(Arrived(S // 2 - 1, request(3, "a")))) is RejectReason.RATE_LIMIT
    assert _reason(core.handle(Arrived(S // 2, request(4, "a")))) is None


def test_tokens_per_second_count_prompt_and_expected_output():
    """100 tokens/s, 10 expected: prompts of 40 pass twice; what never fits into the burst passes when the bucket is full."""
    core = dispatcher([_limited(tokens_per_s=100.0)], sequences=None)
    assert _reason(core.handle(Arrived(0, request(0, "a", prompt=40)))) is None
    assert _reason(core.handle(Arrived(0, request(1, "a", prompt=40)))) is None
    (refusal,) = core.handle(Arrived(0, request(2, "a", prompt=40)))
    assert refusal == Reject(2, RejectReason.TOKEN_LIMIT, S // 2)
    assert _reason(core.handle(Arrived(S, request(3, "a", prompt=5_000)))) is None


def test_out_of_contract_work_is_shed_and_only_that():
    """The bucket is charged at arrival with the estimate (10 + 2 * 10) and corrected at the end; negative sheds."""
    contract = Contract(rate=10.0, burst=50.0)
    shed = tenant("a", contract=contract, limits=QueueLimits(shed_out_of_contract=True))
    core = dispatcher([shed, tenant("b")], sequences=None)
    assert _reason(core.handle(Arrived(0, request(0, "a")))) is None
    assert _reason(core.handle(Arrived(0, request(1, "a")))) is None
    (refusal,) = core.handle(Arrived(0, request(2, "a")))
    assert refusal == Reject(2, RejectReason.OUT_OF_CONTRACT, S)
    assert _reason(core.handle(Arrived(0, request(3, "b")))) is None
    core.handle(Finished(0, 0, Status.OK, 10, 1))
    assert _reason(core.handle(Arrived(0, request(4, "a")))) is None, "18 units came back: -10 + 18 = 8"
    assert _reason(core.handle(Arrived(0, request(5, "a")))) is RejectReason.OUT_OF_CONTRACT


def test_a_request_that_never_ran_costs_no_contract():
    """Cancelled in the queue: its charge is refunded in full."""
    shed = tenant("a", contract=Contract(rate=1.0, burst=10.0), limits=QueueLimits(shed_out_of_contract=True))
    core = dispatcher([shed, tenant("b")], sequences=1)
    core.handle(Arrived(0, request(0, "b")))
    core.handle(Arrived(0, request(1, "a")))
    assert _reason(core.handle(Arrived(0, request(2, "a")))) is RejectReason.OUT_OF_CONTRACT
    core.handle(Cancelled(0, 1))
    assert _reason(core.handle(Arrived(0, request(3, "a")))) is None


def test_a_change_of_weight_forgives_no_debt():
    """Buckets whose terms did not change keep their level when the tenants are reconfigured."""
    contract = Contract(rate=1.0, burst=10.0)
    limits = QueueLimits(shed_out_of_contract=True, requests_per_s=1.0)
    before = tenant("a", contract=contract, limits=limits)
    core = dispatcher([before, tenant("b", limits=QueueLimits(requests_per_s=1.0))], sequences=None)
    core.handle(Arrived(0, request(0, "a")))
    core.handle(Arrived(0, request(1, "b")))
    changed = (replace(before, weight=3.0), tenant("b", 2.0, limits=QueueLimits(requests_per_s=1.0)))
    core.handle(TenantsChanged(0, changed))
    assert _reason(core.handle(Arrived(0, request(2, "a")))) is RejectReason.OUT_OF_CONTRACT
    assert _reason(core.handle(Arrived(0, request(3, "b")))) is RejectReason.RATE_LIMIT


def test_new_terms_start_a_new_bucket():
    """A raised rate limit holds from the change on."""
    core = dispatcher([_limited(requests_per_s=1.0)], sequences=None)
    core.handle(Arrived(0, request(0, "a")))
    core.handle(TenantsChanged(0, (_limited(requests_per_s=5.0),)))
    assert _reason(core.handle(Arrived(0, request(1, "a")))) is None


def test_a_limit_that_is_set_while_requests_wait_counts_them():
    """Two wait when ``max_queued: 2`` is set: the next is refused; after one was dispatched there is room again."""
    core = dispatcher([tenant("a"), tenant("b")], sequences=1)
    for number in range(3):
        core.handle(Arrived(0, request(number, "a")))
    core.handle(TenantsChanged(0, (_limited(max_queued=2), tenant("b"))))
    assert _reason(core.handle(Arrived(0, request(3, "a")))) is RejectReason.QUEUE_FULL
    core.handle(Finished(0, 0, Status.OK, 10, 1))
    assert _reason(core.handle(Arrived(0, request(4, "a")))) is None
    assert _reason(core.handle(Arrived(0, request(5, "a")))) is RejectReason.QUEUE_FULL


@pytest.mark.parametrize("counted", [False, True])
def test_a_contract_that_comes_while_requests_wait_is_charged_for_them(counted):
    """Burst 50, two of 30 units wait: the tenant is out of contract at once, until one of them turns out to be cheap.
    Whether requests were counted before (some other tenant had a limit) makes no difference.
    """
    other = tenant("b", limits=QueueLimits(max_queued=9)) if counted else tenant("b")
    promised = tenant("a", contract=Contract(rate=1e-3, burst=50.0), limits=QueueLimits(shed_out_of_contract=True))
    core = dispatcher([tenant("a"), other], sequences=1)
    core.handle(Arrived(0, request(0, "b")))
    for number in (1, 2):
        core.handle(Arrived(0, request(number, "a")))
    core.handle(TenantsChanged(0, (promised, other)))
    assert _reason(core.handle(Arrived(0, request(3, "a")))) is RejectReason.OUT_OF_CONTRACT
    core.handle(Finished(0, 0, Status.OK, 10, 10))
    core.handle(Finished(0, 1, Status.OK, 10, 1))
    assert _reason(core.handle(Arrived(0, request(4, "a")))) is None, "18 units came back: -10 + 18"
    assert _reason(core.handle(Arrived(0, request(5, "a")))) is RejectReason.OUT_OF_CONTRACT


@pytest.mark.parametrize("counted", [False, True])
def test_a_contract_that_comes_while_a_request_runs_has_nothing_to_do_with_it(counted):
    """Neither its estimate nor its length: 210 units that began before the contract put nobody out of it."""
    other = tenant("b", limits=QueueLimits(max_queued=9)) if counted else tenant("b")
    promised = tenant("a", contract=Contract(rate=1e-3, burst=50.0), limits=QueueLimits(shed_out_of_contract=True))
    core = dispatcher([tenant("a"), other], sequences=None)
    core.handle(Arrived(0, request(0, "a")))
    core.handle(TenantsChanged(0, (promised, other)))
    core.handle(Finished(0, 0, Status.OK, 10, 100))
    reasons = [_reason(core.handle(Arrived(0, request(number, "a")))) for number in (1, 2)]
    assert reasons == [None, None]


def test_reject_late_refuses_what_cannot_meet_its_limit():
    """now + own backlog / own service rate + own prefill > arrival + limit: refused at once, by tenant."""
    late = tenant("a", ttft_ms=1_000.0, limits=QueueLimits(reject_late=True))
    core = dispatcher([late, tenant("b", ttft_ms=1_000.0)], sequences=1)
    core.handle(Arrived(0, request(0, "a", prompt=11_980)))
    assert _reason(core.handle(Arrived(0, request(1, "a", prompt=11_980)))) is None, "nothing of its own is queued"
    # 12,000 units are queued and the service rate is taken as 12,000 units/s until it is learnt: one second already.
    assert _reason(core.handle(Arrived(0, request(2, "a", prompt=400)))) is RejectReason.DEADLINE
    assert _reason(core.handle(Arrived(0, request(3, "b", prompt=400)))) is None
    assert _reason(core.handle(Arrived(0, request(4, "a", prompt=50_000)))) is RejectReason.DEADLINE


def test_reject_late_looks_at_the_prompt_too():
    """A prompt that alone takes longer than the limit (at 40,000 tokens/s) is refused by an idle server."""
    late = tenant("a", ttft_ms=100.0, limits=QueueLimits(reject_late=True))
    core = dispatcher([late], sequences=1)
    assert _reason(core.handle(Arrived(0, request(0, "a", prompt=4_001)))) is RejectReason.DEADLINE
    assert _reason(core.handle(Arrived(0, request(1, "a", prompt=3_999)))) is None
    aged = request(2, "a", 0, prompt=10)
    assert _reason(core.handle(Arrived(100 * MS, aged))) is RejectReason.DEADLINE


def test_an_unknown_tenant_is_refused():
    """A clear refusal, no crash."""
    assert dispatcher([tenant("a")]).handle(Arrived(0, request(0, "who"))) == [Reject(0, RejectReason.UNKNOWN_TENANT)]


def test_a_refusal_charges_nothing():
    """A request that one limit refuses does not use up another."""
    both = _limited(requests_per_s=1.0, tokens_per_s=1_000.0)
    core = dispatcher([both], sequences=None)
    core.handle(Arrived(0, request(0, "a", prompt=390)))
    assert _reason(core.handle(Arrived(0, request(1, "a", prompt=580)))) is RejectReason.RATE_LIMIT
    assert _reason(core.handle(Arrived(0, request(2, "a", prompt=5_000)))) is RejectReason.TOKEN_LIMIT
    assert _reason(core.handle(Arrived(S, request(3, "a", prompt=990)))) is None


@settings(max_examples=100, deadline=None, derandomize=True, database=None)
@given(
    rate=st.integers(1, 100),
    burst=st.integers(1, 100),
    asks=st.lists(st.tuples(st.integers(0, 2_000), st.integers(1, 60)), min_size=1, max_size=40),
)
def test_a_bucket_never_grants_more_than_rate_and_burst(rate, burst, asks):
    """Over any interval of length t at most burst + rate t units are granted; and ``wait_ns`` is when it is granted."""
    bucket = TokenBucket(float(rate), float(burst))
    now_ns, grants = 0, []
    for gap_ms, units in asks:
        now_ns += gap_ms * MS
        if bucket.take(units, now_ns):
            grants.append((now_ns, min(units, burst) if units > burst else units))
        else:
            now_ns += bucket.wait_ns(units, now_ns) + 1
            assert bucket.take(units, now_ns)
            grants.append((now_ns, min(units, burst) if units > burst else units))
    for i, (start_ns, _) in enumerate(grants):
        total = 0
        for end_ns, units in grants[i:]:
            total += units
            assert total <= burst + rate * (end_ns - start_ns) / 1e9 + 1e-6


def test_a_bucket_needs_a_rate():
    """Zero rates are refused with what would be right."""
    with pytest.raises(ValueError, match="rate > 0"):
        TokenBucket(0.0, 1.0)
