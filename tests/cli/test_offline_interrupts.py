"""Ctrl-C, SIGTERM and a kill while something is simulated: what was found is said and written, and no process stays."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import time
from contextlib import chdir, contextmanager, redirect_stderr, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from cli_support import DEADLINE_S, ROOT, start, until

from lmperf.__main__ import main
from lmperf.cli import capacity_command
from loadgen.offline.worker import WorkerDiedError

# Some seconds a run, so that a signal always finds one in progress.
SLOW = """\
version: 1
name: slow
duration_s: 600
seed: 1
backend: {kind: emulated, limits: {max_num_seqs: 16}}
policy: fifo
slots: {sequences: 16, prefill_tokens: 2048}
load: {noisy: batch}
tenants:
  chat:
    rate: 6
    prompt: {mean: 300, cv: 0.8}
    output: {mean: 80, cv: 0.8}
    slo: {ttft_ms: 500, attainment: 0.95}
  batch:
    rate: 3
    prompt: {mean: 800, cv: 0.5}
    output: {mean: 120, cv: 0.5}
    slo: {ttft_ms: 10000, attainment: 0.9}
"""


def alive(session: int) -> list[int]:
    """Processes of a session that have not ended; one that waits for somebody to read its code has."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with suppress(OSError):
                state, _, _, of = (folder / "stat").read_text().rpartition(")")[2].split()[:4]
                if int(of) == session and state not in "ZX":
                    found.append(int(folder.name))
    return found


def is_simulating(session: int) -> bool:
    """The command, the server that workers are forked from, its tracker, and two workers, which have used some time."""
    busy = 0
    for pid in alive(session):
        with suppress(OSError):
            busy += sum(map(int, Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13])) > 30
    return busy >= 3


def gone(session: int, within_s: float = 20.0) -> list[int]:
    """Who is left of a session after a while, or as soon as nobody is."""
    until_s = time.monotonic() + within_s
    while alive(session) and time.monotonic() < until_s:
        time.sleep(0.05)
    return alive(session)


@contextmanager
def at_last_killed(process):
    """Whatever happens in the block, nothing of the process and its session stays."""
    try:
        yield
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def send(process, numbers, *, group):
    """These signals, 0.1 s apart, to the process or to all of its group."""
    for number in numbers:
        with suppress(ProcessLookupError):
            (os.killpg if group else os.kill)(process.pid, number)
        time.sleep(0.1)


class Stopped:
    """A command over two processes, with signals sent to it once it simulates (``first``: and once that file is there).
    ``stayed``: which processes; ``left``: these, and what is where temporary things go."""

    def __init__(self, folder, *args, numbers, group, first=None):
        (folder / "slow.yaml").write_text(SLOW, encoding="utf-8")
        args = (*args, "--processes", 2, "--output-dir", "out")
        self.folder = folder / "out"
        # Not below ``folder``: a socket will lie in it, whose path has 108 characters.
        with TemporaryDirectory(prefix="lmperf-") as temporary:
            self._stop(
                start(*args, cwd=folder, env={"TMPDIR": temporary}, start_new_session=True), first, numbers, group
            )
            self.left = [*self.stayed, *Path(temporary).iterdir()]

    def _stop(self, process, first, numbers, group):
        with at_last_killed(process):
            until(lambda: is_simulating(process.pid) and (first is None or (self.folder / first).is_file()), process)
            send(process, numbers, group=group)
            self.out, self.err = process.communicate(timeout=DEADLINE_S)
            self.stayed = gone(process.pid)
        self.code = process.returncode

    def json(self, name):
        return json.loads((self.folder / name).read_bytes())


SEARCHES = {
    "capacity": ("capacity", "slow.yaml", "--seeds", 4),
    "tune": ("tune", "slow.yaml", "--seeds", 2),
}
SIGNALS = {
    "Ctrl-C": ([signal.SIGINT], True),
    "Ctrl-C, impatient": ([signal.SIGINT] * 4, True),
    "SIGTERM": ([signal.SIGTERM], False),
    "SIGTERM to all": ([signal.SIGTERM, signal.SIGINT], True),
}


@pytest.mark.parametrize("how", SIGNALS)
@pytest.mark.parametrize("command", SEARCHES)
def test_a_stopped_search_says_what_it_found_and_leaves_no_process(command, how, tmp_path):
    """After its first point, either signal, however often: 105, a whole file that says so, the answer, no traceback."""
    numbers, group = SIGNALS[how]
    found = Stopped(tmp_path, *SEARCHES[command], numbers=numbers, group=group, first=f"{command}.json")
    assert found.left == []
    assert found.code == 105, found.err
    assert "Traceback" not in found.err
    assert "stopping; what was found is kept" in found.err
    data = found.json(f"{command}.json")
    assert data["interrupted"] is True
    assert data["trials"] if command == "tune" else data["policies"][0]["points"]
    assert "interrupted" in found.out
    assert not list(found.folder.glob("*.partial"))


