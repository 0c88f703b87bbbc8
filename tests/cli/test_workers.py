"""Rules of ``--workers``: the same run, carried by several processes, with one queue and one result."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
import urllib.request
from collections import Counter
from itertools import pairwise, takewhile
from pathlib import Path

import pytest
from cli_support import DEADLINE_S, fast_server, invoke, start, summary_of, two_tenants, until

from lmperf.scenario.load import load_scenario
from lmperf.scenario.resolve import resolve
from lmperf.wiring.live_workers import couples_requests, workers_of
from lmperf.wiring.sources import growth_of, recipe_of, source_of
from loadgen.recorder import record_trace
from loadgen.summary.build import summarise
from loadgen.trace.reader import read_trace
from loadgen.workload.share import Share
from scheduler.dispatcher_config import DispatcherConfig
from scheduler.event_log import replay
from scheduler.slots import Slots
from tenants.tenant import QueueLimits, Tenant


def known(folder: Path):
    """What was sent, whoever sent it."""
    return sorted(
        (r.id, r.tenant, r.arrival_ns, r.prompt_tokens, r.target_output_tokens)
        for r in (outcome.request for outcome in read_trace(folder).outcomes())
    )


def events_of(folder: Path):
    """(kind, event or action as plain data) of the event log."""
    for line in (folder / "events.jsonl").read_bytes().splitlines()[1:]:
        found = json.loads(line)
        yield from ((kind, found[kind]) for kind in ("event", "action") if found.get(kind) is not None)


def worker_pids(parent: int) -> list[int]:
    """The worker processes of a running command, in the order of their names."""
    found = subprocess.run(
        ["pgrep", "-P", str(parent), "-f", "live_worker"], capture_output=True, text=True, check=False
    )
    return sorted(int(pid) for pid in found.stdout.split())


@pytest.fixture(scope="module")
def both(url, tmp_path_factory):
    """One scenario with one worker and with three, one slot, events logged. (folder, {N: what was printed})"""
    folder = tmp_path_factory.mktemp("workers")
    scenario = two_tenants(url, duration_s=1).replace("sequences: 4", "sequences: 1")
    (folder / "two.yaml").write_text(scenario)
    done = {
        n: invoke("run", "two.yaml", "--workers", n, "--output-dir", str(n), "--quiet", "--event-log", cwd=folder)
        for n in (1, 3)
    }
    return folder, done


def test_the_same_requests_are_sent_by_one_worker_and_by_three(both):
    """Ids, tenants, arrivals and lengths, of every request."""
    folder, done = both
    assert done[1].returncode == done[3].returncode == 0, done
    assert known(folder / "1") == known(folder / "3")
    assert len(known(folder / "3")) > 20
    totals = [summary_of(folder / n)["total"] for n in ("1", "3")]
    for key in ("requests", "statuses", "output_tokens", "prompt_tokens"):
        assert totals[0][key] == totals[1][key]


def test_one_result_is_left_whoever_carried_the_run(both):
    """One trace, one summary; no stream of a worker is left over; every worker's CPU share is named."""
    folder, _ = both
    files = [sorted(p.name for p in (folder / n).iterdir()) for n in ("1", "3")]
    assert files[0] == files[1]
    server = summary_of(folder / "3")["server"]
    assert list(server["generator_cpu_shares"]) == ["the process of the queue", "worker w0", "worker w1", "worker w2"]
    assert server["generator_cpu_share"] == max(server["generator_cpu_shares"].values())
    assert summary_of(folder / "3")["plan"]["workers"] == 3


