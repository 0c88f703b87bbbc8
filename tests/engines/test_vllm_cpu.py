"""lmperf against vLLM on the CPU: what must hold on a real engine, whatever its speed."""

import json
import urllib.request
from collections import Counter
from pathlib import Path

import pytest

from lmperf.exit_codes import ExitCode
from tests.engines.support import azure, rules
from tests.engines.support.command import lmperf, measured
from tests.engines.support.server import SERVED_NAME, free_port
from tests.engines.support.tiny_model import CONTEXT_TOKENS, END_TOKEN_ID

# The first run on a machine installs 3.5 GB before the first test starts.
pytestmark = [pytest.mark.engine, pytest.mark.timeout(3600)]

ROWS = 25
SPEED = 2


def engine_slice(folder: Path, address: str, *, policy: str = "policy: none") -> tuple[Path, list[azure.Row]]:
    """Rows that fit the tiny model's context."""
    return azure.write_scenario(
        folder, f'{{url: "http://{address}"}}', rows=ROWS, most_prompt=CONTEXT_TOKENS // 2, speed=SPEED, policy=policy
    )


@pytest.fixture(scope="module")
def replayed(running_engine, tmp_path_factory):
    """The Azure slice, once: the run, the rows it was given, and what the server saw of it."""
    if azure.WHY_NOT is not None:
        pytest.skip(azure.WHY_NOT)
    folder = tmp_path_factory.mktemp("azure")
    scenario, rows = engine_slice(folder, running_engine.address)
    mark = running_engine.mark()
    run = measured("run", str(scenario), folder=folder)
    return run, rows, running_engine.sightings(mark)[-ROWS:]


def test_no_request_of_a_replayed_trace_is_lost(replayed, engine):
    """One row a request, all ended OK; the summary says the same."""
    run, rows, _ = replayed
    rules.assert_nothing_lost(run.trace, len(rows))
    assert run.summary["total"]["statuses"]["ok"] == len(rows)


def test_ttft_is_positive_and_within_e2e(replayed, engine):
    """The stamps of a request are in the order of its life."""
    run, _, _ = replayed
    rules.assert_stamps_in_order(run.trace)


def test_token_counts_are_those_of_usage_and_gaps_sum_to_last_minus_first(replayed, engine):
    """And the tokens of every chunk are known, so that ITL may be shown at all: a first chunk gives no gap, a later one
    of k tokens gives k."""
    run, _, _ = replayed
    rules.assert_token_gaps_add_up(run.trace)
    metrics = {metric["metric"]: metric for metric in run.summary["total"]["metrics"]}
    firsts = [tokens[0] if tokens else 1 for tokens in run.trace.values("chunk_tokens")]
    outputs = run.trace.values("output_tokens")
    assert metrics["itl"]["count"] == sum(n - first for n, first in zip(outputs, firsts, strict=True))


def test_the_servers_own_side_agrees(replayed, engine):
    """Token counts, tenant by tenant; no token is stamped before the server let it go."""
    run, _, sightings = replayed
    rules.assert_agrees_with_the_server(run.trace, sightings)
    assert {seen["model"] for seen in sightings} == {SERVED_NAME}


def test_tenants_are_kept_apart(replayed, engine):
    """Every row of the trace went to the tenant that the scenario's rule names, and reached the server under its name."""
    run, rows, sightings = replayed
    rules.assert_tenants_by_the_rule(run.trace, rows)
    expected = Counter(azure.tenant_of(row.prompt_tokens) for row in rows)
    assert Counter(seen["tenant"] for seen in sightings) == expected
    assert {t["tenant"]: t["requests"] for t in run.summary["tenants"]} == expected


def test_a_replay_keeps_the_traces_lengths_and_timestamps(replayed, engine):
    """Prompt lengths as the server counts them, output lengths, and arrivals at the trace's own times over the speed."""
    run, rows, _ = replayed
    rules.assert_replayed(run.trace, rows, SPEED)


