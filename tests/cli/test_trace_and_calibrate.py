"""`lmperf trace` and `lmperf calibrate`: thin over the trace readers, and true to what they read."""

from __future__ import annotations

import gzip
import json
import re

import numpy as np
import pytest
from cli_support import invoke

from lmperf.wiring.observed import observations
from loadgen.trace.read import read_any
from loadgen.trace.reader import read_trace
from scheduler.server_model.spec import StepLaw, load_server_model

AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n" + "".join(
    f"2023-11-16 18:17:{i:02d}.5000000,{100 + i},{5 + i}\n" for i in range(20)
)


@pytest.fixture
def azure(tmp_path):
    (tmp_path / "azure.csv").write_text(AZURE)
    return tmp_path / "azure.csv"


def test_inspect_says_what_a_public_trace_holds(azure, tmp_path):
    """Format, requests, rate and lengths."""
    done = invoke("trace", "inspect", azure, cwd=tmp_path)
    assert done.returncode == 0, done
    assert "azure trace, open loop: 20 requests in 19.0 s, 1.00 requests/s" in done.stdout


def test_inspect_says_what_a_run_was(a_run, tmp_path):
    """Its policy and statuses, and each tenant's lengths."""
    done = invoke("trace", "inspect", a_run, cwd=tmp_path)
    assert done.returncode == 0, done
    assert "live run, policy fifo" in done.stdout
    assert f"{len(read_trace(a_run))} ok" in done.stdout
    assert "chat" in done.stdout


def test_convert_keeps_every_row(azure, tmp_path):
    """Arrivals, lengths and the tenants of the rule are in the parquet file."""
    done = invoke("trace", "convert", azure, "-o", "out/a.parquet", "--tenants", "round_robin:a,b", cwd=tmp_path)
    assert done.returncode == 0, done
    before, after = read_any(azure), read_any(tmp_path / "out/a.parquet")
    assert np.array_equal(before.arrival_ns, after.arrival_ns)
    assert np.array_equal(before.prompt_tokens, after.prompt_tokens)
    assert np.array_equal(before.output_tokens, after.output_tokens)
    assert [after.tenants[i] for i in after.tenant[:4]] == ["a", "b", "a", "b"]


@pytest.mark.parametrize("action", [("convert",), ("slice", "--rows", 1), ("scale", "--speed", 2)])
@pytest.mark.parametrize("as_file", [False, True])
def test_a_run_is_never_written_over(a_run, tmp_path, action, as_file):
    """The folder of a run means its requests.parquet, whose measurements a workload does not hold."""
    file = a_run / "requests.parquet"
    before = file.read_bytes()
    done = invoke("trace", *action, file if as_file else a_run, "-o", file, cwd=tmp_path)
    assert done.returncode == 104
    assert "is the trace itself" in done.stderr
    assert file.read_bytes() == before


def test_slice_takes_a_part(azure, tmp_path):
    """By time, and by rows of it."""
    assert invoke("trace", "slice", azure, "-o", "s.parquet", "--start", 5, "--end", 15, cwd=tmp_path).returncode == 0
    assert read_any(tmp_path / "s.parquet").prompt_tokens.tolist() == list(range(105, 115))
    done = invoke("trace", "slice", azure, "-o", "t.parquet", "--start", 5, "--rows", 3, cwd=tmp_path)
    assert done.returncode == 0
    assert read_any(tmp_path / "t.parquet").prompt_tokens.tolist() == [105, 106, 107]


def test_a_part_of_a_run_says_that_it_is_no_result(a_run, azure, tmp_path):
    """A trace that nobody measured needs no such word."""
    done = invoke("trace", "slice", a_run, "-o", "run.parquet", "--rows", 2, cwd=tmp_path)
    assert (done.returncode, "what that run measured is not in it" in done.stdout) == (0, True), done
    done = invoke("trace", "slice", azure, "-o", "azure.parquet", "--rows", 2, cwd=tmp_path)
    assert (done.returncode, "measured" in done.stdout) == (0, False), done


def test_scale_divides_the_gaps(azure, tmp_path):
    """Twice as fast: half the gaps, the same rows."""
    assert invoke("trace", "scale", azure, "-o", "s.parquet", "--speed", 2, cwd=tmp_path).returncode == 0
    rows = read_any(tmp_path / "s.parquet")
    assert np.diff(rows.arrival_ns).tolist() == [500_000_000] * 19


