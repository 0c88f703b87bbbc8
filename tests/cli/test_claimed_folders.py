"""A results folder belongs to one run: of all that are finished, killed, or going on right now."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from cli_support import environment, files_of, invoke, start, summary_of, two_tenants

from lmperf.scenario.faults import ScenarioError
from lmperf.wiring.run_folder import claimed

CLAIMER = """
import sys, pathlib
from lmperf.wiring.run_folder import claimed
sys.stdin.readline()
with claimed(pathlib.Path(sys.argv[1])) as folder:
    print(folder.name, flush=True)
    sys.stdin.readline()
"""


def test_runs_started_at_the_same_instant_take_folders_of_their_own(url, tmp_path):
    """Two real runs with one --output-dir: both finish, and each folder holds one whole run."""
    (tmp_path / "two.yaml").write_text(two_tenants(url, duration_s=0.3))
    runs = [start("run", "two.yaml", "--output-dir", "r", "--quiet", cwd=tmp_path) for _ in range(2)]
    for run in runs:
        out, err = run.communicate(timeout=60)
        assert run.returncode in {0, 107}, (out, err)
    assert {path.name for path in tmp_path.iterdir()} == {"two.yaml", "r", "r-2"}
    for folder in (tmp_path / "r", tmp_path / "r-2"):
        assert (folder / "log.txt").read_text().count("lmperf run two.yaml") == 1
        assert summary_of(folder)["total"]["requests"] > 0


def test_four_processes_let_go_at_once_claim_four_folders(tmp_path):
    """All wait for the same moment, and hold what they got until all have one."""
    waiting = [
        subprocess.Popen(
            [sys.executable, "-c", CLAIMER, str(tmp_path / "r")],
            env=environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(4)
    ]
    for process in waiting:
        process.stdin.write("go\n")
        process.stdin.flush()
    taken = [process.stdout.readline().strip() for process in waiting]
    for process in waiting:
        process.communicate("done\n", timeout=60)
    assert sorted(taken) == ["r", "r-2", "r-3", "r-4"]


def test_a_claim_ends_with_its_process_and_a_run_never_does(tmp_path):
    """A folder that a run never wrote into is free again; one with a run's rows is not, whoever was killed there."""
    with claimed(tmp_path / "r") as first, claimed(tmp_path / "r") as second:
        assert (first.name, second.name) == ("r", "r-2")
    with claimed(tmp_path / "r") as again:
        assert again.name == "r"
        (again / "rows").mkdir()
    before = files_of(tmp_path / "r")
    with claimed(tmp_path / "r") as other:
        assert other.name == "r-2"
    assert files_of(tmp_path / "r") == before


def test_the_current_folder_has_siblings_too(tmp_path, monkeypatch):
    """`--output-dir .` twice: the second run stands beside the folder, under its own name."""
    (tmp_path / "here/rows").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "here")
    for wanted in (Path(), Path("../here/.")):
        with claimed(wanted) as folder:
            assert folder.resolve() == tmp_path / "here-2"


def test_a_scenario_s_name_leads_nowhere_else(url, tmp_path):
    """Slashes and dots of a name are no path."""
    text = two_tenants(url, duration_s=0.2).replace("name: two", 'name: "../../away / \N{GRINNING FACE}"')
    (tmp_path / "s.yaml").write_text(text, encoding="utf-8")
    done = invoke("run", "s.yaml", "--quiet", cwd=tmp_path)
    assert done.returncode in {0, 107}, done
    assert {path.name for path in tmp_path.iterdir()} == {"s.yaml", "results"}
    (folder,) = (tmp_path / "results").iterdir()
    assert folder.name.startswith("away-")


def test_a_folder_that_cannot_be_made_is_named_with_its_flag(tmp_path):
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(ScenarioError, match=r"file/r .*name another --trace"),
        claimed(tmp_path / "file/r", flag="--trace"),
    ):
        raise AssertionError("claimed below a file")


def test_a_gateway_cannot_record_below_a_file(tmp_path):
    (tmp_path / "file").write_text("")
    done = invoke("gateway", "--upstream", "http://127.0.0.1:9", "--trace", "file/trace", cwd=tmp_path)
    assert done.returncode == 104
    assert "file/trace" in done.stderr
    assert "--trace" in done.stderr
