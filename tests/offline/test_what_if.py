"""What if: a captured trace with one thing different, against the trace as it was."""

from __future__ import annotations

import io
import json
from contextlib import chdir, redirect_stderr, redirect_stdout
from dataclasses import replace
from itertools import islice

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lmperf.__main__ import main
from lmperf.scenario.faults import ScenarioError
from lmperf.wiring.captured import CapturedRun
from lmperf.wiring.doubts import NothingRunsError, doubts_of, too_long
from lmperf.wiring.offline import as_captured, policy_choices
from lmperf.wiring.what_if.alternatives import Alternative
from lmperf.wiring.what_if.applied import apply
from lmperf.wiring.what_if.compared import compare
from lmperf.wiring.what_if.settings import parse_what_if
from loadgen.offline.cell import ReplayRecipe, run_cell
from loadgen.offline.experiment import PolicyChoice
from loadgen.offline.rows import only_tenants, with_copy
from loadgen.trace.convert import write_trace
from loadgen.trace.reader import read_trace
from loadgen.trace.schema import TraceMetadata
from loadgen.workload.replay import ReplayRows
from scheduler.cost import CostModel
from scheduler.request import Outcome, Request, Status, TokensSource
from scheduler.server_model.spec import ServerLimits, ServerModelSpec, StepLaw, encode_server_model
from scheduler.slots import Slots
from tenants.slo import Slo
from tenants.tenant import Tenant

S = 1_000_000_000
MS = 1_000_000
SERVICE_MS = 50
SERVER = ServerModelSpec(
    name="one-at-a-time",
    law=StepLaw(a_us=SERVICE_MS * 1000.0, b_us=0.0),
    limits=ServerLimits(max_num_seqs=1, max_num_batched_tokens=1000),
)
NAMES = ("chat", "batch")


def rows(times_ms, tenants, *, after=None):
    n = len(times_ms)
    return ReplayRows(
        arrival_ns=np.array(times_ms, dtype=np.int64) * MS,
        prompt_tokens=np.arange(10, 10 + n, dtype=np.int64),
        output_tokens=np.ones(n, dtype=np.int64),
        tenant=np.array(tenants, dtype=np.int64),
        after_row=None if after is None else np.array(after, dtype=np.int64),
        think_ns=None if after is None else np.zeros(n, dtype=np.int64),
    )


def captured(tmp_path, played, *, span_ms=20_000):
    """A captured run of the two tenants whose rows are ``played``."""
    tenants = tuple(Tenant(name=name, slo=Slo(ttft_ns=80 * MS, attainment=0.9)) for name in NAMES)
    write_trace(tmp_path / "t.parquet", [], TraceMetadata())
    return CapturedRun(
        trace=read_trace(tmp_path / "t.parquet"),
        tenants=tenants,
        policy=PolicyChoice(label="fifo", policy="fifo"),
        slots=Slots(sequences=1),
        cost=CostModel(),
        window_ns=(0, span_ms * MS),
        recipe=ReplayRecipe(played, tenants, start_ns=0, end_ns=span_ms * MS),
    )


@pytest.fixture
def run(tmp_path):
    """200 requests in 20 s, 100 ms apart, two thirds of chat's: half of what the server can take."""
    return captured(tmp_path, rows(range(0, 20_000, 100), [int(i % 3 == 2) for i in range(200)]))


FIFO = policy_choices("fifo")


def compared(run, *sets):
    alternative = Alternative(", ".join(sets), parse_what_if(sets, run))
    (comparison,) = compare([alternative], run, SERVER, FIFO, processes=1).comparisons
    return comparison, comparison.verdicts[0]


def test_a_difference_that_is_none_changes_nothing(run):
    """Equal weights doubled, one replica: both sides are the same run."""
    comparison, verdict = compared(run, "replicas=1", "rate=1")
    assert comparison.noisy == ()
    assert verdict.decay_all.value == 1.0
    assert verdict.baseline == verdict.raised


def test_as_captured_is_the_plain_replay(run):
    """The side that nothing was changed on is the cell that `simulate TRACE` shows."""
    _, verdict = compared(run, "rate=2")
    plain = run_cell(as_captured(run, SERVER, FIFO[0])).tenants["chat"]
    assert verdict.baseline["chat"].ttft_p99.value == plain.ttft_p99.value_ns
    assert verdict.baseline["chat"].attainment.value == plain.attainment


