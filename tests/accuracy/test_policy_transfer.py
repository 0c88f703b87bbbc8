"""The benchmark of predictions held against live runs: what it needs, and that its tables are of the runs it made."""

from __future__ import annotations

import os
import sys

import pytest

from benchmarks import policy_transfer
from benchmarks.run_all import BENCHMARKS


@pytest.fixture
def nothing_runs(monkeypatch):
    """A live run would be a failure of the test."""
    monkeypatch.setattr(policy_transfer.subprocess, "run", lambda *_, **__: pytest.fail("a live run was begun"))


def test_it_is_run_with_all_others():
    """`make bench` is all that the docs quote and that takes no server of one's own."""
    assert "benchmarks.policy_transfer" in BENCHMARKS


@pytest.mark.usefixtures("nothing_runs")
def test_one_core_is_too_few_and_that_is_said(monkeypatch, capsys):
    """It is skipped, not failed: `make bench` goes on."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0})
    monkeypatch.setattr(sys, "argv", ["policy_transfer"])
    policy_transfer.main()
    assert "skipped: a live run takes 2 cores" in capsys.readouterr().out


@pytest.mark.usefixtures("nothing_runs")
def test_runs_of_an_earlier_call_are_not_taken_for_its_own(monkeypatch, capsys, tmp_path):
    """A run never writes into the folder of another, so the tables would have been of the old one."""
    (tmp_path / "fifo-baseline").mkdir()
    (tmp_path / "fifo-baseline/summary.json").touch()
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    monkeypatch.setattr(sys, "argv", ["policy_transfer", "--output", str(tmp_path)])
    with pytest.raises(SystemExit):
        policy_transfer.main()
    assert "holds runs: name another --output" in capsys.readouterr().err
