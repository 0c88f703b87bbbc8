"""Rules of replaying a trace: times to the nanosecond, tenants grown by dividing their gaps, chains regenerated."""

import numpy as np
import pytest

from loadgen.workload.replay import ReplayRows, TraceWorkload
from scheduler.request import ArrivalKind, Outcome, Status
from tenants.tenant import Tenant

A, B = Tenant(name="a", priority=3), Tenant(name="b")
S = 1_000_000_000


def ints(*values):
    return np.array(values, dtype=np.int64)


def rows(n=1000, *, tenants=2, seed=1, **columns):
    rng = np.random.default_rng(seed)
    columns.setdefault("arrival_ns", rng.integers(0, 100 * S, n))
    return ReplayRows(
        prompt_tokens=rng.integers(1, 3000, n),
        output_tokens=rng.integers(1, 500, n),
        tenant=rng.integers(0, tenants, n),
        **columns,
    )


def triples(workload, tenant=None):
    return [
        (r.arrival_ns, r.prompt_tokens, r.target_output_tokens)
        for r in workload.absolute()
        if tenant is None or r.tenant == tenant
    ]


def ended(request, at_ns, status=Status.OK):
    return Outcome(request=request, status=status, ended_ns=at_ns)


def test_rows_are_played_at_their_times_in_order():
    """An unsorted trace is played sorted, from its first row at 0, with dense ids and its own lengths."""
    trace = rows()
    requests = list(TraceWorkload(trace, [A, B]).absolute())
    assert [r.id for r in requests] == list(range(1000))
    order = np.argsort(trace.arrival_ns, kind="stable")
    assert [r.arrival_ns for r in requests] == (np.sort(trace.arrival_ns) - trace.arrival_ns.min()).tolist()
    assert [r.prompt_tokens for r in requests] == trace.prompt_tokens[order].tolist()
    assert [r.max_tokens for r in requests] == trace.output_tokens[order].tolist()
    assert {r.priority for r in requests if r.tenant == "a"} == {3}


def test_speed_divides_all_gaps():
    """speed 2: twice as fast, each time rounded once."""
    plain = triples(TraceWorkload(rows(), [A, B]))
    fast = triples(TraceWorkload(rows(), [A, B], speed=2))
    assert all(abs(2 * f[0] - p[0]) <= 1 for f, p in zip(fast, plain, strict=True))


def test_a_slice_starts_at_its_start():
    """[start, end) of the trace's own time; what lies outside is not played."""
    trace = ReplayRows(arrival_ns=ints(5, 10, 20, 30), prompt_tokens=ints(1, 2, 3, 4), output_tokens=ints(1, 1, 1, 1))
    assert triples(TraceWorkload(trace, [A], start_ns=10, end_ns=30)) == [(0, 2, 1), (10, 3, 1)]


@pytest.mark.parametrize("factor", [0.4, 1.5, 3.0])
def test_growing_one_tenant_divides_its_gaps_and_cycles_its_rows(factor):
    """Cycle c plays row i at (t_i + c T) / k; the span stays, so the tenant sends k times the requests (03)."""
    workload = TraceWorkload(rows(), [A, B], growth={"b": factor}, start_ns=0, end_ns=100 * S)
    own = sorted(triples(TraceWorkload(rows(), [A, B], start_ns=0, end_ns=100 * S), "b"))
    expected = [
        (round((t + cycle * 100 * S) / factor), p, o)
        for cycle in range(3)
        for t, p, o in own
        if round((t + cycle * 100 * S) / factor) < 100 * S
    ]
    grown = triples(workload, "b")
    assert [row[1:] for row in grown] == [row[1:] for row in expected]
    assert max(abs(a[0] - b[0]) for a, b in zip(grown, expected, strict=True)) <= 1
    assert len(grown) == pytest.approx(factor * len(own), rel=0.06)


def test_growing_one_tenant_leaves_the_others_untouched():
    """The victims' rows keep their times to the nanosecond."""
    plain, grown = (TraceWorkload(rows(), [A, B], growth=g) for g in ({}, {"b": 2.7}))
    assert triples(plain, "a") == triples(grown, "a")


def test_equal_hashes_stay_equal_within_a_cycle_and_differ_across_cycles():
    """Blocks carry the trace's hashes; a cycled copy shares among itself as the original did, and not with it."""
    trace = ReplayRows(
        arrival_ns=ints(0, 10),
        prompt_tokens=ints(1024, 1500),
        output_tokens=ints(5, 5),
        block_offsets=ints(0, 2, 5),
        block_ids=ints(7, 8, 7, 8, 9),
    )
    workload = TraceWorkload(trace, [A], growth={"a": 2}, start_ns=0, end_ns=20)
    first, second, third, fourth = (r.prefix_blocks for r in workload.absolute())
    assert (first, second) == ((7, 8), (7, 8, 9))
    assert third == fourth[:2]
    assert not set(fourth) & set(second)
    assert workload.block_tokens == 512


