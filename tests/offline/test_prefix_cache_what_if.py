"""Replicas, the prefix cache and policies together, on a public trace with block hashes and on a scenario."""

from __future__ import annotations

import io
import json
from contextlib import chdir, redirect_stderr, redirect_stdout
from dataclasses import replace

import pytest

from lmperf.__main__ import main
from lmperf.scenario.load import load_scenario
from lmperf.wiring.captured import any_trace, captured_run
from lmperf.wiring.offline import as_captured, policy_choices
from lmperf.wiring.saturation import resolve_with_saturation
from lmperf.wiring.what_if.applied import apply
from lmperf.wiring.what_if.settings import parse_what_if
from loadgen.offline.replicas import ReplicatedJob, record_replicated
from loadgen.summary import summarise
from loadgen.workload.replay import MOONCAKE_BLOCK_TOKENS
from scheduler.server_model.spec import ServerLimits, ServerModelSpec, StepLaw, encode_server_model

_SERVER = ServerModelSpec(
    name="small",
    law=StepLaw(a_us=5_000.0, b_us=20.0, c_us=1.0, d_us=0.04),
    limits=ServerLimits(max_num_seqs=16, max_num_batched_tokens=8_192, kv_tokens=200_000),
)
_PREFIX, _TOKENS = 6, 4_000


@pytest.fixture
def trace(tmp_path):
    """60 requests of 4,000 tokens, ten a second; three families, each with 6 blocks of 512 tokens in common."""
    lines = [
        json.dumps(
            {
                "timestamp": 100 * n,
                "input_length": _TOKENS,
                "output_length": 20,
                "hash_ids": [100 * (n % 3) + i for i in range(_PREFIX)] + [1_000 + 2 * n, 1_001 + 2 * n],
            }
        )
        for n in range(60)
    ]
    path = tmp_path / "mooncake.jsonl"
    path.write_text("\n".join(lines) + "\n")
    (tmp_path / "server.json").write_bytes(encode_server_model(_SERVER))
    return path


def _record(trace, policy, *sets):
    captured = captured_run(trace, recorded=False)
    changed = apply(parse_what_if(list(sets), captured), captured, _SERVER)
    (choice,) = policy_choices(policy)
    cell = replace(as_captured(changed.captured, changed.server, choice), growth=changed.growth)
    return record_replicated(ReplicatedJob(cell=cell, replicas=changed.replicas))


@pytest.mark.parametrize("policy", ["fifo", "wfq", "drr", "vtc", "edf", "slo_aware", "committed"])
def test_a_prefix_is_prefilled_once_on_every_replica(trace, policy):
    """With the cache on, TTFT falls by the blocks that are found; on two replicas each has to compute them itself."""
    mean = {}
    for sets in ((), ("server.prefix_cache=true",), ("server.prefix_cache=true", "replicas=2")):
        columns = _record(trace, policy, *sets).columns()
        assert len(columns) == 60
        mean[sets] = float(columns.ttft_ns.mean())
    off, on, replicated = mean.values()
    assert on < 0.7 * off
    assert replicated < off


@pytest.mark.parametrize("replicas", [1, 2])
def test_what_was_found_is_summarised_to_the_token(trace, replicas):
    """60 prompts of three families in turns over the replicas: each replica computes 6 blocks of each family once, all others
    find them. Without the cache nothing is said of it."""
    on = ("server.prefix_cache=true", "slots.sequences=null", f"replicas={replicas}")
    turns = ("routing=round_robin",) if replicas > 1 else ()
    found = (60 - 3 * replicas) * _PREFIX * MOONCAKE_BLOCK_TOKENS
    recorder = _record(trace, "fifo", *on, *turns)
    assert recorder.columns().cached_prompt_tokens.sum() == found
    total = summarise(recorder).total
    assert (total.prefix_cache.requests, total.prefix_cache.cached_prompt_tokens) == (60, found)
    assert total.hit_share == pytest.approx(found / (60 * _TOKENS))
    assert summarise(_record(trace, "fifo")).total.prefix_cache is None


def test_names_stand_for_the_traces_own_blocks(trace):
    """6 shared blocks of 512 tokens: all but the first of a family find 3,072 of 4,000 tokens."""
    assert any_trace(trace).metadata.prefix_block_tokens == 512
    assert captured_run(trace, recorded=False).recipe.block_tokens == 512


def test_routing_by_prefix_finds_more_than_by_turns(trace):
    """Three families on two replicas: each replica computes each family once by turns, and about its own alone by prefix. The
    header names the rule with its bound."""
    found = {}
    for sets in (
        ("routing=round_robin",),
        ("routing=prefix", "routing.slack=null"),
        ("routing=prefix", "routing.slack=60000"),
        (),
    ):
        recorder = _record(trace, "fifo", "server.prefix_cache=true", "replicas=2", "slots.sequences=null", *sets)
        found[sets] = float(recorder.columns().ttft_ns.mean()), recorder.metadata.slots["routing"]
    (turns, by_turns), (_, unbounded), (prefix, by_prefix), (_, default) = found.values()
    assert prefix < turns
    assert by_turns["rule"] == "round_robin"
    assert by_prefix == {"rule": "prefix", "slack": 60_000.0}
    assert unbounded == {"rule": "prefix", "slack": None}
    assert default["rule"] == "least_work"


