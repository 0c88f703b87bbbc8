"""Where results go, what is written beside them (log, resolved scenario), and which percentiles are reported."""

from __future__ import annotations

import argparse
import logging
import re
import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

from lmperf.flag_defaults import PERCENTILES
from lmperf.scenario.dump import resolved_yaml
from lmperf.scenario.faults import ScenarioError
from lmperf.scenario.load import Scenario
from lmperf.scenario.plan import Plan
from lmperf.scenario.secrets import redact_argv
from lmperf.wiring.run_folder import LOG, claimed


def percentiles_of(args: argparse.Namespace) -> tuple[float, ...]:
    """``--percentiles``; 50 and 99 are always among them, since tables show them."""
    if args.percentiles is None:
        return PERCENTILES
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
        if not args.output_dir.strip():
            raise ScenarioError.single("<flags>", "--output-dir is empty", "name a folder, or leave it out")
        return Path(args.output_dir)
    stamp = datetime.now().astimezone().strftime("%Y%m%d-%H%M%S")
    return Path("results") / f"{_file_name(name)}-{stamp}"


def _file_name(name: str) -> str:
    """A scenario's name where a path's part belongs: it may hold slashes, and must not lead out of the folder."""
    return re.sub(r"[^\w.-]+", "-", name).strip("-.") or "run"


@contextmanager
def results_folder(wanted: Path, argv: list[str]) -> Iterator[Path]:
    """A folder for the results of one command, ``wanted`` or a numbered sibling, with a ``log.txt`` that begins with the
    command without its secrets. Raises ScenarioError when nothing can be written there."""
    with claimed(wanted) as directory:
        handler = logging.FileHandler(directory / LOG, encoding="utf-8")
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
        root = logging.getLogger()
        root.addHandler(handler)
        root.setLevel(logging.INFO)
        logging.getLogger("lmperf").info("lmperf %s", " ".join(redact_argv(argv)))
        try:
            yield directory
        finally:
            root.removeHandler(handler)
            handler.close()


def again(argv: Sequence[str]) -> str:
    """The command line, without its secrets, for whoever wants to type it again."""
    return f"lmperf {shlex.join(redact_argv(argv))}"


def write_resolved(directory: Path, scenario: Scenario, plan: Plan) -> None:
    """The scenario that results are of, with every default and override; it can be run."""
    (directory / "scenario.resolved.yaml").write_text(resolved_yaml(scenario, plan), encoding="utf-8")
