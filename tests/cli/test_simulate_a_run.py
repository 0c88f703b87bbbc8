"""From a live run to its offline comparison, as people go: run, then simulate the run's folder."""

from __future__ import annotations

import json

from cli_support import FAST_MODEL, files_of, invoke, summary_of


def test_a_live_runs_folder_is_the_simulators_input(a_run, tmp_path):
    """Tenants and SLOs come from the run's own header: attainment is judged, and the captured figures are the run's."""
    (tmp_path / "model.json").write_text(FAST_MODEL)
    before = files_of(a_run)
    done = invoke(
        *("simulate", a_run, "--server-model", "model.json", "--policies", "fifo,wfq,slo_aware", "--processes", "1"),
        *("--output-dir", "sim", "--quiet"),
        cwd=tmp_path,
    )
    assert done.returncode == 0, done
    assert "Traceback" not in done.stderr
    assert files_of(a_run) == before, "the captured run is only read"
    comparisons = json.loads((tmp_path / "sim/comparison.json").read_text())["comparisons"]
    assert {tuple(one["noisy"]) for one in comparisons} == {("chat",), ("bulk",)}
    for comparison in comparisons:
        for policy in comparison["policies"]:
            assert 0 <= policy["worst_attainment"]["value"] <= 1
    (ttft,) = (m for m in summary_of(a_run)["total"]["metrics"] if m["metric"] == "ttft")
    p50 = next(p["value_ms"] for p in ttft["successes"]["percentiles"] if p["p"] == 50.0)
    line = next(line for line in done.stdout.splitlines() if "TTFT P50" in line and " ms " in line)
    assert f"{p50:,.1f} ms" in line


def test_validate_prints_the_plan_of_a_resolved_scenario(a_run, tmp_path):
    """What ran can be checked again: tenants, rates and how wide each verdict's interval would be."""
    done = invoke("validate", a_run / "scenario.resolved.yaml", cwd=tmp_path)
    assert done.returncode == 0, done
    for text in ("chat", "bulk", "policy fifo", "90% with ttft <= 60000 ms"):
        assert text in done.stdout


def test_flags_change_a_scenario_file(a_run, tmp_path):
    """--policy, --seed, --concurrency and --set are in the plan that is printed, and nothing is sent."""
    done = invoke(
        *(
            "run",
            a_run / "scenario.resolved.yaml",
            "--dry-run",
            "--policy",
            "wfq",
            "--seed",
            "99",
            "--concurrency",
            "3",
        ),
        *("--set", "tenants.chat.rate=17"),
        cwd=tmp_path,
    )
    assert done.returncode == 0, done
    for text in ("policy wfq", "slots: 3 sequences", "seed 99", "17"):
        assert text in done.stdout
    assert list(tmp_path.iterdir()) == [a_run]


def test_the_lists_name_what_is_installed(tmp_path):
    """`policies`, `backends`, `scenarios` and `schema` exit with 0."""
    assert "slo_aware" in invoke("policies", cwd=tmp_path).stdout
    assert "openai" in invoke("backends", cwd=tmp_path).stdout
    assert "noisy-neighbour" in invoke("scenarios", cwd=tmp_path).stdout
    assert json.loads(invoke("schema", cwd=tmp_path).stdout)["properties"]["tenants"]
