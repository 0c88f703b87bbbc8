"""The prefix cache in the engine, against a reference that knows only the rules, one step at a time with plain lists."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sched_support import S, dispatcher, request, simulate, tenant

from scheduler.request import Status
from scheduler.routing import Routing, Rule
from scheduler.server_model.build import build_server
from scheduler.server_model.prefix_cache import PrefixCache
from scheduler.server_model.spec import ServerLimits, StepLaw
from scheduler.slots import Slots

_LAW = StepLaw(a_us=5_000.0, b_us=20.0, c_us=1.0, d_us=0.05)
_BLOCK = 4


@dataclass
class Job:
    at_step: int
    prompt: int
    output: int
    blocks: tuple[int, ...]
    abort_step: int | None = None


@dataclass
class Running:
    number: int
    left: int
    made: int
    tokens: int = 0
    held: list[int] = field(default_factory=list)
    seen: int = 0
    decoding: bool = False


class Reference:
    """Blocks in lists: ``resident`` names, ``idle`` names in order of their release. The memory of what runs is counted
    afresh every time: private tokens of each, and every held block once."""

    def __init__(self, jobs: list[Job], limits: ServerLimits) -> None:
        self.jobs, self.limits = jobs, limits
        self.kv = limits.kv_tokens or 1 << 60
        self.queue: list[tuple[int, int, int]] = []
        self.running: list[Running] = []
        self.idle: list[int] = []
        self.cached: dict[int, int] = {}
        self.log: list[tuple] = []

    def used(self) -> int:
        held = {name for one in self.running for name in one.held}
        return sum(one.tokens - _BLOCK * len(one.held) for one in self.running) + _BLOCK * len(held)

    def resident(self) -> set[int]:
        return set(self.idle) | {name for one in self.running for name in one.held}

    def evict(self) -> None:
        while self.idle and self.used() + _BLOCK * len(self.idle) > self.kv:
            self.idle.pop(0)

    def leave(self, one: Running) -> None:
        self.running.remove(one)
        others = {name for other in self.running for name in other.held}
        self.idle += [name for name in reversed(one.held) if name not in others]

    def enters(self, number: int) -> None:
        self.queue.append((number, self.jobs[number].prompt, 0))
        self.queue.sort()

    def preempt(self) -> None:
        while True:
            decoding = sum(one.decoding for one in self.running)
            stuck = not decoding and len(self.running) > 1 and self.used() == self.kv
            if self.used() + decoding <= self.kv and not stuck:
                return
            victim = self.running[-1]
            self.leave(victim)
            self.queue.append((victim.number, self.jobs[victim.number].prompt + victim.made, victim.made))
            self.queue.sort()

    def fill(self, one: Running, tokens: int) -> None:
        one.tokens += tokens
        one.left -= tokens
        job = self.jobs[one.number]
        while one.seen < min(len(job.blocks), job.prompt // _BLOCK, one.tokens // _BLOCK):
            if job.blocks[one.seen] not in self.resident():
                one.held.append(job.blocks[one.seen])
            one.seen += 1
        self.evict()

    def step(self, aborted: list[int]) -> bool:
        """One step; ``aborted``: whose clients leave while it runs. False when there is nothing to run."""
        self.preempt()
        decoding = [one for one in self.running if one.decoding]
        for one in decoding:
            one.tokens += 1
        self.evict()
        budget = self.limits.max_num_batched_tokens - len(decoding)
        chunks = []
        for one in [one for one in self.running if not one.decoding]:
            tokens = min(one.left, budget, self.kv - self.used())
            if tokens <= 0:
                break
            self.fill(one, tokens)
            budget -= tokens
            chunks.append((one, tokens))
        while budget > 0 and self.used() < self.kv and len(self.running) < self.limits.max_num_seqs and self.queue:
            number, left, made = self.queue[0]
            one, job = Running(number, left, made), self.jobs[number]
            for name in job.blocks[: min(job.prompt // _BLOCK, (left - 1) // _BLOCK)]:
                if name not in self.resident():
                    break
                one.held.append(name)
            one.tokens, one.seen = _BLOCK * len(one.held), len(one.held)
            one.left -= one.tokens
            self.running.append(one)
            if self.used() >= self.kv:
                self.running.pop()
                break
            self.idle = [name for name in self.idle if name not in one.held]
            self.queue.pop(0)
            self.cached.setdefault(number, one.tokens)
            tokens = min(one.left, budget, self.kv - self.used())
            self.fill(one, tokens)
            budget -= tokens
            chunks.append((one, tokens))
        if not self.running:
            return False
        gone = [one for number in aborted for one in self.running if one.number == number]
        for one in gone:
            self.leave(one)
        self.queue = [entry for entry in self.queue if entry[0] not in aborted]
        for one in decoding:
            one.made += 1
        for one, _ in chunks:
            if one.left == 0 and one not in gone:
                one.decoding, one.made, one.tokens = True, one.made + 1, one.tokens + 1
        ended = [one for one in self.running if one.decoding and one.made == self.jobs[one.number].output]
        for one in sorted(ended, key=lambda one: one.number):
            self.leave(one)
        self.log.append(
            (
                [(one.number, tokens) for one, tokens in chunks if one not in gone],
                sorted(one.number for one in ended),
                self.used(),
                self.resident(),
            )
        )
        return True


def run_reference(jobs: list[Job], limits: ServerLimits) -> Reference:
    reference, step = Reference(jobs, limits), 0
    coming = sorted(range(len(jobs)), key=lambda n: (jobs[n].at_step, n))
    while True:
        while coming and jobs[coming[0]].at_step <= step:
            reference.enters(coming.pop(0))
        ran = reference.step([n for n, job in enumerate(jobs) if job.abort_step == step and n not in coming])
        if not ran and not coming:
            return reference
        step += 1


def run_engine(jobs: list[Job], limits: ServerLimits) -> tuple[list[tuple], dict[int, int]]:
    """The engine under test at the same steps: what each brought, and tokens found in the cache by request."""
    model, step, log, cached = build_server(_LAW, limits, _BLOCK), 0, [], {}
    coming = sorted(range(len(jobs)), key=lambda n: (jobs[n].at_step, n))
    now_ns = 0
    while True:
        while coming and jobs[coming[0]].at_step <= step:
            number = coming.pop(0)
            job = jobs[number]
            model.admit(
                request(number, "a", now_ns, job.prompt, job.output, prefix_blocks=job.blocks), now_ns, job.output
            )
        plan = model.plan(now_ns)
        for number, job in enumerate(jobs):
            if job.abort_step == step and number not in coming:
                gone = model.abort(number)
                if gone is not None and gone.cached_tokens is not None:
                    cached[number] = gone.cached_tokens
        if plan is not None:
            result = model.commit(1)
            now_ns = result.end_ns
            cached |= {s.id: s.cached_tokens for s in result.finished}
            chunks = [(s.id, tokens) for s, tokens in result.prefilled]
            log.append((chunks, sorted(s.id for s in result.finished), model.kv_tokens, model.resident_blocks()))
        elif not coming:
            return log, cached
        step += 1


@st.composite
def workloads(draw) -> tuple[list[Job], ServerLimits]:
    seqs = draw(st.integers(1, 5))
    limits = ServerLimits(
        max_num_seqs=seqs,
        max_num_batched_tokens=draw(st.integers(seqs, 40)),
        kv_tokens=draw(st.sampled_from([None, 56, 72, 120])),
        prefix_cache=True,
    )
    jobs = []
    for number in range(draw(st.integers(1, 12))):
        prompt = draw(st.integers(1, 36))
        family, shared = draw(st.integers(1, 2)), draw(st.integers(0, 9))
        own = draw(st.integers(0, 2))
        blocks = [100 * family + i for i in range(shared)] + [1000 * (number + 1) + i for i in range(own)]
        at_step = draw(st.integers(0, 40))
        abort = at_step + draw(st.integers(0, 20)) if draw(st.integers(0, 3)) == 0 else None
        jobs.append(Job(at_step, prompt, draw(st.integers(1, 16)), tuple(blocks[: -(-prompt // _BLOCK)]), abort))
    return sorted(jobs, key=lambda job: job.at_step), limits


@settings(max_examples=400, deadline=None, derandomize=True, database=None)
@given(workload=workloads())
def test_every_step_is_the_references(workload):
    """Chunks, ends, KV held, resident blocks after every step, and what each request found in the cache."""
    jobs, limits = workload
    reference = run_reference(jobs, limits)
    log, cached = run_engine(jobs, limits)
    assert log == reference.log
    assert cached == reference.cached


def test_the_random_workloads_hit_evict_and_preempt():
    """The comparison above is not vacuous: with these, blocks are found, evicted, and lost by preemption."""
    limits = ServerLimits(max_num_seqs=4, max_num_batched_tokens=40, kv_tokens=56, prefix_cache=True)
    jobs = [Job(3 * n, 20, 16, tuple(100 * (1 + n // 2 % 3) + i for i in range(4))) for n in range(12)]
    reference = run_reference(jobs, limits)
    assert sum(reference.cached.values()) > 0
    known = [entry[3] for entry in reference.log]
    assert any(before - after for before, after in pairwise(known)), "something was evicted"
    prefilled = sum(tokens for entry in reference.log for _, tokens in entry[0])
    assert prefilled + sum(reference.cached.values()) > sum(job.prompt for job in jobs), "something was computed twice"


def _alone(blocks_of: list[tuple[int, ...]], prompt: int, limits: ServerLimits) -> list[int]:
    """Cached tokens of equal prompts, one after the other's end."""
    model, found = build_server(_LAW, limits, _BLOCK), []
    for number, blocks in enumerate(blocks_of):
        model.admit(request(number, "a", 0, prompt, 2, prefix_blocks=blocks), 0, 2)
        while (plan := model.plan(0)) is not None:
            found += [s.cached_tokens for s in model.commit(plan.steps).finished]
    return found