def test_a_captured_trace_can_be_simulated(replayed, engine, tmp_path):
    """Calibrated from its own timestamps; how well the captured run is reproduced is printed before any comparison.

    A capture that a busy machine disturbed may not tell the time of a step; lmperf then refuses and asks for another one,
    and it gets one, slower.
    """
    run, _, _ = replayed
    for attempt in range(3):
        folder = tmp_path / f"simulated-{attempt}"
        simulated = lmperf("simulate", str(run.folder), "--policies", "fifo,wfq", "--processes", "1", folder=folder)
        if simulated.code == ExitCode.OK:
            break
        assert "calibrate again" in simulated.said, simulated.said
        scenario, _ = engine_slice(tmp_path, engine.address)
        run = measured("run", str(scenario), "--set", "trace.speed=1", folder=tmp_path / f"captured-{attempt}")
    assert simulated.code == ExitCode.OK, simulated.said
    reproduced, derived = simulated.said.index("the captured run, reproduced"), simulated.said.index("derived loads")
    assert simulated.said.index("fitted to this trace") < reproduced < derived
    assert (folder / "server-model.json").is_file()
    compared = json.loads((folder / "comparison.json").read_bytes())["comparisons"]
    assert all([policy["label"] for policy in one["policies"]] == ["fifo", "wfq"] for one in compared)
    assert compared


def test_a_queue_policy_in_front_of_the_engine_loses_no_request(engine, tmp_path):
    """WFQ with 8 slots: never more than 8 outstanding at the engine, every request answered."""
    if azure.WHY_NOT is not None:
        pytest.skip(azure.WHY_NOT)
    scenario, rows = engine_slice(tmp_path, engine.address, policy="policy: wfq\nslots: {sequences: 8}")
    run = measured("run", str(scenario), "--set", "trace.speed=20", folder=tmp_path)
    rules.assert_nothing_lost(run.trace, len(rows))
    rules.assert_stamps_in_order(run.trace)
    assert run.summary["queueing"] == "policy"
    begin, end = run.trace.ints("dispatched_ns"), run.trace.ints("finished_ns")
    outstanding = [int(((begin <= at) & (end > at)).sum()) for at in begin]
    assert max(outstanding) <= 8


def test_the_classic_one_shot_benchmark_works_as_written(engine, tmp_path):
    """`python -m lmperf.run --model HOST:PORT ...`: the model id is asked for; JSON and CSV; exact prompt lengths."""
    mark = engine.mark()
    run = measured(
        *("--model", engine.address, "--num-prompts", "20", "--concurrency", "4"),
        *("--random-input-len", "64", "--random-output-len", "16"),
        folder=tmp_path,
        module="lmperf.run",
    )
    rules.assert_nothing_lost(run.trace, 20)
    rules.assert_token_gaps_add_up(run.trace)
    assert run.summary["server"]["model"] == SERVED_NAME
    assert run.summary["server"]["version"] == "0.32.0"
    assert (run.folder / "summary.csv").read_text(encoding="utf-8").count("\n") > 1
    sightings = engine.sightings(mark)[-20:]
    assert {(seen["usage"]["prompt_tokens"], seen["usage"]["completion_tokens"]) for seen in sightings} == {(64, 16)}
    assert "exact prompt lengths" in run.said
    begin, end = run.trace.ints("sent_ns"), run.trace.ints("finished_ns")
    assert max(int(((begin <= at) & (end > at)).sum()) for at in begin) <= 4


def test_throughput_is_per_second_of_the_run(engine, tmp_path):
    """A run that ends by its number of requests is as long as it took: requests / duration is its throughput."""
    run = measured("run", "--model", engine.address, *small(6), folder=tmp_path)
    total = run.summary["total"]
    assert total["throughput"]["requests_per_s"] == pytest.approx(6 / run.summary["duration_s"], rel=0.01)


