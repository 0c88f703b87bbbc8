"""A calibrated model is asked whether it ranks policies as they were measured."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from lmperf.scenario.load import scenario_from_text
from lmperf.scenario.model import At
from lmperf.scenario.resolve import resolve
from lmperf.wiring.captured import any_trace, captured_run
from lmperf.wiring.header import run_names
from lmperf.wiring.observed import observations
from lmperf.wiring.ranked import ATTAINED, TTFT_P99, RankedPolicy, Ranking, rank_policies
from lmperf.wiring.sources import recipe_of, source_of
from loadgen.offline.run import simulate
from loadgen.recorder import Recorder
from loadgen.trace.convert import write_trace
from loadgen.trace.schema import TraceMetadata
from scheduler.calibration.calibrate import HeldOut
from scheduler.dispatcher import Dispatcher
from scheduler.dispatcher_config import DispatcherConfig
from scheduler.server_model.spec import ServerLimits, ServerModelSpec, StepLaw
from scheduler.slots import Slots

S = 1_000_000_000
SERVER = ServerModelSpec(
    name="known",
    law=StepLaw(a_us=5000.0, b_us=20.0, c_us=30.0, d_us=0.05, offset_us=2000.0),
    limits=ServerLimits(max_num_seqs=16, max_num_batched_tokens=2048),
)
SLOTS = Slots(sequences=8, prefill_tokens=2048)


def scenario(bulk_rate=13.0, limit_ms=600):
    """A tenant that asks little of a server whose other tenant floods it."""
    return f"""\
version: 1
name: flooded
duration_s: 20
seed: 3
backend: {{kind: openai, url: "http://127.0.0.1:1"}}
tenants:
  chat:
    rate: 4
    prompt: {{mean: 200, cv: 0.6, max: 2000}}
    output: {{mean: 40, cv: 0.6, max: 300}}
    slo: {{ttft_ms: {limit_ms}, attainment: 0.9}}
  bulk:
    rate: {bulk_rate}
    prompt: {{mean: 600, cv: 0.6, max: 2000}}
    output: {{mean: 120, cv: 0.6, max: 600}}
