"""``summary.json`` (everything) and ``summary.csv`` (one row a tenant and metric), and reading the first back."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import msgspec

from loadgen.summary.schema import SUMMARY_FAMILY, SUMMARY_MAJOR, Percentile, Summary
from loadgen.trace.errors import TraceError
from loadgen.trace.schema import check_version
from loadgen.whole_file import write_whole

SUMMARY_JSON = "summary.json"
SUMMARY_CSV = "summary.csv"


class SummaryError(Exception):
    """A summary could not be read: which file, and why."""


def write_summary(summary: Summary, directory: Path) -> tuple[Path, Path]:
    """Write both files into ``directory``; each appears whole or not at all."""
    json_path, csv_path = directory / SUMMARY_JSON, directory / SUMMARY_CSV
    write_whole(json_path, msgspec.json.format(msgspec.json.encode(summary), indent=2) + b"\n")
    write_whole(csv_path, _csv(summary).encode())
    return json_path, csv_path


def read_summary(path: Path | str) -> Summary:
    """The summary at ``path`` (a run's folder or the JSON file). Raises SummaryError, which names a newer major
    version.
    """
    file = Path(path)
    if file.is_dir():
        file /= SUMMARY_JSON
    try:
        raw = file.read_bytes()
    except OSError as error:
        raise SummaryError(f"{file}: cannot be read ({error.strerror}); is it the folder of a finished run?") from error
    try:
        head = msgspec.json.decode(raw, type=_Head)
        check_version(head.schema, family=SUMMARY_FAMILY, major=SUMMARY_MAJOR, path=file)
        return msgspec.json.decode(raw, type=Summary)
    except msgspec.DecodeError as error:
        raise SummaryError(f"{file}: not a summary of lmperf, or cut off ({error})") from error
    except TraceError as error:
        raise SummaryError(str(error)) from error


class _Head(msgspec.Struct):
    schema: str


def _csv(summary: Summary) -> str:
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    names = [f"p{p:g}_ms" for p in summary.percentiles]
    table.writerow(
        ["tenant", "metric", "count", "never", *names, "success_count", "success_mean_ms", "success_max_ms"]
        + [f"success_{name}" for name in names]
    )
    for tenant in (*summary.tenants, summary.total):
        for metric in tenant.metrics:
            good = metric.successes
            table.writerow(
                [tenant.tenant, metric.metric, metric.count, metric.never]
                + [_cell(found) for found in metric.percentiles]
                + [good.count, _number(good.mean_ms), _number(good.max_ms)]
                + [_cell(found) for found in good.percentiles]
            )
    return text.getvalue()


def _cell(found: Percentile) -> str:
    """Empty for nothing; ``>30000.000`` where the percentile was never reached, so that no tool reads it as a
    number.
    """
    if found.beyond_ms is not None:
        return f">{found.beyond_ms:.3f}"
    return _number(found.value_ms)


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"