@pytest.mark.parametrize("how", SIGNALS)
def test_a_stopped_comparison_leaves_no_process(how, tmp_path):
    """Of a simulation over seeds: 105, no traceback, and a whole file, whatever was finished."""
    numbers, group = SIGNALS[how]
    args = ("simulate", "slow.yaml", "--policies", "fifo,wfq", "--seeds", 8)
    found = Stopped(tmp_path, *args, numbers=numbers, group=group)
    assert found.left == []
    assert found.code == 105, found.err
    assert "Traceback" not in found.err
    assert "of 32 simulated runs" in found.out
    assert found.json("comparison.json")["interrupted"] is True


SUITE = ("simulate", "--suite", "policy-study", "--policies", "fifo")


@pytest.mark.parametrize("how", SIGNALS)
def test_a_stopped_suite_keeps_the_scenarios_that_it_finished(how, tmp_path):
    """After its first scenario: 105, no traceback, no process, the table and a whole file of those alone, and how many."""
    numbers, group = SIGNALS[how]
    found = Stopped(tmp_path, *SUITE, "--seeds", 8, numbers=numbers, group=group, first="suite.json")
    assert found.left == []
    assert found.code == 105, found.err
    assert "Traceback" not in found.err
    assert "stopping; what was found is kept" in found.err
    data = found.json("suite.json")
    finished = list(dict.fromkeys(row["scenario"] for row in data["rows"]))
    assert data["interrupted"] is True
    assert finished[0] == "study-a-flooder"
    assert len(finished) < 8
    assert f"interrupted: {len(finished)} of " in found.out
    assert "attainment of the worst tenant" in " ".join(found.out.split())
    assert sorted(path.name for path in found.folder.iterdir()) == ["log.txt", "suite.json"]


def test_a_suite_that_is_stopped_in_its_first_scenario_shows_no_empty_tables(tmp_path):
    """There are no figures, and that is said."""
    found = Stopped(tmp_path, *SUITE, "--seeds", 60, numbers=[signal.SIGINT], group=True)
    assert found.left == []
    assert found.code == 105, found.err
    data = found.json("suite.json")
    assert (data["interrupted"], data["rows"]) == (True, [])
    assert "interrupted: 0 of 9 scenarios were finished" in found.out
    assert "attainment" not in found.out


def long_trace(folder):
    """Some seconds a run."""
    rows = folder / "trace.jsonl"
    rows.write_text(
        "".join(
            json.dumps({"timestamp": 60 * i, "input_length": 300 + i % 7, "output_length": 200, "hash_ids": []}) + "\n"
            for i in range(40_000)
        )
    )
    return ("simulate", str(rows), "--policies", "fifo,wfq", "--server-model", "h200-llama-8b")


def test_what_was_replayed_of_a_trace_is_kept(tmp_path):
    """Stopped while loads are derived from it: the reproduction, and every policy on the captured arrivals."""
    found = Stopped(tmp_path, *long_trace(tmp_path), numbers=[signal.SIGTERM], group=False)
    assert found.left == []
    assert found.code == 105, found.err
    assert "captured arrivals under each policy" in found.out
    assert "interrupted: what is not above" in found.out
    data = found.json("comparison.json")
    assert (data["interrupted"], data["comparisons"]) == (True, [])


@pytest.mark.parametrize("how", SIGNALS)
def test_a_stopped_what_if_says_how_much_it_found(how, tmp_path):
    """Among its alternatives: 105, no traceback, the trace's own replay, and whole files of what was finished."""
    numbers, group = SIGNALS[how]
    args = (*long_trace(tmp_path), "--vary", "rate=1.1,1.2", "--alternative", "two:replicas=2")
    found = Stopped(tmp_path, *args, numbers=numbers, group=group)
    assert found.left == []
    assert found.code == 105, found.err
    assert "Traceback" not in found.err
    assert "stopping; what was found is kept" in found.err
    assert "captured arrivals under each policy" in found.out
    assert "of 8 simulated runs; what is not above" in found.out
    data = found.json("comparison.json")
    assert data["interrupted"] is True
    assert len(data["comparisons"]) < 3
    assert not list(found.folder.glob("*.partial"))


def test_workers_end_with_a_parent_that_is_killed(tmp_path):
    """SIGKILL gives the parent no chance to say or to remove anything."""
    found = Stopped(tmp_path, "capacity", "slow.yaml", numbers=[signal.SIGKILL], group=False)
    assert found.stayed == []
    assert found.code == -signal.SIGKILL