@pytest.mark.parametrize(("sets", "said"), [(("routing=prefix",), "routing prefix, slack 8192"), ((), "least_work")])
def test_the_command_says_which_routing_was_used(trace, tmp_path, sets, said):
    """On paper and as data, where there are several servers."""
    out, err = io.StringIO(), io.StringIO()
    flags = [argument for one in ("replicas=2", *sets) for argument in ("--set", one)]
    with chdir(tmp_path), redirect_stdout(out), redirect_stderr(err):
        code = main(
            [
                *("simulate", str(trace), "--server-model", "server.json", "--quiet", "--policies", "fifo"),
                *("--processes", "1", "--output-dir", "r", *flags),
            ]
        )
    assert int(code) == 0, err.getvalue()
    words = json.loads((tmp_path / "r/comparison.json").read_text())["routing"]
    assert words.startswith("2 servers behind one queue, routing ")
    assert words.endswith(said)
    assert words in " ".join(out.getvalue().split())


def test_the_hit_share_stands_in_the_tables_where_one_is_stated(trace, tmp_path):
    """As captured the server has no cache, with it 57 of 60 find 3,072 of 4,000 tokens: 73.0%. Without a cache on either side
    there is no such column, and no figure in the file."""
    said = {}
    for name, sets in (("on", ("server.prefix_cache=true",)), ("off", ("rate=1",))):
        out, err = io.StringIO(), io.StringIO()
        flags = [argument for one in sets for argument in ("--set", one)]
        with chdir(tmp_path), redirect_stdout(out), redirect_stderr(err):
            code = main(
                [
                    *("simulate", str(trace), "--server-model", "server.json", "--quiet", "--policies", "fifo"),
                    *("--processes", "1", "--output-dir", name, *flags),
                ]
            )
        assert int(code) == 0, err.getvalue()
        (policy,) = json.loads((tmp_path / name / "comparison.json").read_text())["comparisons"][0]["policies"]
        shares = [policy[load]["default"]["hit_share"]["value"] for load in ("baseline", "raised")]
        said[name] = (shares, out.getvalue(), (tmp_path / name / "comparison.html").read_text())
    share = 57 * _PREFIX * MOONCAKE_BLOCK_TOKENS / (60 * _TOKENS)
    assert said["on"][0] == [None, pytest.approx(share)]
    assert f"- -> {share:.1%}".removesuffix("%") in said["on"][1]
    assert ["hit share" in words for words in (said["on"][1], said["off"][1])] == [True, False]
    assert ["hit share, %" in page for page in (said["on"][2], said["off"][2])] == [True, False]
    assert said["off"][0] == [None, None]


def test_the_command_takes_all_of_it_at_once(trace, tmp_path):
    """One report: replicas, the cache and drafts, under two policies."""
    out, err = io.StringIO(), io.StringIO()
    sets = (
        "server.prefix_cache=true",
        "server.speculative_tokens=3",
        "server.speculative_acceptance=0.6",
        "replicas=2",
    )
    flags = [argument for one in sets for argument in ("--set", one)]
    with chdir(tmp_path), redirect_stdout(out), redirect_stderr(err):
        code = main(
            [
                *("simulate", str(trace), "--server-model", "server.json", "--quiet", "--policies", "fifo,wfq"),
                *("--processes", "1", "--output-dir", "r", *flags),
            ]
        )
    assert int(code) == 0, err.getvalue()
    assert json.loads((tmp_path / "r/comparison.json").read_text())["what_if"] == ", ".join(sets)


_SCENARIO = """
version: 1
name: shared-prefix
duration_s: 20
backend: {kind: emulated, limits: {kv_tokens: 300000}}
load: {baseline: 0.6, raised: 1.2, noisy: b}
tenants:
  a: {load: 0.3, shared_prefix_tokens: 3000, prompt: 200, output: 20, slo: {ttft_ms: 500, attainment: 0.99}}
  b: {load: 0.3, prompt: 500, output: 20, slo: {ttft_ms: 5000, attainment: 0.99}}
"""


def _simulate(folder, *sets):
    out, err = io.StringIO(), io.StringIO()
    flags = [argument for one in sets for argument in ("--set", one)]
    with chdir(folder), redirect_stdout(out), redirect_stderr(err):
        code = main(["simulate", "s.yaml", "--policies", "fifo", "--seeds", "1", "--quiet", "--processes", "1", *flags])
    return int(code), err.getvalue()


def test_a_scenario_takes_the_limits_by_set(tmp_path):
    """``backend.limits.prefix_cache`` and drafts raise the saturation that loads are fractions of; limits that leave no room
    for drafts are refused with the figures."""
    (tmp_path / "s.yaml").write_text(_SCENARIO)
    cached, drafts = "backend.limits.prefix_cache=true", "backend.limits.speculative_tokens=3"
    found = [
        resolve_with_saturation(load_scenario(tmp_path / "s.yaml", overrides=sets)).saturation
        for sets in ((), (cached,), (cached, drafts))
    ]
    assert found[0] * 1.3 < found[1] < found[2]
    code, words = _simulate(tmp_path, cached, drafts)
    assert code == 0, words
    code, words = _simulate(tmp_path, "backend.limits.speculative_tokens=300")
    assert code == 104
    assert "times 301" in words