def test_import_reads_any_access_log(tmp_path):
    """JSON Lines with names of its own, nested ones too."""
    lines = [{"ts": 10.0 + i, "key": f"t{i % 2}", "usage": {"in": 7 + i, "out": 3}} for i in range(6)]
    (tmp_path / "log.jsonl").write_text("\n".join(map(json.dumps, lines)))
    mapping = "arrival=ts,tenant=key,prompt_tokens=usage.in,output_tokens=usage.out"
    done = invoke("trace", "import", "log.jsonl", "--map", mapping, "-o", "log.parquet", cwd=tmp_path)
    assert done.returncode == 0, done
    rows = read_any(tmp_path / "log.parquet")
    assert rows.prompt_tokens.tolist() == [7, 8, 9, 10, 11, 12]
    assert set(rows.tenants) == {"t0", "t1"}


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (("convert", "azure.csv", "-o", "x.parquet", "--tenants", "bogus"), "round_robin:a,b"),
        (("convert", "azure.csv", "-o", "x.parquet", "--tenants", "column:who"), "who"),
        (("convert", "azure.csv", "-o", "x.parquet", "--format", "nope"), "known: azure"),
        (("convert", "azure.csv", "-o", "azure.csv"), "the trace itself"),
        (("convert", "azure.csv", "-o", "x.csv"), "parquet"),
        (("scale", "azure.csv", "-o", "x.parquet", "--speed", "0"), "speed"),
        (("slice", "azure.csv", "-o", "x.parquet", "--start", "9", "--end", "3"), "end after it starts"),
        (("import", "azure.csv", "-o", "x.parquet", "--map", "when=TIMESTAMP"), "--map"),
        (("import", "azure.csv", "-o", "x.parquet", "--map", "arrival=nope"), "nope"),
    ],
)
def test_wrong_flags_of_trace_commands(azure, tmp_path, args, says):
    """104, what would be right, and no file."""
    done = invoke("trace", *args, cwd=tmp_path)
    assert done.returncode == 104, done
    assert says in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["azure.csv"]


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (("slice", "azure.csv", "--start", 50), "none of its 20 rows is in the slice from 50 s to its end: they arrive from 0"),
        (("slice", "azure.csv", "--start", 3, "--end", 3.5, "--rows", 0), "--rows"),
        (("convert", "empty.csv"), "read by the format azure"),
        (("import", "empty.csv", "--map", "arrival=TIMESTAMP"), "read by the map 'arrival=TIMESTAMP'"),
        (("scale", "empty.csv", "--speed", 2), "no row was found"),
    ],
)  # fmt: skip
def test_a_trace_without_rows_is_an_error_and_never_written(azure, tmp_path, args, says):
    """104; which filter or format it was, and what was read."""
    (tmp_path / "empty.csv").write_text(AZURE.partition("\n")[0] + "\n")
    done = invoke("trace", *args, "-o", "x.parquet", cwd=tmp_path)
    assert done.returncode == 104, done
    assert says in done.stderr
    assert not (tmp_path / "x.parquet").exists()


def test_imported_arrivals_have_no_latencies_and_are_not_unfinished(azure, tmp_path):
    assert invoke("trace", "convert", azure, "-o", "a.parquet", cwd=tmp_path).returncode == 0
    own = invoke("trace", "inspect", "a.parquet", cwd=tmp_path).stdout
    assert "20 arrivals, no latencies recorded" in own
    assert "unfinished" not in own
    assert "no latencies recorded" in invoke("trace", "inspect", azure, cwd=tmp_path).stdout


def test_an_unknown_output_length_stays_unknown(tmp_path):
    """Imported without one: inspected, sliced and inspected again it is unknown; it cannot be simulated."""
    (tmp_path / "log.csv").write_text("ts,in\n" + "".join(f"{i},{10 + i}\n" for i in range(30)))
    assert (
        invoke(
            "trace", "import", "log.csv", "--map", "arrival=ts,prompt_tokens=in", "-o", "a.parquet", cwd=tmp_path
        ).returncode
        == 0
    )
    assert invoke("trace", "slice", "a.parquet", "--start", 5, "-o", "b.parquet", cwd=tmp_path).returncode == 0
    for name in ("a.parquet", "b.parquet"):
        assert set(read_any(tmp_path / name).output_tokens.tolist()) == {-1}
        assert "unknown" in invoke("trace", "inspect", name, cwd=tmp_path).stdout
    done = invoke("simulate", "b.parquet", "--server-model", "h200-llama-8b", cwd=tmp_path)
    assert done.returncode == 104
    assert "no row has an output length" in done.stderr


# -- calibrate -------------------------------------------------------------------------------------------------------

