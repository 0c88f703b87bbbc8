"""``lmperf capacity``: the highest load at which every tenant keeps its SLO, and how many replicas a given rate takes."""

from __future__ import annotations

import argparse
from pathlib import Path

import msgspec
from rich.console import Console

from lmperf.cli.capacity_text import answer_data, load_one, print_points, sentence
from lmperf.cli.counting import counted
from lmperf.cli.live_checks import (
    codes_of,
    confirm_live,
    live_data,
    live_flags,
    loads_around,
    refuse_missing_secrets,
)
from lmperf.cli.output import again, output_folder, results_folder, write_resolved
from lmperf.cli.scenarios import named_scenario
from lmperf.console import Progress, results_console
from lmperf.exit_codes import ExitCode, worst
from lmperf.scenario.faults import ScenarioError
from lmperf.scenario.model import At
from lmperf.wiring.capacity import CapacityAnswer, find_capacity, own_choice, queued_choices
from lmperf.wiring.capacity_study import study_of
from lmperf.wiring.confirm import Confirmation
from lmperf.wiring.offline import policy_choices
from lmperf.wiring.target_rate import refuse_target_rate
from lmperf.wiring.variants import pinned, under_policy
from loadgen.offline.workers import Workers
from loadgen.whole_file import write_whole
from scheduler.routing import Routing

FILE = "capacity.json"


def run(args: argparse.Namespace) -> ExitCode:
    _check(args)
    flags = live_flags(args)
    scenario = named_scenario(args.scenario, args)
    if flags.asked:
        refuse_missing_secrets(scenario)
    choices = None if args.policies is None else policy_choices(args.policies)
    routing = None if args.routing is None else _routing(args.routing)
    if routing is not None and flags.asked:
        remedy = "state it there: --set backend.routing=RULE"
        raise ScenarioError.single(
            "<flags>", "--routing is for simulated replicas, and --live runs the scenario", remedy
        )
    study = study_of(scenario, seeds=args.seeds, at=None if args.at is None else At(args.at), routing=routing)
    if routing is not None and args.target_rate is None and len(study.plan.backend.urls) < 2:
        raise ScenarioError.single(
            "<flags>", "--routing chooses between servers, and there is one", "add --target-rate"
        )
    if args.target_rate is not None:
        refuse_target_rate(study, args.target_rate)
    wanted = [own_choice(study)] if choices is None else queued_choices(study, choices)
    console = results_console()
    progress = Progress(quiet=args.quiet)
    live = Confirmation()
    command = again(args.argv)
    with results_folder(output_folder(args, f"capacity-{study.plan.name}"), args.argv) as directory:
        progress.stage(f"{study.plan.name}: {', '.join(c.label for c in wanted)}; {len(study.seeds)} seeds a load")
        for warning in study.warnings:
            console.print(f"note: {warning}", soft_wrap=True)
        write_resolved(directory, scenario, study.plan)
        with Workers(args.processes) as workers:
            answer = find_capacity(
                study,
                wanted,
                workers=workers,
                tolerance=args.tolerance,
                target_rate=args.target_rate,
                on_point=lambda state: _write(directory, state, live, command),
                on_runs=lambda what: counted(progress, what),
                on_stage=progress.stage,
            )
        progress.done()
        _say(console, answer)
        console.print(f"written: {directory / FILE}", soft_wrap=True)
        best = answer.best
        if flags.asked and best is not None and best.capacity.found is not None and not answer.interrupted:
            base = under_policy(pinned(scenario, study.plan), best.choice) if choices is not None else scenario
            base = pinned(base, study.plan)
            load = best.capacity.found.load
            live = confirm_live(
                console,
                flags,
                base,
                loads_around(load),
                directory,
                progress,
                on_check=lambda state: _write(directory, answer, state, command),
                what=f"policy {best.choice.label}",
                capacity=load,
            )
    return _exit_code(answer, live)


def _check(args: argparse.Namespace) -> None:
    if args.seeds < 1:
        raise ScenarioError.single("<flags>", f"--seeds is {args.seeds}", "at least 1; 5 for an interval")
    if not 0 < args.tolerance < 1:
        raise ScenarioError.single("<flags>", f"--tolerance is {args.tolerance}", "a fraction such as 0.02")
    if args.target_rate is not None and not 0 < args.target_rate < float("inf"):
        raise ScenarioError.single("<flags>", f"--target-rate is {args.target_rate}", "requests/s above 0")


def _routing(text: str) -> Routing:
    """``prefix`` or ``prefix:slack=65536``."""
    try:
        return Routing.parse(text)
    except ValueError as error:
        raise ScenarioError.single("<flags>", f"--routing: {error}", "such as prefix or prefix:slack=65536") from error


def _say(console: Console, answer: CapacityAnswer) -> None:
    study = answer.study
    console.print(
        f"scenario {study.plan.name}, server model {study.server.name}, saturation {study.saturation:,.0f} cost units/s a "
        f"replica; load 1 is {load_one(study)}",
        soft_wrap=True,
    )
    for found in answer.policies:
        print_points(console, study, found)
    for found in answer.policies:
        console.print(sentence(answer, found), soft_wrap=True)
    if answer.interrupted:
        left = f"; not begun: {', '.join(answer.not_begun)}" if answer.not_begun else ""
        console.print(f"interrupted: the answer is that of the loads tried so far{left}", soft_wrap=True)


def _write(directory: Path, answer: CapacityAnswer, live: Confirmation, command: str) -> None:
    """Whole or not at all: a reader never sees half a file."""
    data = answer_data(answer, command) | live_data(live)
    data |= {"interrupted": answer.interrupted or live.interrupted, "complete": answer.complete and live.complete}
    write_whole(directory / FILE, msgspec.json.format(msgspec.json.encode(data), indent=2))


def _exit_code(answer: CapacityAnswer, live: Confirmation) -> ExitCode:
    codes = codes_of(live, interrupted=answer.interrupted)
    unreachable = answer.target_rate is not None and all(
        found.fleet is None or found.fleet.count is None for found in answer.policies
    )
    if answer.best is None or unreachable:
        codes.append(ExitCode.BROKEN)
    return worst(codes)
