"""An engine that plans a step ahead, against a reference that knows only the recurrence, one step at a time."""

from __future__ import annotations

from fractions import Fraction

from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.request import Request
from scheduler.server_model.batching import ContinuousBatch
from scheduler.server_model.spec import ServerLimits, StepLaw

MS = 1_000_000
LAW = StepLaw(a_us=5000.0, b_us=20.0, launch_us=13_000.0, launch_tail_us=2000.0)
AHEAD = ServerLimits(max_num_seqs=8, max_num_batched_tokens=2048, async_scheduling=True)


def token_times_ns(jobs, law, limits, *, runs):
    """Token times by request; ``jobs``: (arrival ns, prompt, output). ``runs``: commit whole runs, cut as a driver cuts them;
    else one step at a time."""
    model = ContinuousBatch(law, limits)
    waiting = sorted((at, i) for i, (at, _, _) in enumerate(jobs))
    times = {i: [] for i in range(len(jobs))}
    now = 0
    while True:
        while waiting and waiting[0][0] <= now:
            _, i = waiting.pop(0)
            model.admit(Request(id=i, tenant="t", arrival_ns=0, prompt_tokens=jobs[i][1]), now, jobs[i][2])
        plan = model.plan(now)
        if plan is None:
            if not waiting:
                return times
            now = waiting[0][0]
            continue
        steps = 1
        if runs:
            steps = plan.steps if not waiting else plan.steps_until(min(waiting[0][0], plan.end_ns(plan.steps)))
        ends = [plan.end_ns(k + 1) for k in range(steps)]
        for i, count in model.commit(steps, emitted=True).emitted.items():
            times[i].extend(ends[-count:])
        now = ends[-1]


def reference_ns(jobs, law, limits):
    """The recurrence of the module's docstring in exact fractions of a microsecond, with lists and nothing clever. KV is
    unlimited here."""
    a, b, c, d, e, h, idle_extra, tail = (
        Fraction(round(v * 10**6), 10**6)
        for v in (
            law.a_us,
            law.b_us,
            law.c_us,
            law.d_us,
            law.e_us,
            law.launch_us,
            law.launch_idle_us,
            law.launch_tail_us,
        )
    )
    todo = sorted((at, i) for i, (at, _, _) in enumerate(jobs))
    left = {i: prompt for i, (_, prompt, _) in enumerate(jobs)}
    tokens = {i: [] for i in range(len(jobs))}
    queue, batch = [], []
    handed_out, ended = Fraction(0), Fraction(0)  # D and G of the step before
    flying: dict[int, int] = {}  # chunks of the step that runs now, chosen one step ago

    def choose(taken):
        finishing = [i for i in taken if left[i] == taken[i]]
        budget = limits.max_num_batched_tokens - sum(left[i] == 0 for i in batch) - len(finishing)
        chunks = {}
        for i in batch:
            rest = left[i] - taken.get(i, 0)
            if rest and budget > 0:
                chunks[i] = min(rest, budget)
                budget -= chunks[i]
        while queue and budget > 0 and len(batch) < limits.max_num_seqs:
            i = queue.pop(0)
            batch.append(i)
            chunks[i] = min(left[i], budget)
            budget -= chunks[i]
        return chunks

    while todo or queue or batch:
        idle = not batch
        if idle and not queue:
            handed_out = ended = max(handed_out, Fraction(todo[0][0], 1000))
        while todo and Fraction(todo[0][0], 1000) <= Fraction(int(handed_out * 1000), 1000):
            queue.append(todo.pop(0)[1])
        decoding = [i for i in batch if left[i] == 0]
        launched = handed_out
        if not flying and not decoding:
            flying = choose({})
            launched += h + (idle_extra if idle else 0)
        ahead = choose(flying)
        context = {i: jobs[i][1] + len(tokens[i]) for i in decoding}
        done_before = {i: jobs[i][1] - left[i] for i in flying}
        t = a + b * sum(flying.values()) + c * len(decoding) + d * sum(context.values())
        t += e * sum(Fraction(n * (2 * done_before[i] + n), 2) for i, n in flying.items())
        ended += t
        if flying:
            ended = max(ended, launched + tail)
        handed_out = max(ended, launched + h) if ahead else max(ended, handed_out)
        now_ns = int(handed_out * 1000)
        for i in decoding:
            tokens[i].append(now_ns)
        for i, n in flying.items():
            left[i] -= n
            if left[i] == 0:
                tokens[i].append(now_ns)
        batch[:] = [i for i in batch if len(tokens[i]) < jobs[i][2]]
        flying = ahead
    return tokens