def test_merged_figures_are_those_of_the_merged_rows(both):
    """Counts of histograms are added: recomputed from the trace they are the same, which averages would not be."""
    folder, _ = both
    trace = read_trace(folder / "3")
    summary = summary_of(folder / "3")
    plan = resolve(load_scenario(folder / "3" / "scenario.resolved.yaml"))
    again = summarise(record_trace(trace, [planned.tenant for planned in plan.tenants]))
    for merged, recomputed in zip([*summary["tenants"], summary["total"]], [*again.tenants, again.total], strict=True):
        assert merged["requests"] == recomputed.requests
        for metric in merged["metrics"]:
            if metric["metric"] in ("ttft", "backend_ttft", "tpot", "e2e", "queue_time", "own_lateness"):
                expected = recomputed.metric(metric["metric"])
                assert metric["count"] == expected.count > 0
                assert [p["value_ms"] for p in metric["percentiles"]] == [p.value_ms for p in expected.percentiles]


def test_fifo_over_three_workers_serves_in_order_of_arrival_and_one_at_a_time(both):
    """One slot: each dispatch is the oldest of all that wait, whichever worker has it, and ends before the next."""
    folder, _ = both
    waiting, running, dispatched = {}, set(), 0
    for kind, found in events_of(folder / "3"):
        if kind == "event" and found["type"] == "arrived":
            waiting[found["request"]["id"]] = (found["request"]["arrival_ns"], found["request"]["id"])
        elif kind == "event" and found["type"] == "finished":
            running.discard(found["request_id"])
        elif kind == "action" and found["type"] == "dispatch":
            request_id = found["request"]["id"]
            assert waiting[request_id] == min(waiting.values())
            del waiting[request_id]
            running.add(request_id)
            dispatched += 1
        assert len(running) <= 1
    assert dispatched == len(known(folder / "3"))
    outcomes = sorted(read_trace(folder / "3").outcomes(), key=lambda outcome: outcome.dispatched_ns)
    for before, after in pairwise(outcomes):
        # The end of an answer is a stamp of the system, brought to our clock; on a busy machine it was once 0.3 ms off.
        assert after.dispatched_ns >= before.finished_ns - 2_000_000


def test_the_event_log_of_several_workers_replays(both):
    """One dispatcher took all decisions, so a log of its events gives the same ones again."""
    folder, _ = both
    with (folder / "3" / "events.jsonl").open("rb") as lines:
        assert replay(lines) >= 3 * len(known(folder / "3"))


def test_refusals_time_outs_and_cancels_are_each_outcome_once(tmp_path):
    """A queue that is full, waits that are too long, first tokens too late, and users who give up, over three workers."""
    with fast_server("--first-ms", "60", "--gap-ms", "5") as url:
        (tmp_path / "mixed.yaml").write_text(f"""\
version: 1
name: mixed
duration_s: 1
drain_s: 20
backend: {{kind: openai, url: "{url}"}}
policy: fifo
slots: {{sequences: 2}}
tenants:
  capped: {{rate: 60, prompt: 9, output: 4, limits: {{max_queued: 1}}}}
  waits: {{rate: 60, prompt: 9, output: 4, limits: {{ttl_s: 0.08}}}}
  hasty: {{rate: 60, prompt: 9, output: 4, timeouts: {{first_token_s: 0.03}}}}
  gone: {{rate: 60, prompt: 9, output: 4, cancel: {{share: 1.0, after_s: 0.02}}}}
""")
        done = invoke(
            "run", "mixed.yaml", "--workers", 3, "--output-dir", "out", "--event-log", "--quiet", cwd=tmp_path
        )
    assert "Traceback" not in done.stderr
    outcomes = list(read_trace(tmp_path / "out").outcomes())
    plan = resolve(load_scenario(tmp_path / "mixed.yaml"))
    due = {r.id for r in source_of(recipe_of(plan), plan.seed, growth_of(plan.tenants)).absolute()}
    assert {outcome.request.id for outcome in outcomes} == due
    assert len(outcomes) == len(due)
    by_tenant = {name: Counter() for name in ("capped", "waits", "hasty", "gone")}
    for outcome in outcomes:
        by_tenant[outcome.request.tenant][outcome.status.value] += 1
    assert set(by_tenant["capped"]) == {"ok", "shed"}
    assert by_tenant["waits"]["shed"] > 0
    assert set(by_tenant["hasty"]) == {"timed_out"}
    assert set(by_tenant["gone"]) == {"cancelled"}
    slots = 0
    for kind, found in events_of(tmp_path / "out"):
        slots += kind == "action" and found["type"] == "dispatch"
        # A grant that came too late is a dispatch that failed; everything else that was dispatched finishes.
        slots -= kind == "event" and found["type"] in ("finished", "dispatch_failed")
        assert 0 <= slots <= 2
    assert slots == 0


