"""`lmperf report` and `lmperf compare`: what finished runs say again, and against each other."""

from __future__ import annotations

import json
import re

import msgspec
import numpy as np
import pytest
from cli_support import files_of, invoke

from loadgen.recorder import Recorder
from loadgen.summary import summarise
from loadgen.summary.files import read_summary, write_summary
from loadgen.trace.schema import TraceMetadata
from tenants.slo import Slo
from tenants.tenant import Tenant
from tests.report.report_runs import MS, S, ok


def variant(run, folder, **changes):
    """A copy of a run's summary with other values, as a folder of its own."""
    folder.mkdir()
    summary = read_summary(run)
    write_summary(msgspec.structs.replace(summary, **changes), folder)
    return folder


def slower(run, folder, factor):
    """The run with every TTFT ``factor`` times as long."""
    data = json.loads((run / "summary.json").read_text())
    for tenant in (*data["tenants"], data["total"]):
        for metric in tenant["metrics"]:
            if metric["metric"] == "ttft":
                for found in metric["percentiles"]:
                    found["value_ms"] *= factor
    folder.mkdir()
    (folder / "summary.json").write_text(json.dumps(data))
    return folder


def five(run, folder, factor):
    """A folder of five such runs, of seeds of their own, whose TTFT are nearly ``factor`` times as long."""
    folder.mkdir()
    for seed in range(5):
        inner = slower(run, folder / str(seed), factor * (1 + 0.002 * seed))
        write_summary(msgspec.structs.replace(read_summary(inner), seed=seed), inner)
    return folder


# -- report ----------------------------------------------------------------------------------------------------------


def test_report_renders_a_finished_run_again(a_run, tmp_path):
    """Only report.html is written; the figures in it are the run's own."""
    before = files_of(a_run)
    (a_run / "report.html").unlink()
    done = invoke("report", a_run, cwd=tmp_path)
    assert done.returncode == 0, done
    after = files_of(a_run)
    assert set(after) == set(before)
    assert {name for name in before if before[name] != after[name]} <= {"report.html"}
    for text in ("chat", "bulk"):
        assert text in (a_run / "report.html").read_text()


def test_report_of_a_folder_that_is_no_run(tmp_path):
    """What such a folder would hold."""
    (tmp_path / "empty").mkdir()
    done = invoke("report", "empty", cwd=tmp_path)
    assert done.returncode == 104
    assert "requests.parquet" in done.stderr


def test_report_of_a_damaged_summary(a_run, tmp_path):
    """Which file, and that it is cut off."""
    file = a_run / "summary.json"
    file.write_bytes(file.read_bytes()[:1000])
    done = invoke("report", a_run, cwd=tmp_path)
    assert done.returncode == 104
    assert "summary.json" in done.stderr
    assert "Traceback" not in done.stderr


# -- compare ---------------------------------------------------------------------------------------------------------


def test_a_run_equals_itself(a_run, tmp_path):
    """No difference, no regression: 0."""
    done = invoke("compare", a_run, a_run, cwd=tmp_path)
    assert done.returncode == 0, done
    assert "no figure is worse" in done.stdout
    assert "+0.0%" in done.stdout


@pytest.mark.parametrize(("factor", "tolerance", "code"), [(1.3, 0.1, 108), (1.3, 0.4, 0), (0.5, 0.1, 0)])
def test_a_regression_beyond_the_tolerance_is_108(a_run, tmp_path, factor, tolerance, code):
    """Growth above the tolerance is worse, growth within it and every gain are not; the sign is that of the change."""
    base, other = five(a_run, tmp_path / "base", 1.0), five(a_run, tmp_path / "other", factor)
    done = invoke("compare", base, other, "--tolerance", tolerance, cwd=tmp_path)
    assert done.returncode == code, done
    assert f"{factor - 1:+.1%}" in done.stdout
    assert ("REGRESSION" in done.stdout) is (code == 108)
    if code == 108:
        assert "chat ttft p99" in done.stdout
        assert "e2e" not in done.stdout.partition("REGRESSION")[2]


@pytest.mark.parametrize(("flags", "code"), [((), 0), (("--strict",), 98)])
def test_what_is_worse_without_an_interval_is_undecided(a_run, tmp_path, flags, code):
    """Two short runs of one server differ by more than any tolerance: that alone must not fail a build, and is named."""
    other = slower(a_run, tmp_path / "other", 1.3)
    done = invoke("compare", a_run, other, *flags, cwd=tmp_path)
    assert done.returncode == code, done
    assert "REGRESSION" not in done.stdout
    assert "WORSE" not in done.stdout
    named = done.stdout.partition("UNDECIDED")[2]
    assert "chat ttft p99" in named
    assert "e2e" not in named
    assert "no figure is worse" not in done.stdout


