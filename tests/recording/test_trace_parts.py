"""A trace read some rows at a time says what the whole one says, and refuses what it refuses."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from recording_outcomes import S, finished, outcomes, shed

from loadgen.recorder import Recorder, record_trace
from loadgen.trace.convert import write_trace
from loadgen.trace.errors import TraceError
from loadgen.trace.parts import TraceFile
from loadgen.trace.reader import read_trace
from loadgen.trace.schema import TraceMetadata
from scheduler.request import Outcome
from tenants.slo import Metric


def gaps_one_by_one(rows: list[Outcome]) -> Iterator[tuple[int, int, int]]:
    """(row, gap in ns, tokens it brought) of every chunk after a request's first."""
    for row, outcome in enumerate(rows):
        offsets = [] if outcome.chunk_offsets_us is None else outcome.chunk_offsets_us.tolist()
        alike = int(len(offsets) == outcome.output_tokens)
        tokens = [alike] * len(offsets) if outcome.chunk_tokens is None else outcome.chunk_tokens.tolist()
        for k in range(1, len(offsets)):
            yield row, (offsets[k] - offsets[k - 1]) * 1000, tokens[k]


@settings(max_examples=40, deadline=None)
@given(data=st.data(), n=st.integers(0, 9), rows_at_once=st.integers(1, 4))
def test_the_parts_are_the_rows_in_their_order(
    data: st.DataObject, n: int, rows_at_once: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Tenants in order of appearance, ends, stamps and every gap with its tokens."""
    written = [data.draw(outcomes(i)) for i in range(n)]
    path = tmp_path_factory.mktemp("trace") / "t.parquet"
    write_trace(path, written, TraceMetadata(seed=7))
    file = TraceFile(path, rows_at_once=rows_at_once)
    assert (len(file), file.metadata.seed) == (n, 7)
    assert file.tenants == tuple(dict.fromkeys(outcome.request.tenant for outcome in written))
    assert file.last_end_ns == max((outcome.ended_ns for outcome in written), default=0)
    parts = list(file.parts())
    assert [len(part) for part in parts] == [min(rows_at_once, n - at) for at in range(0, n, rows_at_once)]
    assert [part.first_row for part in parts] == list(range(0, n, rows_at_once))
    found = [
        (part.first_row + int(row), int(gap), int(tokens))
        for part in parts
        for row, gap, tokens in zip(part.gaps().owner, part.gaps().gap_ns, part.gaps().tokens, strict=True)
    ]
    assert found == list(gaps_one_by_one(written))
    named = [part.tenants[code] for part in parts for code in part.stamps().tenant]
    assert named == [outcome.request.tenant for outcome in written]
    stamps = [value for part in parts for value in part.stamps().first.tolist()]
    assert stamps == read_trace(path).stamps().first.tolist()


def _damage(path: Path, column: str, row: int, value: object) -> None:
    table = pq.read_table(path)
    values = table.column(column).to_pylist()
    values[row] = value
    place, field = table.schema.get_field_index(column), table.schema.field(column)
    pq.write_table(table.set_column(place, field, [values]).cast(table.schema), path)


@pytest.mark.parametrize(
    ("column", "row", "value", "said"),
    [
        ("status", 4, "okay", r"row 5, column 'status': not one of"),
        ("sent_ns", 3, 10**15, r"row 4, column 'first_token_ns': lies before a stamp"),
        ("request_id", 4, 0, r"row 5, column 'request_id': occurs twice"),
        ("chunk_offsets_us", 2, [0, 5], r"row 3, column 'chunk_offsets_us': its last offset"),
    ],
)
def test_a_bad_row_is_named_by_its_number_in_the_file(
    tmp_path: Path, column: str, row: int, value: object, said: str
) -> None:
    """In parts of two rows as in the whole; an id twice also when its rows lie in different parts."""
    path = tmp_path / "t.parquet"
    write_trace(path, [finished(i, arrival_ns=i * S) for i in range(6)], TraceMetadata())
    _damage(path, column, row, value)
    with pytest.raises(TraceError, match=said):
        list(TraceFile(path, rows_at_once=2).parts())
    with pytest.raises(TraceError, match=said):
        read_trace(path)


def test_a_missing_column_and_a_foreign_file_are_named(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    write_trace(path, [shed(1)], TraceMetadata())
    table = pq.read_table(path)
    pq.write_table(table.drop_columns(["status"]), path)
    with pytest.raises(TraceError, match=r"column 'status': missing"):
        list(TraceFile(path).parts())
    (tmp_path / "x.csv").write_text("a,b\n")
    with pytest.raises(TraceError, match="not a parquet file"):
        TraceFile(tmp_path / "x.csv")
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(TraceError, match="cut off or damaged"):
        TraceFile(path)


def test_a_narrow_reading_has_the_columns_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    write_trace(path, [finished(i, arrival_ns=i * S) for i in range(5)], TraceMetadata())
    parts = list(TraceFile(path, rows_at_once=2).narrow("arrival_ns", "tenant"))
    assert all(set(part.table.column_names) == {"arrival_ns", "tenant"} for part in parts)
    assert np.concatenate([part.ints("arrival_ns") for part in parts]).tolist() == [i * S for i in range(5)]


FIGURES = ("tenant", "arrival_ns", "end_ns", "ttft_ns", "queue_ns", "tpot_ns", "max_itl_ns", "e2e_ns", "status")


@settings(max_examples=25, deadline=None)
@given(data=st.data(), n=st.integers(1, 10), rows_at_once=st.integers(1, 4))
def test_a_recorder_fed_from_a_trace_holds_what_the_run_s_held(
    data: st.DataObject, n: int, rows_at_once: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Columns, histograms, error classes, what was sent, what was out of order, whatever the size of the parts."""
    folder = tmp_path_factory.mktemp("run")
    window = (10**11, 9 * 10**11)
    seen = []
    for number in range(n):
        drawn = data.draw(outcomes(number))
        if data.draw(st.booleans()) and drawn.sent_ns is not None:
            drawn = replace(drawn, sent_ns=drawn.sent_ns - 10**12)
        seen.append(drawn)
    # After the drawing, which may give up in the middle and would leave an open file.
    live = Recorder((), window, folder, metadata=TraceMetadata(window_ns=window))
    for outcome in seen:
        live.on_outcome(outcome)
    live.close()
    again = record_trace(TraceFile(folder, rows_at_once=rows_at_once), (), scratch=folder)
    assert again.names == live.names
    for name in FIGURES:
        assert np.array_equal(getattr(again.columns(), name), getattr(live.columns(), name)), name
    for tenant in (*live.names, None):
        assert again.error_classes(tenant) == live.error_classes(tenant)
        assert again.sent(tenant) == live.sent(tenant)
        for metric in Metric:
            for one, other in (
                (again.histogram(metric, tenant), live.histogram(metric, tenant)),
                (again.successes(metric, tenant), live.successes(metric, tenant)),
            ):
                assert (one.encode(), one.count_never) == (other.encode(), other.count_never), metric
                assert one.longest_age_ns == other.longest_age_ns, metric
    assert again.disordered == live.disordered
    assert again.lateness() == live.lateness()
