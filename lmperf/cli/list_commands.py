"""``lmperf policies``, ``backends``, ``scenarios``, ``schema``: what is there."""

from __future__ import annotations

import argparse
import sys

from rich.table import Table

from lmperf.console import results_console
from lmperf.exit_codes import ExitCode


def run(args: argparse.Namespace) -> ExitCode:
    if args.command == "schema":
        from lmperf.scenario.schema import schema_text  # noqa: PLC0415 (only this one needs it)

        sys.stdout.write(schema_text())
        return ExitCode.OK
    results_console().print({"policies": _policies, "backends": _backends, "scenarios": _scenarios}[args.command]())
    return ExitCode.OK


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False)
    for column in columns:
        table.add_column(column, overflow="fold")
    return table


def _policies() -> Table:
    from scheduler.policies.build import POLICIES  # noqa: PLC0415

    table = _table("policy", "what it does", "its options (besides late, margin_ms, prefill_rate)")
    table.add_row("none", "no queue of ours: the target's own behaviour", "")
    for name in POLICIES.names():
        kind = POLICIES.load(name)
        table.add_row(name, kind.summary, ", ".join(kind.options.__struct_fields__))
    return table


def _backends() -> Table:
    from backends.registry import BACKENDS  # noqa: PLC0415
    from lmperf.scenario.checks import EMBEDDED  # noqa: PLC0415

    table = _table("backend", "is")
    table.add_row(EMBEDDED, "the embedded OpenAI-compatible server (lmperf emulate), started for the run")
    for name in BACKENDS.names():
        table.add_row(name, BACKENDS.target(name))
    return table


def _scenarios() -> Table:
    from lmperf.catalog import list_scenarios  # noqa: PLC0415

    table = _table("scenario", "what it shows")
    for entry in list_scenarios():
        table.add_row(entry.name, entry.summary)
    return table