def test_only_full_blocks_and_never_the_whole_prompt_are_found():
    """16 tokens in 4 blocks: one token must be prefilled, so 3 blocks are found; of 15 tokens the last block is not full."""
    on = ServerLimits(max_num_seqs=4, max_num_batched_tokens=64, prefix_cache=True)
    names = (1, 2, 3, 4)
    assert _alone([names, names], 16, on) == [0, 12]
    assert _alone([names, names], 17, on) == [0, 16]
    assert _alone([names, names], 15, on) == [0, 12]
    assert _alone([names, (1, 9, 3, 4)], 17, on) == [0, 4], "equal names count at the front only"
    assert _alone([names, names], 17, ServerLimits()) == [None, None], "off: nothing is known"


def test_the_last_of_a_prompt_goes_first_and_the_longest_unused_before_all():
    """Two prompts of two blocks, released one after the other: evicted one block at a time."""
    cache = PrefixCache(4)
    old, new = request(0, "a", prompt=8, prefix_blocks=(1, 2)), request(1, "a", prompt=8, prefix_blocks=(3, 4))
    for one in (old, new):
        cache.hold(one, 0)
        cache.computed(one, 8)
        cache.release(one.id)
    cache.settle()
    order = []
    for room in (12, 8, 4, 0):
        before = cache.resident()
        cache.fit(room)
        order += before - cache.resident()
    assert order == [2, 1, 4, 3]


