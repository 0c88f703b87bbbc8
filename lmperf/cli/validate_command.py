"""``lmperf validate``: every fault of a scenario at once, or its plan."""

from __future__ import annotations

import argparse

from lmperf.cli.plan_text import print_plan
from lmperf.cli.scenarios import named_scenario
from lmperf.exit_codes import ExitCode
from lmperf.scenario.model import At
from lmperf.wiring.saturation import resolve_with_saturation


def run(args: argparse.Namespace) -> ExitCode:
    scenario = named_scenario(args.scenario, args)
    print_plan(resolve_with_saturation(scenario, at=None if args.at is None else At(args.at)))
    return ExitCode.OK
