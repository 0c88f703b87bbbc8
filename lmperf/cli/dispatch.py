"""Runs the command that was parsed; turns known errors into one clear message and the documented exit code."""

from __future__ import annotations

import argparse
import importlib
import sys
from typing import cast

from lmperf.exit_codes import ExitCode

_MODULES = {
    "run": "lmperf.cli.run_command",
    "simulate": "lmperf.cli.simulate_command",
    "capacity": "lmperf.cli.capacity_command",
    "tune": "lmperf.cli.tune_command",
    "calibrate": "lmperf.cli.calibrate_command",
    "demo": "lmperf.cli.demo_command",
    "report": "lmperf.cli.report_command",
    "compare": "lmperf.cli.compare_command",
    "trace": "lmperf.cli.trace_command",
    "doctor": "lmperf.cli.doctor_command",
    "validate": "lmperf.cli.validate_command",
    "schema": "lmperf.cli.list_commands",
    "scenarios": "lmperf.cli.list_commands",
    "policies": "lmperf.cli.list_commands",
    "backends": "lmperf.cli.list_commands",
}


_KEEP = frozenset({"simulate", "capacity", "tune", "demo"})
"""Commands that leave what they found until they were interrupted. (A live run says so itself.)"""


def run_command(args: argparse.Namespace) -> ExitCode:
    """Every command module has ``run(args) -> ExitCode``."""
    from lmperf.cli.stopping import heard_once  # noqa: PLC0415 (the front door is lmperf's own alone)

    with heard_once("stopping; what was found is kept" if args.command in _KEEP else "stopping"):
        return _run(args)


def _run(args: argparse.Namespace) -> ExitCode:
    try:
        return _in_words(args)
    except KeyboardInterrupt:
        print(f"lmperf {args.command}: interrupted", file=sys.stderr)
        return ExitCode.INTERRUPTED


def _in_words(args: argparse.Namespace) -> ExitCode:
    module = importlib.import_module(_MODULES[args.command])
    from backends.protocol import BackendError  # noqa: PLC0415 (after the command's own imports)
    from lmperf.cli.errors import BAD_CONFIGURATION, STOPPED, UNUSABLE_BACKEND  # noqa: PLC0415

    try:
        return cast("ExitCode", module.run(args))
    except BAD_CONFIGURATION as error:
        message, code = str(error), ExitCode.BAD_CONFIG
    except STOPPED as error:
        message, code = str(error), ExitCode.INTERRUPTED
    except UNUSABLE_BACKEND as error:
        kind = f" ({error.kind})" if isinstance(error, BackendError) else ""
        message, code = f"{error}{kind}", ExitCode.BACKEND
    print(f"lmperf {args.command}: {message}", file=sys.stderr)
    return code