def test_without_a_queue_the_parent_only_merges(tmp_path, url):
    """Sessions and users beside a schedule, no slots: every follow-up stays with its worker, every id is there once."""
    (tmp_path / "free.yaml").write_text(f"""\
version: 1
name: free
duration_s: 1.5
drain_s: 20
backend: {{kind: openai, url: "{url}"}}
policy: none
tenants:
  open: {{rate: 30, prompt: 20, output: 4}}
  talk: {{rate: 40, prompt: 20, output: 4, sessions: {{turns: 3, think_s: 0.05}}}}
  users: {{users: 4, think_s: 0.1, prompt: 20, output: 4}}
""")
    done = invoke("run", "free.yaml", "--workers", 2, "--output-dir", "out", "--quiet", cwd=tmp_path)
    assert "Traceback" not in done.stderr
    outcomes = list(read_trace(tmp_path / "out").outcomes())
    ids = [outcome.request.id for outcome in outcomes]
    assert len(ids) == len(set(ids))
    assert {outcome.status.value for outcome in outcomes} == {"ok"}
    turns = Counter(outcome.request.turn for outcome in outcomes if outcome.request.tenant == "talk")
    assert set(turns) == {0, 1, 2}
    by_id = {outcome.request.id: outcome for outcome in outcomes}
    followed = [outcome.request for outcome in outcomes if outcome.request.after_request_id is not None]
    assert len(followed) > 20
    for request in followed:
        before = by_id[request.after_request_id]
        assert request.arrival_ns == before.finished_ns + request.think_ns
        assert request.session_id == before.request.session_id


def test_a_number_of_prompts_and_of_users_is_kept(tmp_path, url):
    """7 users and 40 requests, over all workers together."""
    flags = ("--num-prompts", 40, "--random-input-len", 20, "--random-output-len", 4, "--quiet")
    done = invoke("run", "--model", url, "--concurrency", 7, *flags, "--workers", 2, "--output-dir", "a", cwd=tmp_path)
    assert done.returncode in (0, 107), done
    assert summary_of(tmp_path / "a")["total"]["statuses"]["ok"] == 40
    first = [outcome for outcome in read_trace(tmp_path / "a").outcomes() if outcome.request.after_request_id is None]
    assert len(first) == 7


@pytest.fixture(scope="module")
def struck(url, tmp_path_factory):
    """Two long runs of two workers, once both have rows on disk: the terminal's Ctrl-C, and the death of a worker."""
    folder = tmp_path_factory.mktemp("struck")
    (folder / "long.yaml").write_text(two_tenants(url, duration_s=600, rate=30))
    names = ("interrupted", "bereft")
    running = {
        name: start("run", "long.yaml", "--workers", 2, "--output-dir", name, cwd=folder, start_new_session=True)
        for name in names
    }
    found = {}
    try:
        for name, process in running.items():
            rows = [folder / name / "rows" / f"w{i}-0.arrow" for i in range(2)]
            until(lambda rows=rows: all(r.is_file() and r.stat().st_size > 20_000 for r in rows), process)
            if name == "interrupted":
                os.killpg(process.pid, signal.SIGINT)
            else:
                os.kill(worker_pids(process.pid)[1], signal.SIGKILL)
        for name, process in running.items():
            out, err = process.communicate(timeout=DEADLINE_S)
            found[name] = (process.returncode, out, err)
    finally:
        for process in running.values():
            process.kill()
            process.wait()
    return folder, found


