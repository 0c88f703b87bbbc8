"""Where results go, which percentiles are reported, and the log file of a run."""

from __future__ import annotations

import argparse
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

from lmperf.scenario.faults import ScenarioError
from lmperf.scenario.secrets import redact_argv


def percentiles_of(args: argparse.Namespace) -> tuple[float, ...]:
    """``--percentiles``; 50 and 99 are always among them, since tables show them."""
    try:
        found = {float(text) for text in args.percentiles.split(",")}
    except ValueError as error:
        raise ScenarioError.single(
            "<flags>", f"--percentiles {args.percentiles!r} are no numbers", "50,90,99"
        ) from error
    if not all(0 < p < 100 for p in found):
        raise ScenarioError.single("<flags>", f"--percentiles {args.percentiles!r}", "each lies above 0 and below 100")
    return tuple(sorted(found | {50.0, 99.0}))


def output_folder(args: argparse.Namespace, name: str) -> Path:
    """``--output-dir``, else a folder of its own for this run."""
    if args.output_dir is not None:
        return Path(args.output_dir)
    stamp = datetime.now().astimezone().strftime("%Y%m%d-%H%M%S")
    return Path("results") / f"{name}-{stamp}"


@contextmanager
def log_file(directory: Path, argv: list[str]) -> Iterator[None]:
    """``log.txt`` of a run, begun by the command without its secrets. Raises ScenarioError when nothing can be written
    there."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        handler = logging.FileHandler(directory / "log.txt", encoding="utf-8")
    except OSError as error:
        raise ScenarioError.single(
            "<flags>", f"results cannot be written to {directory} ({error.strerror})", "name another --output-dir"
        ) from error
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    root = logging.getLogger()
    root.addHandler(handler)
    root.setLevel(logging.INFO)
    logging.getLogger("lmperf").info("lmperf %s", " ".join(redact_argv(argv)))
    try:
        yield
    finally:
        root.removeHandler(handler)
        handler.close()
