"""Capacity: the highest load at which every tenant is at its target, against closed forms, and what an interrupt keeps."""

from __future__ import annotations

import io
import json
import math
import os
import re
import signal
import subprocess
import sys
import time
from contextlib import chdir, redirect_stderr, redirect_stdout
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console
from scipy import optimize, stats

from backends.protocol import BackendError
from lmperf.__main__ import main
from lmperf.cli.capacity_text import sentence
from lmperf.cli.live_checks import LiveFlags, agreement, codes_of, confirm_live
from lmperf.cli.run_command import run_once
from lmperf.console import Progress
from lmperf.exit_codes import ExitCode
from lmperf.scenario.load import load_scenario, scenario_from_text
from lmperf.wiring.capacity import find_capacity, jobs_at, own_choice
from lmperf.wiring.capacity_study import study_of
from lmperf.wiring.confirm import Confirmation, LiveCheck, TenantCheck, confirm
from lmperf.wiring.known import installed
from lmperf.wiring.offline import policy_choices
from lmperf.wiring.saturation import resolve_with_saturation
from lmperf.wiring.sources import SourceError
from lmperf.wiring.target_rate import refuse_target_rate
from lmperf.wiring.variants import pinned, scaled, shortened, with_weights
from loadgen.offline.replicas import ReplicatedJob, promises_of_run
from loadgen.offline.search import Attained, Capacity, LoadSearch, Point, TenantRun, attained, fewest_replicas
from loadgen.offline.workers import Workers
from scheduler.server_model.spec import ServerLimits, ServerModelSpec, StepLaw, encode_server_model
from tenants.measures.attainment import Attainment
from tenants.measures.intervals import Interval
from tenants.verdict import Verdict

ROOT = Path(__file__).resolve().parents[2]
SERVICE_S = 0.05
RATE = 8.0


def exactly(share, target=0.9, requests=1000):
    """A tenant whose attainment is known without doubt."""
    return Attained(target, share, requests, Interval(share, share, share, "known", 0))


def a_point(load, share):
    return Point(load, {"a": exactly(share)}, {"a": load}, {"a": load})


# -- the search, without a simulation --------------------------------------------------------------------------------


@given(capacity=st.floats(0.002, 900), start=st.floats(0.001, 1000), tolerance=st.floats(0.005, 0.2))
@settings(max_examples=60, deadline=None)
def test_a_threshold_is_found_to_the_tolerance(capacity, start, tolerance):
    """What holds up to a load and not above is found from any start: the highest load tried below it, the lowest above."""
    tried = []

    def evaluate(load):
        tried.append(load)
        return a_point(load, 0.95 if load <= capacity else 0.5)

    found = LoadSearch(evaluate, start=start, tolerance=tolerance).run()
    assert found.found.load <= capacity < found.failing.load
    assert found.failing.load <= found.found.load * (1 + tolerance) * (1 + 1e-12)
    assert (found.low, found.high) == (found.found.load, found.failing.load)
    assert len(tried) == len(set(tried)) == len(found.points)
    assert not found.interrupted


@pytest.mark.parametrize(("share", "edge"), [(0.99, 8.0), (0.1, 0.125)])
def test_a_load_that_never_breaks_or_never_holds_ends_at_the_bound(share, edge):
    """The search gives up at the bounds that it was given, and says which side it never saw."""
    found = LoadSearch(lambda load: a_point(load, share), least=0.125, most=8.0).run()
    holds = share >= 0.9
    assert (found.found is not None) == holds
    assert (found.failing is None) == holds
    assert (found.points[-1] if holds else found.points[0]).load == edge


def test_the_capacity_lies_below_the_lowest_load_that_fails():
    """Noise that makes a higher load look fine again does not raise the answer."""
    shares = {1.0: 0.95, 2.0: 0.5, 3.0: 0.95}
    found = Capacity(tuple(a_point(load, share) for load, share in shares.items()))
    assert found.found.load == 1.0
    assert found.failing.load == 2.0
    assert found.first_to_break == "a"


def test_every_tenant_counts_and_the_first_to_break_is_named():
    """One tenant below its own target is enough; of several, the one that overspent its budget most."""
    tenants = {"calm": exactly(0.97, 0.9), "strict": exactly(0.98, 0.99), "worse": exactly(0.5, 0.6)}
    point = Point(1.0, tenants, {}, {})
    assert not point.at_target
    assert point.first_to_break == "strict"
    assert point.verdict is Verdict.BROKEN