def test_ctrl_c_stops_all_workers_in_order(struck):
    """Only the parent hears it: arrivals stop everywhere, all answers are waited for, one result is written."""
    folder, found = struck
    code, out, err = found["interrupted"]
    assert code == 105, err
    assert "Traceback" not in err
    summary = summary_of(folder / "interrupted")
    rows = read_trace(folder / "interrupted")
    assert len(rows) == summary["total"]["requests"] + summary["total"]["outside_window"] > 0
    assert summary["total"]["statuses"].get("unfinished", 0) == 0
    start_s, end_s = summary["window_s"]
    assert 0 <= start_s < end_s < 60
    assert "results in interrupted" in out


def test_a_worker_that_dies_makes_the_run_invalid_and_loses_nothing_else(struck):
    """The run ends by itself, says which worker died and how, and holds every request that was due by then."""
    folder, found = struck
    code, _, err = found["bereft"]
    assert code == 107, err
    assert "Traceback" not in err
    summary = summary_of(folder / "bereft")
    assert not summary["validity"]["valid"]
    reason = next(reason for reason in summary["validity"]["reasons"] if "worker" in reason)
    assert "signal 9 (SIGKILL)" in reason
    outcomes = list(read_trace(folder / "bereft").outcomes())
    ids = [outcome.request.id for outcome in outcomes]
    assert len(ids) == len(set(ids))
    died_ns = round(summary["window_s"][1] * 1e9)
    dead = int(re.search(r"worker w(\d) died", reason)[1])
    plan = resolve(load_scenario(folder / "bereft" / "scenario.resolved.yaml"))
    for index in range(2):
        source = source_of(recipe_of(plan), plan.seed, growth_of(plan.tenants), Share(index, 2))
        due = list(takewhile(lambda r: r.arrival_ns < died_ns, source.absolute()))
        there = [request.id in ids for request in due]
        # The other one was told to stop when its last arrivals were due: none may be missing before one that is there.
        assert all(there) if index == dead else there == sorted(there, reverse=True)
        assert sum(there) > 20
    statuses = Counter(outcome.status.value for outcome in outcomes)
    assert statuses["ok"] > statuses["unfinished"]
    assert set(statuses) <= {"ok", "unfinished"}


@pytest.fixture(scope="module")
def silent(tmp_path_factory):
    """Two runs of two workers against a server that never answers, once all their slots are taken: one gets Ctrl-C twice,
    the other kill -9. (folder, {name: (code, stderr)}, the killed one's
    workers, those of them that go on, the server's open streams after both)"""
    folder = tmp_path_factory.mktemp("silent")
    with fast_server("--first-ms", "600000") as url:
        (folder / "silent.yaml").write_text(two_tenants(url, duration_s=600, rate=30))
        running = {
            name: start("run", "silent.yaml", "--workers", 2, "--output-dir", name, cwd=folder)
            for name in ("twice", "killed")
        }
        found = {}
        try:
            for process in running.values():
                until(lambda: _served(url) == 8, process)
            workers = worker_pids(running["killed"].pid)
            running["killed"].kill()
            running["twice"].send_signal(signal.SIGINT)
            said = _line_with(running["twice"], "stopping")
            running["twice"].send_signal(signal.SIGINT)
            for name, process in running.items():
                _, err = process.communicate(timeout=DEADLINE_S)
                found[name] = (process.returncode, said + err if name == "twice" else err)
            deadline = time.monotonic() + DEADLINE_S
            while any(map(_runs, workers)) and time.monotonic() < deadline:
                time.sleep(0.02)
            left = [pid for pid in workers if _runs(pid)]
            yield folder, found, workers, left, _served(url)
        finally:
            for process in running.values():
                process.kill()
                process.wait()