jobs_ = st.lists(st.tuples(st.integers(0, 400 * MS), st.integers(1, 500), st.integers(1, 25)), min_size=1, max_size=12)
laws_ = st.builds(
    StepLaw,
    a_us=st.integers(500, 6000).map(float),
    b_us=st.integers(0, 30).map(float),
    c_us=st.integers(0, 50).map(float),
    d_us=st.integers(0, 100).map(lambda v: v / 100),
    e_us=st.integers(0, 10).map(lambda v: v / 500),
    launch_us=st.integers(0, 20_000).map(float),
    launch_idle_us=st.integers(0, 9000).map(float),
    launch_tail_us=st.integers(0, 3000).map(float),
)
limits_ = st.builds(
    ServerLimits,
    max_num_seqs=st.integers(1, 6),
    max_num_batched_tokens=st.integers(8, 600),
    async_scheduling=st.just(True),  # noqa: FBT003 (a strategy's value, not a flag)
)


@settings(max_examples=150, deadline=None)
@given(jobs=jobs_, law=laws_, limits=limits_)
def test_token_times_are_those_of_the_recurrence(jobs, law, limits):
    """G_k = max(G_(k-1) + t_k, launch + tail), D_k = max(G_k, D_(k-1) + h), whatever the load."""
    assert token_times_ns(jobs, law, limits, runs=False) == reference_ns(jobs, law, limits)


@settings(max_examples=150, deadline=None)
@given(jobs=jobs_, law=laws_, limits=limits_, kv_tokens=st.sampled_from([None, 560, 900, 2000]))
def test_whole_runs_give_the_same_times_as_single_steps(jobs, law, limits, kv_tokens):
    """The macro-step is invisible, to the picosecond, also when the KV cache is full; every request gets all its tokens."""
    limits = ServerLimits(
        max_num_seqs=limits.max_num_seqs,
        max_num_batched_tokens=limits.max_num_batched_tokens,
        kv_tokens=kv_tokens,
        async_scheduling=True,
    )
    single = token_times_ns(jobs, law, limits, runs=False)
    in_runs = token_times_ns(jobs, law, limits, runs=True)
    assert {i: times[-1] for i, times in single.items()} == {i: times[-1] for i, times in in_runs.items()}
    assert all(len(times) == jobs[i][2] for i, times in single.items())


def test_a_prompt_joins_the_step_after_the_one_that_is_planned():
    """A request that enters while a step runs waits for that step and for the next: its first token comes with the third."""
    times = token_times_ns([(0, 100, 50), (31 * MS, 400, 5)], LAW, AHEAD, runs=True)
    ends = times[0]
    running = next(k for k, end in enumerate(ends) if end > 31 * MS)
    assert times[1][0] == ends[running + 2]


def test_streams_see_the_launch_before_the_step_with_the_prefill_and_the_rest_of_it_after():
    """The step before ends 5 ms after the launch began, but its tokens wait until the launch is done (13 ms); the step with
    the prefill takes 5 ms + 400 x 20 us = 13 ms from there, so its tokens come 5 ms later."""
    times = token_times_ns([(0, 100, 50), (31 * MS, 400, 5)], LAW, AHEAD, runs=True)
    gaps = [b - a for a, b in zip(times[0], times[0][1:], strict=False)]
    first = times[0].index(times[1][0])
    assert gaps[first - 2 : first + 1] == [13 * MS, 5 * MS, 5 * MS]


def test_an_idle_engine_launches_and_runs_at_once():
    """Nothing is in flight, so the first token comes when both the launch (with its tail) and the step are over."""
    assert token_times_ns([(0, 100, 1)], LAW, AHEAD, runs=True) == {0: [15 * MS]}
    assert token_times_ns([(0, 1000, 1)], LAW, AHEAD, runs=True) == {0: [25 * MS]}
    sleepy = StepLaw(a_us=5000.0, b_us=20.0, launch_us=13_000.0, launch_tail_us=2000.0, launch_idle_us=6000.0)
    assert token_times_ns([(0, 100, 1)], sleepy, AHEAD, runs=True) == {0: [21 * MS]}


def test_without_the_new_terms_the_engine_is_the_plain_one():
    """Launching costs nothing by default and the plain engine plans when the step before has ended."""
    law = StepLaw(a_us=5000.0, b_us=20.0)
    plain = ServerLimits(max_num_seqs=8, max_num_batched_tokens=2048)
    times = token_times_ns([(0, 100, 50), (31 * MS, 400, 5)], law, plain, runs=True)
    running = next(k for k, end in enumerate(times[0]) if end > 31 * MS)
    assert times[1][0] == times[0][running + 1]


def test_an_abort_of_a_chunk_in_flight_leaves_no_trace():
    """A request aborted between its planning and its step gives no token, and the others go on."""
    model = ContinuousBatch(LAW, AHEAD)
    model.admit(Request(id=0, tenant="t", arrival_ns=0, prompt_tokens=10), 0, 6)
    assert model.plan(0) is not None
    now = model.commit(1, emitted=True).end_ns
    model.admit(Request(id=1, tenant="t", arrival_ns=0, prompt_tokens=10), now, 6)
    assert model.plan(now) is not None
    model.commit(1, emitted=True)
    assert model.abort(1) is not None
    seen = []
    while model.plan(now) is not None:
        seen.extend(model.commit(1, emitted=True).emitted)
    assert set(seen) == {0}
    assert model.kv_tokens == 0
