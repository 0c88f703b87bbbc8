"""Rules of the merged workload: order, ids, independence of tenants, closed loops and sessions."""

import heapq
import itertools

import numpy as np
import pytest

from loadgen.workload.demand import mean_tokens
from loadgen.workload.source import Workload
from scheduler.request import ArrivalKind, Outcome, Request, Status
from tenants.tenant import QueueLimits, Tenant
from tenants.traffic import Arrivals, Distribution, Lengths, Process, Sessions, Traffic

S = 1_000_000_000


def lognormal(mean, cv):
    return Lengths(distribution=Distribution.LOGNORMAL, mean=mean, cv=cv)


def traffic(rate=20.0, *, prompt=None, output=None, sessions=None, shared_prefix_tokens=0, **arrivals):
    return Traffic(
        arrivals=Arrivals(rate=rate, **arrivals),
        prompt=prompt or lognormal(300, 0.8),
        output=output or lognormal(150, 0.8),
        sessions=sessions,
        shared_prefix_tokens=shared_prefix_tokens,
    )


def closed(users, **rest):
    spec = traffic(None, process=Process.CLOSED, users=users, **rest)
    return Tenant(name="users"), spec


def three():
    return [
        (Tenant(name="chat", priority=2, limits=QueueLimits(ttl_ns=5)), traffic(20)),
        (Tenant(name="rag"), traffic(7, process=Process.GAMMA, burstiness=0.3)),
        (Tenant(name="batch"), traffic(30, process=Process.BURST, burst_size=50, burst_rate=200.0)),
    ]


def of(workload, tenant):
    return [(r.arrival_ns, r.prompt_tokens, r.target_output_tokens) for r in workload.absolute() if r.tenant == tenant]


def ended(request, at_ns, status=Status.OK):
    return Outcome(request=request, status=status, ended_ns=at_ns, finished_ns=at_ns if status is Status.OK else None)


def play(workload, service_ns, *, status=Status.OK):
    """Every request of a closed workload on a server that answers after ``service_ns`` (request -> ns)."""
    queue = [(r.arrival_ns, r.id, r) for r in [*workload.absolute(), *workload.start_closed(0)]]
    heapq.heapify(queue)
    played = []
    while queue and len(played) != workload.limit:
        at_ns, _, request = heapq.heappop(queue)
        played.append(request)
        following = workload.after(ended(request, at_ns + service_ns(request), status))
        if following is not None:
            assert following.arrival_ns >= at_ns + service_ns(request)
            heapq.heappush(queue, (following.arrival_ns, following.id, following))
    return played


def test_requests_come_in_order_with_dense_ids():
    """absolute: ascending by arrival, ids 0, 1, 2, ... in that order, all inside the run."""
    requests = list(Workload(three(), duration_s=300, seed=3).absolute())
    assert [r.id for r in requests] == list(range(len(requests)))
    arrivals = [r.arrival_ns for r in requests]
    assert arrivals == sorted(arrivals)
    assert arrivals[-1] < 300 * S
    assert {r.arrival_kind for r in requests} == {ArrivalKind.ABSOLUTE}


def test_each_tenant_gets_its_rate_and_its_lengths():
    """The merged stream holds every tenant at its own rate and mean lengths (within the sampling error)."""
    requests = list(Workload(three(), duration_s=2000, seed=3).absolute())
    for name, rate, tolerance in (("chat", 20, 0.03), ("rag", 7, 0.06), ("batch", 30, 0.15)):
        own = [r for r in requests if r.tenant == name]
        assert len(own) / 2000 == pytest.approx(rate, rel=tolerance)
        assert np.mean([r.prompt_tokens for r in own]) == pytest.approx(300, rel=0.05)
        assert np.mean([r.target_output_tokens for r in own]) == pytest.approx(150, rel=0.05)


def test_a_request_carries_what_its_tenant_and_traffic_say():
    """Priority, time to live, time-outs; max_tokens is the drawn output unless the traffic names one."""
    spec = Traffic(
        arrivals=Arrivals(rate=10), prompt=Lengths(mean=9), output=Lengths(mean=700), timeout_s=2, max_tokens=500
    )
    request = next(Workload([(three()[0][0], spec)], duration_s=10).absolute())
    assert (request.priority, request.ttl_ns, request.timeout_ns, request.first_token_timeout_ns) == (2, 5, 2 * S, None)
    assert (request.max_tokens, request.target_output_tokens) == (500, 500)
    request = next(Workload(three(), duration_s=10).absolute())
    assert request.max_tokens == request.target_output_tokens


