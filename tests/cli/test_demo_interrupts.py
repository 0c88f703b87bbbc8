"""Ctrl-C and SIGTERM in each part of ``lmperf demo``: 105, what was measured is kept and named, and nothing else stays."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from cli_support import DEADLINE_S, ROOT, environment, files_of, invoke, summary_of, until
from test_offline_interrupts import at_last_killed, gone

DEMO = """\
import os, sys
from pathlib import Path
from lmperf.cli import demo_command
from lmperf.wiring import offline
from lmperf.__main__ import main

scenarios, where, at, send = sys.argv[1].split(","), sys.argv[2], int(sys.argv[3]), sys.argv[4]
owner = offline if where == "record_cell" else demo_command
begun, calls = [], []
wrapped = getattr(owner, where, None)

def sending(*args, **kwargs):
    calls.append(1)
    if len(calls) == at:
        eval(send)
    return wrapped(*args, **kwargs)

def found(_):
    begun.append(1)
    return Path(scenarios[len(begun) - 1])

demo_command.find_scenario = found
if wrapped is not None:
    setattr(owner, where, sending)
sys.exit(main(["demo", "--output-dir", "out"]))
"""
"""The command over scenarios of other lengths, which sends itself a signal at the call number ``at`` of a function."""

SENT = {"Ctrl-C": "os.killpg(0, 2)", "SIGTERM": "os.kill(os.getpid(), 15)"}


def text_of(duration_s: float, burst: int = 4) -> str:
    """The demo's scenario, so long, judged from its start and with smaller bursts."""
    text = (ROOT / "scenarios/demo.yaml").read_text(encoding="utf-8")
    text = text.replace("study-server.json", str(ROOT / "scenarios/study-server.json"))
    text = text.replace("judge: [0.1, 0.95]", "judge: [0, 0.95]").replace("duration_s: 25", f"duration_s: {duration_s}")
    return text.replace("burst_size: 100", f"burst_size: {burst}")


class Demo:
    """The command in a session of its own, in ``folder``; ``cut``: the policy whose live run is to last until it is stopped."""

    def __init__(self, folder: Path, *, cut: str = "", where: str = "none", at: int = 1, how: str = "Ctrl-C") -> None:
        (folder / "short.yaml").write_text(text_of(2), encoding="utf-8")
        (folder / "long.yaml").write_text(text_of(600), encoding="utf-8")
        self.temporary = folder / "temporary"
        self.temporary.mkdir(exist_ok=True)
        scenarios = ",".join("long.yaml" if policy == cut else "short.yaml" for policy in ("fifo", "slo_aware"))
        self.out_folder = folder / "out"
        self.process = subprocess.Popen(
            [sys.executable, "-c", DEMO, scenarios, where, str(at), SENT[how]],
            cwd=folder,
            env=environment(TMPDIR=str(self.temporary)),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        with at_last_killed(self.process):
            if cut:
                self._stop_in(self.out_folder / f"live-{cut}", how)
            self.out, self.err = self.process.communicate(timeout=2 * DEADLINE_S)
            self.left = [*gone(self.process.pid), *self.temporary.iterdir()]
        self.code = self.process.returncode

    def _stop_in(self, folder: Path, how: str) -> None:
        rows = folder / "rows/main-0.arrow"
        # The header alone is smaller: requests ended.
        until(lambda: rows.is_file() and rows.stat().st_size > 20_000, self.process)
        with suppress(ProcessLookupError):
            if how == "Ctrl-C":
                os.killpg(self.process.pid, signal.SIGINT)
            else:
                self.process.terminate()


def assert_stopped(demo: Demo, *runs: str) -> None:
    """In order, with these live runs, each of which is whole and can be reported."""
    assert demo.left == []
    assert demo.code == 105, demo.err
    assert "Traceback" not in demo.err
    assert "interrupted" in demo.out
    folders = {path.name: path for path in demo.out_folder.iterdir() if path.is_dir()}
    for name in runs:
        folder = folders.pop(name)
        assert f"out/{name}" in demo.out
        assert {"summary.json", "report.html", "requests.parquet"} <= set(files_of(folder))
        assert not (folder / "rows").exists()
        assert summary_of(folder)["total"]["requests"] > 0
        assert invoke("report", folder, cwd=demo.out_folder).returncode == 0
    for folder in folders.values():
        assert not (folder / "summary.json").exists()
        assert not (folder / "rows").exists()


@pytest.mark.parametrize("how", SENT)
def test_a_demo_that_is_stopped_in_its_first_run_keeps_it(how, tmp_path):
    """It is a run cut short, which can be reported, and says so."""
    demo = Demo(tmp_path, cut="fifo", how=how)
    assert_stopped(demo, "live-fifo")
    assert "kept out/live-fifo, cut short" in demo.out
    assert "[2 of 3]" not in demo.err


def test_the_next_demo_leaves_a_stopped_one_as_it_is(tmp_path):
    """It takes a folder of its own, as every command does."""
    Demo(tmp_path, cut="fifo")
    before = files_of(tmp_path / "out")
    again = Demo(tmp_path, where="resolve_with_saturation")
    assert again.code == 105, again.err
    assert files_of(tmp_path / "out") == before
    assert (tmp_path / "out-2").is_dir()
    assert "no live run was measured" in again.out


@pytest.mark.parametrize("how", SENT)
def test_a_demo_that_is_stopped_in_its_second_run_keeps_both(how, tmp_path):
    """The first is whole, the second cut short, and `compare` puts them side by side."""
    demo = Demo(tmp_path, cut="slo_aware", how=how)
    assert_stopped(demo, "live-fifo", "live-slo_aware")
    assert "kept out/live-fifo and out/live-slo_aware, cut short" in demo.out
    compared = invoke("compare", "out/live-fifo", "out/live-slo_aware", cwd=tmp_path)
    assert compared.returncode in {0, 107, 108}, compared
    assert "out/live-slo_aware" in compared.stdout


@pytest.mark.parametrize(
    ("where", "at", "runs", "how"),
    [
        ("resolve_with_saturation", 1, (), "Ctrl-C"),
        ("resolve_with_saturation", 2, ("live-fifo",), "SIGTERM"),
        ("server_for", 1, ("live-fifo", "live-slo_aware"), "Ctrl-C"),
        ("record_cell", 1, ("live-fifo", "live-slo_aware"), "SIGTERM"),
    ],
)
def test_a_demo_that_is_stopped_between_its_parts_names_what_is_kept(where, at, runs, how, tmp_path):
    """Before each live run, before the fit of the server model, and in the reproduction of what was captured."""
    demo = Demo(tmp_path, where=where, at=at, how=how)
    assert_stopped(demo, *runs)
    assert "cut short" not in demo.out
    assert "stopping; what was found is kept" in demo.err


def test_a_demo_that_is_stopped_among_its_policies_shows_those_that_are_done(tmp_path):
    """The reproduction is the first simulation: in the fourth two policies are done."""
    demo = Demo(tmp_path, where="record_cell", at=4)
    assert_stopped(demo, "live-fifo", "live-slo_aware")
    assert "interrupted: 2 of 8 policies were simulated" in demo.out
    assert "live beside simulated" in demo.out
    assert (demo.out_folder / "comparison.html").is_file()
    assert sorted(path.name for path in demo.out_folder.iterdir()) == [
        "comparison.html",
        "live-fifo",
        "live-slo_aware",
        "log.txt",
        "server-model.json",
    ]
