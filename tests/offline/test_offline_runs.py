"""Simulated runs: the figures of a cell are those of the simulation itself, and captured traces come back as captured."""

from __future__ import annotations

import math
from dataclasses import replace

import msgspec
import numpy as np
import pytest

from lmperf.wiring.captured import captured_run, server_for
from lmperf.wiring.offline import PolicyChoice, policy_choices, replay_policies, simulate_trace
from loadgen.offline.cell import CellJob, DrawnRecipe, ReplayRecipe, record_cell, run_cell
from loadgen.offline.fidelity import fidelity
from loadgen.recorder import Recorder, record_trace
from loadgen.trace.convert import write_trace
from loadgen.trace.schema import TraceMetadata
from loadgen.workload.replay import ReplayRows
from scheduler.calibration.step_law import CalibrationError
from scheduler.cost import CostModel
from scheduler.dispatcher import Dispatcher
from scheduler.dispatcher_config import DispatcherConfig
from scheduler.drivers.simulated import Simulation
from scheduler.request import ArrivalKind, Outcome, Request, Status, TokensSource
from scheduler.server_model.batching import ContinuousBatch
from scheduler.server_model.spec import ServerLimits, ServerModelSpec, StepLaw
from scheduler.slots import Slots
from tenants.slo import Slo
from tenants.tenant import Tenant
from tenants.traffic import Arrivals, Distribution, Lengths, Process, Traffic

MS = 1_000_000
S = 1_000_000_000
SERVER = ServerModelSpec(
    name="known",
    law=StepLaw(a_us=5000.0, b_us=20.0, c_us=30.0, d_us=0.05, offset_us=2000.0),
    limits=ServerLimits(max_num_seqs=16, max_num_batched_tokens=2048),
)
SLOTS = Slots(sequences=8, prefill_tokens=2048)


def lengths(mean):
    return Lengths(distribution=Distribution.LOGNORMAL, mean=mean, cv=0.6, low=2, high=2000)


def tenant(name, **more):
    return Tenant(name=name, slo=Slo(ttft_ns=400 * MS, attainment=0.9), **more)


OPEN = DrawnRecipe(
    (
        (tenant("chat"), Traffic(arrivals=Arrivals(rate=6.0), prompt=lengths(200), output=lengths(40))),
        (tenant("bulk"), Traffic(arrivals=Arrivals(rate=3.0), prompt=lengths(600), output=lengths(80))),
    ),
    20.0,
)
CLOSED = DrawnRecipe(
    (
        (
            tenant("users"),
            Traffic(
                arrivals=Arrivals(process=Process.CLOSED, users=6, think_s=0.2), prompt=lengths(200), output=lengths(40)
            ),
        ),
    ),
    20.0,
)


def job(recipe=OPEN, *, policy="wfq", seed=3, growth=None, window=(0, 20 * S), slots=SLOTS):
    return CellJob(
        policy=policy,
        policy_label=policy,
        load="x",
        seed=seed,
        growth=growth or {},
        recipe=recipe,
        server=SERVER,
        slots=slots,
        cost=CostModel(),
        window_ns=window,
    )


def simulated(recipe, *, policy="wfq", seed=3, growth=None, slots=SLOTS):
    """The outcomes of a bare ``Simulation``, without recorder, cell or experiment."""
    config = DispatcherConfig(
        tenants=recipe.tenants, policy=policy, prefill_rate=SERVER.law.prefill_rate, backends={"server": slots}
    )
    source = recipe.source(seed, growth or {})
    outcomes = []
    first = [*source.start_closed(0)]
    arrivals = sorted([*source.absolute(), *first], key=lambda request: (request.arrival_ns, request.id))

    def after(outcome):
        following = source.after(outcome)
        return () if following is None else (following,)

    Simulation(
        Dispatcher(config),
        {"server": ContinuousBatch(SERVER.law, SERVER.limits)},
        arrivals,
        outcomes.append,
        after=after,
    ).run()
    return outcomes


def nearest_rank(values, p):
    return sorted(values)[math.ceil(p / 100 * len(values)) - 1]