@pytest.mark.parametrize("noisy", ["chat", "rag", "batch"])
def test_raising_one_tenant_leaves_the_others_untouched(noisy):
    """The victims' arrivals and lengths are the same in the baseline and in the raised run, to the nanosecond."""
    base, raised = ({"duration_s": 200, "seed": 5, "growth": g} for g in ({}, {noisy: 2.5}))
    for name in {"chat", "rag", "batch"} - {noisy}:
        assert of(Workload(three(), **base), name) == of(Workload(three(), **raised), name)
    assert len(of(Workload(three(), **raised), noisy)) > 1.5 * len(of(Workload(three(), **base), noisy))


def test_removing_a_tenant_leaves_the_others_untouched():
    """Nor does a neighbour's presence matter."""
    assert of(Workload(three(), duration_s=100), "rag") == of(Workload(three()[1:2], duration_s=100), "rag")


def test_a_grown_tenant_sends_the_same_requests_closer_together():
    """Request k has the same lengths at any rate, and arrives k times as early."""
    slow = of(Workload(three(), duration_s=200), "chat")
    fast = of(Workload(three(), duration_s=200, growth={"chat": 2}), "chat")
    assert [row[1:] for row in fast[: len(slow)]] == [row[1:] for row in slow]
    assert all(abs(2 * b[0] - a[0]) <= 2 for a, b in zip(slow, fast, strict=False))


def test_seeds_and_names_give_different_streams():
    """Two seeds, or two tenants of equal traffic, are independent."""
    pair = [(Tenant(name="a"), traffic()), (Tenant(name="b"), traffic())]
    assert of(Workload(pair, duration_s=50), "a") != of(Workload(pair, duration_s=50), "b")
    assert of(Workload(pair, duration_s=50, seed=1), "a") != of(Workload(pair, duration_s=50, seed=2), "a")


def test_prompt_and_output_of_a_pair_are_drawn_together():
    """joint: only the given pairs occur."""
    spec = Traffic(arrivals=Arrivals(rate=50), prompt=Lengths(), output=Lengths(), joint=((10, 1), (2000, 90)))
    pairs = {row[1:] for row in of(Workload([(Tenant(name="a"), spec)], duration_s=20), "a")}
    assert pairs == {(10, 1), (2000, 90)}


def test_num_prompts_ends_the_schedule():
    """At most num_prompts requests; then a run needs no duration."""
    requests = list(Workload(three(), duration_s=None, num_prompts=100).absolute())
    assert [r.id for r in requests] == list(range(100))
    longer = list(Workload(three(), duration_s=None, num_prompts=200).absolute())
    assert longer[:100] == requests


def test_many_tenants_of_unequal_rates_are_merged_completely():
    """No request is lost between batches: each tenant's part equals its stream alone."""
    tenants = [(Tenant(name=f"t{i}"), traffic(0.5)) for i in range(40)] + [(Tenant(name="fast"), traffic(300))]
    merged = list(Workload(tenants, duration_s=60).absolute())
    assert all(a.arrival_ns <= b.arrival_ns for a, b in itertools.pairwise(merged))
    for pair in (tenants[0], tenants[7], tenants[40]):
        own = [(r.arrival_ns, r.prompt_tokens, r.target_output_tokens) for r in merged if r.tenant == pair[0].name]
        assert own == of(Workload([pair], duration_s=60), pair[0].name)


