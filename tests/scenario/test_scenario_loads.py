"""Baseline and raised load, against the definitions written out by hand and against drawn samples."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lmperf.scenario import At, Growth, ScenarioError, resolve
from lmperf.scenario.loads import offered_loads
from tenants.traffic import Process

NAMES = ("a", "b", "c", "d")
LOADS = st.dictionaries(st.sampled_from(NAMES), st.floats(0.01, 100), min_size=2)


@settings(deadline=None)
@given(LOADS, st.floats(0.1, 2), st.floats(1.01, 3), st.data())
def test_noisy_growth_moves_the_noisy_tenant_alone_and_reaches_the_total(said, baseline, raised, data):
    """Baseline: all scaled alike to the total. Raised: the total is ``raised`` times that; only the noisy one moved."""
    noisy = data.draw(st.sampled_from(sorted(said)))
    base = offered_loads(said, at=At.BASELINE, baseline=baseline)
    up = offered_loads(said, at=At.RAISED, noisy=[noisy], baseline=baseline, raised=raised)
    assert math.isclose(sum(base.values()), baseline, rel_tol=1e-9)
    assert math.isclose(sum(up.values()), raised * baseline, rel_tol=1e-9)
    for name, load in said.items():
        assert math.isclose(base[name] / base[noisy], load / said[noisy], rel_tol=1e-9)
        assert up[name] == base[name] or name == noisy


@settings(deadline=None)
@given(LOADS, st.floats(1.01, 3))
def test_growth_of_all_multiplies_every_tenant(said, raised):
    """With growth ``all`` the mix stays and every load is multiplied; without a baseline the loads are the base."""
    up = offered_loads(said, at=At.RAISED, growth=Growth.ALL, raised=raised)
    assert all(math.isclose(up[name], raised * load) for name, load in said.items())


def test_a_tenants_own_raised_load_is_what_it_grows_to():
    """``raised_load`` states the noisy one's load itself; growth ``all`` takes the total that it makes."""
    said = {"chat": 0.25, "batch": 0.25}
    own = {"batch": 0.75}
    assert offered_loads(said, at=At.RAISED, noisy=["batch"], own_raised=own) == {"chat": 0.25, "batch": 0.75}
    assert offered_loads(said, at=At.RAISED, growth=Growth.ALL, own_raised=own) == {"chat": 0.5, "batch": 0.5}


def test_each_in_turn_reaches_the_same_total():
    """Whoever is made noisy in place of the scenario's own grows until the total is the same."""
    said = {"chat": 0.2, "rag": 0.2, "batch": 0.3}
    own = {"batch": 0.75}
    totals = [sum(offered_loads(said, at=At.RAISED, noisy=[n], own_raised=own).values()) for n in said]
    assert totals == pytest.approx([1.15] * 3)


def test_none_takes_loads_as_they_are_written():
    """``at: none`` is no experiment: baseline and raised say nothing."""
    said = {"a": 1.0, "b": 3.0}
    assert offered_loads(said, at=At.NONE, baseline=9, raised=2, noisy=["a"]) == said


def test_a_load_that_nobody_raises_is_an_error():
    with pytest.raises(ValueError, match="no tenant is named"):
        offered_loads({"a": 1.0}, at=At.RAISED)


LOADED = """\
duration_s: 100
cost: {prompt: 1, output: 2}
tenants:
  chat:
    load: 0.25
    prompt: {mean: 300, cv: 0.8}
    output: {mean: 150, cv: 0.8, max: 400}
  rag:
    weight: 3
    share: 0.5
    prompt: {min: 100, max: 300}
    output: 50
"""


def test_a_load_becomes_the_rate_whose_requests_cost_that_much(load):
    """rate * mean cost = load * saturation, the mean taken over drawn, clipped requests; ``share`` is of the tenant's
    own part, weight / sum of weights.
    """
    plan = resolve(load(LOADED), saturation=20_000)
    rng = np.random.default_rng(1)
    n = 400_000

    def lognormal(mean, cv):
        sigma2 = np.log(1 + cv**2)
        return np.rint(rng.lognormal(np.log(mean) - sigma2 / 2, np.sqrt(sigma2), n)).clip(1)

    chat_cost = float((lognormal(300, 0.8) + 2 * np.minimum(lognormal(150, 0.8), 400)).mean())
    rag_cost = 200 + 2 * 50
    chat, rag = plan.tenants
    assert chat.offered == 0.25 * 20_000
    assert chat.traffic.arrivals.rate == pytest.approx(0.25 * 20_000 / chat_cost, rel=0.01)
    assert rag.offered == pytest.approx(0.5 * 20_000 * 3 / 4)
    assert rag.traffic.arrivals.rate == pytest.approx(0.5 * 20_000 * 3 / 4 / rag_cost)


