"""`python -m lmperf.run --model HOST:PORT ...`, exactly as it is typed, and everything that it leaves."""

from __future__ import annotations

import csv

import pyarrow.parquet as pq
import pytest
from cli_support import files_of, invoke, lmperf, summary_of
from hdrh.histogram import HdrHistogram
from hdrh.log import HistogramLogReader

LISTED = {
    "summary.json",
    "summary.csv",
    "requests.parquet",
    "report.html",
    "scenario.resolved.yaml",
    "log.txt",
}


@pytest.fixture(scope="module")
def one_shot(host_and_port, tmp_path_factory):
    """The command in a new folder: (where it ran, what it was)."""
    folder = tmp_path_factory.mktemp("one-shot")
    done = lmperf(
        *("--model", host_and_port, "--num-prompts", "60", "--concurrency", "6", "--output-dir", "./results/x"),
        module="lmperf.run",
        cwd=folder,
    )
    return folder, done


def test_it_ends_well_or_says_that_the_machine_could_not(one_shot):
    """0, or 107 with the reason on the screen: an overloaded machine makes a run invalid, and nothing else may."""
    folder, done = one_shot
    summary = summary_of(folder / "results/x")
    assert done.returncode == (0 if summary["validity"]["valid"] else 107), done.stderr
    assert ("INVALID RUN" in done.stdout) is not summary["validity"]["valid"]
    assert "Traceback" not in done.stderr


def test_it_leaves_every_file_that_is_promised(one_shot):
    """The listed files and at least the histogram logs of the plain latencies; no stream of rows is left over."""
    folder, _ = one_shot
    names = set(files_of(folder / "results/x"))
    assert names >= LISTED | {f"{m}.hlog" for m in ("ttft", "tpot", "e2e", "itl", "queue_time")}
    assert not (folder / "results/x/rows").exists()
    assert names - LISTED == {name for name in names if name.endswith(".hlog")}


def test_it_measures_n_requests_of_the_served_model(one_shot):
    """All N in summary, trace and histogram; the model id came from the server; a closed loop of 6 users."""
    folder, _ = one_shot
    summary = summary_of(folder / "results/x")
    assert summary["load_mode"] == "closed"
    assert summary["server"]["model"] == "fast-model"
    assert summary["total"]["statuses"]["ok"] == 60
    table = pq.read_table(folder / "results/x/requests.parquet")
    assert table.num_rows == 60
    assert set(table.column("output_tokens").to_pylist()) == {128}
    assert set(table.column("prompt_tokens").to_pylist()) == {1024}
    assert table.column("request_id").to_pylist().count(None) == 0


def test_rates_are_per_second_of_the_run(one_shot):
    """A run until N requests are answered lasts from its start to its last answer; rates are over that time."""
    folder, _ = one_shot
    summary = summary_of(folder / "results/x")
    rows = pq.read_table(folder / "results/x/requests.parquet")
    last_s = max(rows.column("finished_ns").to_pylist()) / 1e9
    start_s, end_s = summary["window_s"]
    assert start_s == 0
    assert end_s == pytest.approx(summary["duration_s"], abs=1e-6)
    assert end_s >= last_s
    assert summary["total"]["throughput"]["requests_per_s"] == pytest.approx(60 / end_s, rel=1e-6)
    assert summary["total"]["throughput"]["output_tokens_per_s"] == pytest.approx(60 * 128 / end_s, rel=1e-6)


def test_never_more_than_the_users_are_in_flight(one_shot):
    """--concurrency without a rate is a closed loop: at every instant at most N requests between arrival and end."""
    folder, _ = one_shot
    rows = pq.read_table(folder / "results/x/requests.parquet").to_pylist()
    ends = sorted(row["finished_ns"] for row in rows)
    for row in rows:
        before = sum(end <= row["arrival_ns"] for end in ends)
        started = sum(other["arrival_ns"] < row["arrival_ns"] for other in rows)
        assert started - before < 6


def test_percentiles_agree_with_the_rows(one_shot):
    """P50 and P99 of the summary are those of the rows, within a histogram's three digits."""
    folder, _ = one_shot
    rows = pq.read_table(folder / "results/x/requests.parquet").to_pylist()
    ttft = sorted((row["first_token_ns"] - row["arrival_ns"]) / 1e6 for row in rows)
    summary = summary_of(folder / "results/x")
    (metric,) = (m for m in summary["total"]["metrics"] if m["metric"] == "ttft")
    found = {p["p"]: p["value_ms"] for p in metric["percentiles"]}
    for p, rank in ((50.0, 30), (99.0, 60)):
        assert found[p] == pytest.approx(ttft[rank - 1], rel=2e-3, abs=2e-3)


def test_the_histogram_logs_are_read_by_the_public_library(one_shot):
    """Every .hlog holds, for the library's own reader, as many TTFTs as requests."""
    folder, _ = one_shot
    counts = {}
    for name in ("ttft", "e2e", "itl"):
        total = HdrHistogram(1, 3_600_000_000, 3)
        reader = HistogramLogReader(str(folder / f"results/x/{name}.hlog"), total)
        while reader.add_next_interval_histogram(total):
            pass
        reader.close()
        counts[name] = total.get_total_count()
    assert counts == {"ttft": 60, "e2e": 60, "itl": 60 * 127}