def test_a_second_ctrl_c_gives_up_on_the_answers(silent):
    """The first waits for them, the second does not: every request has its row, and what had no answer is unfinished."""
    folder, found, _, _, _ = silent
    code, err = found["twice"]
    assert code == 105, err
    assert "waiting for answers" in err
    assert "Traceback" not in err
    assert summary_of(folder / "twice")["total"]["statuses"]["unfinished"] >= 4


def test_workers_end_with_their_parent(silent):
    """kill -9 of the command while a server answers nothing: no process goes on sending."""
    _, found, workers, left, streams = silent
    assert found["killed"][0] == -signal.SIGKILL
    assert len(workers) == 2
    assert left == []
    assert streams == 0


def _runs(pid: int) -> bool:
    """A process that has ended and that nobody has waited for yet runs no more."""
    found = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True, check=False)
    return bool(found.stdout.strip()) and not found.stdout.strip().startswith("Z")


def _served(url: str) -> int:
    with urllib.request.urlopen(f"{url}/stats", timeout=DEADLINE_S) as reply:
        return json.loads(reply.read())["open_streams"]


def _line_with(process, word: str) -> str:
    for line in process.stderr:
        if word in line:
            return line
    raise AssertionError(f"ended without saying {word}")


@pytest.mark.parametrize("workers", ["0", "-2"])
def test_fewer_than_one_worker_is_refused(tmp_path, workers):
    done = invoke("run", "--model", "127.0.0.1:9", "--workers", workers, cwd=tmp_path)
    assert done.returncode == 104
    assert f"workers: must be >= 1, got {workers}" in done.stderr


def test_more_workers_than_cpus_is_a_warning(tmp_path):
    (tmp_path / "two.yaml").write_text(two_tenants("http://127.0.0.1:9"))
    plan = resolve(load_scenario(tmp_path / "two.yaml", overrides=["workers=5000"]))
    count, notes = workers_of(plan)
    assert count == 5000
    assert notes[0].startswith("5000 workers share ")
    assert workers_of(resolve(load_scenario(tmp_path / "two.yaml"))) == (1, ())


def test_a_quota_of_cpu_time_counts_as_fewer_cpus(tmp_path, monkeypatch):
    """A container that is given one core and a half of many has one for a worker of its own."""
    monkeypatch.setattr("loadgen.cores.cores", lambda: 1.5)
    (tmp_path / "two.yaml").write_text(two_tenants("http://127.0.0.1:9"))
    plan = resolve(load_scenario(tmp_path / "two.yaml", overrides=["workers=2"]))
    assert workers_of(plan)[1][0].startswith("2 workers share 1 CPU:")


def test_a_worker_without_a_user_is_not_started(tmp_path):
    (tmp_path / "users.yaml").write_text(two_tenants("http://127.0.0.1:9"))
    closed = ["tenants.chat.users=2", "tenants.bulk.users=1", "workers=9"]
    count, notes = workers_of(resolve(load_scenario(tmp_path / "users.yaml", overrides=closed)))
    assert count == 3
    assert "3 users for 9 workers: 3 are started" in notes
    beside_a_schedule = resolve(load_scenario(tmp_path / "users.yaml", overrides=["tenants.chat.users=2", "workers=9"]))
    assert workers_of(beside_a_schedule)[0] == 9


def test_a_queue_is_shared_exactly_when_one_request_can_delay_or_refuse_another():
    def config(slots=Slots(), **limits):  # noqa: B008 (a frozen struct)
        tenants = (Tenant(name="a", limits=QueueLimits(**limits)),)
        return DispatcherConfig(tenants=tenants, policy="fifo", backends={"server": slots})

    assert not couples_requests(config())
    assert not couples_requests(config(ttl_ns=5))
    assert couples_requests(config(Slots(sequences=9)))
    assert couples_requests(config(Slots(prefill_tokens=9)))
    assert couples_requests(config(max_queued=1))
    assert couples_requests(config(requests_per_s=1.0))
    assert couples_requests(config(shed_out_of_contract=True))
