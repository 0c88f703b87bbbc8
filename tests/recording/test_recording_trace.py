"""Our trace: what is written is what is read, whatever happens to the writer in between."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from recording_outcomes import MS, S, finished, outcomes, shed, unfinished

from loadgen.trace.convert import write_trace
from loadgen.trace.errors import TraceError
from loadgen.trace.reader import read_trace
from loadgen.trace.schema import TRACE_SCHEMA, TraceMetadata, with_metadata
from loadgen.trace.writer import RowWriter, merge_rows
from scheduler.request import ArrivalKind, Outcome, Request, Status
from tenants.slo import Slo
from tenants.tenant import Tenant

WINDOW = (0, 10**15)


def same(one: Outcome, other: Outcome) -> bool:
    """Equal in all that a trace keeps (arrays compared by value). It keeps one prompt length: the server's, if it told
    it."""

    def plain(outcome: Outcome) -> dict[str, object]:
        kept = {name: getattr(outcome, name) for name in outcome.__struct_fields__ if name != "tokens_known"}
        kept["request"] = replace(outcome.request, prompt_tokens=outcome.prompt_tokens)
        for name in ("chunk_offsets_us", "chunk_tokens"):
            kept[name] = None if kept[name] is None else kept[name].tolist()
        return kept

    return plain(one) == plain(other)


@settings(max_examples=60, deadline=None)
@given(data=st.data(), n=st.integers(0, 8))
def test_a_row_read_back_is_the_outcome_that_was_written(tmp_path_factory, data, n):
    """Every stamp, count, text and chunk survives; unknown stays null."""
    written = [data.draw(outcomes(i)) for i in range(n)]
    path = tmp_path_factory.mktemp("trace") / "t.parquet"
    assert write_trace(path, written, TraceMetadata(seed=7)) == n
    trace = read_trace(path)
    assert trace.metadata.seed == 7
    assert all(same(a, b) for a, b in zip(written, trace.outcomes(), strict=True))


def test_the_columns_are_those_of_the_contract(tmp_path):
    """One row a request with the documented columns, in their order, then the two that complete a row."""
    write_trace(tmp_path / "t.parquet", [shed(1)], TraceMetadata())
    names = pq.read_schema(tmp_path / "t.parquet").names
    contract = [
        "request_id",
        "tenant",
        "session_id",
        "turn",
        "attempt",
        "arrival_kind",
        "after_request_id",
        "think_ns",
        "cancel_after_ns",
        "arrival_ns",
        "enqueued_ns",
        "dispatched_ns",
        "connect_ns",
        "sent_ns",
        "first_token_ns",
        "last_token_ns",
        "finished_ns",
        "prompt_tokens",
        "cached_prompt_tokens",
        "output_tokens",
        "target_output_tokens",
        "max_tokens",
        "tokens_source",
        "prefix_blocks",
        "chunk_offsets_us",
        "chunk_tokens",
        "priority",
        "weight",
        "deadline_ns",
        "backend",
        "status",
        "error_class",
        "http_status",
        "warmup",
        "valid",
    ]
    assert names == [*contract, "ended_ns", "max_itl_ns"]


def test_unknown_is_null_and_never_zero(tmp_path):
    """A shed request has no stamp after its queue and no token count; a reused socket's connect time is a real 0."""
    write_trace(tmp_path / "t.parquet", [shed(1), finished(2)], TraceMetadata())
    rows = pq.read_table(tmp_path / "t.parquet").to_pylist()
    unknown = ("dispatched_ns", "connect_ns", "sent_ns", "first_token_ns", "last_token_ns", "finished_ns")
    assert [rows[0][name] for name in (*unknown, "output_tokens", "chunk_offsets_us")] == [None] * 8
    assert rows[1]["connect_ns"] == 0


def test_weight_deadline_and_warm_up_come_from_the_plan(tmp_path):
    """The deadline is arrival + the TTFT limit; a row outside the window is marked, not left out."""
    tenants = [Tenant(name="chat", weight=3.0, slo=Slo(ttft_ns=500 * MS, attainment=0.99))]
    metadata = TraceMetadata(window_ns=(1 * S, 2 * S))
    early, inside, late = (finished(i, arrival_ns=t) for i, t in enumerate((S - 1, S, 2 * S)))
    write_trace(tmp_path / "t.parquet", [early, inside, late], metadata, tenants)
    rows = pq.read_table(tmp_path / "t.parquet").to_pylist()
    assert [row["warmup"] for row in rows] == [True, False, True]
    assert [row["weight"] for row in rows] == [3.0] * 3
    assert [row["deadline_ns"] for row in rows] == [t + 500 * MS for t in (S - 1, S, 2 * S)]


