"""Rules of ``--workers`` on several servers: one queue says where each request goes, and one watch which servers are down."""

from __future__ import annotations

import signal
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path

from cli_support import DEADLINE_S, invoke, served, start, summary_of, two_tenants, until

from lmperf.wiring.live_workers import couples_requests
from loadgen.trace.reader import read_trace
from scheduler.dispatcher_config import DispatcherConfig
from scheduler.request import Status
from scheduler.slots import Slots
from tenants.tenant import Tenant


def scenario(folder: Path, *urls: str, routing: str, duration_s: float, sequences: int = 4) -> None:
    text = two_tenants("URL", duration_s=duration_s, rate=60)
    text = text.replace('url: "URL"', f"urls: [{', '.join(urls)}], routing: {routing}")
    (folder / "s.yaml").write_text(text.replace("sequences: 4", f"sequences: {sequences}"))


def rows_of(folder: Path):
    """Those that were dispatched, in that order."""
    dispatched = (row for row in read_trace(folder).outcomes() if row.dispatched_ns is not None)
    return sorted(dispatched, key=lambda row: row.dispatched_ns)


def test_one_queue_deals_the_requests_of_all_workers_to_the_servers(url, tmp_path):
    """By turns over all workers, which turns of each worker's own would not be; every request once, as without workers."""
    with served(tmp_path) as second:
        scenario(tmp_path, url, second, routing="round_robin", duration_s=1.5)
        done = {
            n: invoke("run", "s.yaml", "--workers", n, "--output-dir", str(n), "--quiet", cwd=tmp_path) for n in (1, 3)
        }
    assert {one.returncode for one in done.values()} == {0}, done
    alone, shared = (rows_of(tmp_path / n) for n in "13")
    assert sorted(row.request.id for row in alone) == sorted(row.request.id for row in shared)
    turns = [before.backend != after.backend for before, after in pairwise(shared)]
    assert sum(turns) > 0.8 * len(turns), "slots are nearly always free at both"


def test_a_server_that_dies_is_taken_out_for_all_workers(tmp_path):
    """What had not reached it is answered by the other one; at most what it had is lost. The run says so."""
    rows = tmp_path / "r" / "rows"

    def kept() -> int:
        return sum(path.stat().st_size for path in rows.glob("*.arrow"))

    with ExitStack() as stays, ExitStack() as dies:
        for name in ("a", "b"):
            (tmp_path / name).mkdir()
        first = dies.enter_context(served(tmp_path / "a"))
        second = stays.enter_context(served(tmp_path / "b"))
        scenario(tmp_path, first, second, routing="least_work", duration_s=600)
        process = start("run", "s.yaml", "--workers", "2", "--output-dir", "r", cwd=tmp_path)
        try:
            until(lambda: kept() > 20_000, process)
            dies.close()
            before = kept()
            until(lambda: kept() > before + 60_000, process)
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=DEADLINE_S)
        finally:
            process.kill()
            process.wait()
    assert process.returncode == 105, (out, err)
    found = rows_of(tmp_path / "r")
    failed = [row for row in found if row.status is not Status.OK]
    assert len(failed) <= 4, "at most what its slots held"
    assert all(row.backend == "server-1" and row.sent_ns is not None for row in failed), "and only what had reached it"
    assert {row.backend for row in found[:50]} == {"server-1", "server-2"}
    assert {row.backend for row in found[-50:]} == {"server-2"}
    (note,) = [note for note in summary_of(tmp_path / "r")["warnings"] if "refused connections" in note]
    assert note.startswith("backend server-1 refused connections and was taken out once; it was not back")


def test_several_servers_have_one_queue_for_all_workers():
    """Where a request goes depends on what each server has to do, whoever sent it."""

    def config(*names: str) -> DispatcherConfig:
        return DispatcherConfig(tenants=(Tenant(name="a"),), policy="fifo", backends=dict.fromkeys(names, Slots()))

    assert not couples_requests(config("a"))
    assert couples_requests(config("a", "b"))
