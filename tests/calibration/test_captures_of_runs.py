"""A capture is what was seen, whichever client wrote it: a file of a server's own benchmark, or the folder of our run."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from benchmarks.fidelity import judged, load_captures
from benchmarks.live_captures import LOADS
from benchmarks.policy_transfer import LOADS as BASELINE_AND_RAISED
from benchmarks.policy_transfer import TransferError, kept_runs
from lmperf.scenario.load import scenario_from_text
from lmperf.scenario.model import At
from lmperf.scenario.resolve import resolve
from lmperf.wiring.observed import _users_of, observations
from loadgen.trace.convert import write_trace
from loadgen.trace.parts import TraceFile
from loadgen.trace.schema import TraceMetadata
from scheduler.request import Outcome, Request, Status, TokensSource
from scheduler.server_model.spec import PRESETS

MS = 1_000_000

# sent (ms after the first), TTFT (ms), gaps (ms), prompt and output tokens: the third has fewer chunks than tokens.
SEEN = [
    (0, 40, [5, 6, 5], 300, 4),
    (15, 55, [5, 5], 700, 3),
    (90, 30, [12, 7], 120, 4),
]


def benchmark_file(folder: Path, name: str) -> None:
    lines = [{"meta": {"capture": name, "concurrency": None}}]
    for sent, ttft, gaps, prompt, output in SEEN:
        times = {"sent_s": sent / 1e3, "ttft_s": ttft / 1e3, "itl_ms": gaps}
        lines.append({**times, "prompt_tokens": prompt, "output_tokens": output})
    with gzip.open(folder / f"{name}.jsonl.gz", "wt") as out:
        out.writelines(json.dumps(line) + "\n" for line in lines)


def run_folder(folder: Path, name: str, *, start_ms: int = 0) -> None:
    """The same requests as rows of a run, written in the order in which they ended, one failed request among them."""
    rows = []
    for i, (sent, ttft, gaps, prompt, output) in enumerate(SEEN):
        at = (start_ms + sent) * MS
        first = at + ttft * MS
        offsets = np.cumsum([0, *gaps]) * 1000
        rows.append(
            Outcome(
                request=Request(id=i, tenant="load", arrival_ns=at, prompt_tokens=prompt),
                status=Status.OK,
                ended_ns=first + int(offsets[-1]) * 1000,
                enqueued_ns=at,
                dispatched_ns=at,
                connect_ns=0,
                sent_ns=at,
                first_token_ns=first,
                last_token_ns=first + int(offsets[-1]) * 1000,
                finished_ns=first + int(offsets[-1]) * 1000,
                prompt_tokens=prompt,
                output_tokens=output,
                tokens_source=TokensSource.USAGE,
                chunk_offsets_us=offsets.astype(np.int64),
            )
        )
    failed = Request(id=len(SEEN), tenant="load", arrival_ns=20 * MS, prompt_tokens=50)
    rows.append(Outcome(request=failed, status=Status.UNFINISHED, enqueued_ns=20 * MS, ended_ns=30 * MS))
    (folder / name).mkdir()
    write_trace(folder / name / "requests.parquet", sorted(rows, key=lambda row: row.ended_ns), TraceMetadata())


def test_a_run_folder_is_read_as_the_file_of_a_benchmark_is(tmp_path):
    """Stamps from the first sending on, lengths and pooled gaps agree; requests that did not end well are left out."""
    benchmark_file(tmp_path, "file")
    run_folder(tmp_path, "run", start_ms=250)
    file, run = load_captures(tmp_path)
    assert (file.name, run.name) == ("file", "run")
    for column in ("sent_ns", "first_ns", "last_ns"):
        assert np.array_equal(getattr(run, column) - 250 * MS, getattr(file, column)), column
    for column in ("prompt_tokens", "output_tokens"):
        assert np.array_equal(getattr(run, column), getattr(file, column)), column
    assert np.array_equal(np.sort(np.repeat(run.gaps_ns, run.gap_counts)), np.sort(file.gaps_ns))


def test_a_request_with_any_stamp_counts_as_one_that_the_server_had(tmp_path):
    """Sent before the run began, or at no known time, it is left out and said to be; one that was never sent is not."""
    folder = tmp_path / "run"
    run_folder(tmp_path, folder.name)
    table = pq.read_table(folder / "requests.parquet")
    place = table.schema.get_field_index("sent_ns")
    second = pc.equal(table["prompt_tokens"], SEEN[1][3])
    sent = pc.if_else(second, pa.scalar(-1, table.schema.field(place).type), table["sent_ns"])
    pq.write_table(table.set_column(place, table.schema.field(place), sent), folder / "requests.parquet")
    (seen,) = observations([TraceFile(folder)])
    assert (len(seen), seen.left_out) == (len(SEEN) - 1, 1)


def test_a_part_of_a_run_has_the_gaps_of_its_requests(tmp_path):
    """Of whole blocks, as often as each was taken; of any other rows no gaps, rather than those of somebody else."""
    run_folder(tmp_path, "run")
    (run,) = load_captures(tmp_path)
    last_twice = run.take(np.array([0, 2, 2]))
    gaps_ms = np.sort(np.repeat(last_twice.gaps_ns, last_twice.gap_counts)) // MS
    assert gaps_ms.tolist() == sorted([*SEEN[0][2], *SEEN[2][2], *SEEN[2][2]])
    benchmark_file(tmp_path, "file")
    file, _ = load_captures(tmp_path)
    assert file.take(np.array([0])).gaps_ns is None, "nobody said whose they are"


def test_both_have_the_same_errors(tmp_path):
    """When the first request was sent makes no difference to a prediction."""
    benchmark_file(tmp_path, "file")
    run_folder(tmp_path, "run", start_ms=250)
    preset = PRESETS["h200-llama-8b"]
    file, run = judged(load_captures(tmp_path), preset.law, preset.limits)
    assert run.errors == pytest.approx(file.errors)
    assert set(file.errors) >= {"ttft_p50", "tpot_mean", "itl_p99", "throughput"}


def test_every_load_is_a_scenario_without_a_queue():
    """It resolves, for as long as it says; no two loads share a folder."""
    assert len({load.name for load in LOADS}) == len(LOADS)
    for load in LOADS:
        plan = resolve(scenario_from_text(json.dumps(load.scenario()), file=load.name), saturation=1e4, at=At.NONE)
        assert not plan.policy.queues, load.name
        assert plan.duration_ns == load.duration_s * 1e9, load.name


def test_the_runs_to_compare_are_those_of_both_loads(tmp_path):
    """A policy whose raised run is missing is left out; without fifo's two runs there is nothing to calibrate on."""
    with pytest.raises(TransferError, match="fifo-baseline"):
        kept_runs(tmp_path)
    for name in (*(f"fifo-{load}" for load in BASELINE_AND_RAISED), "wfq-baseline", "saturation"):
        run_folder(tmp_path, name)
    assert kept_runs(tmp_path) == {("fifo", load): tmp_path / f"fifo-{load}" for load in BASELINE_AND_RAISED}


def test_users_are_counted_where_a_request_seems_to_precede_the_answer_that_allows_it():
    """By as little as the sum of an answer's gaps was rounded: four users, and not five."""
    sent = np.repeat(np.arange(10), 4) * 1_000_000_000
    users, turnaround_ns = _users_of(sent, sent + 1_000_000_400)
    assert (users, turnaround_ns) == (4, 0)