def test_the_detail_of_an_error_is_in_no_file(tmp_path):
    """A server may echo an API key in an error text: that text is written nowhere."""
    writer = RowWriter(tmp_path, TraceMetadata(), [], WINDOW)
    writer.add(finished(1, status=Status.FAILED, detail="bad key sk-very-secret"))
    writer.close()
    assert b"sk-very-secret" not in (tmp_path / "rows" / "main-0.arrow").read_bytes()
    merge_rows(tmp_path)
    assert b"sk-very-secret" not in (tmp_path / "requests.parquet").read_bytes()


def test_streams_of_all_workers_are_merged_and_removed(tmp_path):
    """The merged file holds every row of every worker and rotation; the streams are gone afterwards."""
    for worker in ("w0", "w1"):
        with RowWriter(tmp_path, TraceMetadata(), [], WINDOW, worker=worker, flush_rows=2, rotate_bytes=1) as writer:
            for i in range(5):
                writer.add(finished(i + 100 * (worker == "w1")))
    assert len(list((tmp_path / "rows").iterdir())) == 6
    merged = merge_rows(tmp_path, metadata=TraceMetadata(policy="wfq"))
    assert (merged.rows, merged.dropped) == (10, ())
    trace = read_trace(tmp_path)
    assert sorted(trace.ints("request_id").tolist()) == [*range(5), *range(100, 105)]
    assert trace.metadata.policy == "wfq"
    assert not (tmp_path / "rows").exists()


def test_a_buffered_row_is_flushed_when_outcomes_show_that_two_seconds_passed(tmp_path):
    """Rows reach the disk by count, or 2 s after the last flush by the outcomes' own clock."""
    writer = RowWriter(tmp_path, TraceMetadata(), [], WINDOW, flush_rows=1000)
    writer.add(shed(0, arrival_ns=0))
    writer.add(shed(1, arrival_ns=2 * S - 1))
    assert not list((tmp_path / "rows").glob("*.arrow"))
    writer.add(shed(2, arrival_ns=2 * S))
    assert list((tmp_path / "rows").glob("*.arrow"))
    writer.close()


CHILD = """
import os, sys
from pathlib import Path
sys.path[:0] = sys.argv[2:]
from recording_outcomes import finished
from loadgen.trace.schema import TraceMetadata
from loadgen.trace.writer import RowWriter
writer = RowWriter(Path(sys.argv[1]), TraceMetadata(policy="fifo"), [], (0, 10**15), flush_rows=10)
for i in range(25):
    writer.add(finished(i))
print("written", flush=True)
sys.stdin.read()
"""