def test_a_percentile_that_is_no_longer_reached_is_a_regression(a_run, tmp_path):
    """A P99 among requests that never got a first token is worse than any measured one."""
    data = json.loads((a_run / "summary.json").read_text())
    for metric in data["total"]["metrics"]:
        if metric["metric"] == "ttft":
            for found in metric["percentiles"]:
                found |= {"value_ms": None, "beyond_ms": 0.001}
    (tmp_path / "other").mkdir()
    (tmp_path / "other/summary.json").write_text(json.dumps(data))
    done = invoke("compare", a_run, "other", "--tolerance", "1000", cwd=tmp_path)
    assert done.returncode == 108
    assert "no longer reached" in done.stdout


def _attainment(run, share, low, high):
    data = json.loads((run / "summary.json").read_text())
    for tenant in data["tenants"]:
        interval = {"low": low, "high": high, "level": 0.95, "method": "seeds", "replicates": 20}
        tenant["attainment"] |= {"share": share, "interval": interval}
    return data


@pytest.mark.parametrize(("high", "code"), [(0.75, 108), (0.92, 0)])
def test_overlapping_intervals_prove_nothing(a_run, tmp_path, high, code):
    """Attainment falls from 95% [90, 98] to 70%: worse if its interval ends below 90, open if it does not."""
    for name, figures in (("before", (0.95, 0.9, 0.98)), ("after", (0.7, 0.6, high))):
        (tmp_path / name).mkdir()
        (tmp_path / name / "summary.json").write_text(json.dumps(_attainment(a_run, *figures)))
    done = invoke("compare", "before", "after", cwd=tmp_path)
    assert done.returncode == code, done
    assert "95.0 [90.0, 98.0]" in done.stdout
    assert "-25.0 points" in done.stdout
    assert bool(re.search(r"attained %.*may be chance", done.stdout)) is (code == 0)


def test_an_open_and_a_closed_loop_are_not_compared(a_run, tmp_path):
    """They answer different questions: 104, and why."""
    other = variant(a_run, tmp_path / "closed", load_mode="closed")
    done = invoke("compare", a_run, other, cwd=tmp_path)
    assert done.returncode == 104
    assert "closed loop" in done.stderr
    assert done.stdout == ""


def test_an_invalid_run_proves_no_regression_and_hides_none(a_run, tmp_path):
    """107 stands before 108: the slower run was the generator's own fault. Both reasons are said, and which code it is."""
    base, other = five(a_run, tmp_path / "base", 1.0), five(a_run, tmp_path / "slow", 3.0)
    summary = read_summary(other / "0")
    validity = msgspec.structs.replace(summary.validity, valid=False, reasons=["the generator itself fell behind"])
    write_summary(msgspec.structs.replace(summary, validity=validity), other / "0")
    done = invoke("compare", base, other, cwd=tmp_path)
    assert done.returncode == 107
    assert f"INVALID RUN: {other / '0'}: the generator itself fell behind" in done.stderr
    assert "REGRESSION" in done.stdout
    assert f"108, a regression in {other}; the code is 107" in done.stderr


def test_a_run_whose_server_stopped_says_so_beside_its_differences(a_run, tmp_path):
    """What was lost with the server is no effect of what was changed."""
    server = {"stopped_answering_s": 0.25, "requests_after_it_stopped": 12}
    other = variant(a_run, tmp_path / "died", server=server)
    done = invoke("compare", a_run, other, cwd=tmp_path)
    assert done.returncode == 0
    assert f"SERVER FAILED: {other}: the server stopped answering 0.2 s into the run: all of the 12" in done.stderr
    assert str(a_run) not in done.stderr


def with_hits(run, folder, share):
    """The run with a cache hit share of every tenant; None: none is stated."""
    data = json.loads((run / "summary.json").read_text())
    found = {"requests": 100, "prompt_tokens": 10_000, "cached_prompt_tokens": round((share or 0) * 10_000)}
    for tenant in (*data["tenants"], data["total"]):
        tenant["prefix_cache"] = None if share is None else found | {"hit_share": share}
    folder.mkdir()
    (folder / "summary.json").write_text(json.dumps(data))
    return folder


def test_the_hit_share_is_compared_and_never_a_regression(a_run, tmp_path):
    """It falls from 60% to 20%: said in points, and what that costs is judged by the latencies. Where one side states none the
    other's is shown still, and where neither does there is no such line."""
    high, low = with_hits(a_run, tmp_path / "high", 0.6), with_hits(a_run, tmp_path / "low", 0.2)
    none = with_hits(a_run, tmp_path / "none", None)
    lines = len(read_summary(a_run).tenants) + 1
    for sides, line in (
        ((high, low), r"hit share % +60\.0 +20\.0 +-40\.0 points"),
        ((none, high), r"hit share % +- +60\.0 +-"),
        ((high, none), r"hit share % +60\.0 +- +-"),
    ):
        done = invoke("compare", *sides, cwd=tmp_path)
        assert done.returncode == 0, done
        assert len(re.findall(line + r" *$", done.stdout, re.MULTILINE)) == lines, done.stdout
    assert "hit share" not in invoke("compare", a_run, none, cwd=tmp_path).stdout