def test_who_is_removed_is_in_contract_in_no_case(run):
    """Also when the load of all others grows, so that nobody's stays as it was."""
    comparison, verdict = compared(run, "tenants.batch.remove=true", "rate=1.5")
    assert (comparison.in_contract, comparison.removed) == (("chat",), ("batch",))
    assert verdict.worst_attainment.value == verdict.raised["chat"].attainment.value


def test_all_arrivals_scaled(run):
    """D/D/1: 10 requests/s of 50 ms wait for nobody, 30 are half as many again as the server takes, so nearly all are
    late; two replicas take them."""
    comparison, verdict = compared(run, "rate=3")
    assert comparison.noisy == NAMES
    assert verdict.baseline["chat"].attainment.value == 1.0
    assert verdict.raised["chat"].attainment.value < 0.1
    _, relieved = compared(run, "rate=3", "replicas=2")
    assert relieved.raised["chat"].attainment.value == 1.0


def test_one_tenants_load_multiplied_leaves_the_other_as_it_was(run):
    """Only its rows are cycled; the others keep their times to the nanosecond."""
    changed = apply(parse_what_if(["tenants.batch.rate=2"], run), run, SERVER)
    source = changed.captured.recipe.source(0, changed.growth)
    arrived = {name: [] for name in NAMES}
    for request in source.absolute():
        arrived[request.tenant].append(request.arrival_ns)
    own = run.recipe.rows
    assert arrived["chat"] == own.arrival_ns[own.tenant == 0].tolist()
    assert len(arrived["batch"]) == 2 * int((own.tenant == 1).sum())


def test_a_removed_tenant_is_gone_and_the_rest_is_as_if_it_had_never_been(run, tmp_path):
    """The same figures as a trace that never held it, and none for the one that went."""
    comparison, verdict = compared(run, "tenants.batch.remove=true")
    assert (comparison.noisy, comparison.in_contract, comparison.removed) == ((), ("chat",), ("batch",))
    mine = run.recipe.rows.tenant == 0
    alone = replace(
        run,
        tenants=run.tenants[:1],
        recipe=replace(
            run.recipe,
            tenants=run.tenants[:1],
            rows=ReplayRows(
                arrival_ns=run.recipe.rows.arrival_ns[mine],
                prompt_tokens=run.recipe.rows.prompt_tokens[mine],
                output_tokens=run.recipe.rows.output_tokens[mine],
                tenant=np.zeros(int(mine.sum()), dtype=np.int64),
            ),
        ),
    )
    expected = run_cell(as_captured(alone, SERVER, FIFO[0])).tenants["chat"]
    assert verdict.raised["chat"].ttft_p99.value == expected.ttft_p99.value_ns
    assert verdict.raised["batch"].ttft_p99.value is None
    assert verdict.raised["batch"].attainment.value is None
    assert verdict.baseline["batch"].attainment.value == 1.0


def test_an_added_tenant_sends_what_the_other_does_at_other_times(run):
    """As many requests of the same lengths, promised the same, turned round the trace; the original is untouched."""
    comparison, verdict = compared(run, "tenants.more.add_like=chat")
    assert comparison.noisy == ("more",)
    assert set(verdict.raised) == {"chat", "batch", "more"}
    assert verdict.baseline["more"].attainment.value is None
    changed = apply(parse_what_if(["tenants.more.add_like=chat"], run), run, SERVER)
    new, old = changed.captured.recipe.rows, run.recipe.rows
    mine, like = new.tenant == 2, old.tenant == 0
    assert sorted(new.prompt_tokens[mine]) == sorted(old.prompt_tokens[like])
    assert sorted(new.arrival_ns[mine]) != sorted(old.arrival_ns[like])
    assert new.arrival_ns[: len(old)].tolist() == old.arrival_ns.tolist()
    assert new.arrival_ns.max() <= old.arrival_ns.max()
    assert changed.captured.tenants[2].slo == run.tenants[0].slo


