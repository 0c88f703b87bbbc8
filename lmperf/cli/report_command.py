"""``lmperf report``: the report of a run again; of a run that was killed, everything that it had measured."""

from __future__ import annotations

import argparse
from pathlib import Path

from lmperf.cli.run_command import show
from lmperf.console import results_console
from lmperf.exit_codes import ExitCode
from lmperf.wiring.rescue import is_finished, render_again, rescue
from loadgen.trace.errors import TraceError


def run(args: argparse.Namespace) -> ExitCode:
    directory = Path(args.run)
    if not directory.is_dir():
        raise TraceError(directory, "no such folder; name the folder of a run (it holds requests.parquet or rows/)")
    if is_finished(directory):
        results_console().print(f"written: {render_again(directory)}", soft_wrap=True, highlight=False)
        return ExitCode.OK
    show(rescue(directory))
    return ExitCode.OK