LAW = StepLaw(a_us=5000.0, b_us=20.0, c_us=30.0, d_us=0.05, offset_us=10_000.0)


def capture(path, seed, rate, law=LAW):
    """A capture in the format of measured ones, made by the simulator from a known law: what calibration must find again."""
    from loadgen.offline.run import simulate
    from loadgen.recorder import Recorder
    from loadgen.workload.source import Workload
    from scheduler.dispatcher import Dispatcher
    from scheduler.dispatcher_config import DispatcherConfig
    from scheduler.server_model.spec import ServerLimits, ServerModelSpec
    from scheduler.slots import Slots
    from tenants.tenant import Tenant
    from tenants.traffic import Arrivals, Distribution, Lengths, Traffic

    outcomes = []

    class Kept(Recorder):
        def on_outcome(self, outcome):
            outcomes.append(outcome)

    lengths = [Lengths(distribution=Distribution.LOGNORMAL, mean=mean, cv=0.8, low=2, high=2000) for mean in (300, 60)]
    tenant = Tenant(name="a")
    source = Workload(
        [(tenant, Traffic(arrivals=Arrivals(rate=rate), prompt=lengths[0], output=lengths[1]))],
        duration_s=8,
        seed=seed,
    )
    spec = ServerModelSpec(name="known", law=law, limits=ServerLimits(max_num_seqs=64))
    config = DispatcherConfig(tenants=(tenant,), policy="fifo", backends={"server": Slots()})
    simulate(source, Dispatcher(config), {"server": spec}, Kept((tenant,), (0, 10**11)))
    with gzip.open(path, "wt") as file:
        file.write(json.dumps({"meta": {"load": f"open {rate}/s"}}) + "\n")
        for outcome in sorted(outcomes, key=lambda o: o.sent_ns):
            first, last, n = outcome.first_token_ns, outcome.last_token_ns, outcome.output_tokens
            row = {
                "sent_s": outcome.sent_ns / 1e9,
                "prompt_tokens": outcome.request.prompt_tokens,
                "output_tokens": n,
                "ttft_s": (first - outcome.sent_ns) / 1e9,
                "itl_ms": [(last - first) / 1e6 / (n - 1)] * (n - 1),
            }
            file.write(json.dumps(row) + "\n")
    return path


def test_calibrate_finds_the_law_that_made_the_captures(tmp_path):
    """From client-side timestamps alone, in that format: a step's time within 5%, the law's other terms near,
    and the held-out error of every capture printed before the file is written."""
    for i, rate in enumerate((12, 16, 20)):
        capture(tmp_path / f"open_r{rate}.jsonl.gz", i, rate)
    traces = sorted(tmp_path.glob("*.jsonl.gz"))
    done = invoke("calibrate", *traces, "-o", "models/m.json", "--name", "mine", "--max-num-seqs", 64, cwd=tmp_path)
    assert done.returncode == 0, done
    model = load_server_model(str(tmp_path / "models/m.json"))
    assert model.name == "mine"
    assert model.limits.max_num_seqs == 64
    assert model.law.a_us == pytest.approx(LAW.a_us, rel=0.05)
    assert model.law.b_us == pytest.approx(LAW.b_us, rel=0.25)
    assert "held out: each capture predicted by a model that never saw it" in done.stdout
    for trace in traces:
        assert trace.name in done.stdout
    shown = re.findall(r"^ *(a|b|offset) +([\d.,e+]+) +\[([\d.,e+]+), ([\d.,e+]+)\]", done.stdout, re.MULTILINE)
    assert {name for name, *_ in shown} == {"a", "b", "offset"}, done.stdout
    for _, *figures in shown:
        value, low, high = (float(text.replace(",", "")) for text in figures)
        assert low <= value <= high
    assert set(model.fit["held_out"]) == {trace.name for trace in traces}
    assert "no capture says its policy" in model.fit["policy_ranking"]["not_told"]
    errors = model.fit["mean_absolute_error"]
    assert errors["e2e_mean"] < 0.05
    assert errors["tpot_mean"] < 0.05
    assert errors["ttft_p50"] < 0.15