@pytest.mark.parametrize("policy", ["fifo", "wfq", "slo_aware"])
@pytest.mark.parametrize("recipe", [OPEN, CLOSED], ids=["open", "closed"])
def test_a_cells_figures_are_those_of_the_simulation(policy, recipe):
    """P50, P99, attainment, goodput and throughput, computed from the bare simulation's outcomes by hand."""
    found = run_cell(job(recipe, policy=policy))
    outcomes = simulated(recipe, policy=policy)
    assert {outcome.status for outcome in outcomes} == {Status.OK}
    for one in recipe.tenants:
        mine = [outcome for outcome in outcomes if outcome.request.tenant == one.name]
        ttft = [outcome.first_token_ns - outcome.request.arrival_ns for outcome in mine]
        e2e = [outcome.finished_ns - outcome.request.arrival_ns for outcome in mine]
        figures = found.tenants[one.name]
        assert figures.requests == len(mine) > 50
        assert figures.ttft_p50.value_ns == nearest_rank(ttft, 50)
        assert figures.ttft_p99.value_ns == nearest_rank(ttft, 99)
        assert figures.e2e_p50.value_ns == nearest_rank(e2e, 50)
        assert figures.e2e_p99.value_ns == nearest_rank(e2e, 99)
        met = sum(value <= one.slo.ttft_ns for value in ttft)
        assert figures.attainment == met / len(mine)
        assert figures.goodput == pytest.approx(met / 20)
    tokens = sum(outcome.output_tokens for outcome in outcomes)
    span_s = max(o.ended_ns for o in outcomes) - min(o.request.arrival_ns for o in outcomes)
    assert found.throughput == pytest.approx(tokens / span_s * 1e9)


def test_only_arrivals_in_the_window_count():
    """Warm-up and cool-down are simulated and left out of every figure."""
    window = (5 * S, 15 * S)
    found = run_cell(job(window=window))
    inside = [o for o in simulated(OPEN) if window[0] <= o.request.arrival_ns < window[1]]
    assert sum(figures.requests for figures in found.tenants.values()) == len(inside)


def test_the_same_seed_gives_the_same_numbers_and_another_does_not():
    """A cell is a function of its job."""
    assert run_cell(job()) == run_cell(job())
    assert run_cell(job(seed=4)) != run_cell(job(seed=3))


def test_growing_one_tenant_leaves_the_others_arrivals_and_lengths():
    """The victims of a noisy neighbour send the same requests: what differs is what they suffer."""
    before, after = (simulated(OPEN, growth=growth) for growth in ({}, {"bulk": 3.0}))

    def sent(outcomes, name):
        mine = sorted((o.request for o in outcomes if o.request.tenant == name), key=lambda r: r.arrival_ns)
        return [(r.arrival_ns, r.prompt_tokens, r.target_output_tokens) for r in mine]

    assert sent(before, "chat") == sent(after, "chat")
    assert len(sent(after, "bulk")) > 2 * len(sent(before, "bulk"))


# -- captured traces -------------------------------------------------------------------------------------------------


def captured(tmp_path, recipe, *, policy="wfq", load_mode="open"):
    """A trace file as a run with this recipe would have left it, made by the simulator."""
    path = tmp_path / "trace.parquet"
    outcomes = simulated(recipe, policy=policy)
    metadata = TraceMetadata(
        kind="live",
        load_mode=load_mode,
        policy=policy,
        slots={"sequences": 8, "prefill_tokens": 2048},
        window_ns=(0, 20 * S),
        server_model=msgspec.to_builtins(SERVER),
    )
    write_trace(path, outcomes, metadata, recipe.tenants)
    return path, outcomes


def test_a_captured_run_is_reproduced_to_the_nanosecond_by_its_own_server(tmp_path):
    """With the server model that made it, policy and slots from its header: every error is 0."""
    path, _ = captured(tmp_path, OPEN)
    run = captured_run(path, recorded=False)
    answer = replay_policies(run, SERVER, None, policy_choices("wfq"))
    assert {row.metric for row in answer.reproduction} >= {"TTFT P50", "TTFT P99", "E2E mean", "throughput"}
    for row in answer.reproduction:
        if row.metric != "ITL P99":
            assert row.error == pytest.approx(0.0, abs=1e-9), row