def test_an_interrupt_keeps_every_point():
    """What had been evaluated is the answer so far, and was told of after each load."""
    told = []
    calls = iter(range(100))

    def evaluate(load):
        if next(calls) == 4:
            raise KeyboardInterrupt
        return a_point(load, 0.95 if load < 1.9 else 0.5)

    found = LoadSearch(evaluate, on_point=told.append).run()
    assert found.interrupted
    assert len(found.points) == 4
    assert [len(state.points) for state in told] == [1, 2, 3, 4]
    assert found.found.load < 1.9 <= found.failing.load


def test_the_interval_covers_the_true_capacity():
    """Attainment 1 - 0.1 x^3 and a target of 0.9 make the capacity 1. Over 150 studies, each of 8 seeds of 300 requests
    with the same random numbers at every load, at least nine tenths of the intervals hold 1, and none is the whole line."""
    covered, widths = 0, []
    for study in range(150):
        draws = np.random.default_rng(study).random((8, 300))

        def evaluate(load, draws=draws):
            met = (draws > 0.1 * load**3).sum(axis=1)
            tenant = attained([TenantRun(int(m), 300) for m in met], 0.9)
            return Point(load, {"a": tenant}, {}, {})

        found = LoadSearch(evaluate, tolerance=0.02, least=0.2, most=2.1).run()
        assert found.low is not None
        assert found.high is not None
        covered += found.low <= 1.0 <= found.high
        widths.append(found.high - found.low)
    assert covered >= 0.9 * 150
    # 2,400 requests tell an attainment of 0.9 to +-0.012, and a slope of -0.3 makes that +-0.04 of load.
    assert 0.04 < float(np.median(widths)) < 0.2


@given(met=st.lists(st.integers(0, 50), min_size=5, max_size=12))
@settings(max_examples=40, deadline=None)
def test_a_pooled_interval_holds_the_share_and_is_never_empty(met):
    """Never narrower than the exact binomial interval of all requests, never outside [0, 1]."""
    tenant = attained([TenantRun(m, 50) for m in met], 0.9)
    total = 50 * len(met)
    assert tenant.share == pytest.approx(sum(met) / total)
    exact = stats.binomtest(sum(met), total).proportion_ci(0.95, "exact")
    assert 0.0 <= tenant.interval.low <= exact.low + 1e-9
    assert exact.high - 1e-9 <= tenant.interval.high <= 1.0


def test_a_load_at_which_nothing_arrived_keeps_nothing():
    """Where no tenant sent a request, nothing was seen; where one did not, the others decide."""
    nobody, fine = attained([TenantRun(0, 0)] * 6, 0.9), exactly(0.95)
    assert not Point(1.0, {"a": nobody, "b": nobody}, {}, {}).at_target
    assert Point(1.0, {"a": nobody, "b": fine}, {}, {}).at_target


def test_few_seeds_have_no_interval_and_so_no_verdict():
    """Four runs are undecided however good they look; a tenant without requests fails nobody."""
    assert attained([TenantRun(100, 100)] * 4, 0.9).verdict is Verdict.UNDECIDED
    nobody = attained([TenantRun(0, 0)] * 6, 0.9)
    assert (nobody.share, nobody.at_target, nobody.verdict) == (None, True, Verdict.UNDECIDED)


def test_few_seeds_may_show_a_promise_broken():
    """Where every run by itself leaves less possible than the target; one that proves nothing leaves it undecided."""
    runs = [TenantRun(0, 100, at_most=0.05), TenantRun(10, 100, at_most=0.3)]
    assert attained(runs, 0.95).verdict is Verdict.BROKEN
    assert attained(runs, 0.25).verdict is Verdict.UNDECIDED
    assert attained([*runs, TenantRun(0, 1)], 0.95).verdict is Verdict.UNDECIDED
    assert attained(runs[:1], 0.95).verdict is Verdict.BROKEN


@pytest.mark.parametrize("seeds", [1, 3])
def test_a_target_that_nobody_attains_is_broken_with_any_number_of_seeds(seeds, tmp_path):
    """A first token is asked for sooner than it can come: sentence, verdict and exit code say the same."""
    one_at_a_time(tmp_path)
    text = scenario_text("poisson", duration_s=300, wait_s=-SERVICE_S / 2, attainment=0.95)
    (tmp_path / "s.yaml").write_text(text)
    with chdir(tmp_path):
        code = main(["capacity", "s.yaml", "--seeds", str(seeds), "--processes", "1", "--output-dir", "out"])
    data = json.loads((tmp_path / "out/capacity.json").read_bytes())
    (policy,) = data["policies"]
    assert {point["verdict"] for point in policy["points"] if point["tenants"]["only"]["requests"] > 100} == {"broken"}
    assert "no load keeps every tenant's target" in policy["sentence"]
    assert code == 99


