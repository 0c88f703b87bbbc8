"""Rules of automatic slots in a run of several workers: one controller, beside the one queue, that hears of every answer."""

from __future__ import annotations

import json
from collections import Counter
from itertools import pairwise

from cli_support import FAST_MODEL, invoke, summary_of, two_tenants

from loadgen.trace.reader import read_trace
from scheduler.auto_slots import AutoSlots
from scheduler.event_log import replay


def moves_of(folder):
    return read_trace(folder).metadata.slot_moves


def kept_by_every_dispatch(folder):
    """Follows the event log: every dispatch is within the slots of its moment. The changes, as (time, D)."""
    slots, running, changes = moves_of(folder)[0].sequences, 0, []
    for line in (folder / "events.jsonl").read_bytes().splitlines():
        found = json.loads(line)
        event, action = found.get("event"), found.get("action")
        if event is not None and event["type"] == "slots_changed":
            slots = event["sequences"]
            changes.append((event["now_ns"], slots))
        elif event is not None:
            running -= event["type"] in ("finished", "dispatch_failed")
        if action is not None and action["type"] == "dispatch":
            running += 1
            assert running <= slots
    assert running == 0
    return changes


def test_the_slots_of_all_workers_follow_all_answers(url, tmp_path, monkeypatch):
    """A limit that every answer breaks: the controller is told of each, as it stands in the rows, whichever worker had it,
    and takes slots away; the log of the one queue replays."""
    told = []
    observe_pace = AutoSlots.observe_pace

    def noted(self, pace):
        told.append(pace)
        observe_pace(self, pace)

    monkeypatch.setattr(AutoSlots, "observe_pace", noted)
    text = two_tenants(url, duration_s=3).replace("attainment: 0.9}", "attainment: 0.9, tpot_ms: 0.001}")
    slots = "slots: {auto: tpot, sequences: 8, min_sequences: 2, max_sequences: 9}"
    (tmp_path / "auto.yaml").write_text(text.replace("slots: {sequences: 4, prefill_tokens: 2048}", slots))
    done = invoke("run", "auto.yaml", "--workers", 2, "--output-dir", "out", "--event-log", "--quiet", cwd=tmp_path)
    assert "Traceback" not in done.stderr
    out = tmp_path / "out"
    rows = Counter(
        (o.request.tenant, o.dispatched_ns, o.first_token_ns, o.last_token_ns, o.output_tokens)
        for o in read_trace(out).outcomes()
        if o.status.value == "ok" and o.output_tokens > 1 and o.last_token_ns > o.first_token_ns
    )
    assert len(rows) > 50
    assert rows == Counter(
        (p.tenant, p.dispatched_ns, p.first_token_ns, p.last_token_ns, p.output_tokens) for p in told
    )
    moves = moves_of(out)
    assert (moves[0].at_ns, moves[0].sequences) == (0, 8)
    assert any(after.sequences < before.sequences for before, after in pairwise(moves))
    assert [(move.at_ns, move.sequences) for move in moves[1:]] == kept_by_every_dispatch(out)
    assert summary_of(out)["slots_over_time"][0]["backend"] == moves[0].backend
    with (out / "events.jsonl").open("rb") as lines:
        assert replay(lines) > 0


def test_the_parent_reads_the_waiting_count_for_all_workers(tmp_path):
    """An engine that runs two at once and is given sixteen: its queue stands, so D comes down."""
    model = json.loads(FAST_MODEL)
    model["limits"]["max_num_seqs"] = 2
    (tmp_path / "model.json").write_text(json.dumps(model))
    (tmp_path / "auto.yaml").write_text("""\
version: 1
name: auto
duration_s: 3
drain_s: 20
backend: {server_model: model.json}
policy: fifo
slots: {auto: waiting, sequences: 16}
tenants:
  users: {users: 24, prompt: 20, output: 20}
""")
    done = invoke("run", "auto.yaml", "--workers", 2, "--output-dir", "out", "--event-log", "--quiet", cwd=tmp_path)
    assert "Traceback" not in done.stderr
    out = tmp_path / "out"
    moves = moves_of(out)
    assert moves[0].sequences == 16
    assert min(move.sequences for move in moves) < 16
    assert [(move.at_ns, move.sequences) for move in moves[1:]] == kept_by_every_dispatch(out)
