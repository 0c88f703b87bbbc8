"""`lmperf simulate`: what it prints and writes, from a scenario and from a trace, the same again for the same seed."""

from __future__ import annotations

import io
import json
from contextlib import chdir, redirect_stderr, redirect_stdout

import pytest

from lmperf.__main__ import main
from loadgen.trace.convert import write_trace
from loadgen.trace.schema import TraceMetadata
from scheduler.request import Outcome, Request, Status, TokensSource

EMBEDDED = "backend: {server_model: h200-llama-8b, limits: {max_num_seqs: 256, max_num_batched_tokens: 2048}}"
LOAD = "load: {at: baseline, baseline: 0.75, raised: 1.2, noisy: batch}\n"
SCENARIO = f"""\
version: 1
name: small
duration_s: 20
seed: 1
{EMBEDDED}
slots: {{sequences: 16, prefill_tokens: 2048}}
{LOAD}tenants:
  chat:
    load: 0.2
    prompt: {{mean: 300, cv: 0.5}}
    output: {{mean: 60, cv: 0.5}}
    slo: {{ttft_ms: 500, attainment: 0.9}}
  batch:
    load: 0.55
    prompt: {{mean: 600, cv: 0.5}}
    output: {{mean: 100, cv: 0.5}}
"""


def simulate(cwd, *args):
    out, err = io.StringIO(), io.StringIO()
    with chdir(cwd), redirect_stdout(out), redirect_stderr(err):
        code = main(["simulate", *map(str, args), "--processes", "1", "--quiet"])
    return int(code), out.getvalue(), err.getvalue()


def comparisons(folder):
    return json.loads((folder / "comparison.json").read_text())["comparisons"]


@pytest.fixture(scope="module")
def simulated(tmp_path_factory):
    """(folder, what was printed) of two policies over six seeds."""
    folder = tmp_path_factory.mktemp("simulated")
    (folder / "s.yaml").write_text(SCENARIO)
    code, out, err = simulate(folder, "s.yaml", "--policies", "fifo,wfq", "--seeds", 6, "--output-dir", "one")
    assert code == 0, err
    return folder, out


def test_every_policy_is_compared_at_both_loads(simulated):
    """Decay, rho, attainment and throughput with intervals over seeds, for each policy; both tenants at both loads."""
    folder, out = simulated
    (comparison,) = comparisons(folder / "one")
    assert comparison["noisy"] == ["batch"]
    assert [policy["label"] for policy in comparison["policies"]] == ["fifo", "wfq"]
    for policy in comparison["policies"]:
        assert policy["decay_in_contract"]["interval"] is not None
        for load in ("baseline", "raised"):
            assert set(policy[load]) == {"chat", "batch"}
    for word in ("fifo", "wfq", "chat", "batch", "decay", "rho"):
        assert word in out
    assert (folder / "one/comparison.html").stat().st_size > 10_000


def test_fair_queueing_isolates_where_fifo_does_not(simulated):
    """The point of the whole: the victim's tail grows under fifo and hardly under wfq."""
    folder, _ = simulated
    fifo, wfq = comparisons(folder / "one")[0]["policies"]
    assert fifo["decay_in_contract"]["value"] > wfq["decay_in_contract"]["value"]
    assert fifo["rho"]["value"] > wfq["rho"]["value"]


def test_the_same_command_gives_the_same_numbers_in_another_folder(simulated):
    """To the last digit, and without touching what is there."""
    folder, _ = simulated
    before = (folder / "one/comparison.json").read_bytes()
    code, out, err = simulate(folder, "s.yaml", "--policies", "fifo,wfq", "--seeds", 6, "--output-dir", "one")
    assert code == 0, err
    assert "one-2/comparison.html" in out
    assert (folder / "one-2/comparison.json").read_bytes() == before == (folder / "one/comparison.json").read_bytes()


def test_another_seed_gives_other_numbers(simulated):
    """--seed moves every draw."""
    folder, _ = simulated
    code, _, err = simulate(
        folder, "s.yaml", "--policies", "fifo,wfq", "--seeds", 1, "--seed", 77, "--output-dir", "other"
    )
    assert code == 0, err
    assert comparisons(folder / "other") != comparisons(folder / "one")