def test_shared_blocks_are_resident_once():
    """Two requests with one prefix of 8 tokens: KV is 8 and what is each one's own."""
    model = build_server(_LAW, ServerLimits(max_num_seqs=4, max_num_batched_tokens=64, prefix_cache=True), _BLOCK)
    for number in range(2):
        model.admit(request(number, "a", 0, 10, 5, prefix_blocks=(1, 2)), 0, 5)
    model.plan(0)
    (reused,) = model.commit(1).reused
    assert reused[1] == 8, "the second finds what the first computes in the same step"
    assert model.kv_tokens == 8 + 2 * (2 + 1)


def test_a_hit_shortens_the_first_token_by_what_is_not_prefilled():
    """TTFT of the second request: b for each token that was not found, and nothing for the others; the outcome says so."""
    jobs = [request(n, "a", n * S, 1_000, 4, prefix_blocks=tuple(range(60))) for n in range(2)]
    limits = ServerLimits(max_num_seqs=4, max_num_batched_tokens=2_048, prefix_cache=True)
    first, second = simulate(dispatcher([tenant("a")]), {"a": build_server(_LAW, limits, 16)}, jobs)
    assert (first.cached_prompt_tokens, second.cached_prompt_tokens) == (0, 960)
    saved_ns = (first.first_token_ns - 0) - (second.first_token_ns - S)
    assert saved_ns == pytest.approx(960 * 20_000, abs=2)


