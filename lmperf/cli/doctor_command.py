"""``lmperf doctor``: one line a check, and whether a run on this machine can be trusted."""

from __future__ import annotations

import argparse
import asyncio
import time

from backends.probe import wait_ready
from backends.protocol import BackendError
from backends.reference import SecretError, resolve_references
from backends.wire.options import WireOptions
from backends.wire.url import parse_stated_url
from lmperf.console import results_console
from lmperf.exit_codes import ExitCode, worst
from lmperf.scenario.faults import ScenarioError
from lmperf.wiring.doctor import Check, State, checks_of, look

_SERVER_WAIT_S = 3.0
_USUAL_CONNECTIONS = 64


def run(args: argparse.Namespace) -> ExitCode:
    if args.concurrency is not None and args.concurrency < 1:
        raise ScenarioError.single("<flags>", f"--concurrency is {args.concurrency}", "at least 1")
    if args.scenario is not None:
        found = _of_scenario(args)
    elif args.settings:
        raise ScenarioError.single("<flags>", "--set changes a scenario, and none is named", "name one")
    else:
        found = checks_of(look(), connections=args.concurrency or _USUAL_CONNECTIONS)
        if args.model is not None:
            found.append(_server(args))
    console = results_console()
    for check in found:
        remedy = f"; {check.remedy}" if check.remedy else ""
        console.print(f"{check.state.value:<4}  {check.said}{remedy}", soft_wrap=True)
    code = worst(check.code for check in found)
    wrong = [check.name for check in found if check.state is State.BAD]
    doubtful = [check.name for check in found if check.state is State.WARN]
    if wrong:
        console.print(f"a run here cannot be trusted: {', '.join(wrong)} (exit code {int(code)})", soft_wrap=True)
    elif doubtful:
        console.print(f"a run here can be trusted with care: {', '.join(doubtful)}", soft_wrap=True)
    else:
        console.print("a run here can be trusted")
    return code


def _of_scenario(args: argparse.Namespace) -> list[Check]:
    from lmperf.catalog import find_scenario  # noqa: PLC0415 (only with a scenario)
    from lmperf.scenario.load import load_scenario  # noqa: PLC0415
    from lmperf.wiring.doctor_scenario import connections_of, machine_checks, server_checks  # noqa: PLC0415
    from lmperf.wiring.interrupts import cancelled_by_signals  # noqa: PLC0415
    from lmperf.wiring.known import installed  # noqa: PLC0415
    from lmperf.wiring.saturation import resolve_with_saturation  # noqa: PLC0415

    flags = {"backend.url": args.model, "backend.api_key": args.api_key}
    overrides = [f"{path}={value}" for path, value in flags.items() if value is not None]
    overrides += ["backend.kind=openai"] if args.model is not None else []
    overrides += ["backend.insecure=true"] if args.insecure else []
    scenario = load_scenario(find_scenario(args.scenario), overrides=[*overrides, *args.settings], known=installed())
    plan = resolve_with_saturation(scenario)
    machine = look()
    found = [
        *checks_of(machine, connections=args.concurrency or connections_of(plan)),
        *machine_checks(plan, machine.cpus),
    ]
    try:
        return found + asyncio.run(cancelled_by_signals(server_checks(scenario, plan, timeout_s=_SERVER_WAIT_S)))
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None


def _server(args: argparse.Namespace) -> Check:
    try:
        base = parse_stated_url(args.model)
    except ValueError as error:
        raise ScenarioError.single("<flags>", f"--model: {error}") from error
    started = time.monotonic()
    try:
        metadata = asyncio.run(
            wait_ready(
                args.model,
                api_key=_key(args.api_key),
                options=WireOptions(insecure=args.insecure),
                timeout_s=_SERVER_WAIT_S,
            )
        )
    except BackendError as error:
        return Check("server", State.BAD, f"server {base}", str(error), ExitCode.BACKEND)
    took_ms = (time.monotonic() - started) * 1e3
    context = "" if metadata.max_model_len is None else f", max_model_len {metadata.max_model_len:,}"
    models = ", ".join(metadata.models) or "no model"
    return Check("server", State.OK, f"server {base} answers in {took_ms:.0f} ms: {models}{context}")


def _key(text: str | None) -> str | None:
    """A reference, or a key as it is."""
    try:
        return None if text is None else resolve_references(text)
    except SecretError as error:
        raise ScenarioError.single("<flags>", f"--api-key: {error}") from error