def test_calibrate_counts_the_rows_that_it_leaves_out(tmp_path):
    """Requests that the server had and whose lengths nobody knows: how many of how many, on the terminal and in the file."""
    trace = capture(tmp_path / "one.jsonl.gz", 1, 15)
    lines = gzip.decompress(trace.read_bytes()).decode().splitlines()
    for row in (5, 9):
        lines[row] = json.dumps({**json.loads(lines[row]), "prompt_tokens": -1})
    trace.write_bytes(gzip.compress("\n".join(lines).encode()))
    done = invoke("calibrate", trace, "-o", "m.json", cwd=tmp_path)
    assert done.returncode == 0, done
    says = f"{trace.name}: 2 of {len(lines) - 1} requests are left out"
    assert says in done.stdout
    assert any(says in warning for warning in load_server_model(str(tmp_path / "m.json")).fit["warnings"])


def test_calibrate_is_told_what_attention_costs(tmp_path):
    """The stated figure is in the file as it was stated, and in the printed law; a negative one is refused."""
    trace = capture(tmp_path / "one.jsonl.gz", 1, 15)
    done = invoke("calibrate", trace, "--attended-us", 0.0008, "-o", "m.json", cwd=tmp_path)
    assert done.returncode == 0, done
    assert load_server_model(str(tmp_path / "m.json")).law.attended_us == 0.0008
    assert "attended * pairs" in done.stdout
    refused = invoke("calibrate", trace, "--attended-us", -1, cwd=tmp_path)
    assert refused.returncode != 0
    assert "--attended-us is -1.0" in refused.stderr


def test_one_capture_is_judged_on_its_second_half(tmp_path):
    """With nothing else to hold out, its first half predicts its second; without -o nothing is written."""
    trace = capture(tmp_path / "one.jsonl.gz", 1, 15)
    done = invoke("calibrate", trace, cwd=tmp_path)
    assert done.returncode == 0, done
    assert "one.jsonl.gz (second half)" in done.stdout
    assert "not written" in done.stdout
    assert "95%, bootstrap within the run" in done.stdout
    assert "TTFT P90" in done.stdout
    assert "ITL P99" in done.stdout
    assert "not how the next run may differ" in done.stdout
    assert "ranking of policies: not told, no capture says its policy" in done.stdout
    assert [path.name for path in tmp_path.iterdir()] == ["one.jsonl.gz"]


def test_calibration_reads_whose_each_request_is(a_run):
    """With what the scenario in the run's header promises them, and what each waited in our queue."""
    trace = read_trace(a_run)
    (seen,) = observations([trace])
    assert {tenant.name: tenant.slo.ttft_ns for tenant in seen.tenants} == dict.fromkeys(("chat", "bulk"), 60 * 10**9)
    order = np.argsort(trace.ints("sent_ns"), kind="stable")
    names, of = trace.words("tenant")
    assert [seen.tenants[i].name for i in seen.tenant] == [names[of[i]] for i in order]
    assert np.array_equal(seen.waited_ns, (trace.ints("sent_ns") - trace.ints("arrival_ns"))[order])


def test_too_little_to_calibrate_from_says_what_would_help(tmp_path):
    """Three requests identify nothing."""
    rows = '{"sent_s": 0, "prompt_tokens": 3, "output_tokens": 2, "ttft_s": 0.1, "itl_ms": [5]}\n' * 3
    (tmp_path / "c.jsonl").write_text('{"meta": {}}\n' + rows)
    done = invoke("calibrate", "c.jsonl", cwd=tmp_path)
    assert done.returncode == 104
    assert "longer run" in done.stderr


def test_a_model_that_predicts_nothing_is_not_written(tmp_path):
    """Captures of three servers, one three and one ten times slower, given for one: 104, the reason, and what was in the file
    stays; with --force it is written, with its doubts in it."""
    for factor in (1, 3, 10):
        capture(tmp_path / f"x{factor}.jsonl.gz", factor, 8, law=LAW.scaled(factor))
    traces = sorted(tmp_path.glob("*.jsonl.gz"))
    (tmp_path / "m.json").write_text("mine")
    command = ("calibrate", *traces, "-o", "m.json", "--max-num-seqs", 256)
    done = invoke(*command, cwd=tmp_path)
    assert done.returncode == 104, done
    assert "TPOT mean by a factor of" in done.stderr
    assert "--force" in done.stderr
    assert "held out" in done.stdout, "the errors are shown all the same"
    assert (tmp_path / "m.json").read_text() == "mine"
    assert invoke(*command[:-4], cwd=tmp_path).returncode == 104, "also where nothing is to be written"
    done = invoke(*command, "--force", cwd=tmp_path)
    assert done.returncode == 0, done
    fit = load_server_model(str(tmp_path / "m.json")).fit
    assert any("does not predict its own captures" in warning for warning in fit["warnings"])
    assert {path.name for path in tmp_path.iterdir()} == {"m.json", *(trace.name for trace in traces)}