def test_the_csv_holds_the_summarys_figures(one_shot):
    """One row a tenant and metric, with the JSON's values."""
    folder, _ = one_shot
    with (folder / "results/x/summary.csv").open() as file:
        rows = {(row["tenant"], row["metric"]): row for row in csv.DictReader(file)}
    summary = summary_of(folder / "results/x")
    (metric,) = (m for m in summary["total"]["metrics"] if m["metric"] == "e2e")
    p99 = next(p["value_ms"] for p in metric["percentiles"] if p["p"] == 99.0)
    assert float(rows["total", "e2e"]["p99_ms"]) == pytest.approx(p99, abs=1e-3)
    assert rows["default", "e2e"]["count"] == "60"


def test_the_report_is_one_offline_file(one_shot):
    """No script, style or picture is fetched from anywhere."""
    html = (one_shot[0] / "results/x/report.html").read_text()
    assert len(html) > 10_000
    for tag in ('src="http', "src='http", '<link rel="stylesheet" href="http', "@import"):
        assert tag not in html


def test_the_target_queues_when_no_policy_is_named(one_shot):
    """A URL and no policy measures the target's own behaviour, and every report says so."""
    folder, done = one_shot
    assert summary_of(folder / "results/x")["queueing"] == "target"
    assert "queueing: target" in done.stdout
    assert "queueing: target" in (folder / "results/x/report.html").read_text()


def test_its_resolved_scenario_runs_again(one_shot):
    """`lmperf run DIR/scenario.resolved.yaml` sends the same requests: same ids, lengths and tenants."""
    folder, _ = one_shot
    again = invoke("run", "results/x/scenario.resolved.yaml", "--output-dir", "again", "--quiet", cwd=folder)
    assert again.returncode in {0, 107}, again.stderr
    columns = ["request_id", "tenant", "prompt_tokens", "target_output_tokens"]
    tables = [
        pq.read_table(folder / where / "requests.parquet", columns=columns).sort_by("request_id").to_pylist()
        for where in ("results/x", "again")
    ]
    assert tables[0] == tables[1]
    assert summary_of(folder / "again")["plan"] == summary_of(folder / "results/x")["plan"]


def test_a_second_run_does_not_overwrite_the_first(one_shot, host_and_port):
    """The same --output-dir again: the first run's files stay, to the byte, and the second says where it went."""
    folder, _ = one_shot
    before = files_of(folder / "results/x")
    done = invoke(
        *("run", "--model", host_and_port, "--num-prompts", "3", "--random-output-len", "4", "--random-input-len", "8"),
        *("--output-dir", "./results/x", "--quiet"),
        cwd=folder,
    )
    assert done.returncode in {0, 107}, done.stderr
    assert files_of(folder / "results/x") == before
    assert summary_of(folder / "results/x-2")["total"]["statuses"]["ok"] == 3
    assert "results/x-2" in done.stdout


def test_a_rate_with_concurrency_is_a_queue_with_so_many_slots(host_and_port, tmp_path):
    """Open loop; --concurrency is then the slots of a fifo queue, and the wait for a slot counts in the TTFT."""
    done = invoke(
        *("run", "--model", host_and_port, "--num-prompts", "40", "--request-rate", "400", "--concurrency", "2"),
        *("--random-input-len", "64", "--random-output-len", "16", "--output-dir", "r", "--quiet"),
        cwd=tmp_path,
    )
    assert done.returncode in {0, 107}, done.stderr
    summary = summary_of(tmp_path / "r")
    assert (summary["load_mode"], summary["queueing"], summary["policy"]) == ("open", "policy", "fifo")
    assert summary["slots"]["sequences"] == 2
    rows = pq.read_table(tmp_path / "r/requests.parquet").to_pylist()
    events = sorted([(r["dispatched_ns"], 1) for r in rows] + [(r["ended_ns"], -1) for r in rows])
    running = most = 0
    for _, change in events:
        running += change
        most = max(most, running)
    assert most == 2
    assert max(row["dispatched_ns"] - row["enqueued_ns"] for row in rows) > 0


def test_goodput_counts_and_promises_nothing(host_and_port, tmp_path):
    """--goodput: limits without a target; requests that meet them are counted, and no verdict is passed."""
    done = invoke(
        *(
            "run",
            "--model",
            host_and_port,
            "--num-prompts",
            "10",
            "--random-input-len",
            "8",
            "--random-output-len",
            "4",
        ),
        *("--goodput", "tpot:60000", "e2e:0.001", "--output-dir", "r", "--quiet"),
        cwd=tmp_path,
    )
    assert done.returncode in {0, 107}, done.stderr
    total = summary_of(tmp_path / "r")["total"]
    assert total["goodput"]["requests_per_s"] == 0.0
    assert total["throughput"]["requests_per_s"] > 0
    assert summary_of(tmp_path / "r")["verdict"] == "no_slo"
    assert summary_of(tmp_path / "r")["tenants"][0]["attainment"]["share"] == 0.0
    assert invoke("report", "r", cwd=tmp_path).returncode == 0


def test_a_dry_run_sends_nothing(tmp_path):
    """--dry-run checks everything and prints the plan; nobody listens on that port, and no folder is made."""
    done = invoke("run", "--model", "127.0.0.1:9", "--num-prompts", "5", "--dry-run", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "127.0.0.1:9" in done.stdout
    assert list(tmp_path.iterdir()) == []


def test_the_log_begins_with_the_command(one_shot):
    """log.txt says what was run."""
    folder, _ = one_shot
    first = (folder / "results/x/log.txt").read_text().splitlines()[0]
    assert first.endswith("--num-prompts 60 --concurrency 6 --output-dir ./results/x")
