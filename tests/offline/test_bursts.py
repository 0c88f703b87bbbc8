"""A trace that is one burst: it has no rate, so what is per second is over its own answers, and no load of it is scaled."""

from __future__ import annotations

import json
import re

import pytest
from test_simulate_command import simulate

from scheduler.server_model.spec import ServerLimits, ServerModelSpec, StepLaw, encode_server_model

S = 1_000_000_000
STEP_S = 0.5
ONE_AT_A_TIME = ServerModelSpec(
    name="one-at-a-time",
    law=StepLaw(a_us=STEP_S * 1e6, b_us=0.0),
    limits=ServerLimits(max_num_seqs=1, max_num_batched_tokens=1000),
)
"""One step of half a second a request, whose one token it makes."""


def burst(folder, at_ms):
    """A trace whose requests arrive at these times, and the server that takes them one by one."""
    rows = ({"timestamp": at, "input_length": 10, "output_length": 1, "hash_ids": []} for at in at_ms)
    (folder / "burst.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "server.json").write_bytes(encode_server_model(ONE_AT_A_TIME))


def run(folder, *more):
    return simulate(
        folder, "burst.jsonl", "--policies", "fifo", "--server-model", "server.json", *more, "--output-dir", "r"
    )


@pytest.mark.parametrize("at_ms", [[0] * 8, [5000] * 8, [0, 5, 10, 15, 20, 25, 30, 35]], ids=["at 0", "later", "short"])
def test_goodput_of_a_burst_is_over_its_own_answers(tmp_path, at_ms):
    """8 requests of 0.5 s, one by one: 2 a second, though nothing in the trace ends later than its arrival."""
    burst(tmp_path, at_ms)
    code, out, err = run(tmp_path)
    assert code == 0, err
    (row,) = re.findall(r"^ *fifo +default .* ([\d.,]+) *$", out, re.MULTILINE)
    assert row == "2.00"
    assert (
        "arrive within less than a second, which makes no rate: goodput is over the time until the last answer" in out
    )


def test_both_sides_of_a_what_if_are_over_their_own_answers(tmp_path, monkeypatch):
    """A second server halves the time, which doubles the goodput: in the terminal, the data and the page alike."""
    burst(tmp_path, [0] * 8)
    monkeypatch.setenv("COLUMNS", "160")
    code, out, err = run(tmp_path, "--set", "replicas=2")
    assert code == 0, err
    assert "2.00 -> 4.00" in out
    (comparison,) = json.loads((tmp_path / "r/comparison.json").read_text())["comparisons"]
    (policy,) = comparison["policies"]
    goodput = [policy[side]["default"]["goodput"]["value"] for side in ("baseline", "raised")]
    assert goodput == pytest.approx([2.0, 4.0], rel=1e-6)
    page = (tmp_path / "r/comparison.html").read_text()
    assert "goodput is over the time until the last answer" in page
    assert "4.00" in page


@pytest.mark.parametrize("at_ms", [[0], [0] * 8, [5000] * 8, [0, 300]], ids=["one", "at 0", "later", "short"])
def test_no_load_is_derived_from_a_burst(tmp_path, at_ms):
    """0.75 of saturation is a rate; the reason stands in the terminal and the data, and no page is promised."""
    burst(tmp_path, at_ms)
    code, out, err = run(tmp_path)
    assert code == 0, err
    reason = "no loads are derived: all its requests arrive within less than a second, which makes no rate"
    assert reason in out
    assert "derived baseline" not in out
    data = json.loads((tmp_path / "r/comparison.json").read_text())
    assert data["comparisons"] == []
    assert reason in data["notes"]
    assert not (tmp_path / "r/comparison.html").exists()
    assert "comparison.html" not in out


@pytest.mark.parametrize("setting", ["rate=1.3", "tenants.default.rate=2"])
def test_one_instant_has_no_gaps_to_divide(tmp_path, setting):
    """1.3 times as many at one instant would be as many, and 2 times by chance of the rounding twice as many."""
    burst(tmp_path, [0] * 8)
    code, out, err = run(tmp_path, "--set", setting)
    assert code == 104, out
    assert "no gaps to divide: all requests arrive at one instant" in err
    assert not (tmp_path / "r").exists()


def test_a_scenario_scales_no_burst(tmp_path):
    """Its rows offer no load that a share of saturation could be a multiple of; played as it is it runs."""
    burst(tmp_path, [0] * 8)
    text = (
        "version: 1\nname: burst\nbackend: {server_model: h200-llama-8b}\ntrace: {path: burst.jsonl}\n"
        "load: {at: baseline, noisy: a}\ntenants: {a: {}}\n"
    )
    (tmp_path / "s.yaml").write_text(text)
    code, out, err = simulate(tmp_path, "s.yaml", "--policies", "fifo", "--seeds", 1, "--output-dir", "r")
    assert code == 104, out
    assert "cannot be scaled: all its requests arrive within less than a second" in err
