"""From a run's folder to its report again, also when the run was killed before it wrote one.

Rows reach the disk while a run lasts, in streams whose batches stand on their own, so a killed run leaves all but its last
two seconds. The streams stay where they are: the folder may be that of a run that still goes on.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from lmperf.wiring.header import header_plan, header_tenants
from lmperf.wiring.results import RunResult, write_results
from lmperf.wiring.worker_job import COLUMNS_OF_WORKERS
from loadgen.recorder import record_trace
from loadgen.recording.window import window_as_run
from loadgen.report.curves import curves_of
from loadgen.report.render import write_report
from loadgen.summary.files import SUMMARY_JSON, read_summary
from loadgen.trace.parts import TraceFile
from loadgen.trace.writer import ROWS_DIR, merge_rows

_LOST = (
    "the run ended without writing its results: requests that were queued or in flight then are not known, nor are those "
    "of its last moments on disk, so the figures are of the requests that had ended"
)


def is_finished(directory: Path) -> bool:
    """True for a run that wrote its own summary."""
    return (directory / SUMMARY_JSON).is_file()


def render_again(directory: Path) -> Path:
    """``report.html`` of a finished run, from its summary and its trace. Raises SummaryError or TraceError."""
    summary = read_summary(directory)
    trace = TraceFile(directory)
    recorder = record_trace(trace, header_tenants(trace, header_plan(trace)), scratch=directory)
    return write_report(directory, summary, curves=curves_of(recorder))


def rescue(directory: Path) -> RunResult:
    """Merge the rows that a killed run left, and write all that a finished one leaves. Raises TraceError."""
    dropped: tuple[str, ...] = ()
    if any((directory / ROWS_DIR).glob("*.arrow")):
        dropped = merge_rows(directory, keep=True).dropped
    trace = TraceFile(directory)
    metadata = trace.metadata
    if metadata.end_ns is None:
        ended_ns = trace.last_end_ns + 1
        planned = metadata.window_ns
        window = None if planned is None else window_as_run(planned, cut_ns=ended_ns, ended_ns=ended_ns)
        metadata = msgspec.structs.replace(metadata, end_ns=ended_ns, window_ns=window)
        if any((directory / ROWS_DIR).glob("*.arrow")):
            merge_rows(directory, metadata=metadata, keep=True)
            trace = TraceFile(directory)
        else:
            trace = trace.with_metadata(metadata)
    plan = header_plan(trace)
    recorder = record_trace(trace, header_tenants(trace, plan), scratch=directory)
    lost = tuple(f"rows: {line}" for line in dropped)
    for left in directory.glob(COLUMNS_OF_WORKERS):
        left.unlink(missing_ok=True)
    return write_results(recorder, plan, metadata=metadata, directory=directory, warnings=(_LOST, *lost))
