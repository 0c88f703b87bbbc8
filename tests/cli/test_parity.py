"""One policy, live and replayed: the event log of a live run, fed to a fresh dispatcher, gives the same actions."""

from __future__ import annotations

import json
from collections import Counter

import pytest
from cli_support import invoke, summary_of, two_tenants

from scheduler.event_log import EventLogError, replay


@pytest.fixture(scope="module", params=["fifo", "wfq", "slo_aware", "vtc", "drr", "edf", "committed"])
def logged(request, url, tmp_path_factory):
    """(policy, run folder) of a live run that queues."""
    folder = tmp_path_factory.mktemp(request.param)
    text = two_tenants(url, duration_s=0.4, policy=request.param, rate=150).replace("sequences: 4", "sequences: 2")
    (folder / "s.yaml").write_text(text)
    done = invoke("run", "s.yaml", "--event-log", "--output-dir", "r", "--quiet", cwd=folder)
    assert done.returncode in {0, 107}, done
    return request.param, folder / "r"


def test_a_replay_gives_the_same_actions(logged):
    """Every event of the run, and as many dispatches as requests."""
    _, folder = logged
    lines = (folder / "events.jsonl").read_bytes().splitlines(keepends=True)
    kinds = Counter(json.loads(line).get("action", {}).get("type") for line in lines)
    assert kinds["dispatch"] == summary_of(folder)["total"]["requests"] > 50
    assert replay(lines) == sum(line.startswith(b'{"event"') for line in lines)


def test_the_log_begins_with_the_policy_that_ran(logged):
    """The configuration stands first, without any identity on the wire."""
    policy, folder = logged
    config = json.loads((folder / "events.jsonl").read_bytes().splitlines()[0])["config"]
    assert config["policy"] == policy
    assert [tenant["name"] for tenant in config["tenants"]] == ["chat", "bulk"]


def test_a_replay_notices_another_order(logged):
    """The test can fail: swap two dispatched requests in the log, and the replay names the line."""
    _, folder = logged
    lines = (folder / "events.jsonl").read_bytes().splitlines(keepends=True)
    rows = [number for number, line in enumerate(lines) if b'"type":"dispatch"' in line]
    first, second = rows[10], rows[11]
    lines[first], lines[second] = lines[second], lines[first]
    with pytest.raises(EventLogError, match="line"):
        replay(lines)
