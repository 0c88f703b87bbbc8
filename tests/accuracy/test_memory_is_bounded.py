"""What a run keeps in memory does not grow with its requests: full blocks of figures go to a file, and read back the same."""

from __future__ import annotations

import tracemalloc
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadgen.recorder import Recorder
from loadgen.recording.stored import StoredColumns
from scheduler.request import Outcome, Request, Status
from tenants.measures.columns import Columns
from tenants.measures.evidence import concatenate
from tenants.tenant import Tenant

TENANTS = (Tenant(name="a"), Tenant(name="b"))
WINDOW = (0, 1 << 60)
COLUMNS = [each.name for each in fields(Columns) if each.name != "tenants"]


def outcome(number: int, tenant: str = "a") -> Outcome:
    arrival = number * 1_000_000
    request = Request(id=number, tenant=tenant, arrival_ns=arrival, prompt_tokens=1 + number % 97)
    first = arrival + 1_000 * (1 + number % 1013)
    return Outcome(
        request=request,
        status=Status.OK if number % 11 else Status.FAILED,
        ended_ns=first + 5_000,
        enqueued_ns=arrival + 10,
        dispatched_ns=arrival + 20,
        sent_ns=arrival + 30,
        connect_ns=0,
        first_token_ns=first,
        last_token_ns=first,
        finished_ns=first + 5_000,
        cached_prompt_tokens=None if number % 3 else number % 89,
        output_tokens=1 + number % 7,
    )


def recorded(folder: Path | None, numbers: range, batch_rows: int) -> Recorder:
    recorder = Recorder(TENANTS, WINDOW, folder, batch_rows=batch_rows)
    for number in numbers:
        recorder.on_outcome(outcome(number, "ab"[number % 2]))
    return recorder


@settings(max_examples=4, deadline=None)
@given(count=st.sampled_from([0, 1, 8192, 8193, 17_000]), batch_rows=st.integers(1_000, 9_000))
def test_a_run_on_disk_and_one_in_memory_give_the_same_columns(
    tmp_path_factory: pytest.TempPathFactory, count: int, batch_rows: int
) -> None:
    """Whatever the sizes of blocks and batches; also when they are read in the middle of the run."""
    folder = tmp_path_factory.mktemp("run")
    on_disk = recorded(folder, range(count // 2), batch_rows)
    assert len(on_disk.columns()) == count // 2
    for number in range(count // 2, count):
        on_disk.on_outcome(outcome(number, "ab"[number % 2]))
    in_memory = recorded(None, range(count), batch_rows)
    left, right = on_disk.columns(), in_memory.columns()
    assert len(left) == count
    for name in COLUMNS:
        assert np.array_equal(getattr(left, name), getattr(right, name)), name
    on_disk.close()


def test_a_long_run_s_columns_are_those_of_one_in_memory(tmp_path: Path) -> None:
    """140,000 rows, more than are kept: whole, of a tenant, of what counts and in pieces; rows that come later are not
    in what was asked for before."""
    count = 140_000
    on_disk, in_memory = (recorded(folder, range(count), 2048) for folder in (tmp_path, None))
    left, right = on_disk.columns(), in_memory.columns()
    assert isinstance(left, StoredColumns)
    assert not isinstance(right, StoredColumns)
    on_disk.on_outcome(outcome(count))
    on_disk.flush()
    slow = right.ttft_ns > 3_000
    for one, other in (
        (left, right),
        (left.judged(), right.judged()),
        (left.of("b"), right.of("b")),
        (left.select(slow), right.select(slow)),
        (left.select(slow).select(right.status[slow] == 0), right.select(slow & (right.status == 0))),
        (concatenate(list(left.select(slow).pieces(9_000))), right.select(slow)),
    ):
        assert len(one) == len(other) > 0
        for name in COLUMNS:
            assert np.array_equal(getattr(one, name), getattr(other, name)), name
            assert getattr(one, name).dtype == getattr(other, name).dtype, name
    on_disk.close()


def test_a_recorder_leaves_no_file_beside_the_trace(tmp_path: Path) -> None:
    """The blocks' file has no name, so that a killed run leaves only what can be read."""
    recorder = recorded(tmp_path, range(20_000), 256)
    assert {path.name for path in tmp_path.iterdir()} == {"rows"}
    recorder.close()
    assert {path.name for path in tmp_path.iterdir()} == {"requests.parquet"}


def test_memory_does_not_grow_with_the_number_of_requests(tmp_path: Path) -> None:
    """Three times as many requests add less than a fifth of what their figures (110 B each) would take; allocations are
    counted by the interpreter and numpy, so the machine's noise has no part in it."""
    recorder = Recorder(TENANTS, WINDOW, tmp_path)
    few, many = 16_000, 48_000

    def feed(numbers: range) -> int:
        for number in numbers:
            recorder.on_outcome(outcome(number))
        recorder.flush()
        return tracemalloc.get_traced_memory()[0]

    tracemalloc.start()
    try:
        grown = -feed(range(few)) + feed(range(few, many))
    finally:
        tracemalloc.stop()
    assert grown < 0.2 * 110 * (many - few)
    recorder.close()
