"""Continuous batching: macro-steps equal single steps to the picosecond, and no limit of the engine is ever broken."""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sched_support import request

from scheduler.server_model.batching import ContinuousBatch
from scheduler.server_model.build import build_server
from scheduler.server_model.plan import Plan
from scheduler.server_model.spec import (
    PRESETS,
    ServerLimits,
    ServerModelError,
    StepLaw,
    decode_server_model,
    encode_server_model,
    load_server_model,
    server_limits_of,
)

_LAW = StepLaw(a_us=5_000.0, b_us=21.7, c_us=0.35, d_us=0.038)
_ATTENDING = msgspec.structs.replace(_LAW, attended_us=1.5)


@dataclass
class Script:
    """What happens from outside: (instant ns, kind, id, prompt, output, priority), in order of time. ``blocks``: names of
    the blocks, of 4 tokens, at the front of each prompt."""

    limits: ServerLimits
    happenings: list[tuple[int, str, int, int, int, int]]
    blocks: dict[int, tuple[int, ...]] = field(default_factory=dict)
    law: StepLaw = _LAW

    def server(self) -> ContinuousBatch:
        return build_server(self.law, self.limits, 4)


@dataclass
class Seen:
    """What became of each request: exact stamps, tokens and how often it was preempted."""

    first_ps: dict[int, int] = field(default_factory=dict)
    last_ps: dict[int, int] = field(default_factory=dict)
    aborted: dict[int, int] = field(default_factory=dict)
    preemptions: dict[int, int] = field(default_factory=dict)
    cached: dict[int, int | None] = field(default_factory=dict)
    clock_ps: int = 0
    steps: int = 0


def run_macro(script: Script) -> Seen:
    """As the simulator drives it: whole runs, cut at the end of the step in progress when something happens."""
    return _run(script, single=False)


def run_single(script: Script) -> Seen:
    """As an engine in real time: one step after the other."""
    return _run(script, single=True)


def _run(script: Script, *, single: bool) -> Seen:
    model, seen = script.server(), Seen()
    happenings = list(script.happenings)
    now_ns = 0
    while True:
        plan = model.plan(now_ns)
        if plan is None:
            if not happenings:
                break
            now_ns = max(now_ns, happenings[0][0])
            _happen(script, model, happenings, now_ns, seen)
            continue
        steps = 1 if single else plan.steps
        # What comes during a run may take effect at the end of the step in which it comes.
        while happenings and happenings[0][0] < plan.end_ns(steps):
            at_ns = happenings[0][0]
            steps = min(steps, plan.steps_until(at_ns))
            _happen(script, model, happenings, at_ns, seen)
        result = model.commit(steps)
        seen.steps += steps
        now_ns = result.end_ns
        for sequence in result.first_tokens:
            seen.first_ps[sequence.id] = sequence.first_ps
        for sequence in result.finished:
            seen.last_ps[sequence.id] = sequence.last_ps
            seen.preemptions[sequence.id] = sequence.preemptions
            seen.cached[sequence.id] = sequence.cached_tokens
        seen.clock_ps = plan.end_ps(steps)
        # What comes at the very end of a step comes after it.
        while happenings and happenings[0][0] <= now_ns:
            _happen(script, model, happenings, now_ns, seen)
    return seen


def _happen(script: Script, model: ContinuousBatch, happenings: list, now_ns: int, seen: Seen) -> None:
    while happenings and happenings[0][0] <= now_ns:
        _, kind, number, prompt, output, priority = happenings.pop(0)
        if kind == "admit":
            blocks = script.blocks.get(number, ())
            what = request(number, "a", now_ns, prompt, output, priority=priority, prefix_blocks=blocks)
            model.admit(what, now_ns, output)
        else:
            tokens = model.tokens_of(number, now_ns)
            if model.abort(number) is not None:
                seen.aborted[number] = tokens