@settings(max_examples=60, deadline=None, derandomize=True, database=None)
@given(
    n=st.integers(1, 12),
    blocks=st.integers(1, 8),
    own=st.integers(1, 9),
    gap_ms=st.sampled_from([0, 3, 40, 2_000]),
    replicas=st.integers(1, 3),
    tokens=st.integers(8, 64),
)
def test_a_common_prefix_is_computed_once_a_replica(n, blocks, own, gap_ms, replicas, tokens):
    """n prompts that share k blocks and no more, whenever they come: each replica that has any computes them once, so that
    all others find k * block tokens, to the token. In turns, so that min(n, replicas) replicas have one."""
    prompt = blocks * _BLOCK + own
    jobs = [
        request(
            i,
            "a",
            i * gap_ms * 1_000_000,
            prompt,
            3,
            prefix_blocks=(*range(blocks), *(1_000 * (i + 1) + j for j in range(3))),
        )
        for i in range(n)
    ]
    limits = ServerLimits(max_num_seqs=4, max_num_batched_tokens=tokens, prefix_cache=True)
    names = "abc"[:replicas]
    core = dispatcher([tenant("a")], backends=dict.fromkeys(names, Slots()), routing=Routing(rule=Rule.ROUND_ROBIN))
    outcomes = simulate(core, {name: build_server(_LAW, limits, _BLOCK) for name in names}, jobs)
    found = sorted(outcome.cached_prompt_tokens for outcome in outcomes)
    first = min(n, replicas)
    assert found == [0] * first + [blocks * _BLOCK] * (n - first)


def test_a_request_that_never_ran_found_nothing_that_is_known():
    """Its client leaves while another holds the only place in the batch: None, as without a cache; never 0."""
    jobs = [request(0, "a", 0, 100, 100), request(1, "a", 0, 100, 5, cancel_after_ns=20_000_000)]
    limits = ServerLimits(max_num_seqs=1, max_num_batched_tokens=64, prefix_cache=True)
    core = dispatcher([tenant("a")], sequences=None)
    outcomes = {o.request.id: o for o in simulate(core, {"a": build_server(_LAW, limits, 16)}, jobs)}
    assert (outcomes[1].status, outcomes[1].cached_prompt_tokens) == (Status.CANCELLED, None)
    assert outcomes[0].cached_prompt_tokens == 0
    off = msgspec.structs.replace(limits, prefix_cache=False)
    core = dispatcher([tenant("a")], sequences=None)
    assert {o.cached_prompt_tokens for o in simulate(core, {"a": build_server(_LAW, off, 16)}, jobs)} == {None}


def test_what_is_found_frees_the_prefill_slots():
    """With X = 2,000, a prompt of 10,000 tokens that is resident but for 16 lets the next one pass in one step."""
    jobs = [request(0, "a", 0, 10_000, 2, prefix_blocks=tuple(range(625)))]
    jobs += [request(n, "a", S, 10_000, 50, prefix_blocks=tuple(range(625))) for n in (1, 2)]
    limits = ServerLimits(max_num_seqs=4, max_num_batched_tokens=64, prefix_cache=True)
    core = dispatcher([tenant("a")], sequences=None, prefill_tokens=2_000)
    outcomes = {o.request.id: o for o in simulate(core, {"a": build_server(_LAW, limits, 16)}, jobs)}
    assert outcomes[2].dispatched_ns == outcomes[1].first_token_ns


@settings(max_examples=150, deadline=None, derandomize=True, database=None)
@given(workload=workloads(), replicas=st.integers(1, 2), which=st.sampled_from(["fifo", "wfq", "slo_aware"]))
def test_every_request_ends_once_also_when_its_client_leaves_in_the_step_that_found_its_prefix(
    workload, replicas, which
):
    """Through the whole simulator, with prefill slots and cancels at any instant: no loss, no duplicate, no slot kept."""
    jobs, limits = workload
    arrivals = [
        request(
            n,
            "a",
            job.at_step * 5_000_000,
            job.prompt,
            job.output,
            prefix_blocks=job.blocks,
            cancel_after_ns=None if job.abort_step is None else (job.abort_step - job.at_step) * 3_000_000 + 1,
        )
        for n, job in enumerate(jobs)
    ]
    names = "ab"[:replicas]
    core = dispatcher([tenant("a")], which, backends=dict.fromkeys(names, Slots(sequences=3, prefill_tokens=30)))
    outcomes = simulate(core, {name: build_server(_LAW, limits, _BLOCK) for name in names}, arrivals)
    assert sorted(o.request.id for o in outcomes) == list(range(len(jobs)))
    assert core.queued == core.outstanding == 0
