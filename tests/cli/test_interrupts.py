"""A run that is stopped or killed leaves what it had measured, readable."""

from __future__ import annotations

import os
import signal
import subprocess
from contextlib import suppress

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from cli_support import DEADLINE_S, invoke, start, summary_of, two_tenants, until

from loadgen.trace.reader import read_trace


@pytest.fixture(scope="module")
def stopped(url, tmp_path_factory):
    """Two long runs, once their first rows are on disk: one gets SIGINT, one SIGKILL. (folder, {name: (code, stdout,
    stderr)})."""
    folder = tmp_path_factory.mktemp("stopped")
    (folder / "long.yaml").write_text(two_tenants(url, duration_s=600, rate=30))
    names = {"interrupted": signal.SIGINT, "killed": signal.SIGKILL}
    running = {name: start("run", "long.yaml", "--output-dir", name, cwd=folder) for name in names}
    found = {}
    try:
        for name, number in names.items():
            rows = folder / name / "rows/main-0.arrow"
            # The header alone is smaller; the first batch is there.
            until(lambda rows=rows: rows.is_file() and rows.stat().st_size > 20_000, running[name])
            running[name].send_signal(number)
        for name, process in running.items():
            out, err = process.communicate(timeout=DEADLINE_S)
            found[name] = (process.returncode, out, err)
    finally:
        for process in running.values():
            process.kill()
            process.wait()
    return folder, found


def test_sigint_writes_everything_and_exits_with_105(stopped):
    """Arrivals stop, answers are waited for, and the run's folder is complete; 105 stands before any other code."""
    folder, found = stopped
    code, out, err = found["interrupted"]
    assert code == 105, err
    assert "Traceback" not in err
    assert "stopping: no more arrivals" in err
    for name in ("summary.json", "summary.csv", "report.html", "requests.parquet", "ttft.hlog"):
        assert (folder / "interrupted" / name).is_file()
    summary = summary_of(folder / "interrupted")
    rows = read_trace(folder / "interrupted")
    assert len(rows) == summary["total"]["requests"] + summary["total"]["outside_window"] > 0
    assert summary["total"]["statuses"].get("unfinished", 0) == 0
    assert "results in interrupted" in out


def test_an_interrupted_runs_rates_are_of_the_time_it_ran(stopped):
    """Not of the 600 s that were planned."""
    summary = summary_of(stopped[0] / "interrupted")
    start_s, end_s = summary["window_s"]
    assert end_s - start_s < 60
    throughput = summary["total"]["throughput"]["requests_per_s"]
    assert throughput == pytest.approx(summary["total"]["requests"] / (end_s - start_s), rel=0.3)


def test_report_renders_what_a_killed_run_left(stopped):
    """kill -9: no summary, no parquet; `lmperf report` makes all of it from the rows that reached the disk."""
    folder, found = stopped
    assert found["killed"][0] == -signal.SIGKILL
    left = folder / "killed"
    assert not (left / "summary.json").exists()
    assert not (left / "requests.parquet").exists()
    done = invoke("report", "killed", cwd=folder)
    assert done.returncode == 0, done
    summary = summary_of(left)
    table = pq.read_table(left / "requests.parquet")
    assert summary["total"]["statuses"]["ok"] == table.num_rows > 0
    assert [tenant["tenant"] for tenant in summary["tenants"]] == ["chat", "bulk"]
    assert summary["tenants"][0]["attainment"]["target"] == 0.9
    assert summary["plan"]["name"] == "two"
    end_s = summary["window_s"][1]
    assert end_s == pytest.approx(max(table.column("finished_ns").to_pylist()) / 1e9, abs=1e-3)
    assert summary["start_utc"] is not None
    assert any("without writing its results" in warning for warning in summary["warnings"])
    assert "without writing its results" in (left / "report.html").read_text()
    assert (left / "e2e.hlog").is_file()


def test_a_trace_of_a_killed_run_is_named_before_its_report(stopped, tmp_path):
    """A run that only left rows is no trace yet: the message says which command makes it one."""
    folder, _ = stopped
    left = tmp_path / "killed"
    (left / "rows").mkdir(parents=True)
    source = next((folder / "killed/rows").glob("*.arrow"))
    (left / "rows/main-0.arrow").write_bytes(source.read_bytes())
    done = invoke("simulate", left, cwd=tmp_path)
    assert done.returncode == 104
    assert f"lmperf report {left}" in done.stderr