@pytest.mark.parametrize("endpoint", ["chat", "completions"])
def test_both_endpoints_are_measured_alike(engine, tmp_path, endpoint):
    """The path that was asked for is used, and the prompt has the asked length whatever the server puts around it."""
    mark = engine.mark()
    run = measured("run", "--model", engine.address, "--endpoint", endpoint, *small(6), folder=tmp_path)
    rules.assert_nothing_lost(run.trace, 6)
    rules.assert_stamps_in_order(run.trace)
    rules.assert_token_gaps_add_up(run.trace)
    path = {"chat": "/v1/chat/completions", "completions": "/v1/completions"}[endpoint]
    sightings = engine.sightings(mark)[-6:]
    assert {seen["path"] for seen in sightings} == {path}
    assert {seen["usage"]["prompt_tokens"] for seen in sightings} == {32}


def small(requests: int) -> tuple[str, ...]:
    counts = ("--num-prompts", str(requests), "--concurrency", "2")
    return *counts, "--random-input-len", "32", "--random-output-len", "8"


def eager_scenario(folder: Path, address: str) -> Path:
    """A tenant whose requests make the end token all but certain."""
    scenario = folder / "eager.yaml"
    scenario.write_text(
        f"""\
version: 1
name: eager-to-end
num_prompts: 6
backend: {{url: "http://{address}"}}
tenants:
  eager:
    users: 2
    prompt: 32
    output: 12
    slo: {{ttft_ms: 120000, attainment: 0.5}}
    extra_body: {{logit_bias: {{"{END_TOKEN_ID}": 100}}}}
""",
        encoding="utf-8",
    )
    return scenario


def test_ignore_eos_is_obeyed_and_its_absence_is_seen(engine, tmp_path):
    """With a model that wants to end at once: exact lengths when asked for; else short answers, and a warning of it."""
    scenario = eager_scenario(tmp_path, engine.address)
    exact = measured("run", str(scenario), folder=tmp_path / "exact")
    assert set(exact.trace.values("output_tokens")) == {12}
    assert "output lengths" not in exact.said
    free = measured("run", str(scenario), "--set", "backend.ignore_eos=false", folder=tmp_path / "free")
    assert max(free.trace.values("output_tokens")) < 12
    assert "output lengths: the server gave" in free.said


def test_prompts_are_what_the_servers_tokenizer_counts(engine, tmp_path):
    """The server's /tokenize, asked by other means, counts as many tokens as its usage said for a text."""
    text = "the quick brown fox jumps over the lazy dog " * 5
    counted = post(engine.address, "/tokenize", {"model": SERVED_NAME, "prompt": text})["count"]
    body = {"model": SERVED_NAME, "prompt": text, "max_tokens": 1}
    assert post(engine.address, "/v1/completions", body)["usage"]["prompt_tokens"] == counted


def post(address: str, path: str, body: dict) -> dict:
    request = urllib.request.Request(
        f"http://{address}{path}", json.dumps(body).encode(), {"content-type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)


def test_an_unknown_model_ends_with_106_and_the_served_one(engine, tmp_path):
    """Before anything is sent."""
    mark = engine.mark()
    run = lmperf("run", "--base-url", engine.address, "--model", "no-such-model", *small(2), folder=tmp_path / "run")
    assert run.code == ExitCode.BACKEND
    assert "no-such-model" in run.said
    assert f"it serves: {SERVED_NAME}" in run.said
    assert engine.mark() == mark


def test_a_port_where_nothing_listens_ends_with_106(tmp_path):
    """After --ready-timeout, with the address and what to do."""
    address = f"127.0.0.1:{free_port()}"
    run = lmperf("run", "--model", address, "--ready-timeout", "1", *small(2), folder=tmp_path / "run")
    assert run.code == ExitCode.BACKEND
    assert address in run.said
    assert "refused" in run.said
