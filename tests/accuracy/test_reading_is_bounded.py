"""What reading a captured run holds: a few columns a request, never the whole trace."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from lmperf.wiring.captured import captured_run
from lmperf.wiring.compared import Compared
from lmperf.wiring.observed import observations
from loadgen.trace.convert import write_trace
from loadgen.trace.parts import TraceFile
from loadgen.trace.reader import read_trace
from loadgen.trace.schema import TraceMetadata
from scheduler.request import ArrivalKind, Outcome, Request, Status, TokensSource
from tenants.measures.difference import Laid

FEW, MANY, PART = 12_000, 36_000, 2_000
"""Requests of the runs, and of a part: both have several, so that what neighbouring parts take is in both."""

WHOLE = 600
"""Bytes a request that the same rows take as a whole trace, at least; a test says so."""

OFFSETS_US = np.arange(30) * 1000


SPAN_NS = 240_000_000_000
"""How long each run lasts: the resamples of time must be as many."""


def outcome(number: int, requests: int) -> Outcome:
    arrival = number * SPAN_NS // requests
    first = arrival + 10_000_000 + number % 977 * 1000
    last = first + int(OFFSETS_US[-1]) * 1000
    return Outcome(
        request=Request(
            id=number,
            tenant="ab"[number % 2],
            arrival_ns=arrival,
            prompt_tokens=20,
            arrival_kind=ArrivalKind.AFTER if number >= 8 else ArrivalKind.ABSOLUTE,
            after_request_id=number - 8 if number >= 8 else None,
        ),
        status=Status.OK,
        ended_ns=last,
        enqueued_ns=arrival,
        dispatched_ns=arrival,
        connect_ns=0,
        sent_ns=arrival,
        first_token_ns=first,
        last_token_ns=last,
        finished_ns=last,
        output_tokens=len(OFFSETS_US),
        tokens_source=TokensSource.USAGE,
        chunk_offsets_us=OFFSETS_US,
    )


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    """Runs' folders by their number of requests."""
    found = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("loadgen.trace.convert._ROWS_AT_ONCE", PART)
        for requests in (FEW, MANY):
            found[requests] = tmp_path_factory.mktemp(f"of-{requests}")
            write_trace(
                found[requests] / "requests.parquet", (outcome(n, requests) for n in range(requests)), TraceMetadata()
            )
    return found


def peak(work: Callable[[], object]) -> int:
    """Bytes that the interpreter, numpy and arrow held at most while ``work`` ran."""
    usual, counted = pa.default_memory_pool(), pa.proxy_memory_pool(pa.default_memory_pool())
    pa.set_memory_pool(counted)
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1] + (counted.max_memory() or 0)
    finally:
        tracemalloc.stop()
        pa.set_memory_pool(usual)


def growth(work: Callable[[Path], object], folders: dict[int, Path]) -> float:
    """Bytes a request that the peak grows by. The first time is not measured: modules are loaded."""
    work(folders[FEW])
    few, many = (peak(lambda folder=folder: work(folder)) for folder in folders.values())
    return (many - few) / (MANY - FEW)


def lay(folder: Path) -> None:
    rows = Compared("run", (folder,), ()).rows()
    assert rows is not None
    laid = Laid.of(rows[0], rows[1])
    assert laid is not None
    assert len(laid) == len(TraceFile(folder))


def test_the_measure_sees_a_whole_trace(folders):
    assert growth(read_trace, folders) > WHOLE


def test_a_comparison_holds_what_it_compares(folders):
    """Per request: tenant, three latencies, tokens, verdict, cell, and what is held twice while columns are joined."""
    assert growth(lay, folders) < 100


def test_a_replay_holds_the_rows_that_it_replays(folders):
    """Per request: seven numbers, and at most as many again while the rows are put in order of arrival."""

    def schedule(folder: Path) -> None:
        source = captured_run(folder, recorded=False).recipe.source(0, {})
        assert sum(1 for _ in source.absolute()) == 8, "the others wait for an answer"

    assert growth(schedule, folders) < 180


def test_calibration_holds_the_stretch_that_it_reads(folders):
    """Of the rest it passes over when each was sent, and of which server."""

    def observe(folder: Path) -> None:
        (seen,) = observations([TraceFile(folder)], most=2_500)
        assert len(seen) == 2_500
        assert seen.of == len(TraceFile(folder))

    assert growth(observe, folders) < 60
