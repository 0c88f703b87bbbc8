"""Rows of a trace that state no count of tokens: how many, of which kind, and what became of them is always said."""

from __future__ import annotations

import json

import numpy as np
import pytest
from test_simulate_command import simulate

from lmperf.wiring.captured import captured_run

N = 60
ROW = '{{"timestamp": {at}, "input_length": {prompt}, "output_length": {output}, "hash_ids": []}}\n'
"""A count that is no whole number from 0 counts as not told."""

SCENARIO = """\
version: 1
name: replayed
backend: {server_model: h200-llama-8b, limits: {max_num_seqs: 16, max_num_batched_tokens: 2048}}
trace: {path: rows.jsonl}
load: {saturation: 20000}
tenants: {only: {}}
"""


def rows_of(folder, prompt=lambda _: 100, output=lambda _: 20):
    """A trace of N requests in 12 s."""
    lines = (ROW.format(at=200 * i, prompt=prompt(i), output=output(i)) for i in range(N))
    (folder / "rows.jsonl").write_text("".join(lines))
    return folder / "rows.jsonl"


def replayed(folder):
    """(printed, comparison.json, comparison.html) of the trace under two policies."""
    code, out, err = simulate(
        *(folder, "rows.jsonl", "--policies", "fifo,wfq", "--server-model", "h200-llama-8b", "--output-dir", "r")
    )
    assert code == 0, err
    return (
        " ".join(out.split()),
        json.loads((folder / "r/comparison.json").read_text()),
        (folder / "r/comparison.html").read_text(),
    )


@pytest.mark.parametrize("kind", ["prompt", "output"])
def test_lengths_that_a_replay_had_to_draw_are_counted(tmp_path, kind):
    """Every fifth states none: 12 of 60, in the terminal, the data and the page."""
    rows_of(tmp_path, **{kind: lambda i: -1 if i % 5 == 0 else 40 + i})
    out, data, page = replayed(tmp_path)
    said = f"12 of 60 rows of the trace state no {kind} tokens: each is taken as long as one drawn from those that do"
    assert f"note: {said}" in out
    assert any(note.startswith(said) for note in data["notes"])
    assert said in page


def test_a_trace_that_states_all_lengths_says_nothing_of_them(tmp_path):
    rows_of(tmp_path)
    out, data, _ = replayed(tmp_path)
    assert "state no" not in out
    assert not any("state no" in note for note in data.get("notes", ()))


def test_an_unknown_prompt_is_as_long_as_a_likely_one(tmp_path):
    """Not of one token, which no prompt of this trace has."""
    path = rows_of(tmp_path, prompt=lambda i: -1 if i % 2 else 300 + i)
    found = captured_run(path, recorded=True).recipe.rows.prompt_tokens
    assert set(found[::2].tolist()) >= set(found[1::2].tolist())
    assert np.array_equal(found[::2], 300 + np.arange(0, N, 2))


@pytest.mark.parametrize("kind", ["prompt", "output"])
def test_a_trace_without_any_length_is_refused(tmp_path, kind):
    """There is nothing to draw from; how to name the column stands there."""
    rows_of(tmp_path, **{kind: lambda _: -1})
    code, out, err = simulate(
        tmp_path, "rows.jsonl", "--policies", "fifo", "--server-model", "h200-llama-8b", "--output-dir", "r"
    )
    assert code == 104, out
    assert f"no row has {'a prompt' if kind == 'prompt' else 'an output'} length" in err
    assert f"--map {kind}_tokens=COLUMN" in err
    assert not (tmp_path / "r").exists()


def test_rows_that_a_scenario_leaves_out_are_counted_by_kind(tmp_path):
    """Those of others' traces have no request to be: of 60, 12 state no prompt, and 6 of those no output either."""
    rows_of(tmp_path, prompt=lambda i: -1 if i % 5 == 0 else 100, output=lambda i: -1 if i % 10 == 5 else 20)
    (tmp_path / "s.yaml").write_text(SCENARIO)
    code, out, err = simulate(tmp_path, "s.yaml", "--policies", "fifo,wfq", "--seeds", 1, "--output-dir", "r")
    assert code == 0, err
    said = "12 of 60 rows of the trace are left out: 12 state no prompt tokens, 6 state no output tokens"
    assert f"note: {said}" in " ".join(out.split())
    assert said in json.loads((tmp_path / "r/comparison.json").read_text())["notes"]
    assert said in (tmp_path / "r/comparison.html").read_text()
