"""A live replay of a trace says which of its rows it leaves out for want of a length, on the screen and in its results."""

from __future__ import annotations

import json

from cli_support import invoke, summary_of


def test_rows_without_a_length_are_counted(tmp_path):
    """Of 20, 5 state a prompt of -1 tokens: 15 are sent."""
    rows = (
        {"timestamp": 20 * i, "input_length": -1 if i % 4 == 0 else 40, "output_length": 4, "hash_ids": []}
        for i in range(20)
    )
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "s.yaml").write_text(
        "version: 1\nname: replayed\nbackend: {kind: emulated}\npolicy: fifo\ntrace: {path: rows.jsonl}\ntenants: {only: {}}\n"
    )
    done = invoke("run", "s.yaml", "--output-dir", "r", cwd=tmp_path)
    said = "5 of 20 rows of the trace are left out: 5 state no prompt tokens"
    assert f"warning: {said}" in done.stderr, done
    found = summary_of(tmp_path / "r")
    assert said in found["warnings"]
    assert said in (tmp_path / "r/report.html").read_text()
    assert found["total"]["requests"] == 15