def test_slots_server_and_weight_are_set(run):
    """Each reaches what it names, and nothing else. A server that takes four at once makes nobody wait for more than the
    step in progress and its own."""
    sets = ["slots.sequences=4", "slots.prefill_tokens=null", "server.max_num_seqs=4", "tenants.chat.weight=3"]
    changed = apply(parse_what_if(sets, run), run, SERVER)
    assert changed.captured.slots == Slots(sequences=4)
    assert changed.server.limits == ServerLimits(max_num_seqs=4, max_num_batched_tokens=1000)
    assert changed.server.law == SERVER.law
    assert [tenant.weight for tenant in changed.captured.tenants] == [3.0, 1.0]
    _, verdict = compared(run, "rate=3", "slots.sequences=4", "server.max_num_seqs=4")
    assert verdict.raised["chat"].ttft_p99.value <= 2 * SERVICE_MS * MS


def test_a_closed_loop_that_is_multiplied_plays_recorded_times_on_both_sides(tmp_path):
    """The gaps of users are the server's answer times, so there is nothing to divide otherwise."""
    loop = captured(tmp_path, rows([0, 100, 200, 300], [0, 0, 0, 1], after=[-1, 0, 1, -1]), span_ms=400)
    changed = apply(parse_what_if(["tenants.chat.rate=2"], loop), loop, SERVER)
    assert changed.captured.recipe.recorded
    assert not apply(parse_what_if(["slots.sequences=2"], loop), loop, SERVER).captured.recipe.recorded
    _, verdict = compared(loop, "tenants.chat.rate=2")
    assert verdict.raised["chat"].attainment.value is not None


FAULTS = [
    (["tenants.caht.rate=2"], "did you mean `chat`"),
    (["tenants.caht.remove=true"], "no such tenant"),
    (["tenants.new.add_like=nobody"], "there is no 'nobody'"),
    (["tenants.chat.add_like=batch"], "name of its own"),
    (["tenants.chat.remove=true", "tenants.batch.remove=true"], "every tenant is removed"),
    (["tenants.chat.remove=2"], "neither true nor false"),
    (["tenants.chat.colour=2"], "unknown key"),
    (["rate=0"], "no number above 0"),
    (["rate=1.1", "replicas=2", "rate=4"], "rate: is given twice, rate=1.1 and rate=4"),
    (["rate=2", "rate=2"], "rate: is given twice, rate=2 and rate=2"),
    (
        ["replicas=2", "routing=session", "routing.rule=prefix"],
        "is given twice, routing=session and routing.rule=prefix",
    ),
    (["replicas=1.5"], "no whole number"),
    (["slots.seqs=2"], "known: prefill_tokens, sequences"),
    (["routing=prefx", "replicas=2"], "did you mean `prefix`?"),
    (["routing=[1]", "replicas=2"], "there is no rule [1]"),
    (["routing=prefix"], "chooses between servers, and there is one"),
    (["routing.slack=3", "replicas=2"], "bound of the rule `prefix`, and the rule is `least_work`"),
    (["routing=prefix", "routing.slack=-1", "replicas=2"], "no number of cost units from 0"),
    (["routing.rules=prefix", "replicas=2"], "known: rule, slack"),
    (["server.speed=2"], "max_num_seqs"),
    (["duration_s=5"], "a trace has no scenario"),
    (["replicas=1000000000"], "replicas: 1,000,000,000 is too many; at most 1,000"),
    (["slots.sequences=10000000000000000000"], "is too many"),
    (["tenants.chat.remove=true", "tenants.chat.rate=2"], "tenants.chat.remove: contradicts tenants.chat.rate;"),
    (["tenants.chat.weight=2", "tenants.chat.remove=true"], "tenants.chat.remove: contradicts tenants.chat.weight;"),
    (["tenants.new.add_like=chat", "tenants.new.remove=true"], "tenants.new.remove: contradicts tenants.new.add_like;"),
]


@pytest.mark.parametrize(("sets", "words"), FAULTS, ids=[sets[0] for sets, _ in FAULTS])
def test_what_a_trace_cannot_be_asked_is_refused_with_what_it_can(run, sets, words):
    """Every fault names the setting and what would be right."""
    with pytest.raises(ScenarioError, match="--set") as raised:
        parse_what_if(sets, run)
    assert words in str(raised.value)


