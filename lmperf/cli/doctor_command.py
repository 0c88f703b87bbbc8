"""``lmperf doctor``: one line a check, and whether a run on this machine can be trusted."""

from __future__ import annotations

import argparse
import asyncio
import time

from backends.probe import wait_ready
from backends.protocol import BackendError
from backends.wire.options import WireOptions
from backends.wire.url import parse_stated_url
from lmperf.console import results_console
from lmperf.exit_codes import ExitCode, worst
from lmperf.scenario.faults import ScenarioError
from lmperf.scenario.secrets import REFERENCE
from lmperf.wiring.doctor import Check, State, checks_of, look

_SERVER_WAIT_S = 3.0


def run(args: argparse.Namespace) -> ExitCode:
    if args.concurrency < 1:
        raise ScenarioError.single("<flags>", f"--concurrency is {args.concurrency}", "at least 1")
    found = checks_of(look(), connections=args.concurrency)
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
    """``${env:NAME}``, or a key as it is."""
    if text is None:
        return None
    from backends.gateway.config import ConfigError, resolve_env  # noqa: PLC0415 (only with the flag)

    try:
        return resolve_env(text) if REFERENCE.search(text) else text
    except ConfigError as error:
        raise ScenarioError.single("<flags>", f"--api-key: {error}") from error