def test_rates_need_no_saturation_and_stay_exactly_as_written(load, sound):
    """Tenants with rates run against an unknown server, raised load included; nothing invents a contract."""
    scenario = load(sound)
    plan = resolve(scenario)
    assert [t.traffic.arrivals.rate for t in plan.tenants] == [10, 5]
    assert [t.tenant.contract for t in plan.tenants] == [None, None]
    assert any("saturation is not known" in str(warning) for warning in plan.warnings)
    raised = resolve(scenario, at=At.RAISED, noisy="batch")
    cost = {"chat": 300 + 2 * 150, "batch": 800 + 2 * 300}
    chat, batch = (t.traffic.arrivals.rate for t in raised.tenants)
    total = 10 * cost["chat"] + 5 * cost["batch"]
    assert chat == 10
    assert chat * cost["chat"] + batch * cost["batch"] == pytest.approx(1.2 * total)
    assert raised.noisy == ("batch",)
    assert raised.in_contract == ("chat",)


def test_fractions_of_an_unknown_saturation_are_faults_with_their_lines(load):
    """Each ``load`` and ``share`` is named; the remedy is a saturation or rates. A stated one serves."""
    scenario = load(LOADED)
    with pytest.raises(ScenarioError) as caught:
        resolve(scenario)
    assert [(fault.place.line, fault.path[-1]) for fault in caught.value.faults] == [(5, "load"), (10, "share")]
    assert "load.saturation" in str(caught.value)
    assert resolve(load(LOADED, overrides=["load.saturation=20000"])) == resolve(scenario, saturation=20_000)


def test_the_mix_does_not_depend_on_the_saturation(load):
    """Saturation is measured with the scenario's own raised mix: with fractions, any figure gives that mix."""
    scenario = load(LOADED)
    one, other = (resolve(scenario, saturation=s, at=At.RAISED, noisy="chat") for s in (1.0, 50_000.0))
    ratio = [b.traffic.arrivals.rate / a.traffic.arrivals.rate for a, b in zip(one.tenants, other.tenants, strict=True)]
    assert ratio == pytest.approx([50_000] * 2)


def test_the_default_contract_is_the_weights_share_of_saturation(load):
    """phi_i / sum phi of saturation, a burst of 30 s of it; a stated rate or burst replaces its own half."""
    own_rate = "  own: {rate: 1, prompt: 1, output: 1, contract: {rate: 7}}\n"
    text = LOADED + "    contract: {burst_s: 10}\n" + own_rate
    chat, rag, own = (t.tenant.contract for t in resolve(load(text), saturation=50_000).tenants)
    assert (chat.rate, chat.burst) == (10_000, 300_000)
    assert (rag.rate, rag.burst) == (30_000, 300_000)
    assert (own.rate, own.burst) == (7, 210)


def test_ramps_and_steps_grow_as_a_whole(load, sound):
    """The raised load multiplies every rate of a process: a ramp's start, each step; and steps count by their mean."""
    text = sound.replace("rate: 10", "rate: 10\n    arrivals: {process: ramp, ramp_from: 2}").replace(
        "rate: 5", "arrivals: {process: steps, steps: [[0, 2], [0.75, 14]]}"
    )
    plan = resolve(load(text), at=At.RAISED, growth=Growth.ALL)
    ramp, steps = (t.traffic.arrivals for t in plan.tenants)
    assert (ramp.process, steps.process) == (Process.RAMP, Process.STEPS)
    assert (ramp.rate, ramp.ramp_from) == pytest.approx((12, 2.4))
    assert [rate for _, rate in steps.steps] == pytest.approx([2.4, 16.8])
    assert plan.tenants[1].offered == pytest.approx(1.2 * 5 * (800 + 2 * 300)), "0.75 * 2 + 0.25 * 14 = 5 requests/s"


