"""``--live`` of capacity and tune: live runs beside their predictions, run, said, and as data."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from lmperf.cli.output import percentiles_of
from lmperf.cli.run_command import run_once
from lmperf.console import Progress
from lmperf.exit_codes import ExitCode
from lmperf.flag_defaults import LIVE_DURATION_S, READY_TIMEOUT_S
from lmperf.scenario.faults import ScenarioError
from lmperf.scenario.load import Scenario
from lmperf.scenario.plan import Plan
from lmperf.wiring.confirm import Confirmation, LiveCheck, confirm
from lmperf.wiring.live import LiveOptions
from lmperf.wiring.results import RunResult
from loadgen.fitted_table import FittedTable
from tenants.measures.shares import percent_within, promised

AROUND = (0.9, 1.0, 1.1)


def loads_around(load: float) -> tuple[float, ...]:
    """Three loads: one that should be kept, the answer, and one that should break."""
    return tuple(load * factor for factor in AROUND)


def refuse_missing_secrets(scenario: Scenario) -> None:
    """Before the simulation, not after it."""
    missing = scenario.secrets.missing()
    if missing:
        raise ScenarioError(missing)


@dataclass(frozen=True, slots=True)
class LiveFlags:
    """What ``--live`` takes beside the scenario; ``asked``: it was given."""

    asked: bool
    duration_s: float
    ready_timeout_s: float
    percentiles: tuple[float, ...]


def live_flags(args: argparse.Namespace) -> LiveFlags:
    """Raises ScenarioError for one that makes no sense, and for those of live runs where none was asked for."""
    values = {
        "--live-duration": args.live_duration,
        "--ready-timeout": args.ready_timeout,
        "--percentiles": args.percentiles,
    }
    given = [flag for flag, value in values.items() if value is not None]
    if given and not args.live:
        verb = "is" if len(given) == 1 else "are"
        raise ScenarioError.single(
            "<flags>", f"{', '.join(given)} {verb} of live runs, and there are none", "add --live"
        )
    duration_s = LIVE_DURATION_S if args.live_duration is None else args.live_duration
    if not 0 < duration_s < float("inf"):
        raise ScenarioError.single("<flags>", f"--live-duration is {duration_s}", "seconds above 0")
    ready_s = READY_TIMEOUT_S if args.ready_timeout is None else args.ready_timeout
    return LiveFlags(args.live, duration_s, ready_s, percentiles_of(args))


def confirm_live(
    console: Console,
    flags: LiveFlags,
    scenario: Scenario,
    loads: Sequence[float],
    directory: Path,
    progress: Progress,
    on_check: Callable[[Confirmation], None],
    *,
    what: str,
    capacity: float | None = None,
) -> Confirmation:
    """Live runs at ``loads``, each as long as ``flags`` say, and what they showed, printed also where the next one could not
    begin. ``what`` was run; ``capacity``: the load that is to be confirmed as one. ``on_check`` sees every new state."""

    def run(variant: Scenario, plan: Plan, options: LiveOptions) -> RunResult:
        return run_once(variant, plan, options, progress)

    def on_load(load: float, number: int, total: int) -> None:
        progress.stage(f"[{number} of {total}] live at load {load:.4g}, {flags.duration_s:g} s of arrivals")

    found = Confirmation()

    def keep(state: Confirmation) -> None:
        nonlocal found
        found = state
        on_check(state)

    try:
        return confirm(
            scenario,
            loads,
            duration_s=flags.duration_s,
            directory=directory,
            percentiles=flags.percentiles,
            ready_timeout_s=flags.ready_timeout_s,
            run=run,
            on_load=on_load,
            on_check=keep,
        )
    finally:
        progress.done()
        print_checks(console, found, what=what, capacity=capacity)


def print_checks(console: Console, live: Confirmation, *, what: str, capacity: float | None = None) -> None:
    """A row a tenant and load, and a sentence on the agreement. ``capacity``: the load that is to be confirmed as one."""
    if live.checks:
        console.print(checks_table(live.checks, what))
    console.print(agreement(live, capacity), soft_wrap=True)


def checks_table(checks: Sequence[LiveCheck], what: str) -> FittedTable:
    """``what``: was run live."""
    table = FittedTable(
        f"live beside simulated, the same arrivals: {what}",
        ("load", "tenant"),
        ("target %", "live % [95%]", "simulated %", ""),
        left=("",),
    )
    for check in checks:
        for index, tenant in enumerate(check.tenants):
            table.add_row(
                f"{check.load:.4g}" if index == 0 else "",
                tenant.tenant,
                promised(tenant.target),
                percent_within(tenant.live, tenant.interval, 2),
                percent_within(tenant.simulated, None, 2),
                "agree" if tenant.agrees else "DIFFER",
            )
        table.add_section()
    return table


def agreement(live: Confirmation, capacity: float | None = None) -> str:
    """How far live and simulated agree, in one sentence, with what the live runs could not show."""
    checks = live.checks
    how = "interrupted" if live.interrupted else "stopped"
    cut = "" if live.complete else f"{how} after {len(checks)} of {len(live.loads)} live loads"
    if not checks:
        return f"{cut or 'no live run was made'}: none came to its end"
    agreeing = sum(check.agrees for check in checks)
    loads = "; ".join(f"at {check.load:.4g} {_kept(check)}" for check in checks)
    said = f"live and simulated agree at {agreeing} of {len(checks)} loads ({loads})"
    if capacity is not None and live.shows_no_limit(capacity):
        most = max(check.load for check in checks)
        said += (
            f"; the live runs did not show the limit (at {most:.4g} every target was kept, too), so the capacity is confirmed "
            f"from below only"
        )
    return said + (cut and f"; {cut}")


def _kept(check: LiveCheck) -> str:
    if not check.valid:
        if check.result.target_failed is not None:
            return check.result.target_failed
        return "the live run is invalid: its own generator or server fell behind"
    if check.kept_live == check.kept_simulated:
        return "both are at target" if check.kept_live else "both miss a target"
    return "only live is at target" if check.kept_live else "only the simulation is at target"


def live_data(live: Confirmation) -> dict[str, object]:
    """For the results file: the runs that came to their end, and the loads that were to be run."""
    return {"live": [_check_data(check) for check in live.checks], "live_loads": list(live.loads)}


def _check_data(check: LiveCheck) -> dict[str, object]:
    return {
        "load": check.load,
        "agrees": check.agrees,
        "valid": check.valid,
        "tenants": {
            tenant.tenant: {
                "target": tenant.target,
                "live": tenant.live,
                "live_low": None if tenant.interval is None else tenant.interval.low,
                "live_high": None if tenant.interval is None else tenant.interval.high,
                "simulated": tenant.simulated,
                "agrees": tenant.agrees,
            }
            for tenant in check.tenants
        },
        "folder": None if check.result.directory is None else check.result.directory.name,
    }


def codes_of(live: Confirmation, *, interrupted: bool) -> list[ExitCode]:
    """Exit codes of an answer and the live runs that confirm it; ``interrupted``: the answer itself was."""
    codes, checks = [ExitCode.OK], live.checks
    if interrupted or live.interrupted:
        codes.append(ExitCode.INTERRUPTED)
    if any(check.result.target_failed is not None for check in checks):
        codes.append(ExitCode.BACKEND)
    if any(not check.result.summary.validity.valid for check in checks):
        codes.append(ExitCode.INVALID)
    return codes