def test_a_closed_loop_is_regenerated(tmp_path):
    """``after``: what a user sends next follows the simulated answer, think time included; on the server that made the
    trace the arrivals are those of the trace, on a slower one they come later."""
    path, outcomes = captured(tmp_path, CLOSED, load_mode="closed")
    run = captured_run(path, recorded=False)
    arrivals = sorted(outcome.request.arrival_ns for outcome in outcomes)
    assert sum(outcome.request.arrival_kind is ArrivalKind.AFTER for outcome in outcomes) > 100
    same = record_cell(job(run.recipe, seed=0)).columns()
    assert sorted(same.arrival_ns.tolist()) == arrivals
    slow = replace(job(run.recipe, seed=0), server=_slower(3.0))
    later = record_cell(slow).columns()
    assert len(later) < len(arrivals), "users who wait longer send less in the same time"
    recorded = captured_run(path, recorded=True)
    kept = record_cell(replace(slow, recipe=recorded.recipe)).columns()
    assert sorted(kept.arrival_ns.tolist()) == arrivals


def _slower(factor):
    return ServerModelSpec(name="slow", law=SERVER.law.scaled(factor), limits=SERVER.limits)


@pytest.mark.parametrize("n", [1, 7, 60])
def test_a_number_of_prompts_is_the_first_ones_to_arrive_in_a_simulation_too(n):
    """Users beside a schedule: exactly N arrive, those that are first in the run that goes on; no time passes for others."""
    both = (*OPEN.traffics, *CLOSED.traffics)
    cut, whole = (record_cell(job(DrawnRecipe(both, 60.0, most), seed=3)).columns() for most in (n, None))
    assert len(cut) == n
    assert sorted(cut.arrival_ns.tolist()) == sorted(whole.arrival_ns.tolist())[:n]
    assert {cut.tenants[code] for code in cut.tenant} > {"users"} or n < 60


def test_a_trace_of_one_tenant_grows_as_a_whole(tmp_path):
    """Nobody else is there to suffer: the tenant itself is the one in contract, with decay and without neighbours."""
    path, _ = captured(tmp_path, CLOSED, load_mode="closed")
    run = captured_run(path, recorded=False)
    answer = replay_policies(run, SERVER, None, policy_choices("fifo"))
    answer = simulate_trace(answer, policy_choices("fifo"), processes=1)
    (comparison,) = answer.comparisons
    assert comparison.noisy == ("users",)
    assert comparison.verdicts[0].decay_all.value == comparison.verdicts[0].decay_in_contract.value > 1.0


def test_derived_loads_are_of_saturation(tmp_path):
    """Each tenant in turn makes the total 0.9 of saturation from a baseline of 0.75: the victim's load is the same in
    both, and all loads together offer what they should."""
    path, _ = captured(tmp_path, OPEN)
    run = captured_run(path, recorded=False)
    choices = policy_choices("fifo,wfq")
    answer = simulate_trace(replay_policies(run, SERVER, None, choices), choices, processes=1)
    assert {comparison.noisy for comparison in answer.comparisons} == {("chat",), ("bulk",)}
    for comparison in answer.comparisons:
        assert [verdict.label for verdict in comparison.verdicts] == ["fifo", "wfq"]
        assert comparison.verdicts[0].throughput_ratio.value == 1.0
        for verdict in comparison.verdicts:
            assert verdict.decay_all.value > 0
            assert verdict.throughput.value > 0


def test_the_fitted_server_is_near_the_one_that_made_the_trace(tmp_path):
    """Calibrated from its own client-side stamps; limits come from the header when it has them."""
    path, _ = captured(tmp_path, OPEN)
    server, fit = server_for(captured_run(path, recorded=False), None)
    assert fit is not None
    assert server.limits.max_num_seqs == 16
    assert server.law.a_us == pytest.approx(SERVER.law.a_us, rel=0.1)


def test_a_trace_without_answers_cannot_be_calibrated(tmp_path):
    """The message says what to name instead."""
    rows = ReplayRows(
        arrival_ns=np.arange(30) * S,
        prompt_tokens=np.full(30, 10),
        output_tokens=np.full(30, 5),
        tenant=np.zeros(30, int),
    )
    recipe = ReplayRecipe(rows, (Tenant(name="a"),))
    outcomes = [replace_status(outcome) for outcome in simulated(recipe, policy="fifo")]
    write_trace(tmp_path / "t.parquet", outcomes, TraceMetadata(kind="imported"))
    with pytest.raises(CalibrationError, match="--server-model"):
        server_for(captured_run(tmp_path / "t.parquet", recorded=False), None)


