"""Rules of dealing a workload to workers: the shares are the whole, each request once, with the same id and lengths."""

from __future__ import annotations

import heapq

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadgen.workload.replay import ReplayRows, TraceWorkload
from loadgen.workload.share import WHOLE, Share
from loadgen.workload.source import CLOSED_IDS, Workload
from scheduler.request import Outcome, Request, Status
from tenants.tenant import Tenant
from tenants.traffic import Arrivals, Distribution, Lengths, Process, Sessions, Traffic

S = 1_000_000_000
WORKERS = st.integers(1, 9)
LENGTHS = Lengths(distribution=Distribution.LOGNORMAL, mean=200, cv=0.8)
TURNS = Lengths(distribution=Distribution.UNIFORM, low=1, high=4)


def open_(name, rate, *, sessions=None, **arrivals):
    arrivals.setdefault("process", Process.POISSON)
    return Tenant(name=name), Traffic(
        arrivals=Arrivals(rate=rate, **arrivals), prompt=LENGTHS, output=LENGTHS, sessions=sessions
    )


def closed(name, users, *, sessions=None):
    arrivals = Arrivals(process=Process.CLOSED, users=users)
    return Tenant(name=name), Traffic(arrivals=arrivals, prompt=LENGTHS, output=LENGTHS, sessions=sessions)


def shares(count):
    return [Share(i, count) for i in range(count)]


def known(request: Request):
    """What a request is, whoever sends it."""
    return (
        request.id,
        request.tenant,
        request.prompt_tokens,
        request.target_output_tokens,
        request.session_id,
        request.turn,
        request.prefix_blocks,
    )


def play(source, service_ns, until_ns=10 * S, *, foresees=False) -> list[Request]:
    """Every request of ``source`` on a server that answers after ``service_ns(request)``. ``foresees``: as a run does that
    makes its users' next calls ahead."""
    waiting = [(r.arrival_ns, r.id, r) for r in [*source.start_closed(0), *source.absolute()]]
    heapq.heapify(waiting)
    played = []
    while waiting and len(played) != source.limit:
        at_ns, _, request = heapq.heappop(waiting)
        played.append(request)
        end_ns = at_ns + service_ns(request)
        if foresees:
            source.foresee(request.tenant, 1 + request.id % 3)
        following = source.after(Outcome(request=request, status=Status.OK, ended_ns=end_ns, finished_ns=end_ns))
        if following is not None and following.arrival_ns < until_ns:
            heapq.heappush(waiting, (following.arrival_ns, following.id, following))
    return played


@settings(deadline=None)
@given(count=WORKERS, numbers=st.integers(0, 300))
def test_every_number_has_one_owner_and_the_counts_differ_by_one_at_most(count, numbers):
    owned = [sum(share.owns(n) for n in range(numbers)) for share in shares(count)]
    assert sum(owned) == numbers
    assert max(owned) - min(owned) <= 1
    assert owned == [share.of_total(numbers) for share in shares(count)]


def test_tenants_that_take_turns_are_not_each_dealt_to_a_worker_of_their_own():
    """Two tenants in turn, two workers: each worker has about half of each tenant."""
    even = [sum(share.owns(n) for n in range(0, 2000, 2)) for share in shares(2)]
    assert min(even) > 350


@pytest.mark.parametrize(("index", "count"), [(-1, 2), (2, 2), (0, 0)])
def test_a_share_that_is_none_is_refused(index, count):
    with pytest.raises(ValueError, match="would be right"):
        Share(index, count)


@settings(max_examples=25, deadline=None)
@given(count=WORKERS, seed=st.integers(0, 99), num_prompts=st.none() | st.integers(1, 200))
def test_the_shares_of_a_schedule_are_the_schedule(count, seed, num_prompts):
    """Ids, arrivals and lengths as with one worker, and the first N requests when N are asked for."""
    tenants = [open_("a", 20), open_("b", 11, process=Process.GAMMA, burstiness=0.3)]

    def requests(share):
        return list(Workload(tenants, duration_s=5, seed=seed, num_prompts=num_prompts, share=share).absolute())

    dealt = [requests(share) for share in shares(count)]
    assert sorted((r for some in dealt for r in some), key=lambda r: r.id) == requests(WHOLE)
    for some in dealt:
        assert [r.arrival_ns for r in some] == sorted(r.arrival_ns for r in some)