def test_what_a_killed_run_had_flushed_is_readable(tmp_path):
    """kill -9 loses the buffer and nothing else: 20 of 25 rows were flushed, in batches of 10."""
    here = Path(__file__).resolve()
    command = [sys.executable, "-c", CHILD, str(tmp_path), str(here.parents[2]), str(here.parent)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout.readline() == b"written\n"
        child.send_signal(signal.SIGKILL)
        child.wait()
    with pytest.raises(TraceError, match="before its rows were merged"):
        read_trace(tmp_path)
    merged = merge_rows(tmp_path)
    assert merged.rows == 20
    assert read_trace(tmp_path).metadata.policy == "fifo"


def test_a_stream_cut_anywhere_gives_its_whole_batches(tmp_path):
    """Whatever the byte at which a stream ends, every batch before it is kept, and a cut batch is said to be
    dropped."""
    with RowWriter(tmp_path, TraceMetadata(), [], WINDOW) as writer:
        ends = []
        for batch in range(3):
            writer.write([finished(10 * batch + i) for i in range(4)])
            ends.append((tmp_path / "rows" / "main-0.arrow").stat().st_size)
    stream = tmp_path / "rows" / "main-0.arrow"
    whole = stream.read_bytes()
    header = ends[0] - (ends[1] - ends[0])
    for cut in [*range(header + 8, ends[-1], 997), ends[0], ends[1], ends[1] + 1, ends[1] + 4, ends[2] - 1]:
        stream.write_bytes(whole[:cut])
        merged = merge_rows(tmp_path, keep=True)
        batches = sum(cut >= end for end in ends)
        assert merged.rows == 4 * batches, cut
        boundary = cut in ends or cut == header
        assert boundary or merged.dropped, f"a cut at {cut} was not reported"
    stream.write_bytes(whole[:10])
    with pytest.raises(TraceError, match="no stream has a readable header"):
        merge_rows(tmp_path, keep=True)


def test_a_merge_that_dropped_something_keeps_the_streams(tmp_path):
    """What could not be read stays where it is, for whoever wants to try."""
    with RowWriter(tmp_path, TraceMetadata(), [], WINDOW) as writer:
        writer.write([finished(1)])
    stream = tmp_path / "rows" / "main-0.arrow"
    stream.write_bytes(stream.read_bytes()[:-40])
    assert merge_rows(tmp_path).dropped
    assert stream.exists()


def test_row_groups_of_a_merged_file_are_bounded(tmp_path):
    """However many rows there are: what is merged is written a group at a time."""
    writer = RowWriter(tmp_path, TraceMetadata(), [], WINDOW, flush_rows=5000)
    for i in range(40_000):
        writer.add(shed(i))
    writer.close()
    merge_rows(tmp_path)
    file = pq.ParquetFile(tmp_path / "requests.parquet")
    sizes = [file.metadata.row_group(i).num_rows for i in range(file.metadata.num_row_groups)]
    assert sum(sizes) == 40_000
    assert max(sizes) <= 20_000


def write_with(tmp_path: Path, **columns: list[object]) -> Path:
    """A trace file of two finished requests with some columns replaced."""
    path = tmp_path / "t.parquet"
    write_trace(path, [finished(1), finished(2)], TraceMetadata())
    table = pq.read_table(path)
    for name, values in columns.items():
        field = TRACE_SCHEMA.field(name)
        table = table.set_column(
            table.schema.get_field_index(name), pa.field(name, field.type), pa.array(values, field.type)
        )
    pq.write_table(table, path)
    return path


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"status": ["ok", "fine"]}, r"row 2, column 'status': not one of ok, failed"),
        ({"request_id": [1, 1]}, r"row 2, column 'request_id': occurs twice"),
        ({"first_token_ns": [42 * MS, 1]}, r"row 2, column 'first_token_ns': lies before a stamp"),
        (
            {"chunk_offsets_us": [[0, 10_000, 20_000], [0, 10_000, 20_002]]},
            r"row 2, column 'chunk_offsets_us': its last",
        ),
        ({"chunk_tokens": [[1, 1, 1], [1, 1]]}, r"row 2, column 'chunk_tokens': needs as many"),
        ({"tenant": ["chat", None]}, r"row 2, column 'tenant': null where a value is required"),
    ],
)
def test_a_row_that_contradicts_itself_is_refused_by_its_place(tmp_path, columns, message):
    """The error names file, row and column, and why."""
    path = write_with(tmp_path, **columns)
    with pytest.raises(TraceError, match=message) as caught:
        read_trace(path)
    assert str(path) in str(caught.value)


def test_offsets_may_differ_from_last_minus_first_by_a_microsecond(tmp_path):
    """Each offset is rounded once, so 1 us is allowed and no more."""
    read_trace(write_with(tmp_path, chunk_offsets_us=[[0, 10_000, 20_000], [0, 10_000, 20_001]]))


def test_a_newer_major_version_is_refused_by_name_and_a_newer_minor_is_read(tmp_path):
    """A minor version may add columns: they are ignored. A major may change what columns mean."""
    write_trace(tmp_path / "t.parquet", [finished(1)], TraceMetadata())
    table = pq.read_table(tmp_path / "t.parquet").append_column("new_column", pa.array([1]))
    for version in ("lmperf.trace/1.7", "lmperf.trace/2.0"):
        schema = with_metadata(table.schema, TraceMetadata(schema=version))
        pq.write_table(table.cast(schema), tmp_path / "new.parquet")
        if version.endswith("/1.7"):
            assert len(read_trace(tmp_path / "new.parquet")) == 1
        else:
            with pytest.raises(TraceError, match=r"written as lmperf.trace/2.0"):
                read_trace(tmp_path / "new.parquet")


