"""Service, entitlement and the difference between them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

from tenants.measures import service
from tenants.measures.columns import StatusCode
from tenants.measures.fairness import (
    backlogged,
    jain,
    jain_by_window,
    largest_weighted_difference,
    max_min_allocation,
    request_cost,
    service_curves,
    service_difference,
)
from tenants.measures.service import Service
from tests.tenants.rows import NEVER, S, columns, row

shares = st.lists(st.tuples(st.integers(0, 100), st.integers(1, 9)), min_size=1, max_size=6)


def max_min_by_linear_programs(demands, weights, capacity):
    """Raises one common level as far as it goes, fixes who cannot follow, and repeats: the definition, by a solver."""
    n, fixed = len(demands), {}
    while len(fixed) < n:
        free = [i for i in range(n) if i not in fixed]
        # Maximise t with t * w_i <= d_i for all free i and sum of t * w_i + fixed <= capacity.
        rows = [[weights[i]] for i in free] + [[sum(weights[i] for i in free)]]
        bounds = [demands[i] for i in free] + [capacity - sum(fixed.values())]
        level = linprog([-1], A_ub=rows, b_ub=bounds).x[0]
        full = [i for i in free if demands[i] - level * weights[i] < 1e-7]
        for i in full or free:
            fixed[i] = level * weights[i]
    return [fixed[i] for i in range(n)]


@settings(max_examples=60, deadline=None)
@given(shares, st.integers(0, 300))
def test_the_allocation_is_max_min_fair(tenants, capacity):
    """Equal to the solution by successive linear programs."""
    demands, weights = [d for d, _ in tenants], [w for _, w in tenants]
    expected = max_min_by_linear_programs(demands, weights, capacity)
    assert max_min_allocation(demands, weights, capacity) == pytest.approx(expected, abs=1e-5)


@given(shares, st.integers(0, 300))
def test_nobody_gets_more_than_it_wants_and_nothing_is_left_over(tenants, capacity):
    demands = np.array([d for d, _ in tenants])
    got = max_min_allocation(demands, [w for _, w in tenants], capacity)
    assert (got <= demands + 1e-9).all()
    assert got.sum() == pytest.approx(min(capacity, demands.sum()))


def test_a_bad_allocation_question_is_refused():
    with pytest.raises(ValueError, match="one weight a demand"):
        max_min_allocation([1, 2], [1], 3)
    with pytest.raises(ValueError, match="weights > 0"):
        max_min_allocation([1], [0], 3)


def test_jain_is_1_when_all_get_what_they_are_entitled_to_and_1_over_n_when_one_takes_all():
    assert jain([10, 20, 30], [1, 2, 3]) == pytest.approx(1)
    assert jain([10, 0, 0, 0], [1, 1, 1, 1]) == pytest.approx(1 / 4)


def test_an_idle_tenant_does_not_make_the_index_fall():
    assert jain([10, 10, 0], [1, 1, 0]) == pytest.approx(1)
    assert jain([0, 0], [0, 0]) is None


def test_what_rounding_leaves_of_nothing_is_no_entitlement():
    """Differences of running sums: two tenants who asked for nothing are owed 1e-12, and are not unfairly served."""
    assert jain([100, 120, 0, 0], [100, 120, 9.1e-13, 9.1e-13]) == pytest.approx(1)


# chat: 100 prompt tokens, 11 answer tokens, from 1 s to 11 s: cost 122. A gap of 1 s between tokens.
def request(arrival_s, *, first_s, last_s, tenant=0, tokens=11, prompt=100, queue=0, **more):
    gap = round((last_s - first_s) * S / max(tokens - 1, 1))
    tpot = gap if tokens > 1 else -1
    ttft = round((first_s - arrival_s) * S)
    return row(
        round(arrival_s * S), ttft=ttft, tpot=tpot, tokens=tokens, tenant=tenant, prompt=prompt, queue=queue, **more
    )


def test_service_is_spread_evenly_from_first_to_last_token():
    """Cost 122 over 10 s: half of it is delivered at 6 s, all at 11 s, none before 1 s."""
    curves = service_curves(columns([request(0, first_s=1, last_s=11)]))
    assert [curves.at(round(t * S))[0] for t in (0.5, 1, 6, 11, 99)] == pytest.approx([0, 0, 61, 122, 122])


def test_a_one_token_answer_is_delivered_at_once():
    curves = service_curves(columns([request(0, first_s=2, last_s=2, tokens=1)]))
    assert curves.at(2 * S - 1)[0] == 0
    assert curves.at(2 * S)[0] == 102


def test_a_broken_stream_delivered_until_its_end_and_a_lost_request_nothing():
    broken = row(0, ttft=S, tpot=NEVER, tokens=10, status=StatusCode.FAILED, end=5 * S)
    never = row(0, ttft=NEVER, tpot=NEVER, status=StatusCode.SHED, end=5 * S, queue=NEVER)
    curves = service_curves(columns([broken, never]))
    assert [curves.at(t * S)[0] for t in (3, 5)] == pytest.approx([60, 120])


requests = st.lists(
    st.tuples(st.integers(0, 40), st.integers(0, 20), st.integers(0, 20), st.integers(0, 1), st.integers(1, 50)),
    min_size=1,
    max_size=8,
)


def built(drawn):
    """Each: arrival, wait, length of delivery (s), tenant, prompt; the queue holds it for all of its wait."""
    return columns(
        [
            request(a, first_s=a + w, last_s=a + w + d, tenant=t, prompt=p, tokens=2 if d else 1, queue=w * S)
            for a, w, d, t, p in drawn
        ]
    )


def delivered(data, tenant, t, *, before=False):
    """The definition, request by request; ``before``: without what comes at the instant t."""
    total = 0.0
    for k in range(len(data)):
        if data.tenant[k] != tenant:
            continue
        first = int(data.arrival_ns[k] + data.ttft_ns[k])
        last = first + max(int(data.tpot_ns[k]), 0) * int(data.output_tokens[k] - 1)
        if first == last:
            part = float(first < t if before else first <= t)
        else:
            part = min(max((t - first) / (last - first), 0), 1)
        total += part * (data.prompt_tokens[k] + 2 * data.output_tokens[k])
    return total


def instants(data):
    last = data.arrival_ns + data.ttft_ns + np.maximum(data.tpot_ns, 0) * (data.output_tokens - 1)
    return sorted({0, *(data.arrival_ns + data.ttft_ns).tolist(), *last.tolist(), *data.arrival_ns.tolist()})


@settings(max_examples=80, deadline=None)
@given(requests)
def test_curves_and_their_difference_follow_the_definition(drawn):
    """At every breakpoint the curve is the sum over requests; the difference is the largest gap, jumps included."""
    data = built(drawn)
    curves = service_curves(data)
    gaps = [0.0]
    for t in instants(data):
        assert curves.at(t) == pytest.approx([delivered(data, i, t) for i in (0, 1)], abs=1e-6)
        gaps += [abs(delivered(data, 0, t, before=b) - delivered(data, 1, t, before=b)) for b in (False, True)]
    assert service_difference(curves, "chat", "batch") == pytest.approx(max(gaps), abs=1e-6)


def test_what_is_given_by_a_time_does_not_depend_on_the_stretches_worked_through(monkeypatch):
    """Hundreds of requests, in one stretch and in stretches of a few breakpoints: the very same figures, which are the
    sum over the requests at each instant, before all of them and after."""
    rng = np.random.default_rng(5)
    rows, ends_s = [], []
    for _ in range(300):
        first, lasts = int(rng.integers(1, 60)), int(rng.choice([0, 3, 20]))
        ends_s.append(first + lasts)
        rows.append(request(0, first_s=first, last_s=ends_s[-1], tokens=1 + lasts, tenant=int(rng.integers(2))))
    rows += [row(0, ttft=NEVER, tpot=NEVER, status=StatusCode.SHED, end=12 * S, queue=NEVER)]
    data = columns(rows)
    times = np.arange(-1, 90, dtype=np.int64) * S
    at_once = Service(data).at(times)
    for least in (1, 2, 7):
        monkeypatch.setattr(service, "_CELLS_AT_ONCE", 1)
        monkeypatch.setattr(service, "_LEAST_AT_ONCE", least)
        assert np.array_equal(Service(data).at(times), at_once)
    expected = [[delivered(data, i, t) for t in times.tolist()] for i in (0, 1)]
    assert at_once == pytest.approx(np.array(expected), abs=1e-6)
    assert Service(data).end_ns == max(ends_s) * S


@settings(max_examples=80, deadline=None)
@given(requests)
def test_the_weighted_difference_is_over_windows_in_which_both_wait(drawn):
    """Against the range of the difference over each stretch of seconds in which both have a request in the queue."""
    data, phi = built(drawn), (1.0, 3.0)

    def waits(tenant, second):
        mine = data.tenant == tenant
        return bool((mine & (data.arrival_ns <= second * S) & (data.arrival_ns + data.queue_ns > second * S)).any())

    both = [waits(0, s) and waits(1, s) for s in range(90)]

    def apart(t, *, before):
        return delivered(data, 0, t, before=before) / phi[0] - delivered(data, 1, t, before=before) / phi[1]

    expected, start = 0.0, None
    for second in range(90):
        if both[second] and start is None:
            start = second
        if start is not None and not both[second]:
            # All that happens, happens at whole seconds; between them the difference moves evenly.
            seen = [apart(start * S, before=False), apart(second * S, before=True)]
            seen += [apart(t * S, before=b) for t in range(start + 1, second) for b in (False, True)]
            expected, start = max(expected, max(seen) - min(seen)), None
    found = largest_weighted_difference(data, service_curves(data), phi)
    assert found[0, 1] == found[1, 0] == pytest.approx(expected, abs=1e-6)


def test_what_is_delivered_as_the_wait_ends_is_not_part_of_it():
    """Both wait until 5 s, when chat's 102 units arrive at once: while both waited nothing had been delivered."""
    data = columns([request(0, first_s=5, last_s=5, tokens=1, queue=5 * S), row(0, ttft=9 * S, tenant=1, queue=5 * S)])
    assert largest_weighted_difference(data, service_curves(data), [1, 1]).max() == 0


