"""Several servers behind one queue, with slots that move by themselves: run, read, and simulate again."""

from __future__ import annotations

import json

import pyarrow.parquet as pq
import pytest
from cli_support import FAST_MODEL, invoke, served, summary_of, two_tenants

from lmperf.scenario import load_scenario
from lmperf.wiring.confirm import cell_of_plan
from lmperf.wiring.observed import observations_by_server
from lmperf.wiring.saturation import resolve_with_saturation
from loadgen.offline.cell import record_cell
from loadgen.trace.reader import read_trace


def several(*urls: str, slots: str = "{auto: waiting, sequences: 3}", routing: str = "", **more: object) -> str:
    text = two_tenants("URL", **more)
    text = text.replace('url: "URL"', f"urls: [{', '.join(urls)}]{routing}")
    return text.replace("slots: {sequences: 4, prefill_tokens: 2048}", f"slots: {slots}")


@pytest.fixture(scope="module")
def two_servers(url, tmp_path_factory):
    """(the folder of a run on two servers, what the command printed). Read only."""
    folder = tmp_path_factory.mktemp("several")
    with served(tmp_path_factory.mktemp("second")) as second:
        (folder / "s.yaml").write_text(several(url, second, routing=", routing: round_robin", duration_s=1.5, rate=120))
        done = invoke("run", "s.yaml", "--output-dir", "r", "--quiet", cwd=folder)
    return folder / "r", done


def test_both_servers_answer_and_the_slots_of_each_are_told(two_servers):
    """Rows name their server; summary, screen and report say how D went."""
    folder, done = two_servers
    assert done.returncode == 0, done
    rows = pq.read_table(folder / "requests.parquet").column("backend").to_pylist()
    assert {"server-1", "server-2"} == set(rows)
    told = summary_of(folder)["slots_over_time"]
    assert [one["backend"] for one in told] == ["server-1", "server-2"]
    for one in told:
        assert (one["time_s"][0], one["sequences"][0]) == (0.0, 3)
        assert one["final_sequences"] == one["sequences"][-1]
    assert "slots of server-1: moved between" in done.stdout
    assert "time to the first token, in our queue / at the server: chat " in done.stdout
    report = (folder / "report.html").read_text()
    assert "Slots, as they were moved" in report
    assert "slots of server-2: moved between" in report
    assert "2 servers behind one queue, routing round_robin." in report


def test_such_a_run_is_resolved_and_simulated_again(two_servers, tmp_path):
    """Its resolved scenario is sound; its folder is replayed on as many servers with the same kind of slots."""
    folder, _ = two_servers
    assert invoke("validate", folder / "scenario.resolved.yaml", cwd=tmp_path).returncode == 0
    (tmp_path / "model.json").write_text(FAST_MODEL)
    done = invoke(
        *("simulate", folder, "--server-model", "model.json", "--policies", "fifo", "--processes", "1"),
        *("--output-dir", "sim", "--quiet"),
        cwd=tmp_path,
    )
    assert done.returncode == 0, done
    found = json.loads((tmp_path / "sim/comparison.json").read_text())
    assert found["comparisons"]
    assert found["routing"] == "2 servers behind one queue, routing round_robin"


def test_a_scenario_of_several_servers_is_simulated_with_as_many(tmp_path):
    """Twice the servers: twice the saturation, and an overload of one is none of two."""
    (tmp_path / "model.json").write_text(FAST_MODEL)
    saturations, waits_ns = [], []
    for number in (1, 2):
        (tmp_path / "s.yaml").write_text(
            several(*["localhost:1"] * number, slots="{sequences: 1}", rate=150, duration_s=5)
        )
        scenario = load_scenario(tmp_path / "s.yaml", overrides=[f"backend.server_model={tmp_path}/model.json"])
        plan = resolve_with_saturation(scenario)
        saturations.append(plan.saturation)
        waits_ns.append(record_cell(cell_of_plan(plan)).columns().queue_ns.mean())
    assert saturations[1] == pytest.approx(2 * saturations[0], rel=1e-9)
    assert waits_ns[0] > 20 * waits_ns[1]


def test_a_server_of_another_model_is_told_before_anything_is_sent(url, tmp_path):
    """All servers of one queue serve one model."""
    with served(tmp_path, "--model-name", "another") as second:
        (tmp_path / "s.yaml").write_text(several(url, second))
        done = invoke("run", "s.yaml", "--output-dir", "r", "--quiet", cwd=tmp_path)
    assert done.returncode == 106
    assert "does not serve 'fast-model'; it serves: another" in done.stderr
    assert not (tmp_path / "r" / "summary.json").exists()


def test_a_run_on_several_servers_is_calibrated_as_several(two_servers):
    """A step is one engine's: each server's requests are observations of their own, and none is in two."""
    trace = read_trace(two_servers[0])
    found = observations_by_server(trace)
    assert [seen.name.rpartition(" on ")[2] for seen in found] == ["server-1", "server-2"]
    ok = [name for name, status in zip(trace.values("backend"), trace.values("status"), strict=True) if status == "ok"]
    assert [len(seen) for seen in found] == [ok.count("server-1"), ok.count("server-2")]