def test_a_scenario_of_a_real_server_needs_a_server_model(tmp_path):
    """104, and how to get one."""
    text = SCENARIO.replace(EMBEDDED, "backend: {url: 'http://h:1'}").replace(LOAD, "")
    (tmp_path / "s.yaml").write_text(text.replace("load: 0.2", "rate: 2").replace("load: 0.55", "rate: 2"))
    code, _, err = simulate(tmp_path, "s.yaml", "--seeds", 1)
    assert code == 104
    assert "lmperf calibrate" in err
    assert "--server-model" in err


def test_a_scenario_of_users_has_no_load_to_raise(tmp_path):
    """104 and why, not a crash."""
    text = SCENARIO.replace("load: 0.2", "users: 2").replace("load: 0.55", "users: 3")
    (tmp_path / "s.yaml").write_text(text.replace(LOAD, ""))
    code, out, err = simulate(tmp_path, "s.yaml", "--seeds", 1)
    assert code == 104, out
    assert "rate or a load" in err


def trace(path, users=4, rounds=40):
    """A closed loop as a client would have captured it from a server of 5 ms a step, 10 ms before the first token."""
    outcomes, number = [], 0
    for user in range(users):
        now, before = user * 2_000_000, None
        for turn in range(rounds):
            n = 5 + (7 * turn + 3 * user) % 20
            first = now + 10_000_000 + 5_000_000 * (user + 1)
            last = first + (n - 1) * 5_000_000
            request = Request(
                id=number,
                tenant="only",
                arrival_ns=now,
                prompt_tokens=50 + 10 * ((turn + user) % 9),
                target_output_tokens=n,
                arrival_kind="absolute" if before is None else "after",
                after_request_id=before,
                think_ns=None if before is None else 1_000_000,
            )
            outcomes.append(
                Outcome(
                    request=request,
                    status=Status.OK,
                    ended_ns=last,
                    enqueued_ns=now,
                    dispatched_ns=now,
                    connect_ns=0,
                    sent_ns=now,
                    first_token_ns=first,
                    last_token_ns=last,
                    finished_ns=last,
                    output_tokens=n,
                    tokens_source=TokensSource.USAGE,
                    tokens_known=False,
                )
            )
            before, number, now = number, number + 1, last + 1_000_000
    write_trace(path, outcomes, TraceMetadata(load_mode="closed", queueing="target", policy="none"))
    return path


@pytest.mark.parametrize("arrivals", ["regenerated", "recorded"])
def test_a_trace_is_calibrated_reproduced_and_compared(tmp_path, arrivals):
    """Its own server model is fitted and written, how well the run is reproduced stands first and names the arrivals,
    then every policy on the captured arrivals, then the derived loads."""
    trace(tmp_path / "t.parquet")
    code, out, err = simulate(
        tmp_path, "t.parquet", "--policies", "fifo,wfq", "--arrivals", arrivals, "--output-dir", "r"
    )
    assert code == 0, err
    order = [
        out.index(text)
        for text in (
            "server model calibrated from t.parquet (fitted to this trace, refined by replaying it)",
            f"the captured run, reproduced (arrivals: {arrivals})",
            "the captured arrivals under each policy",
            "derived loads",
            "P99 decay",
        )
    ]
    assert order == sorted(order)
    assert {path.name for path in (tmp_path / "r").iterdir()} == {
        "comparison.html",
        "comparison.json",
        "log.txt",
        "server-model.json",
    }


def test_a_long_trace_is_fitted_quickly_and_says_how_to_do_better(tmp_path, monkeypatch):
    monkeypatch.setattr("lmperf.wiring.captured.REFINED_UP_TO", 100)
    trace(tmp_path / "t.parquet")
    code, out, err = simulate(tmp_path, "t.parquet", "--policies", "fifo", "--output-dir", "r")
    assert code == 0, err
    assert "fitted to this trace, least squares alone, the run being long" in out
    assert "lmperf calibrate t.parquet -o model.json, then --server-model model.json" in out


def test_a_written_server_model_is_taken_again(tmp_path):
    """What simulate or calibrate wrote is what --server-model takes; then nothing is fitted."""
    trace(tmp_path / "t.parquet")
    assert simulate(tmp_path, "t.parquet", "--policies", "fifo", "--output-dir", "r")[0] == 0
    code, out, err = simulate(
        *(tmp_path, "t.parquet", "--policies", "fifo", "--server-model", "r/server-model.json", "--output-dir", "s")
    )
    assert code == 0, err
    assert "(as named)" in out
    assert not (tmp_path / "s/server-model.json").exists()
    assert comparisons(tmp_path / "r") == comparisons(tmp_path / "s")