def replace_status(outcome):
    return msgspec.structs.replace(
        outcome, status=Status.FAILED, first_token_ns=None, last_token_ns=None, finished_ns=None, output_tokens=None
    )


def answered(tmp_path, arrivals_s, took_s):
    """A trace without a window of requests that were answered after ``took_s``."""
    outcomes = [
        Outcome(
            request=Request(id=i, tenant="a", arrival_ns=int(at * S), prompt_tokens=10, target_output_tokens=1),
            status=Status.OK,
            ended_ns=int((at + took_s) * S),
            sent_ns=int(at * S),
            first_token_ns=int((at + took_s) * S),
            last_token_ns=int((at + took_s) * S),
            finished_ns=int((at + took_s) * S),
            output_tokens=1,
            tokens_source=TokensSource.USAGE,
        )
        for i, at in enumerate(arrivals_s)
    ]
    write_trace(tmp_path / "t.parquet", outcomes, TraceMetadata(kind="imported"))
    return tmp_path / "t.parquet"


def test_a_window_that_no_header_states_is_that_of_the_arrivals(tmp_path):
    """From the trace's own zero."""
    path = answered(tmp_path, (0, 2), took_s=4)
    assert captured_run(path, recorded=False).window_ns == (0, 2 * S + 1)


def test_an_error_is_simulated_over_captured_minus_one(tmp_path):
    """Signed, of figures that both have; nothing to compare gives none."""
    path, outcomes = captured(tmp_path, OPEN)
    run = captured_run(path, recorded=False)
    measured = record_trace(run.trace, run.tenants)
    slow = record_cell(replace(job(run.recipe, seed=0), server=_slower(2.0)))
    rows = {(row.tenant, row.metric): row for row in fidelity(measured, slow)}
    for (_, metric), row in rows.items():
        if row.error is not None and metric != "throughput":
            assert row.error == pytest.approx(row.simulated / row.captured - 1)
            assert row.error > 0, "a server twice as slow is slower in every latency"
    p50 = rows["all", "TTFT P50"].captured
    ttft = [o.first_token_ns - o.request.arrival_ns for o in outcomes]
    assert p50 == nearest_rank(ttft, 50) / 1e6, "to the ns: of rows, and not of a histogram"
    empty = Recorder(run.tenants, (0, 20 * S))
    assert {row.error for row in fidelity(measured, empty)} == {None}


def test_the_hit_share_is_reproduced_or_told_apart():
    """20 of 100 tokens were cached, 25 in the simulation: +25%, of all and of each tenant. Where the simulation has no cache it
    states none, and where neither states one there is no row."""
    tenants = [Tenant(name="a"), Tenant(name="b")]

    def run(cached):
        recorder = Recorder(tenants, (0, 20 * S))
        for number, name in enumerate("ab"):
            recorder.on_outcome(
                Outcome(
                    request=Request(id=number, tenant=name, arrival_ns=0, prompt_tokens=100),
                    status=Status.OK,
                    ended_ns=S,
                    cached_prompt_tokens=cached,
                )
            )
        return recorder

    def shares(captured, simulated):
        rows = [row for row in fidelity(run(captured), run(simulated)) if row.metric == "hit share"]
        assert {row.unit for row in rows} <= {"%"}
        return {row.tenant: (row.captured, row.simulated, row.error) for row in rows}

    assert shares(20, 25) == dict.fromkeys(("all", "a", "b"), (20.0, 25.0, 0.25))
    assert shares(20, None) == dict.fromkeys(("all", "a", "b"), (20.0, None, None))
    assert shares(None, None) == {}


def test_policies_may_carry_options():
    """``slo_aware:late=demote`` is a row of its own, under its own label."""
    found = policy_choices("fifo, slo_aware:late=demote,slo_aware")
    assert [choice.label for choice in found] == ["fifo", "slo_aware:late=demote", "slo_aware"]
    assert found[1] == PolicyChoice(label="slo_aware:late=demote", policy="slo_aware", options={"late": "demote"})
