"""What ``lmperf compare --output-dir`` leaves of runs: a page (tables and percentile curves), and the differences as data."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from lmperf.cli.difference_text import UNDECIDED, WORSE, change_text, figure_of, sentences, sides_of, word
from lmperf.cli.output import again
from lmperf.wiring.compared import Compared
from lmperf.wiring.header import header_plan, header_tenants
from lmperf.wiring.regression import Difference, Reading
from loadgen.recorder import record_trace
from loadgen.report.curves import CURVE_METRICS, Curve, curves_of_histograms
from loadgen.report.render import COMPARISON_HTML
from loadgen.report.render_runs import DifferenceRow, RunsAgainst, render_runs, write_runs
from loadgen.summary.schema import Summary
from loadgen.trace.parts import TraceFile
from loadgen.trace.writer import TRACE_FILE
from loadgen.whole_file import write_whole
from tenants.measures.histogram import Histogram
from tenants.slo import Metric
from tenants.tenant import Tenant

DIFFERENCES_JSON = "differences.json"
SCHEMA = "lmperf.differences/1.0"

_VERDICTS = {WORSE: "broken", UNDECIDED: "undecided"}


@dataclass(frozen=True, slots=True)
class Found:
    """A side against the first; ``how``: what the intervals rest on."""

    side: Compared
    how: str
    differences: list[Difference]


def write_compared_runs(
    directory: Path, base: Compared, found: Sequence[Found], *, tolerance: float, command: Sequence[str]
) -> None:
    """comparison.html and differences.json. Raises TraceError for rows that cannot be read."""
    sides = [base, *(each.side for each in found)]
    html = render_runs(
        _runs(sides),
        [_against(each, tolerance) for each in found],
        curves={side.name: _curves(side, directory) for side in sides},
        first=base.name,
        notes=[note for side in sides for note in (*side.invalid, *side.unserved)],
        command=again(command),
    )
    write_runs(directory / COMPARISON_HTML, html)
    data = _data(base, found, tolerance, again(command))
    write_whole(directory / DIFFERENCES_JSON, msgspec.json.format(msgspec.json.encode(data), indent=2))


def _runs(sides: Sequence[Compared]) -> dict[str, Summary]:
    """Each run by its side's name; of a side of several by its folder."""
    return {
        side.name if len(side.summaries) == 1 else str(folder): summary
        for side in sides
        for folder, summary in zip(side.folders, side.summaries, strict=True)
    }


def _curves(side: Compared, scratch: Path) -> list[Curve]:
    """Of all runs of a side together; none where the rows of one are not there."""
    if not all((folder / TRACE_FILE).is_file() for folder in side.folders):
        return []
    histograms: dict[tuple[str, Metric], Histogram] = {}
    tenants: dict[str, Tenant] = {}
    for folder in side.folders:
        trace = TraceFile(folder)
        recorder = record_trace(trace, header_tenants(trace, header_plan(trace)), scratch=scratch)
        tenants |= {tenant.name: tenant for tenant in recorder.tenants}
        for name in recorder.names:
            for metric in CURVE_METRICS:
                histograms.setdefault((name, metric), Histogram()).add(recorder.histogram(metric, name))
    return curves_of_histograms(histograms, tuple(tenants.values()))


def _against(found: Found, tolerance: float) -> RunsAgainst:
    return RunsAgainst(
        name=found.side.name,
        how=found.how,
        answer=sentences(found.differences, tolerance),
        rows=[_row(one, word(one, tolerance)) for one in found.differences],
    )


def _row(one: Difference, said: str) -> DifferenceRow:
    first, this = sides_of(one)
    return DifferenceRow(
        tenant=one.tenant,
        figure=figure_of(one),
        first=first,
        this=this,
        change=change_text(one),
        word=said,
        verdict=_VERDICTS.get(said, ""),
    )


def _data(base: Compared, found: Sequence[Found], tolerance: float, command: str) -> dict[str, object]:
    return {
        "schema": SCHEMA,
        "command": command,
        "tolerance": tolerance,
        "first": base.name,
        "invalid": [reason for side in (base, *(each.side for each in found)) for reason in side.invalid],
        "compared": [
            {
                "run": each.side.name,
                "interval": each.how,
                "differences": [_difference_data(one, tolerance) for one in each.differences],
            }
            for each in found
        ],
    }


def _difference_data(one: Difference, tolerance: float) -> Mapping[str, object]:
    change = one.change
    return {
        "tenant": one.tenant,
        "figure": one.figure,
        "first": _reading_data(one.base),
        "this": _reading_data(one.run),
        "change": None if change is None or math.isinf(change) else change,
        "low": None if one.interval is None else one.interval.low,
        "high": None if one.interval is None else one.interval.high,
        "verdict": word(one, tolerance),
    }


def _reading_data(side: Reading | None) -> Mapping[str, object] | None:
    return None if side is None else {"value": side.value, "beyond": side.beyond}