@given(needed=st.integers(1, 300), guess=st.integers(1, 300))
@settings(max_examples=80, deadline=None)
def test_the_fewest_replicas_are_found_from_any_guess(needed, guess):
    """The least number that is enough, each number tried once."""
    tried = []

    def evaluate(replicas):
        tried.append(replicas)
        return a_point(float(replicas), 0.95 if replicas >= needed else 0.5)

    fleet = fewest_replicas(evaluate, guess=guess, most=400)
    assert fleet.count == fleet.sure_count == needed
    assert len(tried) == len(set(tried))


def test_too_few_replicas_to_be_had():
    """No number is the answer when even the most are too few."""
    fleet = fewest_replicas(lambda k: a_point(float(k), 0.1), guess=2, most=5)
    assert fleet.count is None
    assert fleet.points[-1].load == 5


# -- closed forms ----------------------------------------------------------------------------------------------------


def one_at_a_time(folder, service_s=SERVICE_S):
    """A server whose every request takes ``service_s``: one sequence, one step, one token."""
    spec = ServerModelSpec(
        name="one-at-a-time",
        law=StepLaw(a_us=service_s * 1e6, b_us=0.0),
        limits=ServerLimits(max_num_seqs=1, max_num_batched_tokens=1000),
    )
    (folder / "server.json").write_bytes(encode_server_model(spec))


def scenario_text(process, *, duration_s, wait_s, attainment, more=""):
    return f"""\
version: 1
name: closed-form
duration_s: {duration_s}
warmup_s: 5
backend: {{kind: emulated, server_model: server.json}}
policy: fifo
slots: {{sequences: 1}}
tenants:
  only:
    rate: {RATE}
    arrivals: {{process: {process}}}
    prompt: 10
    output: 1
    slo: {{ttft_ms: {1000 * (SERVICE_S + wait_s):.3f}, attainment: {attainment}}}
{more}"""


def study(folder, text, *, seeds):
    one_at_a_time(folder)
    (folder / "s.yaml").write_text(text)
    return study_of(load_scenario(folder / "s.yaml", known=installed()), seeds=seeds)


def searched(found, **more):
    with Workers(1) as workers:
        answer = find_capacity(found, [own_choice(found)], workers=workers, **more)
    return answer.policies[0]


def test_a_deterministic_queue_has_the_capacity_of_its_server(tmp_path):
    """D/D/1: nobody waits below 1/service, and everybody does above: 20 requests/s, 2.5 times the scenario's 8."""
    found = searched(
        study(tmp_path, scenario_text("constant", duration_s=60, wait_s=0.01, attainment=0.95), seeds=1),
        tolerance=0.01,
    )
    capacity = found.capacity
    assert capacity.found.load <= 2.5 * 1.001
    assert capacity.failing.load >= 2.5
    assert capacity.found.load >= 2.5 / 1.01 * 0.999
    assert capacity.found.rates["only"] == pytest.approx(RATE * capacity.found.load)
    assert capacity.found.costs["only"] == pytest.approx(12 * RATE * capacity.found.load)


def waits_at_most(rate, wait_s):
    """P(wait <= t) of M/D/1 (Erlang 1909; Crommelin 1932)."""
    rho = rate * SERVICE_S
    terms = [
        (rate * (k * SERVICE_S - wait_s)) ** k / math.factorial(k) * math.exp(-rate * (k * SERVICE_S - wait_s))
        for k in range(int(wait_s / SERVICE_S) + 1)
    ]
    return (1 - rho) * sum(terms)


def test_poisson_arrivals_have_the_capacity_of_erlangs_formula(tmp_path):
    """M/D/1: the rate at which P(wait <= t) is the target lies in the interval and near the answer."""
    wait_s = 2.4 * SERVICE_S
    true_rate = optimize.brentq(lambda rate: waits_at_most(rate, wait_s) - 0.85, 1.0, 0.99 / SERVICE_S)
    found = study(tmp_path, scenario_text("poisson", duration_s=50, wait_s=wait_s, attainment=0.85), seeds=6)
    with Workers(1) as workers:
        answer = find_capacity(found, [own_choice(found)], workers=workers, tolerance=0.08)
    (of_policy,) = answer.policies
    capacity = of_policy.capacity
    assert capacity.low * RATE <= true_rate <= capacity.high * RATE
    assert capacity.found.load * RATE == pytest.approx(true_rate, rel=0.1)
    assert capacity.high / capacity.low < 1.6
    shown = f"shown to hold up to {capacity.low:.4g}, shown to fail from {capacity.high:.4g}"
    assert f"times the scenario's load by estimate ({shown}), " in sentence(answer, of_policy)