@pytest.mark.parametrize(
    "sets",
    [
        ["tenants.new.add_like=chat", "tenants.new.rate=2", "tenants.new.weight=2"],
        ["tenants.new.add_like=chat", "tenants.chat.remove=true"],
        ["tenants.chat.remove=false", "tenants.chat.rate=2"],
    ],
)
def test_settings_that_go_together_are_taken(run, sets):
    """An added tenant has a rate of its own; who is like one that goes takes its place; false removes nobody."""
    assert apply(parse_what_if(sets, run), run, SERVER).captured.tenants


LOADS = [
    (
        ["rate=1e5"],
        "--set: rate: makes 20,000,000 requests of 200, more than 10,000,000 in one alternative; up to 50,000",
    ),
    (["rate=1e9"], "makes 200,000,000,000 requests"),
    (["rate=1e300", "tenants.chat.rate=1e300"], "tenants.chat.rate: makes inf requests"),
    (["tenants.chat.rate=1e6"], "tenants.chat.rate: makes 134,000,066 requests of 200"),
    (["tenants.new.add_like=batch", "tenants.new.rate=1e6"], "tenants.new.rate: makes 66,000,200 requests of 266"),
    (["rate=1e-9"], "--set: rate: puts arrivals later than 64 bits of nanoseconds"),
    (["rate=1e-200", "tenants.chat.rate=1e-200"], "tenants.chat.rate: puts arrivals later"),
    (["tenants.chat.weight=1e-320"], "tenants.chat.weight: makes a weight that no float can hold"),
]


@pytest.mark.parametrize(("sets", "words"), LOADS, ids=[" ".join(sets) for sets, _ in LOADS])
def test_a_load_that_cannot_be_simulated_is_refused_with_its_count(run, sets, words):
    """134 requests of chat, 66 of batch, in 20 s; a weight halved by 320 decimals is half as much again below any float."""
    half = replace(run, tenants=tuple(replace(tenant, weight=1e-10) for tenant in run.tenants))
    with pytest.raises(ScenarioError) as raised:
        apply(parse_what_if(sets, half), half, SERVER)
    assert words in str(raised.value)


def test_a_load_of_which_nothing_is_measured_is_refused(run):
    """The window begins at 10 s; arrivals begin at 0. Half the load leaves half of them, a thousandth none."""
    late = replace(run, window_ns=(10 * S, 20 * S))
    assert apply(parse_what_if(["rate=0.5"], late), late, SERVER).growth == {"chat": 0.5, "batch": 0.5}
    with pytest.raises(ScenarioError, match=r"--set: rate: leaves none of the 100 requests in the measured window"):
        apply(parse_what_if(["rate=1e-6"], late), late, SERVER)
    with pytest.raises(
        ScenarioError, match=r"tenants.batch.rate: leaves none of the 33 requests of batch in the measured"
    ):
        apply(parse_what_if(["tenants.batch.rate=1e-6"], late), late, SERVER)


def test_a_load_multiplied_far_keeps_its_times(tmp_path):
    """Of 20 requests in 11 days 400,000: the i-th arrives after i gaps of 2.5 s, to the ns, though the sum of all cycles is
    far beyond 64 bits of ns."""
    gap_ms = 50_000_000
    long = captured(tmp_path, rows(range(0, 20 * gap_ms, gap_ms), [0] * 20), span_ms=20 * gap_ms)
    changed = apply(parse_what_if(["rate=2e4"], long), long, SERVER)
    source = changed.captured.recipe.source(0, changed.growth)
    assert source.expected_requests == 400_000
    for i, request in enumerate(islice(source.absolute(), 0, None, 9_973)):
        assert request.arrival_ns == i * 9_973 * 2_500_000_000


def test_limits_that_no_server_has_are_refused(run):
    """The budget of a step holds at least a token of every sequence."""
    with pytest.raises(ScenarioError, match="max_num_batched_tokens"):
        apply(parse_what_if(["server.max_num_seqs=4000"], run), run, SERVER)


# -- answers that would be none --------------------------------------------------------------------------------------


def limited(**limits):
    """The server with other limits."""
    return msgspec.structs.replace(SERVER, limits=msgspec.structs.replace(SERVER.limits, **limits))


