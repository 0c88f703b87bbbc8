"""``lmperf trace``: look into traces, convert, slice and scale them, and import access logs."""

from __future__ import annotations

import argparse
from collections import Counter
from pathlib import Path
from typing import Any

from rich.console import Console

from lmperf.cli.plan_text import slots_text
from lmperf.console import results_console
from lmperf.exit_codes import ExitCode
from lmperf.scenario.faults import ScenarioError
from loadgen.fitted_table import FittedTable
from loadgen.trace.convert import convert
from loadgen.trace.errors import TraceError
from loadgen.trace.parts import TraceFile
from loadgen.trace.public import access_log
from loadgen.trace.read import is_own, read_any
from loadgen.trace.rows import TraceRows
from loadgen.trace.tenant_rule import TenantRule
from loadgen.trace.transform import describe, scale, slice_rows, slice_time
from loadgen.trace.writer import TRACE_FILE


def run(args: argparse.Namespace) -> ExitCode:
    path = Path(args.trace)
    if args.action == "inspect":
        _inspect(path)
        return ExitCode.OK
    try:
        rows = _rows(path, args)
    except (KeyError, ValueError) as error:
        # Wrong flags (a rule, a map, a speed, a format) raise these with a sentence for people.
        raise ScenarioError.single("<flags>", str(error.args[0])) from error
    if not len(rows):
        raise TraceError(path, _nothing(path, args, rows))
    target = Path(args.output)
    if target.resolve() in {path.resolve(), path.resolve() / TRACE_FILE}:
        raise ScenarioError.single("<flags>", f"-o {target} is the trace itself", "name another file")
    if target.suffix != ".parquet":
        raise ScenarioError.single("<flags>", f"-o {target} is no parquet file", f"name it {target.name}.parquet")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        count = convert(rows, target)
    except OSError as error:
        raise ScenarioError.single(
            "<flags>", f"{target} cannot be written ({error.strerror})", "name another"
        ) from error
    console = results_console()
    console.print(f"written: {target}, {count:,} requests of {len(rows.tenants)} tenants", soft_wrap=True)
    if rows.measured is None and is_own(path) and TraceFile(path).metadata.kind != "imported":
        console.print("note: a workload, not a result: what that run measured is not in it", soft_wrap=True)
    return ExitCode.OK


def _rows(path: Path, args: argparse.Namespace) -> TraceRows:
    """The rows that the action makes. Raises TraceError; ValueError or KeyError for wrong flags."""
    match args.action:
        case "convert":
            return _with_tenants(read_any(path, args.format), args.tenants)
        case "import":
            return _with_tenants(access_log.read(path, access_log.parse_map(args.map)), args.tenants)
        case "slice":
            if args.rows is not None and args.rows < 1:
                raise ValueError(f"--rows is {args.rows}: at least 1")
            rows = slice_time(read_any(path), args.start, args.end)
            return slice_rows(rows, 0, args.rows) if args.rows is not None else rows
        case _:
            return scale(read_any(path), args.speed)


def _nothing(path: Path, args: argparse.Namespace, rows: TraceRows) -> str:
    """Why an action came to no row at all: an empty trace is a mistake somewhere, and nobody can use it."""
    if args.action == "slice":
        whole = read_any(path)
        if len(whole):
            end = "its end" if args.end is None else f"{args.end:g} s"
            last_s = int(whole.arrival_ns.max()) / 1e9
            return (
                f"none of its {len(whole):,} rows is in the slice from {args.start:g} s to {end}: they arrive from "
                f"{int(whole.arrival_ns.min()) / 1e9:g} s to {last_s:g} s"
            )
    what = f"the map {args.map!r}" if args.action == "import" else f"the format {rows.source}"
    return f"no row was found, read by {what}: the file holds {path.stat().st_size:,} bytes and no request"


def _with_tenants(rows: TraceRows, rule: str | None) -> TraceRows:
    return rows if rule is None else TenantRule.parse(rule).apply(rows)


def _inspect(path: Path) -> None:
    console = results_console()
    facts = describe(read_any(path))
    if is_own(path):
        _say_header(console, TraceFile(path))
    rate, cv = facts["rate_per_s"], facts["gap_cv"]
    console.print(
        f"{facts['source']} trace, {facts['load_mode']} loop: {facts['requests']:,} requests in {facts['duration_s']:,.1f} s"
        + ("" if rate is None else f", {rate:,.2f} requests/s")
        + ("" if cv is None else f", gaps' coefficient of variation {cv:.2f} (Poisson: 1)"),
        soft_wrap=True,
    )
    if not facts["measured"] and not is_own(path):
        console.print("no latencies recorded: a workload, not a result")
    if facts["sessions"]:
        console.print(f"{facts['sessions']:,} sessions")
    if facts["prefix_block_tokens"]:
        console.print(f"prefix blocks of {facts['prefix_block_tokens']} tokens")
    if facts["columns"]:
        console.print(f"columns for tenant rules: {', '.join(facts['columns'])}", soft_wrap=True)
    console.print(_tenants(facts["tenants"]))


def _say_header(console: Console, trace: TraceFile) -> None:
    metadata = trace.metadata
    queue = f"policy {metadata.policy}" if metadata.queueing == "policy" else "queueing: target"
    statuses = Counter(status for part in trace.narrow("status") for status in part.values("status"))
    counts = ", ".join(f"{count:,} {status}" for status, count in statuses.items())
    if metadata.kind == "imported" and set(statuses) == {"unfinished"}:
        counts = f"{len(trace):,} arrivals, no latencies recorded"
    known = metadata.slots or {}
    slots = slots_text(known.get("sequences"), known.get("prefill_tokens"))
    console.print(f"{metadata.kind} run, {queue}, slots {slots}: {counts or 'no rows'}", soft_wrap=True)
    if metadata.start_utc is not None:
        console.print(f"started {metadata.start_utc}, seed {metadata.seed}", soft_wrap=True)


def _tenants(tenants: list[dict[str, Any]]) -> FittedTable:
    table = FittedTable(
        None,
        ("tenant",),
        ("requests", "prompt mean", "P50", "P99", "max", "output mean", "P50", "P99", "max"),
    )
    for tenant in tenants:
        cells = []
        for lengths in (tenant["prompt_tokens"], tenant["output_tokens"]):
            if lengths is None:
                cells += ["unknown", *["-"] * 3]
            else:
                cells += [f"{lengths['mean']:,.1f}", *(f"{lengths[name]:,}" for name in ("p50", "p99", "max"))]
        table.add_row(tenant["tenant"], f"{tenant['requests']:,}", *cells)
    return table