def test_a_closed_loop_has_users_and_no_load(load, faults, sound):
    """``users`` is a closed loop: its load is the server's doing, so it can be neither scaled nor raised."""
    text = sound.replace("rate: 10", "users: 4\n    think_s: 0.5")
    chat = resolve(load(text)).tenants[0]
    assert (chat.traffic.arrivals.process, chat.traffic.arrivals.users, chat.traffic.arrivals.think_s) == (
        "closed",
        4,
        0.5,
    )
    assert chat.offered is None
    assert any("closed loop and cannot be scaled" in f for f in faults(text, overrides=["load.baseline=0.5"]))
    assert any("closed loop, whose load" in f for f in faults(text, overrides=["load.noisy=chat"]))
    assert any("closed loop and cannot grow" in f for f in faults(text, overrides=["load.growth=all"]))
    with pytest.raises(ScenarioError, match="cannot be raised"):
        resolve(load(text), at=At.RAISED, noisy="chat")


def test_raised_by_nobody_is_a_fault_of_the_scenario(load, sound):
    """``at: raised`` needs a tenant that grows: named, with a raised_load, or all."""
    with pytest.raises(ScenarioError, match=r"file.yaml:15: load.at: the load is raised, but no tenant is named"):
        resolve(load(sound + "load: {at: raised}\n"))


def test_session_costs_count_the_whole_conversation(load, sound):
    """With sessions a request's mean prompt holds all earlier turns: 3 turns of 100 in, 50 out have prompts of 100, 250
    and 400 tokens, so 2 requests/s offer 2 * (250 + 2 * 50) cost units/s.
    """
    text = sound.replace(
        "rate: 10\n    prompt: 300\n    output: 150",
        "rate: 2\n    prompt: 100\n    output: 50\n    sessions: {turns: 3}",
    )
    assert resolve(load(text)).tenants[0].offered == pytest.approx(2 * (250 + 2 * 50))


TRACED = """\
policy: fifo
load: {saturation: 10000}
trace: {path: trace.csv, tenants: {by: index, order: [a, b]}}
tenants:
  a: {%s}
  b: {%s}
"""


@pytest.fixture
def trace_file(tmp_path):
    (tmp_path / "trace.csv").write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n", encoding="utf-8")


def test_rows_of_a_trace_are_scaled_alike_to_the_baseline_then_the_noisy_one_grows(load, trace_file):
    """A trace's loads are known once it is read: until then the plan says so; then k_i carries each tenant from what it
    recorded to 0.75 of saturation together, and the noisy one on to 1.2 times that.
    """
    scenario = load(TRACED % ("", ""))
    assert resolve(scenario, at=At.BASELINE).needs_traced_loads
    assert not resolve(scenario).needs_traced_loads, "as recorded: nothing to scale"
    recorded = {"a": 1000.0, "b": 2000.0}
    base = resolve(scenario, at=At.BASELINE, traced_loads=recorded)
    assert not base.needs_traced_loads
    assert [t.growth for t in base.tenants] == pytest.approx([2.5, 2.5])
    up = resolve(scenario, at=At.RAISED, noisy="b", traced_loads=recorded)
    assert [t.growth for t in up.tenants] == pytest.approx([2.5, (1.2 * 7500 - 2500) / 2000])
    assert [t.traffic.arrivals.process for t in up.tenants] == [Process.TRACE] * 2


def test_a_traced_tenant_can_state_its_load(load, trace_file):
    """``load`` of a traced tenant is the fraction of saturation that its rows are brought to."""
    scenario = load(TRACED % ("load: 0.25", "load: 0.25, raised_load: 0.65"))
    assert resolve(scenario).needs_traced_loads
    recorded = {"a": 1000.0, "b": 2000.0}
    assert [t.growth for t in resolve(scenario, traced_loads=recorded).tenants] == pytest.approx([2.5, 1.25])
    up = resolve(scenario, at=At.RAISED, traced_loads=recorded)
    assert [t.growth for t in up.tenants] == pytest.approx([2.5, 3.25])
    assert (up.noisy, up.in_contract) == (("b",), ("a",))