def test_blocks_differ_across_very_many_cycles():
    """A block's name has a word of 64 bits, and cycles do not come round in a part of it: the names of 70,000 are distinct."""
    trace = ReplayRows(
        arrival_ns=ints(0),
        prompt_tokens=ints(512),
        output_tokens=ints(1),
        block_offsets=ints(0, 1),
        block_ids=ints(7),
    )
    workload = TraceWorkload(trace, [A], growth={"a": 70_000}, start_ns=0, end_ns=S)
    assert len({r.prefix_blocks for r in workload.absolute()}) == 70_000


def chain(**columns):
    """Row 0 at 1 s, row 1 after it, row 2 after row 1, row 3 on its own."""
    return ReplayRows(
        arrival_ns=ints(1 * S, 3 * S, 6 * S, 7 * S),
        prompt_tokens=ints(10, 20, 30, 40),
        output_tokens=ints(1, 2, 3, 4),
        after_row=ints(-1, 0, 1, -1),
        think_ns=ints(0, S // 2, 0, 0),
        **columns,
    )


def test_what_came_after_something_comes_after_it_again():
    """A waiting row arrives at its cause's end in this run plus its think time, whatever its recorded time was."""
    workload = TraceWorkload(chain(session=ints(4, 4, 4, -1), turn=ints(0, 1, 2, 0)), [A], start_ns=0, end_ns=60 * S)
    first, alone = workload.absolute()
    assert (first.prompt_tokens, alone.prompt_tokens) == (10, 40)
    second = workload.after(ended(first, 20 * S))
    assert (second.arrival_ns, second.prompt_tokens, second.turn) == (20 * S + S // 2, 20, 1)
    assert (second.arrival_kind, second.after_request_id, second.think_ns) == (ArrivalKind.AFTER, first.id, S // 2)
    third = workload.after(ended(second, 30 * S, Status.FAILED))
    assert (third.arrival_ns, third.prompt_tokens, third.session_id) == (30 * S, 30, first.session_id)
    assert workload.after(ended(third, 31 * S)) is None
    assert workload.after(ended(alone, 31 * S)) is None
    assert len({first.id, second.id, third.id, alone.id}) == 4


def test_recorded_arrivals_ignore_the_chains():
    """recorded=True: every row at its recorded time."""
    workload = TraceWorkload(chain(), [A], recorded=True)
    assert [r.arrival_ns for r in workload.absolute()] == [0, 2 * S, 5 * S, 6 * S]


def test_a_row_whose_cause_is_cut_off_is_played_at_its_own_time():
    """A slice never loses rows: without its cause a row has its recorded time; so has a second one after one cause."""
    workload = TraceWorkload(chain(), [A], start_ns=2 * S, end_ns=60 * S)
    assert [r.prompt_tokens for r in workload.absolute()] == [20, 40]
    trace = ReplayRows(
        arrival_ns=ints(0, 5, 6), prompt_tokens=ints(1, 2, 3), output_tokens=ints(1, 1, 1), after_row=ints(-1, 0, 0)
    )
    assert [r.prompt_tokens for r in TraceWorkload(trace, [A]).absolute()] == [1, 3]


def test_nothing_follows_the_end_of_the_slice_or_of_the_run():
    """An arrival past the span or an unfinished cause gives nothing."""
    for end_ns, status in ((60 * S, Status.OK), (9, Status.UNFINISHED)):
        workload = TraceWorkload(chain(), [A], start_ns=0, end_ns=60 * S)
        first, *_ = list(workload.absolute())
        assert workload.after(ended(first, end_ns, status)) is None


def test_the_load_of_closed_loop_users_is_not_multiplied_by_gaps():
    """The gaps of a closed loop are answer times; growing it that way is refused in words."""
    with pytest.raises(ValueError, match="'a' is a closed loop"):
        TraceWorkload(chain(), [A], growth={"a": 2})
    TraceWorkload(chain(), [A], growth={"a": 2}, recorded=True)


def test_num_prompts_ends_a_replay():
    """The first num_prompts rows in order."""
    assert triples(TraceWorkload(rows(), [A, B], num_prompts=10)) == triples(TraceWorkload(rows(), [A, B]))[:10]


@pytest.mark.parametrize(
    ("trace", "arguments", "words"),
    [
        (ReplayRows(arrival_ns=ints(), prompt_tokens=ints(), output_tokens=ints()), {}, "no rows"),
        (ReplayRows(arrival_ns=ints(1, 2), prompt_tokens=ints(1), output_tokens=ints(1, 1)), {}, "prompt_tokens has 1"),
        (rows(tenants=3), {}, "0 to 1 would be right"),
        (rows(), {"speed": 0}, "speed is 0"),
        (rows(), {"growth": {"c": 2}}, "unknown tenant 'c'; known: a, b"),
        (rows(), {"growth": {"a": 0}}, "growth of 'a' is 0"),
        (rows(), {"start_ns": 5, "end_ns": 5}, "not after its start"),
        (rows(), {"start_ns": 200 * S, "end_ns": 201 * S}, "no row"),
    ],
)
def test_a_replay_that_cannot_be_says_why(trace, arguments, words):
    """Errors say what is wrong and what would be right."""
    with pytest.raises(ValueError, match=words):
        TraceWorkload(trace, [A, B], **arguments)