def test_requests_that_can_never_run_are_told_with_what_they_would_need(run):
    """Row i has 10 + i prompt tokens and 1 of output: 200 rows need 11 to 210 tokens, drafts on top."""
    assert too_long(run, SERVER) == too_long(run, limited(kv_tokens=210)) == ""
    assert too_long(run, limited(kv_tokens=110)).startswith(
        "100 of 200 requests need more KV than the cache holds (110 tokens; the longest needs 210)"
    )
    assert too_long(run, limited(kv_tokens=110, speculative_tokens=2)).startswith("102 of 200")
    with pytest.raises(NothingRunsError, match=r"200 of 200 requests need more KV than the cache holds \(10 tokens"):
        too_long(run, limited(kv_tokens=10))


def test_policies_that_have_no_queue_to_differ_in_are_told(run):
    """Unlimited slots and two policies; not with one, with a limit, or where the server's own queue heeds priorities."""
    free, two = replace(run, slots=Slots()), policy_choices("fifo,wfq")
    (note,) = doubts_of(free, SERVER, two)
    assert "slots are unlimited" in note
    assert "--set slots.sequences=1" in note
    assert doubts_of(free, SERVER, FIFO) == doubts_of(run, SERVER, two) == []
    assert doubts_of(free, limited(priority_queue=True), two) == []
    limited_by = apply(parse_what_if(["slots.prefill_tokens=9"], free), free, SERVER).captured
    assert doubts_of(limited_by, SERVER, two) == []


# -- rows ------------------------------------------------------------------------------------------------------------


@st.composite
def chains(draw):
    """Rows of three tenants in order of arrival; some came because an earlier row of their tenant had ended."""
    n = draw(st.integers(2, 25))
    times = sorted(draw(st.lists(st.integers(0, 5000), min_size=n, max_size=n, unique=True)))
    tenants = draw(st.lists(st.integers(0, 2), min_size=n, max_size=n))
    after, used = [], set()
    for row in range(n):
        causes = [c for c in range(row) if tenants[c] == tenants[row] and c not in used]
        cause = draw(st.sampled_from([-1, *causes]))
        used.add(cause)
        after.append(cause)
    return rows(times, tenants, after=after)


def links(played):
    """Every (cause, effect) by the prompt lengths that identify the rows."""
    return {
        (int(played.prompt_tokens[cause]), int(played.prompt_tokens[row]))
        for row, cause in enumerate(played.after_row.tolist())
        if cause >= 0
    }


@given(played=chains(), kept=st.sets(st.integers(0, 2), min_size=1))
@settings(max_examples=60, deadline=None)
def test_rows_of_some_tenants_keep_their_causes(played, kept):
    """Exactly the rows of those tenants, with exactly the links between them."""
    order = sorted(kept)
    found = only_tenants(played, order)
    mine = np.isin(played.tenant, order)
    assert found.prompt_tokens.tolist() == played.prompt_tokens[mine].tolist()
    assert [order[code] for code in found.tenant] == played.tenant[mine].tolist()
    within = set(found.prompt_tokens.tolist())
    assert links(found) == {(cause, row) for cause, row in links(played) if {cause, row} <= within}


@given(played=chains(), like=st.integers(0, 2), turn=st.floats(0, 0.999))
@settings(max_examples=60, deadline=None)
def test_a_copy_has_no_cause_after_its_effect_and_stays_in_the_trace(played, like, turn):
    """The original rows first and unchanged; the copy's times inside the span; its causes are of the copy, and earlier."""
    found = with_copy(played, like, 3, turn)
    n = len(played)
    assert found.arrival_ns[:n].tolist() == played.arrival_ns.tolist()
    assert found.after_row[:n].tolist() == played.after_row.tolist()
    assert len(found) == n + int((played.tenant == like).sum())
    assert ((found.arrival_ns >= played.arrival_ns.min()) & (found.arrival_ns <= played.arrival_ns.max())).all()
    for row in range(n, len(found)):
        cause = int(found.after_row[row])
        if cause >= 0:
            assert cause >= n
            assert found.arrival_ns[cause] < found.arrival_ns[row]


