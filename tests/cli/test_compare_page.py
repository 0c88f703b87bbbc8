"""`lmperf compare RUN RUN --output-dir DIR`: the page, and the differences as data."""

from __future__ import annotations

import json

import pytest
from cli_support import invoke

from loadgen.recorder import Recorder
from loadgen.summary import summarise
from loadgen.summary.files import read_summary, write_summary
from loadgen.trace.schema import TraceMetadata
from tenants.slo import Slo
from tenants.tenant import Tenant
from tests.report.report_runs import MS, Html, S, lost, ok

HOSTILE = "<b>&'\"{{x}}"


def a_folder(folder, *, server_ms, tenant="chat", seed=7, unfinished=0):
    """A run of 600 requests in 60 s with its rows; the last ``unfinished`` never end."""
    folder.mkdir(parents=True)
    metadata = TraceMetadata(end_ns=70 * S, seed=seed, window_ns=(0, 60 * S), policy="fifo")
    recorder = Recorder(
        [Tenant(name=tenant, slo=Slo(ttft_ns=500 * MS, attainment=0.9))], (0, 60 * S), folder, metadata=metadata
    )
    for k in range(600):
        make = ok(k, tenant, k * S // 10, server_ms=server_ms + k % 20)
        recorder.on_outcome(make if k < 600 - unfinished else lost(k, tenant, k * S // 10))
    recorder.close(metadata)
    write_summary(summarise(recorder), folder)
    return folder


def test_runs_are_compared_on_a_page_and_as_data(tmp_path):
    """A line for each side in the figures of every tenant; the data say what the terminal says; the exit code stays."""
    a_folder(tmp_path / "before", server_ms=40, tenant=HOSTILE)
    a_folder(tmp_path / "after", server_ms=90, tenant=HOSTILE, unfinished=300)
    done = invoke("compare", "before", "after", "--output-dir", "found", cwd=tmp_path)
    assert done.returncode == 108, done
    assert "written: found/comparison.html, found/differences.json" in done.stdout
    page = Html((tmp_path / "found/comparison.html").read_text())
    assert "after against before" in page.words
    assert "no longer reached" in page.words
    assert "WORSE" in page.words
    assert "lmperf compare before after --output-dir found" in page.words
    assert {"curve-ttft-1", "curve-e2e-1", "curve-itl-1"} <= set(page.figures)
    lines = [trace for trace in page.figures["curve-ttft-1"]["data"] if trace["mode"] == "lines"]
    assert [trace["name"] for trace in lines] == ["before", "after"]
    assert max(lines[0]["y"]) == pytest.approx(2 + 59, rel=0.01), "our queue and the slowest of the server"
    data = json.loads((tmp_path / "found/differences.json").read_text())
    assert data["first"] == "before"
    (side,) = data["compared"]
    by_figure = {(one["tenant"], one["figure"]): one for one in side["differences"]}
    lost_p99 = by_figure[HOSTILE, "ttft p99 ms"]
    assert (lost_p99["change"], lost_p99["this"]["beyond"], lost_p99["verdict"]) == (None, True, "WORSE")
    attained = by_figure[HOSTILE, "attained"]
    assert attained["change"] == pytest.approx(-0.5)


def test_a_side_of_several_runs_has_one_line_and_every_run_its_row(tmp_path):
    """Curves are of all its requests; without rows there are none, and the tables stand."""
    for seed in (1, 2):
        a_folder(tmp_path / "before" / str(seed), server_ms=40 * seed, seed=seed)
        a_folder(tmp_path / "after" / str(seed), server_ms=45 * seed, seed=seed)
    done = invoke("compare", "before", "after", "--output-dir", "found", cwd=tmp_path)
    assert done.returncode in {0, 108}, done
    page = Html((tmp_path / "found/comparison.html").read_text())
    names = [trace["name"] for trace in page.figures["curve-ttft-1"]["data"] if trace["mode"] == "lines"]
    assert names == ["before", "after"]
    assert all(f"{side}/{seed}" in page.words for side in ("before", "after") for seed in (1, 2))
    bare = tmp_path / "bare"
    bare.mkdir()
    write_summary(read_summary(tmp_path / "before/1"), bare)
    done = invoke("compare", "bare", "bare", "--output-dir", "plain", cwd=tmp_path)
    assert done.returncode == 0, done
    assert "bare against bare" in Html((tmp_path / "plain/comparison.html").read_text()).words
