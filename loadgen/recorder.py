"""The recorder: every outcome of a run goes in, and what a summary, a trace or a verdict needs comes out.

The same for live runs, the gateway and simulations. ``on_outcome`` only appends to a buffer; every few hundred outcomes
(or some ten thousand chunks) the buffer is turned into numpy columns and fed to histograms, compact columns and the rows
on disk: in steps, one with each outcome that follows, since a live run's event loop waits meanwhile. Memory: the
histograms (fixed) and one buffer; chunks of tokens go to disk and are not kept, and so do the compact columns of a run
that has a folder (without one they take about 110 B a request).

Statistics are over the requests whose *intended arrival* lies in the window; the rest is kept in the trace, marked. A
request that never reached an event counts for it as never, with its age. A cancel that the workload planned is counted
and left out of every statistic.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loadgen.recording.feed import HistogramFeed
from loadgen.recording.histograms import HistogramSet
from loadgen.recording.lateness import Lateness, lateness_bound_ns, lateness_of
from loadgen.recording.series import Series, series_of
from loadgen.recording.stamps import (
    ABSENT,
    Gaps,
    Stamps,
    columns_of,
    gaps_of,
    in_order,
    measure,
    stamps_of,
    with_max_itl,
)
from loadgen.recording.store import SavedRows, Store
from loadgen.recording.stored import columns_of_store
from loadgen.steps import Steps, finished
from loadgen.trace.parts import TraceFile
from loadgen.trace.reader import Trace
from loadgen.trace.schema import TraceMetadata
from loadgen.trace.writer import Merged, RowWriter, merge_rows
from scheduler.request import Outcome
from tenants.measures.columns import Columns, StatusCode
from tenants.measures.histogram import Histogram
from tenants.slo import Metric
from tenants.tenant import Tenant

OTHER_TENANTS = "(other)"

_STALLED = (StatusCode.FAILED, StatusCode.TIMED_OUT, StatusCode.UNFINISHED)
_MAX_UNKNOWN_TENANTS = 1000
_FLUSH_NS = 2_000_000_000
_BATCH_CHUNKS = 16_384
_STEPPED_ROWS = 32
_OVER = object()
_NO_FLUSH_NS = 2**63 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class RecorderState:
    """What a recorder holds but for its rows on disk, to be added to another's: plain data that travels between processes.
    ``columns``: the figures of every request, of a long run in a file. ``errors`` by (tenant code, class) and ``sent`` by
    tenant code, as in the columns; codes are places in ``names``.
    """

    names: tuple[str, ...]
    columns: dict[str, NDArray[Any]] | SavedRows
    histograms: HistogramSet
    errors: Counter[tuple[int, str]]
    sent: Counter[int]
    disordered: int
    reasons: tuple[str, ...]


class Recorder:
    """``window_ns``: [start, end) of intended arrivals that count. ``run_dir``: where rows go; None writes none.
    ``scratch``: without a run folder, where a nameless file keeps the compact columns, in place of memory. Not
    thread-safe. Outcomes flush the rows every 2 s; call :meth:`flush` as well while nothing ends, and :meth:`close` at
    the end.
    """

    def __init__(
        self,
        tenants: Sequence[Tenant],
        window_ns: tuple[int, int],
        run_dir: Path | None = None,
        *,
        metadata: TraceMetadata | None = None,
        worker: str = "main",
        batch_rows: int = 256,
        scratch: Path | None = None,
    ) -> None:
        if window_ns[0] >= window_ns[1]:
            raise ValueError(f"the window must start before it ends, got [{window_ns[0]}, {window_ns[1]}) ns")
        self.tenants = tuple(tenants)
        self.window_ns = window_ns
        self.run_dir = run_dir
        self.metadata = metadata or TraceMetadata(window_ns=window_ns)
        self._histograms = HistogramSet()
        self._feed = HistogramFeed(self._histograms)
        self._codes = {tenant.name: code for code, tenant in enumerate(self.tenants)}
        self._batch_rows = batch_rows
        self._buffer: list[Outcome] = []
        self._buffered_chunks = 0
        self._flushing: Steps[None] | None = None
        self._errors: Counter[tuple[int, str]] = Counter()
        self._sent: Counter[int] = Counter()
        self._disordered = 0
        self._reasons: list[str] = []
        self._writer = None
        if run_dir is not None:
            self._writer = RowWriter(run_dir, self.metadata, tenants, window_ns, worker=worker)
        # After the writer, which makes the folder.
        self._store = Store(scratch if run_dir is None else run_dir)
        self._flush_at_ns = self._next_flush_ns(0)

    def on_outcome(self, outcome: Outcome) -> None:
        """Take one outcome, in any order. A full buffer is flushed a step with each of those that follow."""
        if self._flushing is not None and next(self._flushing, _OVER) is _OVER:
            self._flushing = None
        self._buffer.append(outcome)
        if outcome.chunk_offsets_us is not None:
            self._buffered_chunks += len(outcome.chunk_offsets_us)
        full = len(self._buffer) >= self._batch_rows or self._buffered_chunks >= _BATCH_CHUNKS
        if not full and outcome.ended_ns < self._flush_at_ns:
            return
        if full or len(self._buffer) >= _STEPPED_ROWS:
            self._end_flush()
            self._flushing = self._steps(self._taken_buffer())
        else:  # too few may follow for the rows to be on disk soon
            self.flush()
        self._flush_at_ns = self._next_flush_ns(outcome.ended_ns)

    def on_gaps(self, tenant: str, gaps_ns: NDArray[np.int64], counts: NDArray[np.int64], tokens: int = 1, /) -> None:
        """Gaps between chunks that a simulator measured in bulk: ``counts[i]`` gaps of ``gaps_ns[i]``, each before a chunk
        of ``tokens`` tokens, of requests whose arrival lies in the window. A chunk of k tokens is k ITLs of gap/k; the
        outcomes then carry no chunks.
        """
        code = self._code(tenant)
        self._histograms.record_gaps_of(code, Metric.ITL, gaps_ns // tokens, counts * tokens)
        self._histograms.record_gaps_of(code, Metric.INTER_CHUNK, gaps_ns, counts)

    def flush(self) -> None:
        """Take in what is buffered, and hand the rows to the operating system."""
        self._end_flush()
        finished(self._steps(self._taken_buffer()))

    def _end_flush(self) -> None:
        if self._flushing is not None:
            steps, self._flushing = self._flushing, None
            finished(steps)

    def _taken_buffer(self) -> list[Outcome]:
        outcomes, self._buffer = self._buffer, []
        self._buffered_chunks = 0
        return outcomes

    def _steps(self, outcomes: Sequence[Outcome]) -> Steps[None]:
        if not outcomes:
            return
        stamps = stamps_of(outcomes, self._code)
        yield
        gaps = gaps_of(outcomes)
        yield
        if self._writer is not None:
            yield from self._writer.steps(outcomes, stamps, gaps)
            yield
        errors = [None if outcome.error_class is None else outcome.error_class.value for outcome in outcomes]
        yield from self._take(stamps, gaps, errors)

    def take(self, rows: Trace) -> None:
        """Take in rows that are on disk already (they are not written again)."""
        self.flush()
        codes = np.array([self._code(name) for name in rows.tenants], dtype=np.int32)
        stamps = rows.stamps()
        stamps = replace(stamps, tenant=codes[stamps.tenant], prompt_tokens=np.maximum(stamps.prompt_tokens, 0))
        finished(self._take(stamps, rows.gaps(), rows.values("error_class")))

    def _take(self, stamps: Stamps, gaps: Gaps, errors: Sequence[str | None]) -> Steps[None]:
        """``errors``: the class of each row's error."""
        measures = measure(stamps, with_max_itl(stamps, gaps))
        start, end = self.window_ns
        in_window = (stamps.arrival >= start) & (stamps.arrival < end)
        counted = in_window & (stamps.status != StatusCode.CANCEL_PLANNED)
        yield
        self._store.append(stamps, measures, in_window)
        yield
        for code, error, counts in zip(stamps.tenant.tolist(), errors, counted.tolist(), strict=True):
            if counts and error is not None:
                self._errors[code, error] += 1
        self._disordered += int((~in_order(stamps, gaps)).sum())
        reached = (stamps.sent != ABSENT) | (stamps.dispatched != ABSENT)
        self._sent.update(stamps.tenant[in_window & reached].tolist())
        yield
        ok = stamps.status == StatusCode.OK
        rows = columns_of(stamps, measures, self.names, in_window).select(counted)
        yield
        self._feed.add(rows, measures.lateness[counted])
        yield
        self._feed.add_gaps(gaps, stamps.tenant, ok, counted)
        self._record_open_gaps(stamps, counted)

    def close(self, metadata: TraceMetadata | None = None) -> Merged | None:
        """Take in the rest, close the rows and merge them into ``requests.parquet`` (None without a run folder).
        ``metadata`` replaces the header that the run started with.
        """
        self.flush()
        if metadata is not None:
            self.metadata = metadata
        if self._writer is None or self.run_dir is None:
            return None
        self._writer.close()
        if not len(self._store):
            self._writer.write_header()
        return merge_rows(self.run_dir, metadata=self.metadata)

    def close_rows(self) -> None:
        """Take in the rest and close the rows on disk; somebody else merges them."""
        self.flush()
        if self._writer is not None:
            self._writer.close()

    def state(self, columns: Path | None = None) -> RecorderState:
        """All figures so far, for :meth:`absorb` of another recorder with the same window. ``columns``: a file to be made
        for those of every request, which the other one removes; None: they are held in memory.
        """
        self.flush()
        self._feed.sync()
        return RecorderState(
            names=self.names,
            columns=self._store.rows() if columns is None else self._store.save(columns),
            histograms=self._histograms,
            errors=self._errors,
            sent=self._sent,
            disordered=self._disordered,
            reasons=tuple(self._reasons),
        )

    def absorb(self, state: RecorderState) -> None:
        """Add another worker's figures, as if its outcomes had been recorded here; its rows on disk are its own."""
        self.flush()
        codes = [self._code(name) for name in state.names]
        numbers, saved = np.array(codes, dtype=np.int32), state.columns
        for block in saved.blocks() if isinstance(saved, SavedRows) else (saved,):
            self._store.extend({**block, "tenant": numbers[block["tenant"]]})
        if isinstance(saved, SavedRows):
            saved.remove()
        self._histograms.add(state.histograms, codes)
        for (code, error), n in state.errors.items():
            self._errors[codes[code], error] += n
        for code, n in state.sent.items():
            self._sent[codes[code]] += n
        self._disordered += state.disordered
        for reason in state.reasons:
            self.invalidate(reason)

    def columns(self) -> Columns:
        """Every row so far, as the measures read them; of a long run with a folder each column is read when it is
        asked for.
        """
        self.flush()
        return columns_of_store(self._store, self.names)

    @property
    def names(self) -> tuple[str, ...]:
        """Tenant names, in the order of their codes; unknown tenants that turned up stand last."""
        return tuple(self._codes)

    def histogram(self, metric: Metric, tenant: str | None = None) -> Histogram:
        """All that was due in the window, of one tenant or of all (None)."""
        self.flush()
        self._feed.sync()
        return self._histograms.all(metric, None if tenant is None else self._codes[tenant])

    def successes(self, metric: Metric, tenant: str | None = None) -> Histogram:
        """The same of the requests that ended OK."""
        self.flush()
        self._feed.sync()
        return self._histograms.successes(metric, None if tenant is None else self._codes[tenant])

    def error_classes(self, tenant: str | None = None) -> dict[str, int]:
        """How often each error class occurred in the window, of one tenant or of all (None), most frequent first."""
        self.flush()
        counts: Counter[str] = Counter()
        for (code, error), n in self._errors.items():
            if tenant is None or self._codes[tenant] == code:
                counts[error] += n
        return dict(counts.most_common())

    def sent(self, tenant: str | None = None) -> int:
        """How many requests of the window were sent on to a server, of one tenant or of all (None)."""
        self.flush()
        return sum(n for code, n in self._sent.items() if tenant is None or self._codes[tenant] == code)

    def series(self, tenant: str | None = None) -> Series:
        """What happened in each second, of one tenant or of all (None)."""
        self.flush()
        return series_of(self._store, tenant or "total", None if tenant is None else self._codes[tenant])

    def lateness(self) -> Lateness:
        """The generator's own lateness over the window."""
        self.flush()
        values = self._store.column("lateness", mask=self._store.column("in_window"))
        return lateness_of(values, lateness_bound_ns(self.tenants))

    def invalidate(self, reason: str) -> None:
        """Mark the run invalid for a reason seen elsewhere (a saturated CPU, an embedded server that fell behind)."""
        if reason not in self._reasons:
            self._reasons.append(reason)

    def invalid_reasons(self) -> list[str]:
        """Why the run must not be believed; empty for a valid one."""
        reasons = list(self._reasons)
        late = self.lateness()
        if not late.within_bound:
            reasons.append(
                f"the generator itself fell behind: own lateness P99 {late.p99.format_ms()} "
                f"exceeds {late.bound_ns / 1e6:.1f} ms (max of 5 ms and 5% of the tightest TTFT limit)"
            )
        return reasons

    @property
    def disordered(self) -> int:
        """Rows whose stamps contradict each other (marked ``valid: false`` in the trace)."""
        return self._disordered

    def _next_flush_ns(self, now_ns: int) -> int:
        # Simulated time says nothing about how long rows have been in memory.
        timed = self._writer is not None and self.metadata.kind != "simulated"
        return now_ns + _FLUSH_NS if timed else _NO_FLUSH_NS

    def _code(self, tenant: str) -> int:
        code = self._codes.get(tenant)
        if code is None:
            if len(self._codes) >= len(self.tenants) + _MAX_UNKNOWN_TENANTS:
                tenant = OTHER_TENANTS
            code = self._codes.setdefault(tenant, len(self._codes))
        return code

    def _record_open_gaps(self, stamps: Stamps, counted: NDArray[np.bool_]) -> None:
        """A stream that stalled until it was given up has a gap that never ended; leaving it out would flatter the
        ITL.
        """
        open_ = counted & np.isin(stamps.status, _STALLED) & (stamps.last != ABSENT)
        for row in np.flatnonzero(open_).tolist():
            age_ns = int(stamps.ended[row] - stamps.last[row])
            for metric in (Metric.INTER_CHUNK, Metric.ITL):
                self._histograms.record_open_gap(metric, int(stamps.tenant[row]), age_ns)


def record_trace(trace: TraceFile | Trace, tenants: Sequence[Tenant], *, scratch: Path | None = None) -> Recorder:
    """A recorder fed with the rows of a finished run, e.g. one that was killed before its summary. The window is the
    trace's, else all arrivals. ``scratch``: as in :class:`Recorder`. Raises TraceError.
    """
    window = trace.metadata.window_ns or (0, trace.last_arrival_ns + 1)
    recorder = Recorder(tenants, window, metadata=trace.metadata, scratch=scratch)
    for part in trace.parts():
        recorder.take(part)
    return recorder