def test_attainment_falls_with_the_load(tmp_path):
    """With common random numbers the points of one search are monotone but for the noise of single requests."""
    found = searched(
        study(tmp_path, scenario_text("poisson", duration_s=40, wait_s=0.1, attainment=0.9), seeds=5), tolerance=0.15
    )
    shares = [point.tenants["only"].share for point in found.capacity.points]
    assert len(shares) >= 4
    assert all(later <= earlier + 0.02 for earlier, later in pairwise(shares))
    assert shares[0] - shares[-1] > 0.1


def test_replicas_behind_one_queue_take_what_their_servers_can(tmp_path):
    """D/D/k: 50 requests/s of 50 ms each keep 2.5 servers busy, so three replicas are enough and two are not; what is
    asked of the simulator is the target rate itself."""
    found = searched(
        study(tmp_path, scenario_text("constant", duration_s=30, wait_s=0.04, attainment=0.95), seeds=5),
        target_rate=50.0,
        tolerance=0.1,
    )
    assert found.by_proportion == 3
    assert found.fleet.count == found.fleet.sure_count == 3
    assert [point.at_target for point in found.fleet.points if point.load < 3] == [False]
    assert all(point.rates["only"] == pytest.approx(50.0) for point in found.fleet.points)


def test_users_of_a_closed_loop_are_counted_in_whole_numbers(tmp_path):
    """N users who send again at once wait for all N services, so a limit of 4.4 services is kept by four users and not by
    five; two users times 2.25 is still four. Their rate is what the server makes of them, so no target rate is taken."""
    text = scenario_text("constant", duration_s=30, wait_s=3.4 * SERVICE_S, attainment=0.9)
    text = text.replace(f"rate: {RATE}", "users: 2").replace("    arrivals: {process: constant}\n", "")
    known = study(tmp_path, text, seeds=1)
    capacity = searched(known, tolerance=0.02).capacity
    assert capacity.found.load <= 2.25 < capacity.failing.load <= capacity.found.load * 1.0201
    assert capacity.found.rates["only"] == pytest.approx(1 / SERVICE_S, rel=0.01)
    assert capacity.found.costs["only"] == pytest.approx(12 / SERVICE_S, rel=0.01)
    with pytest.raises(SourceError, match="closed loop"):
        known.factor_for(10.0)


def test_one_replica_is_the_plain_simulation_and_two_share_its_work(tmp_path):
    """The same requests on one and on two replicas: none is lost, and two do better at a load that is too much for one."""
    known = study(tmp_path, scenario_text("poisson", duration_s=40, wait_s=0.1, attainment=0.9), seeds=1)
    (one,), (two,) = (jobs_at(known, own_choice(known), 3.0, replicas) for replicas in (1, 2))
    single, double = promises_of_run(one)["only"], promises_of_run(two)["only"]
    assert single.total == double.total > 500
    assert single.met < 0.5 * single.total
    assert double.met > 0.9 * double.total
    with pytest.raises(ValueError, match="at least 1 replica"):
        ReplicatedJob(cell=one.cell, replicas=0)


# -- what can be asked -----------------------------------------------------------------------------------------------


def test_without_a_promise_there_is_no_capacity(tmp_path):
    """The message says what would be one."""
    one_at_a_time(tmp_path)
    text = scenario_text("constant", duration_s=20, wait_s=0.1, attainment=0.9)
    bare = "\n".join(line for line in text.splitlines() if "slo:" not in line)
    (tmp_path / "s.yaml").write_text(bare)
    with pytest.raises(SourceError, match="attainment"):
        study_of(load_scenario(tmp_path / "s.yaml", known=installed()), seeds=5)


def test_a_number_of_prompts_is_no_duration(tmp_path):
    """Loads that last differently long cannot be compared."""
    one_at_a_time(tmp_path)
    text = scenario_text("constant", duration_s=20, wait_s=0.1, attainment=0.9)
    (tmp_path / "s.yaml").write_text(text.replace("duration_s: 20", "num_prompts: 50"))
    with pytest.raises(SourceError, match="duration_s"):
        study_of(load_scenario(tmp_path / "s.yaml", known=installed()), seeds=5)


# -- variants of a scenario ------------------------------------------------------------------------------------------

