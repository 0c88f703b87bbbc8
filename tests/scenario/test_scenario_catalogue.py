"""The built-in scenarios: found by name, each sound, each what the study says; and the files made from the model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lmperf.catalog import find_scenario, list_scenarios
from lmperf.scenario import At, Known, ScenarioError, load_scenario, resolve, resolved_yaml, scenario_from_text
from lmperf.scenario.schema import MARK, REFERENCE_FILE, SCHEMA_FILE, json_schema, reference, schema_text
from scheduler.policies.build import POLICIES, PolicyContext, build_policy

ROOT = Path(__file__).resolve().parents[2]
ENTRIES = {entry.name: entry for entry in list_scenarios()}
TRACES = {"study-h-azure", "azure-replay"}
SATURATION = 28_000.0


@pytest.fixture(scope="module")
def installed() -> Known:
    return Known(
        policies=POLICIES.names(),
        backends=["emulated", "openai"],
        check_policy=lambda name, options: build_policy(name, options, PolicyContext()),
    )


def test_the_named_scenarios_are_there():
    """The ones that docs and tests speak of, and the nine of the study."""
    assert {"demo", "noisy-neighbour", "quickstart", "capacity", "launch-targets", "azure-replay"} <= set(ENTRIES)
    assert [name[6] for name in ENTRIES if name.startswith("study-")] == list("abcdefghk")


@pytest.mark.parametrize("name", ENTRIES)
def test_each_is_sound_and_resolves(name, installed, tmp_path):
    """It loads with the installed policies, resolves at each load, and its resolved file resolves to the same plan."""
    overrides = []
    if name in TRACES:
        trace = tmp_path / "trace.csv"
        trace.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n", encoding="utf-8")
        overrides = [f"trace.path={trace}"]
    scenario = load_scenario(ENTRIES[name].path, overrides=overrides, known=installed)
    assert scenario.model.name == name == ENTRIES[name].path.stem
    assert ENTRIES[name].summary
    assert scenario.warnings == ()
    for at in (None, At.NONE, At.BASELINE):
        plan = resolve(scenario, saturation=SATURATION, at=at)
        assert resolve(scenario_from_text(resolved_yaml(scenario, plan))) == plan


# The study's table: baseline and raised loads as fractions of saturation, TTFT limits in s, weights.
STUDY = {
    "noisy-neighbour": ({"chat": 0.1875, "rag": 0.1875, "batch": 0.375}, {"batch": 0.525}, (0.5, 1.5, 30), (1, 1, 1)),
    "demo": ({"chat": 0.1875, "rag": 0.1875, "batch": 0.375}, {"batch": 0.525}, (0.5, 1.5, 30), (1, 1, 1)),
    "study-a-flooder": ({"chat": 0.1875, "rag": 0.1875, "batch": 0.375}, {"batch": 0.725}, (0.5, 1.5, 30), (1, 1, 1)),
    "study-b-five-and-one": (
        {
            "chat-large": 0.85 * 4 / 13,
            "chat-small": 0.85 * 2 / 13,
            "rag-large": 0.85 * 3 / 13,
            "rag-small": 0.85 * 2 / 13,
            "agent": 0.85 / 13,
            "batch": 0.85 / 13,
        },
        {"batch": 0.6},
        (0.5, 0.5, 1.5, 1.5, 1, 10),
        (4, 2, 3, 2, 1, 1),
    ),
    "study-c-flash-crowd": ({"chat": 0.2, "crowd": 0.15, "batch": 0.3}, {"batch": 0.75}, (0.5, 1, 30), (1, 1, 1)),
    "study-k-crowd-infeasible": ({"chat": 0.2, "crowd": 0.15, "batch": 0.3}, {"batch": 0.75}, (0.5, 1, 30), (1, 1, 1)),
    "study-d-heavy-tail": ({"chat": 0.22, "rag": 0.22, "batch": 0.3}, {"batch": 0.7}, (0.5, 1.5, 30), (1, 1, 1)),
    "study-e-back-from-idle": ({"chat": 0.25, "rag": 0.3, "batch": 0.3}, {"batch": 0.9}, (0.5, 1.5, 10), (1, 1, 1)),
    "study-f-swarm": ({"agent": 0.4, "chat": 0.16, "batch": 0.17}, {"batch": 0.6}, (1, 0.5, 10), (1, 30, 30)),
    "study-g-all": (
        {"chat": 0.25, "rag": 0.25, "batch": 0.25},
        {"chat": 0.4, "rag": 0.4, "batch": 0.4},
        (0.5, 1.5, 10),
        (1, 1, 1),
    ),
}


@pytest.mark.parametrize("name", STUDY)
def test_the_study_scenarios_offer_what_the_study_offered(name):
    """Loads at baseline and raised, limits, weights, slots, server limits and window are those of the study's table."""
    baseline, raised, ttft_s, weights = STUDY[name]
    scenario = load_scenario(ENTRIES[name].path)
    for at, expected in ((At.BASELINE, baseline), (At.RAISED, baseline | raised)):
        plan = resolve(scenario, saturation=SATURATION, at=at)
        loads: dict[str, float] = {}
        for planned in plan.tenants:
            loads[planned.group] = loads.get(planned.group, 0) + planned.offered / SATURATION
        assert loads == pytest.approx(expected)
    groups = {planned.group: planned.tenant for planned in plan.tenants}
    assert [t.slo.ttft_ns / 1e9 for t in groups.values()] == pytest.approx(list(ttft_s))
    assert [t.weight for t in groups.values()] == list(weights)
    assert {t.slo.attainment for t in groups.values()} == {0.99}
    assert [t.slo.tpot_ns for n, t in groups.items()] == [40_000_000 if n == "batch" else 20_000_000 for n in groups]
    assert (plan.slots.sequences, plan.slots.prefill_tokens) == (64, 2048)
    assert plan.backend.limits == {"max_num_seqs": 512, "max_num_batched_tokens": 2048, "kv_tokens": None}
    assert plan.backend.offset_ns == 0
    assert plan.judged.span == (0.1, 0.95)
    noisy = () if name == "study-g-all" else ("batch",)
    assert plan.noisy == noisy
    assert len(plan.in_contract) == len(plan.tenants) - len(noisy)
    assert len(plan.tenants) == (102 if name == "study-f-swarm" else len(baseline))


