"""Two clients side by side: who sits on which core, and a real pair."""

from __future__ import annotations

import os
import sys
from types import SimpleNamespace

import pytest

from benchmarks import client_pairs
from benchmarks.client_cost import STREAMS
from benchmarks.client_harness import BenchError
from benchmarks.client_pairs import Seats, run_pair, seats
from benchmarks.client_peers import PROTOCOL, Client, Load, NotHere


def _cores(at: Seats) -> set[int]:
    return {at.client, at.server, at.other_client, at.other_server}


def test_with_four_cores_each_process_has_its_own() -> None:
    for pair in range(4):
        assert len(_cores(seats(range(8), pair))) == 4


def test_with_two_cores_each_client_shares_one_with_the_others_server() -> None:
    for pair in range(4):
        at = seats([2, 5], pair)
        assert at.client == at.other_server != at.server == at.other_client


def test_the_sides_change_from_pair_to_pair() -> None:
    for cores in ([0, 1], [0, 1, 2, 3]):
        one, two = seats(cores, 0), seats(cores, 1)
        assert (one.client, one.server) == (two.other_client, two.other_server)
        assert (two.client, two.server) == (one.other_client, one.other_server)


def test_one_core_is_not_enough() -> None:
    with pytest.raises(BenchError, match="two cores"):
        seats([0], 0)


@pytest.mark.skipif(
    not hasattr(os, "sched_setaffinity") or len(os.sched_getaffinity(0)) < 2, reason="needs two cores to pin to"
)
def test_a_pair_counts_every_token_of_both() -> None:
    pair = run_pair(PROTOCOL, rounds=2, tokens=100, number=0)
    assert pair.ratio == pair.lmperf.us_per_token / pair.other.us_per_token > 0
    # All tokens were served, or the run would have been refused; neither figure can be more than the whole process.
    for run in (pair.lmperf, pair.other):
        assert run.us_per_token * STREAMS * 100 / 1e6 < run.cost.cpu_s


def test_a_peer_that_cannot_start_is_said_so_and_nothing_else_runs() -> None:
    def argv(load: Load, folder: object) -> list[str]:
        raise NotHere("no such client")

    with pytest.raises(NotHere, match="no such client"):
        run_pair(Client("absent", argv, lambda folder: []), rounds=2, tokens=100, number=0)


def test_ctrl_c_leaves_the_summary_of_the_pairs_that_are_finished(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two of eight pairs: their median, and that it is of these; the exit code of what SIGINT ended."""

    def pair(ratio: float) -> client_pairs.Pair:
        runs = [
            SimpleNamespace(us_per_token=us, server_share=0.5, cost=SimpleNamespace(exit_code=0)) for us in (ratio, 1.0)
        ]
        return client_pairs.Pair(*runs)

    coming = iter([pair(1.2), pair(1.4)])

    def run_pair(*_: object, **__: object) -> client_pairs.Pair:
        found = next(coming, None)
        if found is None:
            raise KeyboardInterrupt
        return found

    monkeypatch.setattr(client_pairs, "run_pair", run_pair)
    monkeypatch.setattr(sys, "argv", ["client_pairs", "--tokens", "100,400", "--against", "protocol"])
    with pytest.raises(SystemExit) as ended:
        client_pairs.main()
    assert ended.value.code == 130
    (line,) = (line.split() for line in capsys.readouterr().out.splitlines() if " 100 " in line)
    assert line[-6:] == ["1.30", "1.20", "1.40", "2", "1.3", "1.0"]