SHAPES = {
    "rate": "{a: {rate: 3, TOKENS}, b: {rate: 2, TOKENS}}",
    "load": "{a: {load: 0.3, TOKENS}, b: {load: 0.2, weight: 2, TOKENS}}",
    "share": "{a: {share: 0.5, weight: 3, TOKENS}, b: {share: 0.25, TOKENS}}",
    "steps": "{a: {arrivals: {process: steps, steps: [[0, 2], [0.5, 6]]}, TOKENS}, b: {rate: 2, TOKENS}}",
    "ramp": "{a: {rate: 4, arrivals: {process: ramp, ramp_from: 1}, TOKENS}, b: {rate: 2, TOKENS}}",
    "raised_load": "{a: {load: 0.3, raised_load: 0.6, TOKENS}, b: {load: 0.2, TOKENS}}",
}
LOADS = [
    "{saturation: 9000}",
    "{saturation: 9000, at: baseline, baseline: 0.5, noisy: a}",
    "{saturation: 9000, at: raised, baseline: 0.5, raised: 1.3, noisy: a}",
]


def shaped(shape, load):
    tenants = SHAPES[shape].replace("TOKENS", "prompt: 100, output: 10")
    return scenario_from_text(
        f"version: 1\nduration_s: 20\nbackend: {{kind: emulated}}\nload: {load}\ntenants: {tenants}\n",
        known=installed(),
    )


@pytest.mark.parametrize("load", LOADS)
@pytest.mark.parametrize("shape", SHAPES)
def test_a_scaled_scenario_offers_exactly_so_many_times_the_load(shape, load):
    """However a tenant's load is written, and whichever load of the scenario is asked for; arrivals grow with it."""
    scenario = shaped(shape, load)
    before = resolve_with_saturation(scenario)
    after = resolve_with_saturation(scaled(pinned(scenario, before), 1.7))
    for old, new in zip(before.tenants, after.tenants, strict=True):
        assert new.offered == pytest.approx(1.7 * old.offered)
        grown = old.traffic.grown(1.7).arrivals
        assert new.traffic.arrivals.rate == pytest.approx(grown.rate)
        assert new.traffic.arrivals.ramp_from == pytest.approx(grown.ramp_from)
        assert np.array(new.traffic.arrivals.steps) == pytest.approx(np.array(grown.steps))
        assert new.tenant == old.tenant


def test_a_weight_changes_the_contract_and_not_the_load():
    """Also where the load is written as a share of the weight's own part."""
    scenario = shaped("share", LOADS[0])
    before = resolve_with_saturation(scenario)
    after = resolve_with_saturation(with_weights(pinned(scenario, before), {"b": 3.0}))
    assert [t.offered for t in after.tenants] == pytest.approx([t.offered for t in before.tenants])
    assert [t.tenant.weight for t in after.tenants] == [3.0, 3.0]
    assert after.tenants[1].tenant.contract.rate == pytest.approx(2 * before.tenants[1].tenant.contract.rate)


def test_a_shortened_scenario_judges_most_of_what_is_left():
    """Warm-up and cool-down never take more than a quarter of it."""
    scenario = scenario_from_text(
        "version: 1\nduration_s: 600\nwarmup_s: 30\ncooldown_s: 30\nbackend: {kind: emulated}\n"
        "tenants: {a: {rate: 1, prompt: 10, output: 2}}\n",
        known=installed(),
    )
    window = resolve_with_saturation(shortened(scenario, 20.0)).window
    assert (window.start_ns, window.end_ns) == (2_500_000_000, 17_500_000_000)


# -- the command -----------------------------------------------------------------------------------------------------


def command(cwd, *args):
    out, err = io.StringIO(), io.StringIO()
    with chdir(cwd), redirect_stdout(out), redirect_stderr(err):
        code = main(["capacity", *map(str, args), "--quiet"])
    return int(code), out.getvalue(), err.getvalue()


def test_the_command_prints_every_load_and_writes_what_it_printed(tmp_path):
    """One row a load with each tenant's attainment, one sentence, and the same figures in capacity.json."""
    one_at_a_time(tmp_path)
    (tmp_path / "s.yaml").write_text(scenario_text("constant", duration_s=20, wait_s=0.01, attainment=0.95))
    code, out, err = command(
        *(tmp_path, "s.yaml", "--seeds", 5, "--tolerance", 0.06, "--target-rate", 30, "--policies", "fifo,wfq"),
        *("--processes", 1, "--output-dir", "r"),
    )
    assert code == 0, err
    data = json.loads((tmp_path / "r/capacity.json").read_text())
    assert data["schema"] == "lmperf.capacity/1.1"
    assert (data["interrupted"], data["complete"]) == (False, True)
    assert [policy["label"] for policy in data["policies"]] == ["fifo", "wfq"]
    for policy in data["policies"]:
        assert policy["capacity"]["factor"] == pytest.approx(2.5, rel=0.07)
        assert policy["capacity"]["requests_per_s"] == pytest.approx(20.0, rel=0.07)
        assert policy["first_to_break"] == "only"
        assert policy["replicas"]["enough"] == 2
        assert policy["sentence"] in out
        for point in policy["points"]:
            assert f"{point['factor']:.4g}" in out
    assert not list((tmp_path / "r").glob("*.partial"))