@pytest.mark.parametrize("name", ["study-a-flooder", "study-f-swarm", "noisy-neighbour"])
def test_any_tenant_can_be_made_the_noisy_one(name):
    """Each in turn: whoever grows, the total is the same, the others stay, and the resolved file says who it was."""
    scenario = load_scenario(ENTRIES[name].path)
    groups = list(scenario.model.tenants)
    plans = {group: resolve(scenario, saturation=SATURATION, at=At.RAISED, noisy=group) for group in groups}
    totals = [sum(t.offered for t in plan.tenants) for plan in plans.values()]
    assert totals == pytest.approx([totals[0]] * len(totals))
    base = {t.tenant.name: t.offered for t in resolve(scenario, saturation=SATURATION, at=At.BASELINE).tenants}
    for group, plan in plans.items():
        assert all((t.offered > base[t.tenant.name]) == (t.group == group) for t in plan.tenants)
        assert {t.offered for t in plan.tenants if t.group != group} == {base[n] for n in plan.in_contract}
        assert resolve(scenario_from_text(resolved_yaml(scenario, plan))) == plan


def test_a_name_finds_its_file_and_an_unknown_one_lists_them(tmp_path, monkeypatch):
    """A built-in name, a path, a file in the current folder; else what there is, the nearest first."""
    assert find_scenario("demo") == ENTRIES["demo"].path
    assert find_scenario("some/where.yaml") == Path("some/where.yaml")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine").touch()
    assert find_scenario("mine") == Path("mine")
    with pytest.raises(ScenarioError, match="did you mean `noisy-neighbour`\\? known: azure-replay, capacity, demo"):
        find_scenario("noisy-neighbor")


def test_a_trace_that_is_not_named_is_a_fault_that_says_how():
    """The study's trace is not shipped: the plan asks for it by the setting that names it."""
    with pytest.raises(ScenarioError, match=r"trace.path: no trace file is named; add --set trace.path=FILE"):
        resolve(load_scenario(ENTRIES["study-h-azure"].path), saturation=1)


def test_the_schema_file_and_the_reference_are_those_of_the_model():
    """Both are made from the model: `python -m lmperf.scenario.schema` after a change of it."""
    assert (ROOT / SCHEMA_FILE).read_text(encoding="utf-8") == schema_text()
    page = (ROOT / REFERENCE_FILE).read_text(encoding="utf-8")
    assert page.partition(MARK)[2].strip() == reference().strip()


def test_every_key_is_described_in_schema_and_reference():
    """No key without a sentence: it is the docs."""
    definitions = json_schema()["$defs"]
    parts = [json_schema(), *definitions.values()]
    objects = [part for whole in parts for part in (whole, *whole.get("anyOf", ())) if "properties" in part]
    assert len(objects) >= 15
    for part in objects:
        for key, value in part["properties"].items():
            assert value.get("description"), key
            assert f"| `{key}` |" in reference()


def test_the_schema_knows_the_short_forms():
    """An editor accepts `policy: wfq`, `prompt: 300`, `slots: auto` and a backend by its url, as lmperf does."""
    definitions = json_schema()["$defs"]
    short = {
        name: {form.get("type") for form in definitions[name]["anyOf"]}
        for name in definitions
        if "anyOf" in definitions[name]
    }
    assert short == {
        "PolicyModel": {"string", "object"},
        "BackendModel": {"string", "object"},
        "ServerModel": {"string", "object"},
        "ArrivalsModel": {"string", "object"},
        "SlotsModel": {"string", "object"},
        "RoutingModel": {"string", "object"},
        "LengthsModel": {"number", "object"},
    }
    assert json.loads(schema_text())["additionalProperties"] is False


def test_the_example_of_the_docs_is_sound():
    """What people copy first must work."""
    page = (ROOT / REFERENCE_FILE).read_text(encoding="utf-8")
    text = page.partition("```yaml\n")[2].partition("```")[0]
    assert [t.tenant.name for t in resolve(scenario_from_text(text)).tenants] == ["chat", "batch"]