"""


def run_of(folder, policy, text=None, slots=SLOTS):
    """The trace that a run of the scenario under this policy would have left, made by the simulator."""
    text = text or scenario()
    plan = resolve(scenario_from_text(text, file="test"), saturation=1.0, at=At.NONE)
    recipe = recipe_of(plan)
    tenants = recipe.tenants
    outcomes = []

    class Kept(Recorder):
        def on_outcome(self, outcome):
            outcomes.append(outcome)

    config = DispatcherConfig(tenants=tenants, policy=policy, prefill_rate=50_000.0, backends={"server": slots})
    simulate(source_of(recipe, 3, {}), Dispatcher(config), {"server": SERVER}, Kept(tenants, (0, 10**12)))
    metadata = TraceMetadata(
        scenario=text,
        policy=policy,
        slots={"sequences": slots.sequences, "prefill_tokens": slots.prefill_tokens},
        window_ns=(0, 20 * S),
    )
    folder.mkdir()
    write_trace(folder / "requests.parquet", outcomes, metadata, tenants)
    return folder


def held_out(*paths, law=SERVER.law):
    return [HeldOut(captured_run(path, recorded=False).name, law, {}) for path in paths]


def test_a_model_of_the_very_server_ranks_as_measured(tmp_path):
    """Fair queueing keeps the tenant that fifo starves, in the captures and in their simulations: the same figures."""
    paths = [run_of(tmp_path / policy, policy) for policy in ("fifo", "wfq")]
    found = rank_policies(paths, SERVER, held_out(*paths))
    assert found.not_told == ""
    (load,) = found.loads
    fifo, wfq = load
    assert (fifo.policy, wfq.policy) == ("fifo", "wfq")
    assert fifo.captured[ATTAINED] < 0.6 < 0.9 < wfq.captured[ATTAINED]
    for row in load:
        assert row.simulated == pytest.approx(row.captured, rel=0.02)
    assert found.pairs(ATTAINED) == (1, 1)
    data = found.as_data()
    assert data[ATTAINED] == {"as_measured": 1, "pairs": 1}
    assert [row["policy"] for row in data["loads"][0]] == ["fifo", "wfq"]


def test_one_load_is_the_same_tenants_promises_and_cost(tmp_path):
    """Another promise, or a tenant half as busy, is another load; slots are of the setting, and so in its name."""
    fifo = run_of(tmp_path / "fifo", "fifo")
    others = [
        run_of(tmp_path / "promise", "wfq", scenario(limit_ms=500)),
        run_of(tmp_path / "busy", "wfq", scenario(bulk_rate=6.0)),
    ]
    for other in others:
        found = rank_policies([fifo, other], SERVER, held_out(fifo, other))
        assert "no two policies are of one load" in found.not_told
    wide = run_of(tmp_path / "wide", "wfq", slots=Slots(sequences=16, prefill_tokens=None))
    found = rank_policies([fifo, wide], SERVER, held_out(fifo, wide))
    assert [row.policy for row in found.loads[0]] == ["fifo (slots 8, 2048)", "wfq (slots 16, unlimited)"]


def test_what_cannot_be_ranked_says_why(tmp_path):
    """One policy, none known, or a capture without a law that never saw it."""
    fifo, wfq = (run_of(tmp_path / policy, policy) for policy in ("fifo", "wfq"))
    again = run_of(tmp_path / "again", "fifo")
    assert "all are of one policy (fifo)" in rank_policies([fifo, again], SERVER, held_out(fifo, again)).not_told
    assert "could not be held out" in rank_policies([fifo, wfq], SERVER, held_out(fifo)).not_told
    assert "no capture says its policy" in rank_policies([], SERVER, []).not_told
    assert Ranking(not_told="why").as_data() == {"not_told": "why"}


def test_runs_of_one_name_are_told_apart(tmp_path):
    """As many folders before the name as it takes, in the fit and in the ranking; one that is given twice has a number."""
    for day in ("monday", "tuesday"):
        (tmp_path / day).mkdir()
    fifo, wfq = run_of(tmp_path / "monday/run", "fifo"), run_of(tmp_path / "tuesday/run", "wfq")
    names = [seen.name for seen in observations([any_trace(fifo), any_trace(wfq)])]
    assert names == ["monday/run", "tuesday/run"]
    laws = [HeldOut(name, SERVER.law, {}) for name in names]
    assert [row.policy for row in rank_policies([fifo, wfq], SERVER, laws).loads[0]] == ["fifo", "wfq"]
    paths = [Path("/a/x/requests.parquet"), Path("/a/y/requests.parquet"), Path("/b/x/requests.parquet")]
    assert run_names(paths) == ["a/x", "y", "b/x"]
    assert run_names([Path("/a/t.parquet"), Path("/b/t.parquet")]) == ["a/t.parquet", "b/t.parquet"]
    assert run_names(paths[:1] * 2) == ["x", "x (2)"]


def row(policy, captured, simulated):
    return RankedPolicy(policy, *({ATTAINED: share, TTFT_P99: tail} for share, tail in (captured, simulated)))


def test_pairs_that_differ_as_measured_are_counted():
    """a < b < c as captured, a and c swapped by the model; b and d are within a point; a first token that never came is
    later than any other."""
    load = (
        row("a", (0.50, 100.0), (0.90, 100.0)),
        row("b", (0.70, 104.0), (0.70, 300.0)),
        row("c", (0.90, math.inf), (0.60, math.inf)),
        row("d", (0.705, 200.0), (0.10, 90.0)),
    )
    found = Ranking((load,))
    # attained: ab wrong, ac wrong, ad wrong, bc wrong, (bd alike), cd right
    assert found.pairs(ATTAINED) == (1, 5)
    # TTFT: (ab alike), ac right, ad wrong, bc right, bd wrong, cd right
    assert found.pairs(TTFT_P99) == (3, 5)
    assert Ranking((load[:1], load[1:2])).pairs(ATTAINED) == (0, 0), "of two loads nothing is compared"