def test_the_command_routes_between_replicas_as_told_and_says_so(tmp_path):
    """Equal requests on single servers: by turns two replicas are as good; the rule is on paper and in capacity.json."""
    one_at_a_time(tmp_path)
    (tmp_path / "s.yaml").write_text(scenario_text("constant", duration_s=20, wait_s=0.01, attainment=0.95))
    flags = ("--seeds", 1, "--tolerance", 0.06, "--processes", 1, "--output-dir")
    code, out, err = command(tmp_path, "s.yaml", "--target-rate", 30, "--routing", "round_robin", *flags, "r")
    assert code == 0, err
    data = json.loads((tmp_path / "r/capacity.json").read_text())
    assert data["routing"] == "round_robin"
    assert data["policies"][0]["replicas"]["enough"] == 2
    assert "routing round_robin" in " ".join(out.split())
    for wrong, said in (
        (("--routing", "prefix"), "chooses between servers, and there is one"),
        (("--routing", "prefx", "--target-rate", 30), "one of least_work, round_robin, prefix, session"),
        (("--routing", "session:slack=2", "--target-rate", 30), "only prefix has a setting"),
        (("--routing", "session", "--target-rate", 30, "--live"), "--set backend.routing=RULE"),
    ):
        code, _, err = command(tmp_path, "s.yaml", *wrong, *flags, "wrong")
        assert (code, said in " ".join(err.split())) == (104, True), err
    assert not (tmp_path / "wrong").exists()


def test_no_load_that_keeps_the_promise_exits_with_99(tmp_path):
    """A limit below the service time is kept at no load; that at next to none nobody sent anything is no promise kept."""
    one_at_a_time(tmp_path)
    text = scenario_text("constant", duration_s=20, wait_s=-0.01, attainment=0.9).replace("constant", "poisson")
    (tmp_path / "s.yaml").write_text(text)
    code, out, _ = command(tmp_path, "s.yaml", "--seeds", 5, "--tolerance", 0.5, "--processes", 1, "--output-dir", "r")
    assert code == 99
    assert "no load keeps every tenant's target" in out


@pytest.mark.parametrize(
    "flags",
    [
        ("--seeds", 0),
        ("--tolerance", 0),
        ("--target-rate", -1),
        ("--policies", ""),
        ("--live-duration", 3),
        ("--ready-timeout", 3),
        ("--percentiles", 50),
        ("--percentiles", 101, "--live"),
        ("--live-duration", 0, "--live"),
    ],
)
def test_impossible_flags_are_refused_before_anything_is_written(tmp_path, flags):
    """104, and no folder."""
    one_at_a_time(tmp_path)
    (tmp_path / "s.yaml").write_text(scenario_text("constant", duration_s=20, wait_s=0.1, attainment=0.9))
    code, _, err = command(tmp_path, "s.yaml", *flags)
    assert code == 104
    assert flags[0] in err
    assert not (tmp_path / "results").exists()


@pytest.mark.parametrize(
    ("rate", "said"),
    [
        (
            0.001,
            "in 1 x 15 s measured, tenants with a target send 0.015 requests, too few to tell anything; at least 1.4,",
        ),
        (1e9, "a run of 15 s has 1.5e+10 requests, more than 10,000,000"),
        (400_000.0, "its work alone takes 20,000 replicas"),
    ],
)
def test_a_rate_that_cannot_be_counted_for_is_refused(tmp_path, rate, said):
    """20 s of one seed: next to no request says nothing of replicas, and more than anybody waits for is not begun. What is
    said to do does."""
    one_at_a_time(tmp_path)
    (tmp_path / "s.yaml").write_text(scenario_text("constant", duration_s=20, wait_s=0.1, attainment=0.9))
    code, _, err = command(tmp_path, "s.yaml", "--seeds", 1, "--target-rate", rate)
    assert code == 104
    assert said in " ".join(err.split())
    assert not (tmp_path / "results").exists()
    refuse_target_rate(study(tmp_path, (tmp_path / "s.yaml").read_text(), seeds=1), 1.4)