@pytest.mark.parametrize("keep", [0, 3, 100, 0.5, 0.99])
def test_a_cut_off_file_is_refused_by_name(tmp_path, keep):
    """However much of the file is there."""
    path = tmp_path / "t.parquet"
    write_trace(path, [finished(i) for i in range(50)], TraceMetadata())
    data = path.read_bytes()
    path.write_bytes(data[: int(keep * len(data)) if isinstance(keep, float) else keep])
    with pytest.raises(TraceError, match=r"t\.parquet"):
        read_trace(path)


def test_foreign_files_are_refused(tmp_path):
    """A CSV, a parquet file of somebody else, a folder that is no run, a file that is not there."""
    csv = tmp_path / "a.csv"
    csv.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n")
    foreign = tmp_path / "b.parquet"
    pq.write_table(pa.table({"x": [1]}), foreign)
    for path, why in (
        (csv, "not a parquet file"),
        (foreign, "not an lmperf trace"),
        (tmp_path, r"without requests\.parquet"),
        (tmp_path / "nowhere", "no such file"),
    ):
        with pytest.raises(TraceError, match=why):
            read_trace(path)


def test_replay_lengths_are_true_then_drawn_then_imputed_and_flagged(tmp_path):
    """A request that ended OK replays what it produced; a shed one what was drawn for it, else a length of its own
    tenant."""
    with_target = replace(shed(3), request=replace(shed(3).request, target_output_tokens=77))
    rows = [finished(1), finished(2, "rag", gaps_us=(1,) * 9), with_target, shed(4, "rag"), unfinished(5, "batch")]
    rows.append(finished(6, "rag", status=Status.FAILED, gaps_us=(1, 1)))
    write_trace(tmp_path / "t.parquet", rows, TraceMetadata())
    lengths, imputed = read_trace(tmp_path / "t.parquet").replay_lengths(seed=1)
    assert lengths[:4].tolist() == [3, 10, 77, 10]
    assert lengths[5] == 10
    assert imputed.tolist() == [False, False, False, True, True, True]
    assert lengths[4] in (3, 10)


def test_a_request_without_output_is_replayed_as_its_prefill(tmp_path):
    """An embedding ended OK with no token at all: a server that simulates it gives the one that ends its prefill."""
    embedding = replace(finished(1), output_tokens=0)
    write_trace(tmp_path / "t.parquet", [embedding, finished(2, "rag"), shed(3)], TraceMetadata())
    lengths, imputed = read_trace(tmp_path / "t.parquet").replay_lengths()
    assert lengths.tolist() == [1, 3, 1]
    assert imputed.tolist() == [False, False, True]


def test_requests_come_in_arrival_order_with_what_caused_them(tmp_path):
    """What arrived because another finished stays marked ``after``, so that a simulator can regenerate it."""
    first = finished(1, arrival_ns=5 * S)
    request = Request(
        id=2,
        tenant="chat",
        arrival_ns=1 * S,
        prompt_tokens=9,
        arrival_kind=ArrivalKind.AFTER,
        after_request_id=1,
        think_ns=5,
    )
    write_trace(tmp_path / "t.parquet", [first, finished(2, request=request)], TraceMetadata())
    replayed = list(read_trace(tmp_path / "t.parquet").requests())
    assert [request.id for request in replayed] == [2, 1]
    assert (replayed[0].arrival_kind, replayed[0].after_request_id, replayed[0].think_ns) == ("after", 1, 5)
    assert replayed[1].prompt_tokens == 101


def test_chunks_of_a_row_are_reachable_by_its_number(tmp_path):
    """Offsets and tokens of one row; null where unknown."""
    write_trace(tmp_path / "t.parquet", [shed(1), finished(2, gaps_us=(5, 7), tokens=(1, 2, 3))], TraceMetadata())
    trace = read_trace(tmp_path / "t.parquet")
    assert trace.chunks(0) == (None, None)
    offsets, tokens = trace.chunks(1)
    assert np.array_equal(offsets, [0, 5, 12])
    assert np.array_equal(tokens, [1, 2, 3])