def test_backlog_is_the_union_of_the_waits():
    """Waits [0, 4), [2, 5), [7, 8) and one never dispatched [9, 12); an immediate dispatch adds nothing."""
    rows = [
        request(a, first_s=a + w + 1, last_s=a + w + 1, tokens=1, queue=w * S)
        for a, w in ((2, 3), (0, 4), (7, 1), (6, 0))
    ]
    rows.append(row(9 * S, ttft=NEVER, tpot=NEVER, status=StatusCode.SHED, end=12 * S, queue=NEVER))
    assert (backlogged(columns(rows), "chat") / S).tolist() == [[0, 5], [7, 8], [9, 12]]


def test_the_index_by_window_asks_who_wanted_what():
    """Minute 1: both want all, chat gets 3 times as much: Jain of (1.5, 0.5). Minute 2: batch alone wants: 1."""
    rows = [
        request(0, first_s=0, last_s=60, prompt=300, tokens=2),
        request(0, first_s=0, last_s=60, prompt=300, tokens=2),
        request(0, first_s=0, last_s=60, prompt=300, tokens=2),
        request(0, first_s=0, last_s=60, prompt=300, tokens=2, tenant=1),
        request(0, first_s=60, last_s=119.99, prompt=600, tokens=2, tenant=1),
    ]
    data = columns(rows)
    found = jain_by_window(data, [1, 1])
    assert found[0] == pytest.approx((1.5 + 0.5) ** 2 / (2 * (1.5**2 + 0.5**2)), rel=1e-3)
    assert found[1] == pytest.approx(1)
    assert len(found) == 2


def test_the_difference_may_be_asked_up_to_a_time():
    """Chat gets 122 units by 11 s, batch its own 122 from 11 s on: 61 apart at 6 s, 122 at 11 s, 0 in the end."""
    data = columns([request(0, first_s=1, last_s=11), request(0, first_s=11, last_s=21, tenant=1)])
    curves = service_curves(data)
    found = [service_difference(curves, "chat", "batch", until_ns=t * S) for t in (0, 6, 11, 30)]
    assert found == pytest.approx([0, 61, 122, 122])
    assert service_difference(curves, "chat", "batch") == pytest.approx(122)


def test_an_unknown_token_count_costs_nothing():
    assert request_cost(columns([row(0, prompt=10, tokens=1)]), 1, 2).tolist() == [12]
    assert request_cost(columns([row(0, prompt=-1, tokens=1)]), 1, 2).tolist() == [2]


def test_no_rows_no_service():
    data = columns([])
    curves = service_curves(data)
    assert service_difference(curves, "chat", "batch") == 0
    assert curves.at(5).tolist() == [0, 0]
    assert jain_by_window(data, [1, 1]) == []
    assert Service(data).at(np.array([0, 5])).tolist() == [[0, 0], [0, 0]]
    assert Service(data).end_ns is None