def test_a_batch_that_was_cut_off_is_left_out_and_said(stopped, tmp_path):
    """A stream that ends in the middle of a batch (a full disk) gives the batches before it, and a warning."""
    folder, _ = stopped
    left = tmp_path / "cut"
    (left / "rows").mkdir(parents=True)
    source = next((folder / "killed/rows").glob("*.arrow")).read_bytes()
    next_batch = pa.ipc.open_stream(source).read_next_batch().serialize().to_pybytes()
    (left / "rows/main-0.arrow").write_bytes(source + next_batch[: len(next_batch) // 2])
    done = invoke("report", left, cwd=tmp_path)
    assert done.returncode == 0, done
    assert summary_of(left)["total"]["requests"] == summary_of(folder / "killed")["total"]["requests"]
    assert any("cut off" in warning for warning in summary_of(left)["warnings"])


def test_what_a_killed_run_left_is_never_written_into(stopped, url):
    """The same --output-dir after a kill: the next run takes a folder of its own."""
    folder, _ = stopped
    before = {path.name: path.read_bytes() for path in (folder / "killed/rows").iterdir()}
    done = invoke(
        *("run", "--model", url, "--num-prompts", "2", "--random-input-len", "8", "--random-output-len", "2"),
        *("--output-dir", "killed", "--quiet"),
        cwd=folder,
    )
    assert done.returncode in {0, 107}
    assert "results in killed-2" in done.stdout
    assert {path.name: path.read_bytes() for path in (folder / "killed/rows").iterdir()} == before


def test_ctrl_c_in_a_terminal_reaches_the_embedded_server_too_and_loses_nothing(tmp_path):
    """A terminal signals the whole process group; the run drains over its server, writes everything, and exits 105."""
    (tmp_path / "embedded.yaml").write_text(
        "version: 1\nduration_s: 600\ntenants:\n  chat: {rate: 30, prompt: 20, output: 5}\n", encoding="utf-8"
    )
    running = start("run", "embedded.yaml", "--output-dir", "run", cwd=tmp_path, start_new_session=True)
    try:
        rows = tmp_path / "run/rows/main-0.arrow"
        until(lambda: rows.is_file() and rows.stat().st_size > 20_000, running)
        os.killpg(running.pid, signal.SIGINT)
        _, err = running.communicate(timeout=DEADLINE_S)
    finally:
        running.kill()
        running.wait()
    assert running.returncode == 105, err
    assert "Traceback" not in err
    assert summary_of(tmp_path / "run")["total"]["statuses"]["ok"] > 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("instant", ["the server starts", "the run is prepared", "warm-up", "again and again"])
def test_a_signal_at_any_instant_leaves_nothing_behind(instant, number, tmp_path):
    """The embedded server's folder and process go, also when the clock has not started; 105 and no traceback."""
    (tmp_path / "embedded.yaml").write_text(
        "version: 1\nduration_s: 600\nwarmup_s: 300\ntenants:\n  chat: {rate: 30, prompt: 20, output: 5}\n",
        encoding="utf-8",
    )
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    running = start("run", "embedded.yaml", "--output-dir", "run", cwd=tmp_path, env={"TMPDIR": str(temporary)})
    reached = {
        "the server starts": lambda: any(temporary.iterdir()),
        "the run is prepared": (tmp_path / "run/scenario.resolved.yaml").is_file,
        "warm-up": (tmp_path / "run/rows/main-0.arrow").is_file,
        "again and again": lambda: any(temporary.iterdir()),
    }
    try:
        until(reached[instant], running)
        running.send_signal(number)
        while instant == "again and again" and running.poll() is None:
            running.send_signal(number)
            with suppress(subprocess.TimeoutExpired):
                running.wait(0.02)
        _, err = running.communicate(timeout=DEADLINE_S)
    finally:
        running.kill()
        running.wait()
    assert list(temporary.iterdir()) == []
    if instant != "again and again":  # an impatient user may stop the interpreter's own end, too
        assert running.returncode == 105, err
        assert "Traceback" not in err


def test_ctrl_c_in_a_simulation_says_so(tmp_path):
    """Exit 105 and no traceback, whether or not there is something to compare yet; never a table that looks whole."""
    running = start("simulate", "noisy-neighbour", "--output-dir", "sim", cwd=tmp_path, start_new_session=True)
    try:
        until((tmp_path / "sim/log.txt").is_file, running)
        os.killpg(running.pid, signal.SIGINT)
        _, err = running.communicate(timeout=DEADLINE_S)
    finally:
        running.kill()
        running.wait()
    assert running.returncode == 105, err
    assert "Traceback" not in err
    assert "interrupted" in err