def test_the_hit_share_over_seeds_has_an_interval(a_run, tmp_path):
    """Five pairs, each 10 points higher: +10.0 of the means, known exactly."""
    for name, more in (("before", 0.0), ("after", 0.1)):
        (tmp_path / name).mkdir()
        for seed, share in enumerate((0.2, 0.6, 0.3, 0.5, 0.4)):
            folder = with_hits(a_run, tmp_path / name / f"seed-{seed}", share + more)
            write_summary(msgspec.structs.replace(read_summary(folder), seed=seed), folder)
    done = invoke("compare", "before", "after", cwd=tmp_path)
    assert re.search(r"hit share % +40\.0 +50\.0 +\+10\.0 points \[\+10\.0, \+10\.0\]", done.stdout), done.stdout


def seeds(run, folder, factors):
    """A folder of runs, one a seed, whose TTFT are the run's times a factor."""
    folder.mkdir()
    for seed, factor in enumerate(factors):
        data = read_summary(slower(run, folder / f"seed-{seed}", factor))
        write_summary(msgspec.structs.replace(data, seed=seed), folder / f"seed-{seed}")
    return folder


def test_folders_of_seeds_are_compared_pair_by_pair(a_run, tmp_path):
    """Every seed is 20% slower than its pair though the seeds differ by a factor of three: a regression, with an interval
    around +20%. Shuffled against each other they tell nothing apart."""
    spread = [1.0, 3.0, 1.5, 2.0, 2.5]
    base = seeds(a_run, tmp_path / "base", spread)
    worse = seeds(
        a_run, tmp_path / "worse", [f * 1.2 * g for f, g in zip(spread, (1.01, 0.99, 1, 1.02, 0.98), strict=True)]
    )
    done = invoke("compare", base, worse, cwd=tmp_path)
    assert done.returncode == 108, done
    assert "t over 5 pairs of runs with one seed" in done.stdout
    assert "+20.0% [+18." in done.stdout or "+20.0% [+17." in done.stdout
    other = seeds(a_run, tmp_path / "other", [f * 1.2 for f in reversed(spread)])
    done = invoke("compare", base, other, cwd=tmp_path)
    assert done.returncode == 0, done
    assert "may be chance" in done.stdout


def test_short_runs_say_that_their_difference_has_no_interval(a_run, tmp_path):
    done = invoke("compare", a_run, slower(a_run, tmp_path / "slow", 1.5), cwd=tmp_path)
    assert "interval of the difference: none" in done.stdout
    assert "4 blocks of 30 s, or 5 runs a side" in done.stdout


def five_minutes(folder, server_ms):
    """A run of one tenant with its rows on disk: a request every 100 ms, ``server_ms`` (a draw) to its first token."""
    folder.mkdir()
    tenant = Tenant(name="chat", slo=Slo(ttft_ns=500 * MS, attainment=0.9))
    metadata = TraceMetadata(end_ns=310 * S, seed=7, window_ns=(0, 300 * S))
    recorder = Recorder([tenant], (0, 300 * S), folder, metadata=metadata)
    draw = np.random.default_rng(1)
    for k in range(3000):
        recorder.on_outcome(ok(k, "chat", k * S // 10, server_ms=server_ms(draw)))
    recorder.close(metadata)
    write_summary(summarise(recorder), folder)


def test_long_runs_are_compared_with_intervals_from_their_rows(tmp_path):
    """The same draws, half as long again: every difference of a latency has an interval, and the growth of TTFT is a
    regression that is known to the percent."""
    five_minutes(tmp_path / "before", lambda draw: int(draw.integers(30, 50)))
    five_minutes(tmp_path / "after", lambda draw: int(draw.integers(30, 50) * 1.5))
    done = invoke("compare", "before", "after", cwd=tmp_path)
    assert done.returncode == 108, done
    assert "the same blocks of time on both sides" in done.stdout
    for figure in ("ttft p50 ms", "ttft p99 ms", "tpot p50 ms", "e2e p50 ms", "e2e p99 ms", "attained %", "tokens/s"):
        line = next(line for line in done.stdout.splitlines() if figure in line)
        change, low, high = (
            float(text) for text in re.search(r"([+-][\d.]+)\D*\[([+-][\d.]+), ([+-][\d.]+)\]", line).groups()
        )
        assert low <= change <= high
        assert ("ttft" not in figure) or (low > 40 and high < 55)


def test_three_runs_are_compared_with_the_first(a_run, tmp_path):
    """The worst of them decides the code."""
    first, good, bad = (five(a_run, tmp_path / name, by) for name, by in (("first", 1.0), ("good", 1.0), ("bad", 2.0)))
    assert invoke("compare", first, good, bad, cwd=tmp_path).returncode == 108
    assert invoke("compare", bad, good, first, cwd=tmp_path).returncode == 0