def test_the_answer_says_what_load_1_is_and_can_be_repeated(tmp_path):
    """Under --at and --set: in the sentence, the head line and capacity.json, beside the command and a scenario that runs."""
    one_at_a_time(tmp_path)
    text = scenario_text("constant", duration_s=20, wait_s=0.01, attainment=0.95)
    (tmp_path / "s.yaml").write_text(text)
    flags = ("--set", "load.noisy=only", "--set", "load.raised=1.5", "--set", "load.saturation=1000")
    for at, rate, words in (("baseline", RATE, "baseline load"), ("raised", 1.5 * RATE, "raised load")):
        code, out, err = command(
            *(tmp_path, "s.yaml", "--seeds", 1, "--tolerance", 0.3, "--at", at, *flags, "--output-dir", at)
        )
        assert code == 0, err
        data = json.loads((tmp_path / at / "capacity.json").read_text())
        assert data["load_1"]["at"] == at
        assert data["load_1"]["requests_per_s"] == pytest.approx(rate)
        assert f"load 1 is the scenario's {words} ({rate:.2f} requests/s" in out
        assert f"times the scenario's {words}" in data["policies"][0]["sentence"]
        assert f"--at {at} --set load.noisy=only" in data["command"]
        again = study_of(load_scenario(tmp_path / at / "scenario.resolved.yaml", known=installed()), seeds=1)
        assert again.total_rate == pytest.approx(rate)


def test_an_interrupted_search_claims_no_more_than_it_tried(tmp_path):
    """After one load that fails: not that no load would do. Policies that it did not come to are named."""
    one_at_a_time(tmp_path)
    found = study(tmp_path, scenario_text("constant", duration_s=20, wait_s=0.01, attainment=0.95), seeds=1)
    choices = policy_choices("fifo,wfq,drr")
    points = []

    def stop(state):
        points.append(state)
        if len(points) == most:
            raise KeyboardInterrupt

    most = 1
    low = replace(found, costs={name: cost / 4 for name, cost in found.costs.items()})
    answer = find_capacity(low, choices, workers=Workers(1), on_point=stop)
    assert answer.interrupted
    assert answer.not_begun == ["wfq", "drr"]
    assert not answer.complete
    (fifo,) = answer.policies
    assert not fifo.capacity.points[0].at_target
    said = sentence(answer, fifo)
    assert "no load keeps" not in said
    assert re.search(
        r"did not come to its end, and no load is known .* is the lowest tried: only misses its target", said
    )
    points.clear()
    most = 3
    said = sentence(found := find_capacity(found, choices, workers=Workers(1), on_point=stop), found.policies[0])
    assert "every tenant is at its target up to" in said
    assert "by estimate (shown to hold at no load, shown to fail from " in said
    assert "; the search did not come to its end" in said