@st.composite
def scripts(draw, *, aborts: bool = True) -> Script:
    drafts = draw(st.sampled_from([0, 0, 0, 1, 3]))
    kv = draw(st.sampled_from([None, 67, 90, 150, 400]))
    seqs = draw(st.integers(1, 8))
    limits = ServerLimits(
        max_num_seqs=seqs,
        max_num_batched_tokens=draw(st.integers(seqs * (1 + drafts), 80)),
        kv_tokens=kv,
        priority_queue=draw(st.booleans()),
        prefix_cache=draw(st.booleans()),
        speculative_tokens=drafts,
        speculative_acceptance=draw(st.sampled_from([0.0, 0.6, 1.0])),
    )
    families = st.builds(
        lambda family, shared, own: tuple(100 * family + i for i in range(shared)) + own,
        st.integers(1, 2),
        st.integers(0, 9),
        st.lists(st.integers(1000, 1002), max_size=2, unique=True).map(tuple),
    )
    happenings, blocks = [], {}
    at_ns = 0
    for number in range(draw(st.integers(1, 14))):
        at_ns += draw(st.integers(0, 60_000_000))
        prompt = draw(st.integers(1, 40))
        output = draw(st.integers(1, 24))
        blocks[number] = draw(families)[: -(-prompt // 4)]
        happenings.append((at_ns, "admit", number, prompt, output, draw(st.integers(0, 2))))
        if aborts and draw(st.integers(0, 3)) == 0:
            happenings.append((at_ns + draw(st.integers(0, 200_000_000)), "abort", number, 0, 0, 0))
    order = sorted(happenings, key=lambda h: (h[0], h[1] != "admit"))
    return Script(limits, order, blocks, draw(st.sampled_from([_LAW, _ATTENDING])))


_PROFILE = settings(max_examples=250, deadline=None, derandomize=True, database=None)


@_PROFILE
@given(script=scripts())
def test_macro_steps_are_single_steps(script):
    """Every stamp to the picosecond, every count and every preemption: a run is its steps."""
    assert run_macro(script) == run_single(script)


def test_the_random_workloads_do_preempt():
    """The property above is not vacuous: a small KV cache forces preemption, and recomputation delays the victim."""
    script = Script(
        ServerLimits(max_num_seqs=4, max_num_batched_tokens=64, kv_tokens=64),
        [(0, "admit", n, 20, 24, 0) for n in range(3)],
    )
    seen = run_macro(script)
    assert sum(seen.preemptions.values()) > 0
    assert seen.preemptions[0] == 0, "the oldest is never the victim"
    assert seen == run_single(script)


@_PROFILE
@given(script=scripts())
def test_no_limit_is_ever_broken(script):
    """KV, sequences and the token budget of every step; each request gets exactly its tokens, one a step while it decodes (with
    drafts, 1 to k + 1)."""
    limits = script.limits
    kv_limit = limits.kv_tokens or 1 << 60
    model = script.server()
    happenings = list(script.happenings)
    wanted = {h[2]: h[4] for h in happenings if h[1] == "admit"}
    prompts = {h[2]: h[3] for h in happenings if h[1] == "admit"}
    tokens = dict.fromkeys(wanted, 0)
    prefilled = dict.fromkeys(wanted, 0)
    done, now_ns = set(), 0
    gone = Seen()
    while True:
        plan = model.plan(now_ns)
        if plan is None:
            if not happenings:
                break
            now_ns = max(now_ns, happenings[0][0])
            _happen(script, model, happenings, now_ns, gone)
            continue
        assert model.running <= limits.max_num_seqs
        held = model.kv_tokens
        result = model.commit(1, emitted=True)
        now_ns = result.end_ns
        chunks = sum(count for _, count in result.prefilled)
        first_of_prompt = {s.id for s in result.first_tokens} | {s.id for s, _ in result.resumed}
        decoded = sum(result.emitted.values()) - len(first_of_prompt)
        assert chunks + decoded <= limits.max_num_batched_tokens
        assert held + chunks + decoded <= kv_limit, "what the batch holds and what the step adds fit into the cache"
        for number, count in result.emitted.items():
            assert 1 <= count <= limits.tokens_a_step
            tokens[number] += count
        for sequence, count in result.prefilled:
            prefilled[sequence.id] += count
        for sequence in result.finished:
            assert tokens[sequence.id] == wanted[sequence.id]
            found = sequence.cached_tokens or 0
            assert (sequence.cached_tokens is None) is not limits.prefix_cache
            if sequence.preemptions == 0:
                assert prefilled[sequence.id] == prompts[sequence.id] - found
            elif not limits.prefix_cache:
                assert prefilled[sequence.id] > prompts[sequence.id], "what was preempted is computed again"
            done.add(sequence.id)
        if happenings and happenings[0][0] <= now_ns:
            _happen(script, model, happenings, now_ns, gone)
    assert done | set(gone.aborted) == set(wanted), "every request ends"
    assert model.kv_tokens == model.running == model.waiting == 0


@_PROFILE
@given(script=scripts(aborts=False))
def test_first_tokens_come_in_order_of_admission(script):
    """Chunked prefill serves the engine's queue in order: without priorities and preemption nobody overtakes."""
    limits = ServerLimits(
        max_num_seqs=script.limits.max_num_seqs, max_num_batched_tokens=script.limits.max_num_batched_tokens
    )
    seen = run_single(Script(limits, script.happenings))
    stamps = [seen.first_ps[number] for number in sorted(seen.first_ps)]
    assert stamps == sorted(stamps)


def test_a_step_takes_what_its_law_says():
    """One request alone: prefill a + 30 b, then each decode step a + c + d * context, by hand."""
    model = ContinuousBatch(_LAW, ServerLimits(max_num_seqs=4, max_num_batched_tokens=20))
    model.admit(request(0, "a", 0, 30, 3), 0, 3)
    ends = []
    while (plan := model.plan(0)) is not None:
        ends += [plan.end_ps(k) for k in range(1, plan.steps + 1)]
        model.commit(plan.steps)
    a, b, c, d = (round(v * 1e6) for v in (_LAW.a_us, _LAW.b_us, _LAW.c_us, _LAW.d_us))
    steps = [a + 20 * b, a + 10 * b, a + c + 31 * d, a + c + 32 * d]
    assert ends == [sum(steps[: k + 1]) for k in range(4)]


def test_a_prefilled_token_attends_to_all_before_it_and_to_itself():
    """By counting: the k-th token of a prompt attends to k tokens, whichever chunk it comes in; decodes add nothing."""
    model = ContinuousBatch(_ATTENDING, ServerLimits(max_num_seqs=4, max_num_batched_tokens=20))
    plain = ContinuousBatch(_LAW, model.limits)
    extra_ps = []
    for one in (model, plain):
        one.admit(request(0, "a", 0, 30, 2), 0, 2)
        one.admit(request(1, "a", 0, 15, 2), 0, 2)
    while (plan := model.plan(0)) is not None:
        without = plain.plan(0)
        extra_ps.append(plan.first_ps - without.first_ps)
        model.commit(plan.steps)
        plain.commit(without.steps)
    chunks = [[range(1, 21)], [range(21, 31), range(1, 11)], [range(11, 16)], []]
    pairs = [sum(sum(ranks) for ranks in step) for step in chunks]
    assert extra_ps == [1_500_000 * count for count in pairs]


def test_what_a_prefix_cache_finds_is_attended_to_but_not_prefilled():
    """The second of two equal prompts of 12 tokens, 8 of them resident: its 4 others attend to 9, 10, 11 and 12."""
    limits = ServerLimits(max_num_seqs=4, max_num_batched_tokens=40, prefix_cache=True)
    model = build_server(_ATTENDING, limits, 4)
    for number in range(2):
        model.admit(request(number, "a", 0, 12, 1, prefix_blocks=(7, 8, 9)), 0, 1)
        plan = model.plan(0)
        model.commit(1)
    a, b = (round(v * 1e6) for v in (_LAW.a_us, _LAW.b_us))
    assert plan.first_ps == a + 4 * b + (9 + 10 + 11 + 12) * 1_500_000


def test_chunks_follow_the_budget_left_by_decoding():
    """A decoding sequence takes one token of the budget; the rest goes to prompts in order, chunk by chunk."""
    model = ContinuousBatch(_LAW, ServerLimits(max_num_seqs=4, max_num_batched_tokens=10))
    for number, prompt in enumerate((4, 12, 9)):
        model.admit(request(number, "a", 0, prompt, 20), 0, 20)
    chunks = []
    for _ in range(3):
        model.plan(0)
        chunks.append([(s.id, count) for s, count in model.commit(1).prefilled])
    assert chunks == [[(0, 4), (1, 6)], [(1, 6), (2, 3)], [(2, 6)]]


def test_a_request_that_can_never_fit_is_refused():
    model = ContinuousBatch(_LAW, ServerLimits(kv_tokens=50))
    with pytest.raises(ValueError, match="can never fit"):
        model.admit(request(0, "a", 0, 30, 21), 0, 21)
    with pytest.raises(ValueError, match="at least one"):
        model.admit(request(0, "a", 0, 30, 1), 0, 0)
    model.admit(request(0, "a", 0, 30, 20), 0, 20)
    with pytest.raises(ValueError, match="already"):
        model.admit(request(0, "a", 0, 30, 20), 0, 20)


def test_only_what_is_in_flight_can_be_committed():
    model = ContinuousBatch(_LAW, ServerLimits())
    with pytest.raises(ValueError, match="0 steps"):
        model.commit(1)
    model.admit(request(0, "a", 0, 5, 5), 0, 5)
    model.plan(0)
    with pytest.raises(ValueError, match="1 steps"):
        model.commit(2)


def test_priority_queue_admits_the_lower_number_first():
    """Among waiting requests; what runs keeps running."""
    model = ContinuousBatch(_LAW, ServerLimits(max_num_seqs=1, max_num_batched_tokens=64, priority_queue=True))
    for number, priority in enumerate((5, 3, 1)):
        model.admit(request(number, "a", 0, 5, 1, priority=priority), 0, 1)
    order = []
    while model.plan(0) is not None:
        order += [s.id for s in model.commit(1).finished]
    assert order == [2, 1, 0]


def test_a_server_model_file_is_read_back(tmp_path):
    """Round trip; and a file of another kind or a newer major version is refused by name."""
    spec = PRESETS["h200-llama-8b"]
    path = tmp_path / "server.json"
    path.write_bytes(encode_server_model(spec))
    assert load_server_model(str(path)) == spec
    assert load_server_model("h200-llama-8b") == spec
    with pytest.raises(ServerModelError, match="h200-llama-8b"):
        load_server_model("h100")
    newer = encode_server_model(spec).replace(b"server-model/1.0", b"server-model/2.0")
    with pytest.raises(ServerModelError, match=r"2\.0"):
        decode_server_model(newer, where="here")
    for wrong, said in ((b"0.0", "a_us must be > 0"), (b"4e12", "a_us is in microseconds, at most an hour")):
        with pytest.raises(ServerModelError, match=said):
            decode_server_model(encode_server_model(spec).replace(str(spec.law.a_us).encode(), wrong), where="here")


@pytest.mark.parametrize(
    ("part", "term", "on", "off"),
    [
        ("law", "e_us", 0.5, 0.0),
        ("law", "launch_us", 13_000.0, 0.0),
        ("law", "launch_tail_us", 900.0, 0.0),
        ("law", "launch_idle_us", 7_000.0, 0),
        ("law", "offset_per_sequence_us", 144.0, 0.0),
        ("limits", "async_scheduling", True, False),
    ],
)
def test_a_file_with_terms_of_earlier_versions_is_read_while_they_are_off(part, term, on, off):
    """A retired term that is off changes nothing; one that is on is refused by its name and with what to do."""
    spec = PRESETS["h200-llama-8b"]
    data = msgspec.to_builtins(spec)
    data[part][term] = off
    assert decode_server_model(msgspec.json.encode(data), where="old.json") == spec
    data[part][term] = on
    with pytest.raises(ServerModelError, match=rf"^server model old\.json: {part}\.{term} is .* calibrate again"):
        decode_server_model(msgspec.json.encode(data), where="old.json")


def test_the_limits_of_a_captured_server_are_read_whatever_its_law_had():
    """Runs of the embedded server keep its model: those of an earlier version can still be calibrated."""
    spec = PRESETS["h200-llama-8b"]
    data = msgspec.to_builtins(spec)
    data["law"]["offset_per_sequence_us"] = 144.0
    assert server_limits_of(data, where="old run") == spec.limits
    data["limits"]["max_num_seqs"] = 0
    with pytest.raises(ServerModelError, match=r"old run: .*max_num_seqs"):
        server_limits_of(data, where="old run")


def test_a_file_with_a_term_that_never_was_is_refused():
    """What nobody knows is not ignored."""
    data = msgspec.to_builtins(PRESETS["h200-llama-8b"])
    data["law"]["f_us"] = 0.0
    with pytest.raises(ServerModelError, match="f_us"):
        decode_server_model(msgspec.json.encode(data), where="odd.json")


@given(
    start_ps=st.integers(0, 10**15),
    first_ps=st.integers(1, 10**11),
    growth_ps=st.one_of(st.just(0), st.integers(0, 10**9)),
    steps=st.integers(1, 300),
    share=st.floats(-0.1, 1.2),
    off_ns=st.integers(-1, 1),
)
def test_a_run_is_cut_at_the_first_step_that_ends_at_or_after_now(start_ps, first_ps, growth_ps, steps, share, off_ns):
    """On the ns clock, at most after its last step; by trying one step after the other."""
    plan = Plan(start_ps, first_ps, growth_ps, steps)
    now_ns = plan.end_ns(max(1, round(steps * share))) + off_ns
    assert plan.steps_until(now_ns) == next((k for k in range(1, steps) if plan.end_ns(k) >= now_ns), steps)