@settings(max_examples=25, deadline=None)
@given(count=WORKERS, seed=st.integers(0, 99), slow=st.integers(0, 8))
def test_a_sessions_turns_stay_with_its_worker_and_are_those_of_one_worker(count, seed, slow):
    """However long the answers of one worker take."""
    tenants = [open_("a", 20, sessions=Sessions(turns=TURNS, think_s=0.1)), open_("b", 9)]
    whole = play(Workload(tenants, duration_s=4, seed=seed), lambda _: S // 10, until_ns=4 * S)
    found = []
    for share in shares(count):
        service_ns = S // 5 if share.index == slow else S // 10
        mine = play(
            Workload(tenants, duration_s=4, seed=seed, share=share), lambda _, ns=service_ns: ns, until_ns=4 * S
        )
        sessions = {r.session_id for r in mine if r.session_id is not None}
        assert not sessions & {r.session_id for r in found}
        found += mine
    assert len({r.id for r in found}) == len(found)
    # A slower worker's conversations are cut earlier by the run's end; what it did send is the same.
    assert set(map(known, found)) <= set(map(known, whole))
    if slow >= count:
        assert set(map(known, found)) == set(map(known, whole))


def test_a_worker_remembers_its_own_conversations_only():
    """Else every worker would keep those of all: memory that grows with the run."""
    tenants = [open_("a", 100, sessions=Sessions(turns=Lengths(distribution=Distribution.FIXED, mean=3), think_s=0.1))]
    kept = []
    for share in shares(4):
        source = Workload(tenants, duration_s=10, share=share)
        mine = [r for r in source.absolute() if r.session_id is not None]
        kept.append(len(source._conversations))
        assert kept[-1] == len(mine)
    assert sum(kept) > 200


@settings(max_examples=25, deadline=None)
@given(count=WORKERS, seed=st.integers(0, 99), users=st.tuples(st.integers(1, 7), st.integers(1, 7)))
def test_users_are_dealt_in_turn_and_request_k_has_the_kth_lengths(count, seed, users):
    """The first requests are those of one worker; later ones have ids of their own, and an id says the lengths."""
    tenants = [closed(name, n) for name, n in zip("ab", users, strict=True)]
    first_of_all = Workload(tenants, duration_s=10, seed=seed).start_closed(0)
    first = [Workload(tenants, duration_s=10, seed=seed, share=share).start_closed(0) for share in shares(count)]
    assert sorted(known(r) for some in first for r in some) == sorted(map(known, first_of_all))
    sizes = [len(some) for some in first]
    assert max(sizes) - min(sizes) <= 1
    many = {r.id: known(r) for r in play(Workload(tenants, duration_s=10, seed=seed), lambda _: S // 100)}
    found = []
    for share in shares(count):
        source = Workload(tenants, duration_s=10, seed=seed, share=share)
        found += play(source, lambda r: S // 5 + r.id % 7, foresees=share.index % 2 == 0)
    assert len({r.id for r in found}) == len(found)
    assert all(many[r.id] == known(r) for r in found if r.id in many)
    assert any(r.id in many for r in found)


@settings(max_examples=25, deadline=None)
@given(count=WORKERS, num_prompts=st.integers(1, 60), users=st.integers(9, 20))
def test_a_number_of_prompts_is_kept_over_all_workers(count, num_prompts, users):
    """A closed loop, sessions, and both beside a schedule: N requests in all."""
    mixes = [
        [closed("a", users)],
        [closed("a", users, sessions=Sessions(turns=TURNS, think_s=0.0))],
        [closed("a", users), open_("b", 50)],
    ]
    for tenants in mixes:
        made = [
            len(play(Workload(tenants, duration_s=100, num_prompts=num_prompts, share=share), lambda _: S, 10**15))
            for share in shares(count)
        ]
        assert sum(made) == num_prompts


def test_closed_loop_ids_beside_a_schedule_stay_apart_in_every_share():
    tenants = [closed("a", 4), open_("b", 30)]
    for share in shares(3):
        source = Workload(tenants, duration_s=2, share=share)
        assert all(r.id >= CLOSED_IDS for r in source.start_closed(0))
        assert all(r.id < CLOSED_IDS for r in source.absolute())


@settings(max_examples=25, deadline=None)
@given(count=WORKERS, seed=st.integers(0, 20), growth=st.sampled_from([1.0, 2.5]))
def test_the_shares_of_a_replay_are_the_replay(count, seed, growth):
    """Rows, and the rows that wait for others, each with the id it has with one worker."""
    n = 60
    rng = np.random.default_rng(seed)
    after = np.where(np.arange(n) % 3 == 0, np.arange(n) - 1, -1)
    after[0] = -1
    rows = ReplayRows(
        arrival_ns=np.sort(rng.integers(0, 5 * S, n)),
        prompt_tokens=rng.integers(1, 900, n),
        output_tokens=rng.integers(1, 90, n),
        tenant=np.repeat([0, 1], n // 2),
        after_row=after if growth == 1.0 else None,
        think_ns=np.full(n, 1000) if growth == 1.0 else None,
    )
    tenants = (Tenant(name="a"), Tenant(name="b"))

    def replay(share):
        return TraceWorkload(rows, tenants, growth={"b": growth}, share=share)

    whole = play(replay(WHOLE), lambda _: S // 100)
    dealt = [play(replay(share), lambda _: S // 100) for share in shares(count)]
    assert sorted(known(r) for some in dealt for r in some) == sorted(map(known, whole))
    assert {replay(share).expected_requests for share in shares(count)} == {replay(WHOLE).expected_requests}
