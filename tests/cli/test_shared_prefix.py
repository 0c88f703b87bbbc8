"""A shared prefix is found alike in a live run and in the simulator: the same scenario, to the token."""

from __future__ import annotations

import json

import pytest
from cli_support import FAST_MODEL, invoke, summary_of

from loadgen.trace.reader import read_trace

SCENARIO = """\
version: 1
name: shared
duration_s: 2
drain_s: 20
seed: 3
backend: {kind: emulated, server_model: model.json, endpoint: %s}
policy: fifo
slots: {sequences: 8}
tenants:
  chat:
    rate: 10
    shared_prefix_tokens: 512
    prompt: {mean: 40, cv: 0.5, min: 3, max: 200}
    output: {mean: 4, max: 8}
    slo: {ttft_ms: 60000, attainment: 0.9}
  docs:
    rate: 5
    shared_prefix_tokens: 300
    prompt: {mean: 90, cv: 0.5, min: 3, max: 200}
    output: {mean: 4, max: 8}
    slo: {ttft_ms: 60000, attainment: 0.9}
  talks:
    rate: 10
    sessions: {turns: 5, think_s: 0.05}
    prompt: {mean: 40, cv: 0.5, max: 200}
    output: {mean: 4, max: 8}
    slo: {ttft_ms: 60000, attainment: 0.9}
"""
BLOCK = 16


TEMPLATE_BEHIND = {"chat": 2, "completions": 0}
"""Tokens of the embedded server's chat template behind the only message."""


@pytest.fixture(scope="module", params=TEMPLATE_BEHIND)
def both(request, tmp_path_factory):
    """(endpoint, folder): ``live`` and ``simulated`` of one scenario in it."""
    folder = tmp_path_factory.mktemp("both")
    model = json.loads(FAST_MODEL)
    model["limits"]["prefix_cache"] = True
    (folder / "model.json").write_text(json.dumps(model))
    (folder / "s.yaml").write_text(SCENARIO % request.param)
    live = invoke("run", "s.yaml", "--output-dir", "live", "--quiet", cwd=folder)
    assert live.returncode in {0, 107}, live
    flags = ("--policies", "fifo", "--seeds", "1", "--processes", "1", "--quiet")
    done = invoke("simulate", "s.yaml", *flags, "--output-dir", "simulated", cwd=folder)
    assert done.returncode == 0, done
    return request.param, folder


@pytest.mark.parametrize(("tenant", "shared"), [("chat", 512), ("docs", 288)])
def test_a_live_run_and_the_simulator_find_the_same_tokens(both, tenant, shared):
    """The full blocks of what all prompts of a tenant begin with, and nothing for the first of them, whatever the chat template
    puts around a prompt."""
    _, folder = both
    comparison = json.loads((folder / "simulated/comparison.json").read_text())["comparisons"][0]
    simulated = comparison["policies"][0]["baseline"][tenant]["hit_share"]["value"]
    (told,) = (one["prefix_cache"] for one in summary_of(folder / "live")["tenants"] if one["tenant"] == tenant)
    assert told["cached_prompt_tokens"] == pytest.approx(simulated * told["prompt_tokens"])
    rows = read_trace(folder / "live")
    found = [row["cached_prompt_tokens"] for row in rows.table.to_pylist() if row["tenant"] == tenant]
    assert sorted(found) == [0] + [shared] * (len(found) - 1)


def test_a_turn_finds_the_turn_before_it(both):
    """The blocks that both turns name, at least one token of its own left; but what the chat template puts behind the turn
    before is not in the conversation: a block that holds it is not found again, and only that one."""
    endpoint, folder = both
    turns = [row for row in read_trace(folder / "live").table.to_pylist() if row["tenant"] == "talks"]
    earlier = {(row["session_id"], row["turn"]): row for row in turns}
    later = [(earlier[row["session_id"], row["turn"] - 1], row) for row in turns if row["turn"]]
    assert later
    for before, row in later:
        named = [x for x, y in zip(before["prefix_blocks"] or (), row["prefix_blocks"], strict=False) if x == y]
        by_name = min(len(named), (row["prompt_tokens"] - 1) // BLOCK)
        whole = (before["prompt_tokens"] - TEMPLATE_BEHIND[endpoint]) // BLOCK
        assert row["cached_prompt_tokens"] == BLOCK * min(by_name, whole)
        assert 0 <= by_name - min(by_name, whole) <= 1
