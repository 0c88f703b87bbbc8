"""Bad input is refused before anything starts: exit code 104, every fault at once, where it is and what would be right."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from cli_support import invoke, two_tenants

EVERY_FAULT = """\
version: 1
duration_s: 10
colour: blue
policy: fairest
backend: {kind: mainframe}
tenants:
  chat:
    rate: -3
    prompt: 10
    output: 10
    slo: {ttft_ms: 500}
  batch:
    rate: 1
    prompt: 10
    output: 10
    slo:
      objectives:
        - {metric: ttft, limit_ms: 100}
  batch:
    rate: 2
    prompt: 10
    output: 10
"""

EXPECTED = {
    3: "colour",
    4: "fairest",
    5: "mainframe",
    8: "rate",
    11: "attainment",
    18: "p",
    19: "batch",
}
"""Line of the file: what its fault speaks of."""


@pytest.mark.parametrize("command", [("run",), ("validate",), ("run", "--dry-run"), ("simulate",)])
def test_every_fault_of_a_scenario_at_once(command, tmp_path):
    """Unknown key, policy and backend, negative rate, SLO without target, objective without p, duplicate tenant: one line
    each with file and line, whichever command reads the file, and nothing is written."""
    (tmp_path / "bad.yaml").write_text(EVERY_FAULT)
    done = invoke(*command, "bad.yaml", cwd=tmp_path)
    assert done.returncode == 104
    lines = done.stderr.splitlines()
    places = [(line, int(line.split("bad.yaml:")[1].split(":")[0])) for line in lines if "bad.yaml:" in line]
    assert {number for _, number in places} == set(EXPECTED)
    for line, number in places:
        assert EXPECTED[number] in line
        assert ";" in line, f"says what would be right: {line}"
    assert [path.name for path in tmp_path.iterdir()] == ["bad.yaml"]


def test_an_unknown_policy_lists_the_known_ones(tmp_path):
    """With the one that was probably meant."""
    (tmp_path / "s.yaml").write_text(two_tenants("http://127.0.0.1:9", policy="slo_awar"))
    done = invoke("run", "s.yaml", cwd=tmp_path)
    assert done.returncode == 104
    assert "did you mean `slo_aware`" in done.stderr
    for name in ("fifo", "wfq", "vtc", "committed", "none"):
        assert name in done.stderr


FLAGS = [
    (("run",), "neither a scenario nor a server"),
    (("run", "no-such-scenario"), "neither a file nor a built-in scenario"),
    (("run", "missing.yaml"), "missing.yaml"),
    (("run", "--model", "h:1", "--percentiles", "50,x"), "--percentiles"),
    (("run", "--model", "h:1", "--percentiles", "100"), "--percentiles"),
    (("run", "--model", "h:1", "--header", "nothing"), "--header"),
    (("run", "--model", "h:1", "--goodput", "ttft"), "--goodput"),
    (("run", "--model", "h:1", "--num-prompts", "0"), "num_prompts"),
    (("run", "--model", "h:1", "--concurrency", "0"), "users"),
    (("run", "--model", "h:1", "--request-rate", "-1"), "rate"),
    (("run", "--model", "ftp://h"), "ftp"),
    (("run", "--model", "h:1", "--api-key", "${env:LMPERF_TEST_UNSET}"), "LMPERF_TEST_UNSET is not set"),
    (("run", "--model", "h:1", "--set", "tenants.default.colour=1"), "colour"),
    (("run", "--model", "h:1", "--server-model", "nope.json"), "nope.json"),
    (("run", "--model", "h:1", "--frobnicate"), "--frobnicate"),
    (("run", "demo", "--request-rate", "3"), "--request-rate"),
    (("run", "demo", "--goodput", "ttft:3"), "--goodput"),
    (("run", "demo", "--random-input-len", "3"), "--random-input-len"),
    (("simulate", "demo", "--policies", "fifo,nope"), "nope"),
    (("simulate", "demo", "--policies", ","), "--policies"),
    (("tune", "demo", "--policies", ","), "--policies names no policy"),
    (("simulate", "demo", "--policies", "fifo, fifo"), "--policies: fifo is named twice"),
    (("capacity", "demo", "--policies", "fifo,wfq,fifo"), "--policies: fifo is named twice"),
    (("tune", "demo", "--policies", "fifo,fifo"), "--policies: fifo is named twice"),
    (
        ("simulate", "demo", "--policies", "slo_aware:late=keep,slo_aware:late=keep"),
        "slo_aware:late=keep is named twice",
    ),
    (("simulate", "demo", "--policies", "slo_aware:late=keep:late=demote"), "gives late twice"),
    (
        ("simulate", "demo", "--policies", "committed:late=keep:order=credit,committed:order=credit:late=keep"),
        "committed:order=credit:late=keep is committed:late=keep:order=credit again",
    ),
    (("simulate", "--suite", "policy-study", "--policies", "fifo,fifo"), "--policies: fifo is named twice"),
    (("simulate", "demo", "--seeds", "0"), "--seeds"),
    (("simulate", "missing.parquet"), "no such file"),
    (("calibrate", "missing.parquet"), "no such file"),
    (("report", "nowhere"), "no such folder"),
    (("compare", "nowhere"), "two or more"),
    (("compare", "nowhere", "here"), "nowhere"),
    (("trace", "inspect", "missing.csv"), "no such file"),
    (("frobnicate",), "frobnicate"),
    ((), "COMMAND"),
]


@pytest.mark.parametrize(("args", "says"), FLAGS, ids=[" ".join(args) or "nothing" for args, _ in FLAGS])
def test_wrong_flags_and_names_exit_with_104(args, says, tmp_path):
    """One clear message that names the culprit, on stderr; nothing on stdout, and nothing is written."""
    done = invoke(*args, cwd=tmp_path)
    assert done.returncode == 104, done
    assert says in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
    assert list(tmp_path.iterdir()) == []


def test_an_output_folder_that_cannot_be_written_is_named(url, tmp_path):
    """A file in the way of --output-dir: 104, before anything is sent."""
    (tmp_path / "taken").write_text("")
    done = invoke("run", "--model", url, "--num-prompts", "1", "--output-dir", "taken/results", cwd=tmp_path)
    assert done.returncode == 104
    assert "taken/results" in done.stderr
    assert "--output-dir" in done.stderr


# -- traces ----------------------------------------------------------------------------------------------------------


def test_a_foreign_file_is_no_trace(tmp_path):
    """Text that is no known format, under the name of a trace: the file, how it begins, and how to import it."""
    (tmp_path / "log.csv").write_text("when,who\n1,a\n")
    done = invoke("simulate", "log.csv", cwd=tmp_path)
    assert done.returncode == 104
    assert "log.csv: no known trace format" in done.stderr
    assert "lmperf trace import" in done.stderr


def test_a_foreign_parquet_file_is_no_trace(tmp_path):
    """Parquet, but not ours."""
    pq.write_table(pa.table({"x": [1]}), tmp_path / "x.parquet")
    done = invoke("simulate", "x.parquet", cwd=tmp_path)
    assert done.returncode == 104
    assert "not an lmperf trace" in done.stderr


def test_a_trace_is_no_scenario(tmp_path):
    """Said as what it is, with where it belongs; not that it should be saved as UTF-8."""
    pq.write_table(pa.table({"x": [1]}), tmp_path / "requests.parquet")
    done = invoke("capacity", "requests.parquet", cwd=tmp_path)
    assert done.returncode == 104
    assert "is a trace (parquet), and a scenario is asked for" in " ".join(done.stderr.split())


def test_a_truncated_trace_is_named(a_run, tmp_path):
    """A parquet file that lost its end: which file, that it is cut off, and what may still help."""
    file = a_run / "requests.parquet"
    file.write_bytes(file.read_bytes()[:-200])
    done = invoke("simulate", a_run, cwd=tmp_path)
    assert done.returncode == 104
    assert "requests.parquet: cut off or damaged" in done.stderr


def test_a_contradictory_row_is_named(a_run, tmp_path):
    """A first token before the request was sent, in a row marked valid: row and column."""
    file = a_run / "requests.parquet"
    table = pq.read_table(file)
    first = table.column("first_token_ns").to_pylist()
    first[4] = 0
    index = table.column_names.index("first_token_ns")
    column = pa.array(first, type=pa.int64())
    pq.write_table(table.set_column(index, table.schema.field(index), column), file)
    done = invoke("simulate", a_run, cwd=tmp_path)
    assert done.returncode == 104
    assert "row 5, column 'first_token_ns'" in done.stderr


def test_a_bad_row_of_a_public_trace_is_named(tmp_path):
    """A capture with a broken line: its line number and what is wrong there."""
    good = '{"sent_s": 0, "prompt_tokens": 3, "output_tokens": 2, "ttft_s": 0.1, "itl_ms": [5]}\n'
    (tmp_path / "capture.jsonl").write_text('{"meta": {}}\n' + good + good.replace("0.1", '"soon"'))
    done = invoke("calibrate", "capture.jsonl", cwd=tmp_path)
    assert done.returncode == 104
    assert "capture.jsonl, row 3, column 'ttft_s'" in done.stderr


@pytest.mark.parametrize(
    ("now", "column", "says"),
    [
        ('"ttft_s": -1', "ttft_s", "a first token comes after its request"),
        ('"prompt_tokens": 1000000000', "prompt_tokens", "100,000,000"),
    ],
)
def test_a_capture_of_what_cannot_have_been_is_refused(tmp_path, now, column, says):
    """Row, column, and what would be right; never a row dropped in silence, nor a fit that does not end."""
    good = '{"sent_s": 0, "prompt_tokens": 3, "output_tokens": 2, "ttft_s": 0.1, "itl_ms": [5]}\n'
    was = {"ttft_s": '"ttft_s": 0.1', "prompt_tokens": '"prompt_tokens": 3'}[column]
    (tmp_path / "capture.jsonl").write_text('{"meta": {}}\n' + good + good.replace(was, now))
    done = invoke("calibrate", "capture.jsonl", cwd=tmp_path)
    assert done.returncode == 104
    assert f"capture.jsonl, row 3, column '{column}'" in done.stderr
    assert says in done.stderr


def test_a_trace_that_measured_nothing_needs_a_server_model(tmp_path):
    """A workload without stamps cannot be calibrated; the message says what to add, and with it it works."""
    rows = "".join(f"2023-11-16 18:17:{i // 10:02d}.{i % 10}000000,{100 + i},{5 + i % 7}\n" for i in range(40))
    (tmp_path / "azure.csv").write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n" + rows)
    done = invoke("simulate", "azure.csv", "--policies", "fifo", "--processes", "1", cwd=tmp_path)
    assert done.returncode == 104
    assert "--server-model" in done.stderr
    again = invoke(
        *(
            "simulate",
            "azure.csv",
            "--policies",
            "fifo",
            "--server-model",
            "h200-llama-8b",
            "--processes",
            "1",
            "--quiet",
        ),
        cwd=tmp_path,
    )
    assert again.returncode == 0, again.stderr