def test_closed_loop_keeps_its_users_busy():
    """users at once at the start; each next request arrives at the finish of the last plus the think time."""
    workload = Workload([closed(8, think_s=0.5)], duration_s=10)
    first = workload.start_closed(0)
    assert [r.id for r in first] == list(range(8))
    assert {(r.arrival_ns, r.arrival_kind) for r in first} == {(0, ArrivalKind.ABSOLUTE)}
    following = workload.after(ended(first[3], 2 * S))
    assert following.arrival_ns == 2 * S + S // 2
    assert (following.arrival_kind, following.after_request_id, following.think_ns) == (ArrivalKind.AFTER, 3, S // 2)
    assert list(workload.absolute()) == []


def test_closed_loop_stops_at_the_end_of_the_run_or_at_num_prompts():
    """No arrival at or after the duration; never more than num_prompts requests, ids dense."""
    played = play(Workload([closed(4)], duration_s=10), lambda r: S)
    assert len(played) == 40
    assert max(r.arrival_ns for r in played) < 10 * S
    played = play(Workload([closed(4)], duration_s=None, num_prompts=30), lambda r: S)
    assert sorted(r.id for r in played) == list(range(30))
    assert len(Workload([closed(64)], duration_s=None, num_prompts=30).start_closed(0)) == 30


def test_closed_loop_draws_the_same_lengths_whatever_the_server_does():
    """The k-th request of a tenant has the same lengths on a fast and on a slow, uneven server."""
    fast = play(Workload([closed(4)], duration_s=None, num_prompts=50), lambda r: S)
    slow = play(Workload([closed(4)], duration_s=None, num_prompts=50), lambda r: S * (1 + r.id % 7))
    assert {(r.id, r.prompt_tokens) for r in fast} == {(r.id, r.prompt_tokens) for r in slow}


def test_what_a_user_will_send_next_can_be_foreseen_and_foreseeing_changes_nothing():
    """Each foreseen request is given later, with its arrival, id and lengths unchanged; a limit on the requests holds."""
    plain = play(Workload([closed(4)], duration_s=None, num_prompts=30), lambda r: S)
    workload = Workload([closed(4)], duration_s=None, num_prompts=30)
    name = workload.tenants[0].name
    foreseen: list[Request] = []

    def service_ns(_):
        for count in (1, 3, 2, 40):
            foreseen.extend(workload.foresee(name, count))
        return S

    assert play(workload, service_ns) == plain
    assert len(foreseen) == 26
    later = {r.id: (r.prompt_tokens, r.target_output_tokens) for r in plain}
    assert all(later[r.id] == (r.prompt_tokens, r.target_output_tokens) for r in foreseen)


def test_a_failed_user_pauses():
    """A user who is shed at once does not come back at the same instant for ever; nothing follows an unfinished run."""
    played = play(Workload([closed(1)], duration_s=10), lambda r: 0, status=Status.SHED)
    assert len(played) == 100
    workload = Workload([closed(1)], duration_s=10)
    assert workload.after(ended(workload.start_closed(0)[0], S, Status.UNFINISHED)) is None


def test_closed_users_rest_outside_the_active_parts():
    """active holds for users too: an arrival outside waits for the next part."""
    workload = Workload([closed(2, active=((0.2, 0.4), (0.6, 0.8)))], duration_s=100)
    (first, _) = workload.start_closed(0)
    assert first.arrival_ns == 20 * S
    assert workload.after(ended(first, 45 * S)).arrival_ns == 60 * S
    assert workload.after(ended(first, 90 * S)) is None


def test_several_closed_tenants_share_a_limit_fairly_and_no_id():
    """Users start by turns, so no tenant is left without; ids never collide, with open-loop tenants beside them too."""
    tenants = [(Tenant(name=n), closed(20)[1]) for n in ("a", "b")]
    first = Workload(tenants, duration_s=None, num_prompts=10).start_closed(0)
    assert sorted(r.tenant for r in first) == ["a"] * 5 + ["b"] * 5
    played = play(Workload([*tenants, *three()], duration_s=5), lambda r: S // 3)
    assert len({r.id for r in played}) == len(played)


def sessions(turns=4, **rest):
    spec = Sessions(turns=Lengths(mean=turns), think_s=1.0, **rest)
    return Tenant(name="s"), traffic(8, prompt=lognormal(50, 0.5), output=lognormal(60, 0.5), sessions=spec)


def test_a_session_holds_the_conversation_so_far():
    """Turn t's prompt = all prompts and answers before + its own; each turn follows the last by the think time."""
    played = play(Workload([sessions()], duration_s=60), lambda r: S)
    by_session: dict[str, list[Request]] = {}
    for request in played:
        by_session.setdefault(request.session_id, []).append(request)
    whole = [turns for turns in by_session.values() if turns[0].arrival_ns < 50 * S]
    assert {len(turns) for turns in whole} == {4}
    for turns in whole:
        assert [r.turn for r in turns] == [0, 1, 2, 3]
        for previous, request in itertools.pairwise(turns):
            assert request.prompt_tokens > previous.prompt_tokens + previous.target_output_tokens
            assert request.arrival_ns == previous.arrival_ns + 2 * S
            assert request.after_request_id == previous.id
            assert request.prefix_blocks[: len(previous.prefix_blocks)] == previous.prefix_blocks
    assert len({r.id for r in played}) == len(played)


def test_the_rate_counts_requests_also_with_sessions():
    """rate / mean turns sessions start a second; in the long run the requests come at the rate."""
    played = play(Workload([sessions()], duration_s=500), lambda r: S // 10)
    assert len(played) / 500 == pytest.approx(8, rel=0.1)


def test_sessions_do_not_depend_on_the_order_of_answers():
    """Ids, lengths and blocks of every turn are the same on a slow server, and when turns fail."""
    fast = play(Workload([sessions()], duration_s=100), lambda r: 1)
    slow = play(Workload([sessions()], duration_s=100), lambda r: S * (r.id % 3))
    failed = play(Workload([sessions()], duration_s=100), lambda r: 1, status=Status.FAILED)
    known = {r.id: (r.prompt_tokens, r.target_output_tokens, r.prefix_blocks) for r in fast}
    for request in [*slow, *failed]:
        assert known[request.id] == (request.prompt_tokens, request.target_output_tokens, request.prefix_blocks)


def test_shared_prefixes_are_the_same_blocks_for_all_and_only_whole_blocks():
    """A system prompt of 100 tokens gives 6 shared blocks of 16, and 100 tokens on top of the drawn length."""
    spec = traffic(prompt=Lengths(mean=40), shared_prefix_tokens=100)
    requests = list(Workload([(Tenant(name="a"), spec)], duration_s=10).absolute())
    assert {r.prompt_tokens for r in requests} == {140}
    (blocks,) = {r.prefix_blocks for r in requests}
    assert len(blocks) == len(set(blocks)) == 6
    other = list(Workload([(Tenant(name="b"), spec)], duration_s=10).absolute())
    assert not set(other[0].prefix_blocks) & set(blocks)


def test_mean_tokens_predicts_the_mean_of_the_requests():
    """The demand that turns a load into a rate is what the workload sends, sessions and prefixes included."""
    tenant, spec = sessions(shared_prefix_tokens=32)
    played = play(Workload([(tenant, spec)], duration_s=2000), lambda r: 1)
    prompt, output = mean_tokens(spec)
    assert np.mean([r.prompt_tokens for r in played]) == pytest.approx(prompt, rel=0.03)
    assert np.mean([r.target_output_tokens for r in played]) == pytest.approx(output, rel=0.03)


def test_clients_cancel_as_often_as_the_traffic_says():
    """cancel_share of the requests carry cancel_after_ns, the same ones at any load."""
    spec = Traffic(arrivals=Arrivals(rate=100), prompt=Lengths(), output=Lengths(), cancel_share=0.3, cancel_after_s=2)
    one, other = (
        [r.cancel_after_ns for r in Workload([(Tenant(name="a"), spec.grown(k))], duration_s=50).absolute()]
        for k in (1, 2)
    )
    assert set(one) == {None, 2 * S}
    assert one.count(2 * S) / len(one) == pytest.approx(0.3, abs=0.03)
    assert other[: len(one)] == one


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"duration_s": None}, "no end"),
        ({"duration_s": -1}, "duration_s is -1"),
        ({"duration_s": 1, "num_prompts": 0}, "num_prompts is 0"),
        ({"duration_s": 1, "growth": {"chatt": 2}}, "unknown tenants: chatt; known: chat, rag, batch"),
        ({"duration_s": 1, "growth": {"chat": 0}}, "> 0"),
        ({"duration_s": 1, "seed": -1}, "seed is -1"),
    ],
)
def test_a_workload_that_cannot_be_says_why(arguments, words):
    """Errors say what is wrong, where, and what would be right."""
    with pytest.raises(ValueError, match=words):
        Workload(three(), **arguments)


def test_faults_of_a_tenant_are_listed_together_under_its_name():
    """Arrivals and lengths of one tenant are judged in one go."""
    spec = Traffic(arrivals=Arrivals(), prompt=Lengths(mean=-1), output=Lengths(low=-2))
    with pytest.raises(ValueError, match=r"'a': arrivals: rate is None.*prompt: mean is -1.*output: low is -2"):
        Workload([(Tenant(name="a"), spec)], duration_s=1)
    with pytest.raises(ValueError, match="named twice: a"):
        Workload([(Tenant(name="a"), traffic()), (Tenant(name="a"), traffic())], duration_s=1)