@pytest.mark.parametrize("impatient", [False, True])
def test_a_live_confirmation_that_is_cut_says_after_how_many_loads(impatient, tmp_path):
    """Ctrl-C in the second of three live runs: that one is of no use, and the third was never begun. Pressed until the
    command is gone, it is the same."""
    (tmp_path / "fast.yaml").write_text(SLOW.replace("duration_s: 600", "duration_s: 20"), encoding="utf-8")
    args = ("--seeds", 2, "--tolerance", 0.2, "--processes", 1, "--live", "--live-duration", 4, "--output-dir", "out")
    process = start("capacity", "fast.yaml", *args, cwd=tmp_path, start_new_session=True)
    with at_last_killed(process):
        # The folder of a run is made when it begins.
        until(lambda: len(list((tmp_path / "out").glob("live-*"))) == 2, process)
        os.killpg(process.pid, signal.SIGINT)
        while impatient and process.poll() is None:
            time.sleep(0.03)
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGINT)
        out, err = process.communicate(timeout=DEADLINE_S)
        left = gone(process.pid)
    assert left == []
    assert process.returncode == 105, err
    assert "Traceback" not in err
    assert "Task was destroyed" not in err
    assert "interrupted after 1 of 3 live loads" in " ".join(out.split())
    data = json.loads((tmp_path / "out/capacity.json").read_bytes())
    assert data["interrupted"] is True
    assert (len(data["live"]), len(data["live_loads"])) == (1, 3)


def long_capture(path: Path) -> None:
    """Requests enough that a fit of them, and every refit, takes seconds."""
    rng = np.random.default_rng(1)
    rows = [{"meta": {"load": "open"}}]
    for i, (prompt, tokens) in enumerate(zip(rng.integers(50, 900, 1_500), rng.integers(20, 120, 1_500), strict=True)):
        gaps = rng.uniform(5.0, 7.0, tokens - 1).round(3).tolist()
        ttft = 0.02 + 0.00002 * float(prompt)
        rows.append(
            {
                "sent_s": 0.08 * i,
                "prompt_tokens": int(prompt),
                "output_tokens": int(tokens),
                "ttft_s": ttft,
                "itl_ms": gaps,
            }
        )
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


@pytest.mark.parametrize("how", SIGNALS)
@pytest.mark.parametrize("after", ["fitting", "fits: 1 of"])
def test_a_stopped_calibration_writes_nothing(after, how, tmp_path):
    """In its first fit, and while it is judged: 105, no traceback, no process, and the file that was there is as it was."""
    numbers, group = SIGNALS[how]
    long_capture(tmp_path / "capture.jsonl")
    (tmp_path / "model.json").write_text("mine")
    process = start("calibrate", "capture.jsonl", "-o", "model.json", cwd=tmp_path, start_new_session=True)
    with at_last_killed(process):
        said = process.stderr.readline()
        while not said.startswith(after):
            assert process.poll() is None, f"ended with {process.returncode}: {said}"
            said = process.stderr.readline()
        send(process, numbers, group=group)
        out, err = process.communicate(timeout=DEADLINE_S)
        left = gone(process.pid)
    assert left == []
    assert process.returncode == 105, err
    assert "stopping" in err
    assert "kept" not in err
    assert "Traceback" not in err
    assert "lmperf calibrate: interrupted" in err
    assert "written" not in out
    assert (tmp_path / "model.json").read_text() == "mine"
    assert {path.name for path in tmp_path.iterdir()} == {"capture.jsonl", "model.json"}


def test_a_search_whose_process_is_killed_says_so_and_its_file_claims_no_end(tmp_path, monkeypatch):
    """In words and with 105, after a point was written: the file is whole and says that the answer is not."""
    (tmp_path / "slow.yaml").write_text(SLOW, encoding="utf-8")
    written, write = [], capacity_command._write

    def kill(_):
        raise WorkerDiedError("a simulating process died (exit code -9); is the memory enough?")

    monkeypatch.setattr(capacity_command, "counted", lambda *_: lambda done, total: written and kill(done))
    monkeypatch.setattr(capacity_command, "_write", lambda *args: (written.append(args), write(*args)))
    err = io.StringIO()
    args = ["capacity", "slow.yaml", "--seeds", "2", "--processes", "1", "--quiet", "--output-dir", "out"]
    with chdir(tmp_path), redirect_stderr(err):
        assert main(args) == 105
    assert "lmperf capacity: a simulating process died" in err.getvalue()
    assert "Traceback" not in err.getvalue()
    data = json.loads((tmp_path / "out/capacity.json").read_text())
    assert (data["interrupted"], data["complete"]) == (False, False)
    assert "did not come to its end" in data["policies"][0]["sentence"]


def test_a_temporary_folder_of_a_name_too_long_for_a_socket_is_named(tmp_path):
    """104 and what to do, no traceback: the forking server listens on a socket, whose path has 108 characters."""
    (tmp_path / "slow.yaml").write_text(SLOW, encoding="utf-8")
    deep = tmp_path / ("d" * 100)
    deep.mkdir()
    args = ("capacity", "slow.yaml", "--seeds", "2", "--processes", "2", "--quiet")
    done = subprocess.run(
        [sys.executable, "-m", "lmperf", *args],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(deep)},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 104, done.stderr
    assert "set TMPDIR to a shorter path" in done.stderr
    assert "Traceback" not in done.stderr