def test_an_interrupted_command_leaves_the_loads_it_had_tried(tmp_path):
    """SIGINT: 105, no traceback, and a capacity.json with every finished load that says it was interrupted."""
    one_at_a_time(tmp_path)
    (tmp_path / "s.yaml").write_text(scenario_text("poisson", duration_s=400, wait_s=0.1, attainment=0.9))
    process = subprocess.Popen(
        [sys.executable, "-m", "lmperf", "capacity", "s.yaml", "--processes", "1", "--seeds", "2", "--output-dir", "r"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    file = tmp_path / "r/capacity.json"
    try:
        deadline = time.monotonic() + 90
        while not file.exists() and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 105, err
    assert "Traceback" not in err
    assert "interrupted" in out
    data = msgspec.json.decode(file.read_bytes())
    assert data["interrupted"]
    points = data["policies"][0]["points"]
    assert points
    assert all(point["tenants"]["only"]["requests"] > 1000 for point in points)


# -- live ------------------------------------------------------------------------------------------------------------


AGREEMENTS = [
    ((95, 100), (100, 100), 0.9, True),
    ((50, 100), (60, 100), 0.9, True),
    ((16, 17), (17, 17), 0.99, True),
    ((80, 100), (100, 100), 0.99, False),
    ((100, 100), (80, 100), 0.99, False),
    ((0, 0), (0, 0), 0.99, True),
    ((0, 0), (5, 5), 0.99, False),
]


@pytest.mark.parametrize(("live", "simulated", "target", "agrees"), AGREEMENTS)
def test_live_and_simulated_agree_on_the_same_side_of_the_target_or_when_nothing_tells_them_apart(
    live, simulated, target, agrees
):
    """One miss of 17 is no evidence against a prediction of none; twenty of a hundred are."""
    assert TenantCheck("a", target, Attainment(*live), Attainment(*simulated)).agrees is agrees


def test_a_live_confirmation_runs_the_load_that_was_simulated(tmp_path):
    """The embedded server at half the load: a folder of its own whose resolved scenario states that load, and beside the
    measured attainment the one of the same arrivals simulated."""
    one_at_a_time(tmp_path)
    text = scenario_text("constant", duration_s=300, wait_s=5.0, attainment=0.9)
    (tmp_path / "s.yaml").write_text(text.replace("warmup_s: 5\n", ""))
    scenario = load_scenario(tmp_path / "s.yaml", known=installed())
    told = []

    def run(variant, plan, options):
        if len(told) > 1:
            raise KeyboardInterrupt
        return run_once(variant, plan, options, Progress(quiet=True))

    found = confirm(
        pinned(scenario, resolve_with_saturation(scenario)),
        [0.5, 0.6, 0.7],
        duration_s=2.0,
        directory=tmp_path,
        percentiles=(50.0, 99.0),
        run=run,
        on_check=lambda state: told.append((len(state.checks), state.interrupted)),
    )
    assert told == [(0, False), (1, False), (1, True)]
    assert not found.complete
    assert found.loads == (0.5, 0.6, 0.7)
    (check,) = found.checks
    (tenant,) = check.tenants
    assert tenant.simulated == 1.0
    assert tenant.live is not None
    assert check.result.summary.tenant("only").requests == 8
    again = load_scenario(tmp_path / "live-0.5/scenario.resolved.yaml", known=installed())
    assert again.model.tenants["only"].rate == RATE / 2
    assert again.model.duration_s == 2.0


def test_what_live_runs_showed_is_said_where_the_next_one_cannot_begin(tmp_path, monkeypatch):
    """Its server is gone: the first load's table and how many are missing, and then the error."""
    one_at_a_time(tmp_path)
    text = scenario_text("constant", duration_s=300, wait_s=5.0, attainment=0.9)
    (tmp_path / "s.yaml").write_text(text.replace("warmup_s: 5\n", ""))
    scenario = load_scenario(tmp_path / "s.yaml", known=installed())
    runs, states = [], []

    def run(*args):
        runs.append(args)
        if len(runs) == 2:
            raise BackendError("was not ready within 5 s")
        return run_once(*args)

    monkeypatch.setattr("lmperf.cli.live_checks.run_once", run)
    console = Console(width=100, file=io.StringIO(), markup=False)
    with pytest.raises(BackendError, match="not ready"):
        confirm_live(
            console,
            LiveFlags(asked=True, duration_s=2.0, ready_timeout_s=5.0, percentiles=(50.0, 99.0)),
            pinned(scenario, resolve_with_saturation(scenario)),
            [0.5, 0.6, 0.7],
            tmp_path,
            Progress(quiet=True),
            states.append,
            what="policy fifo",
        )
    said = console.file.getvalue()
    assert "live beside simulated, the same arrivals: policy fifo" in said
    assert "agree at 1 of 1 loads" in said
    assert "stopped after 1 of 3 live loads" in said
    assert states[-1].loads == (0.5, 0.6, 0.7)
    assert not states[-1].complete


def confirmed(*live, loads=(0.9, 1.0, 1.1), interrupted=False):
    """Live runs at ``loads``, as far as there are attainments, of which the simulation says 100, 100 and 80%."""
    checks = [
        LiveCheck(
            load,
            (TenantCheck("a", 0.9, Attainment(met, 100), Attainment(simulated, 100)),),
            SimpleNamespace(target_failed=None, summary=SimpleNamespace(validity=SimpleNamespace(valid=True))),
        )
        for load, met, simulated in zip(loads, live, (100, 100, 80), strict=False)
    ]
    return Confirmation(loads, checks, interrupted)


def test_live_runs_that_were_cut_are_not_counted_and_those_that_are_missing_are_said():
    """One of three was whole: nothing is said of three, or of two."""
    said = agreement(confirmed(100, interrupted=True), 1.0)
    assert "agree at 1 of 1 loads" in said
    assert said.endswith("interrupted after 1 of 3 live loads")
    assert codes_of(confirmed(100, interrupted=True), interrupted=False) == [ExitCode.OK, ExitCode.INTERRUPTED]
    assert "interrupted after 0 of 3 live loads" in agreement(confirmed(interrupted=True), 1.0)


@pytest.mark.parametrize(
    ("live", "from_below"), [((100, 100, 100), True), ((100, 100, 80), False), ((80, 100, 100), False), ((100,), False)]
)
def test_a_capacity_that_no_live_run_exceeded_is_confirmed_from_below_only(live, from_below):
    """Where the load above it kept every target live, the limit was not seen; a setting has no limit to be shown."""
    assert ("confirmed from below only" in agreement(confirmed(*live), 1.0)) is from_below
    assert "from below" not in agreement(confirmed(*live))