def test_prompt_blocks_follow_their_rows():
    """Each row's blocks are its own, whoever is left out or copied."""
    blocks = [[1], [2, 3], [], [4, 5, 6]]
    played = replace(
        rows([0, 10, 20, 30], [0, 1, 0, 1]),
        block_offsets=np.cumsum([0, *map(len, blocks)]),
        block_ids=np.concatenate([np.array(b, dtype=np.int64) for b in blocks]),
    )

    def of(found):
        return [
            found.block_ids[start:end].tolist()
            for start, end in zip(found.block_offsets, found.block_offsets[1:], strict=False)
        ]

    assert of(only_tenants(played, [1])) == [[2, 3], [4, 5, 6]]
    assert of(with_copy(played, 1, 2, 0.5)) == [*blocks, [2, 3], [4, 5, 6]]


# -- the command -----------------------------------------------------------------------------------------------------


def one_at_a_time_trace(path, *, requests=100):
    """A trace of two tenants in turn, 100 ms apart, behind one slot."""
    outcomes = [
        Outcome(
            request=Request(
                id=i, tenant="ab"[i % 2], arrival_ns=i * 100 * MS, prompt_tokens=10, target_output_tokens=1
            ),
            status=Status.OK,
            ended_ns=i * 100 * MS + SERVICE_MS * MS,
            enqueued_ns=i * 100 * MS,
            dispatched_ns=i * 100 * MS,
            connect_ns=0,
            sent_ns=i * 100 * MS,
            first_token_ns=i * 100 * MS + SERVICE_MS * MS,
            last_token_ns=i * 100 * MS + SERVICE_MS * MS,
            finished_ns=i * 100 * MS + SERVICE_MS * MS,
            output_tokens=1,
            tokens_source=TokensSource.USAGE,
        )
        for i in range(requests)
    ]
    write_trace(path, outcomes, TraceMetadata(policy="fifo", slots={"sequences": 1}))


def test_the_command_compares_the_trace_with_its_difference_in_one_report(tmp_path):
    """How well the run is reproduced first, then the difference by name; the same difference in comparison.json and in
    the HTML report; --seed stays refused."""
    one_at_a_time_trace(tmp_path / "t.parquet")
    (tmp_path / "server.json").write_bytes(encode_server_model(SERVER))

    def simulate(*args):
        out, err = io.StringIO(), io.StringIO()
        with chdir(tmp_path), redirect_stdout(out), redirect_stderr(err):
            code = main(["simulate", "t.parquet", "--server-model", "server.json", "--quiet", *args])
        return int(code), out.getvalue(), err.getvalue()

    flags = ("--policies", "fifo,wfq", "--processes", "1", "--output-dir", "r")
    code, out, err = simulate(*flags, "--set", "tenants.b.rate=3", "--set", "replicas=2")
    assert code == 0, err
    assert out.index("the captured run, reproduced") < out.index("what if (tenants.b.rate=3, replicas=2)")
    data = json.loads((tmp_path / "r/comparison.json").read_text())
    assert data["what_if"] == "tenants.b.rate=3, replicas=2"
    assert data["comparisons"][0]["noisy"] == ["b"]
    assert [policy["label"] for policy in data["comparisons"][0]["policies"]] == ["fifo", "wfq"]
    assert "what if (tenants.b.rate=3, replicas=2)" in (tmp_path / "r/comparison.html").read_text()
    code, out, err = simulate(*flags[:4], "--output-dir", "kv", "--set", "server.kv_tokens=10")
    assert (code, "no request can run: 100 of 100 requests need more KV" in err) == (104, True)
    assert not (tmp_path / "kv").exists()
    code, out, err = simulate(*flags[:4], "--output-dir", "free", "--set", "slots.sequences=null")
    assert code == 0, err
    (note,) = json.loads((tmp_path / "free/comparison.json").read_text())["notes"]
    assert note in out
    assert note in (tmp_path / "free/comparison.html").read_text()
    code, _, err = simulate("--seed", "3")
    assert (code, "one realisation" in err) == (104, True)
    code, _, err = simulate("--set", "tenants.z.rate=3", "--output-dir", "no")
    assert (code, "no such tenant" in err) == (104, True)
    assert not (tmp_path / "no").exists()
