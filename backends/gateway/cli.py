"""The command line of the gateway: ``lmperf gateway`` shares this parser.

Tenants, policy and slots come from a base configuration (a scenario, say) or from flags; flags override the base, also when it
is read anew at a reload. SIGTERM and SIGINT drain, a second one stops at once; SIGHUP reloads.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import msgspec
import uvloop

from backends.emulator.cli import port_number
from backends.gateway.config import ConfigError, GatewayConfig, GatewayLimits, Resolve, Upstream, stated_timeouts
from backends.gateway.gate import OnOutcome
from backends.gateway.logs import to_stream
from backends.gateway.server import GatewayServer
from backends.reference import REFERENCE, RIGHT, resolve_references
from backends.usage import UsageParser
from backends.wire.options import WireOptions
from scheduler.auto_rule import AutoRule, Follows, usual_rule
from scheduler.routing import Routing, Rule
from scheduler.slots import Slots
from tenants.tenant import Tenant

READY_PREFIX = "lmperf gateway: serving "
EXIT_OK, EXIT_BAD_CONFIGURATION, EXIT_CANNOT_SERVE = 0, 104, 106
LoadBase = Callable[[], GatewayConfig]
"""Reads a base configuration; called at the start and at every reload. Raises ValueError or OSError."""

_LIMITS = {
    "--max-body-bytes": ("max_body_bytes", int, "largest request body"),
    "--max-header-bytes": ("max_header_bytes", int, "all headers of a request together"),
    "--client-stall-s": ("client_stall_s", float, "how long a client may leave its answer unread"),
    "--drain-s": ("drain_s", float, "what accepted requests get to end when the gateway stops"),
}
_TIMEOUTS = {
    "--queue-timeout-s": ("queue_s", "longest wait in the queue, for tenants without one of their own (default: 600)"),
    "--first-token-timeout-s": (
        "first_token_s",
        "from arrival to the first token of a stream (default: 600 from dispatch)",
    ),
    "--token-timeout-s": ("between_tokens_s", "from one token of a stream to the next (default: 60)"),
    "--timeout-s": (
        "total_s",
        "from arrival to the end of the answer (default: 3600 from dispatch where its tokens cannot be seen, else none)",
    ),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--host", default=None, help="address to listen on (default: 127.0.0.1)")
    parser.add_argument(
        "--port", type=port_number, default=None, help="port to listen on; 0, the default, takes a free one"
    )
    parser.add_argument(
        "--upstream", action="append", default=[], metavar="[NAME=]URL", help="a server to put requests to; repeatable"
    )
    parser.add_argument("--upstream-key", metavar="REF", help=f"key for the upstreams, as {RIGHT}")
    parser.add_argument("--health-path", metavar="PATH", help="what is asked of an upstream (default: /health)")
    parser.add_argument("--insecure", action="store_true", help="accept any certificate of an upstream")
    parser.add_argument(
        "--tenant", action="append", default=[], metavar="NAME[=WEIGHT]", help="a tenant, or its weight; repeatable"
    )
    parser.add_argument(
        "--tenant-key", action="append", default=[], metavar="NAME=REF", help=f"a tenant's API key, as {RIGHT}"
    )
    parser.add_argument("--default-tenant", metavar="NAME", help="who asks when neither key nor header tells")
    parser.add_argument("--policy", metavar="NAME", help="queue policy (default: fifo)")
    parser.add_argument(
        "--policy-option", action="append", default=[], metavar="NAME=VALUE", help="option of the policy; repeatable"
    )
    parser.add_argument("--slots", type=int, metavar="N", help="requests at once at each upstream (default: no limit)")
    parser.add_argument(
        "--prefill-tokens", type=int, metavar="N", help="prompt tokens at once without a first token, each upstream"
    )
    parser.add_argument(
        "--auto-slots",
        choices=[*(follows.value for follows in Follows), "off"],
        help="move the slots by the tenants' TPOT limits, or by the upstreams' own waiting counts",
    )
    parser.add_argument("--min-slots", type=int, metavar="N", help="with --auto-slots: never fewer (default: 40, 1)")
    parser.add_argument("--max-slots", type=int, metavar="N", help="with --auto-slots: never more (default: 128, 1024)")
    parser.add_argument(
        "--routing",
        choices=[rule.value for rule in Rule],
        help="which upstream with room a request goes to; prefix, session: by the prompt's first kilobyte (default: "
        "least_work)",
    )
    parser.add_argument("--admin-key", metavar="REF", help=f"opens /admin to this key, as {RIGHT} (default: closed)")
    for flag, (_, kind, text) in _LIMITS.items():
        parser.add_argument(flag, type=kind, default=None, metavar="N", help=text)
    for flag, (_, text) in _TIMEOUTS.items():
        parser.add_argument(flag, type=float, default=None, metavar="S", help=f"{text}; 0: none")
    parser.add_argument("--no-fold", action="store_true", help="do not ask upstreams to stream what clients do not")
    parser.add_argument(
        "--no-count-tokens", action="store_true", help="do not ask upstreams for usage; implies --no-fold"
    )
    parser.add_argument("--log-level", default="info", choices=("debug", "info", "warning", "error"))


def config_from_args(args: argparse.Namespace, base: GatewayConfig | None = None) -> GatewayConfig:
    """``base`` with what the flags say. Raises ConfigError (and other ValueErrors) that says which flag is wrong."""
    limits: dict[str, Any] = {
        name: value for flag, (name, _, _) in _LIMITS.items() if (value := _given(args, flag)) is not None
    }
    limits |= stated_timeouts(
        {name: value or None for flag, (name, _) in _TIMEOUTS.items() if (value := _given(args, flag)) is not None}
    )
    upstreams = _upstreams(args, () if base is None else base.upstreams)
    tenants = _tenants(args, () if base is None else base.tenants)
    given: dict[str, Any] = {"tenants": tenants, "upstreams": upstreams}
    for name in ("host", "port", "policy", "default_tenant", "admin_key"):
        if getattr(args, name) is not None:
            given[name] = getattr(args, name)
    given["auto"] = _auto(args, None if base is None else base.auto)
    if args.routing is not None:
        routing = Routing() if base is None else base.routing
        given["routing"] = msgspec.structs.replace(routing, rule=Rule(args.routing))
    if args.policy is not None or args.policy_option:
        inherited: Mapping[str, object] = {} if base is None or args.policy is not None else base.options
        given["options"] = {**inherited, **dict(_option(text) for text in args.policy_option)}
    given["limits"] = replace(GatewayLimits() if base is None else base.limits, **limits)
    if args.insecure:
        given["wire"] = replace(WireOptions() if base is None else base.wire, insecure=True)
    if args.no_fold:
        given["fold"] = False
    if args.no_count_tokens:
        given["count_tokens"] = False
    if not upstreams:
        raise ConfigError("no upstream; give one or more, such as --upstream http://localhost:8000")
    if not tenants:
        raise ConfigError("no tenant; give one or more, such as --tenant chat=2 --tenant batch")
    return GatewayConfig(**given) if base is None else replace(base, **given)


def _auto(args: argparse.Namespace, base: AutoRule | None) -> AutoRule | None:
    if args.auto_slots == "off":
        return None
    rule = base if args.auto_slots is None else usual_rule(Follows(args.auto_slots))
    bounds = {name: value for name, value in (("least", args.min_slots), ("most", args.max_slots)) if value is not None}
    if rule is None:
        if bounds:
            raise ConfigError("--min-slots and --max-slots are for automatic slots; add --auto-slots tpot or waiting")
        return None
    return msgspec.structs.replace(rule, **bounds)


def _given(args: argparse.Namespace, flag: str) -> float | None:
    """What a flag of a number says."""
    value: float | None = getattr(args, flag.removeprefix("--").replace("-", "_"))
    return value


def _upstreams(args: argparse.Namespace, base: Sequence[Upstream]) -> tuple[Upstream, ...]:
    found = list(base)
    if args.upstream:
        pairs = [_name_and_url(text, number) for number, text in enumerate(args.upstream, 1)]
        slots = base[0].slots if base else Slots()
        found = [Upstream(name=name, url=resolve_references(url), slots=slots) for name, url in pairs]
    changes: dict[str, Any] = {}
    if args.upstream_key is not None:
        changes["api_key"] = args.upstream_key
    if args.health_path is not None:
        changes["health_path"] = args.health_path
    return tuple(
        replace(
            upstream,
            slots=Slots(
                sequences=upstream.slots.sequences if args.slots is None else args.slots,
                prefill_tokens=upstream.slots.prefill_tokens if args.prefill_tokens is None else args.prefill_tokens,
            ),
            **changes,
        )
        for upstream in found
    )


def _name_and_url(text: str, number: int) -> tuple[str, str]:
    name, equals, url = text.partition("=")
    return (name, url) if equals and "/" not in name and ":" not in name else (f"upstream-{number}", text)


def _tenants(args: argparse.Namespace, base: Sequence[Tenant]) -> tuple[Tenant, ...]:
    found = {tenant.name: tenant for tenant in base}
    for text in args.tenant:
        name, equals, weight = text.partition("=")
        try:
            share = float(weight) if equals else None
        except ValueError as error:
            raise ConfigError(
                f"--tenant {text}: the weight must be a number; right would be --tenant {name}=2"
            ) from error
        known = found.get(name, Tenant(name=name))
        found[name] = known if share is None else replace(known, weight=share)
    for text in args.tenant_key:
        name, equals, reference = text.partition("=")
        if not equals or name not in found:
            raise ConfigError(f"--tenant-key {name}: no tenant of this name; right would be NAME=${{env:VARIABLE}}")
        if REFERENCE.fullmatch(reference) is None:
            raise ConfigError(f"--tenant-key {name}: a key on a command line can be seen by others; give {RIGHT}")
        known = found[name]
        found[name] = replace(known, identity=replace(known.identity, api_key=reference))
    return tuple(found.values())


def _option(text: str) -> tuple[str, object]:
    name, equals, value = text.partition("=")
    if not equals:
        raise ConfigError(f"--policy-option {text}: right would be NAME=VALUE")
    try:
        return name, msgspec.json.decode(value)
    except msgspec.DecodeError:
        return name, value


def run_from_args(
    args: argparse.Namespace,
    *,
    load_base: LoadBase | None = None,
    resolve: Resolve = resolve_references,
    on_outcome: OnOutcome | None = None,
    on_start: Callable[[GatewayServer], object] | None = None,
) -> int:
    """Serve until SIGINT or SIGTERM; returns the exit code. ``on_start`` is called once the gateway serves (its
    ``started_ns`` is what the stamps of outcomes count from).
    """
    to_stream(sys.stderr, args.log_level)

    def load() -> GatewayConfig:
        return config_from_args(args, None if load_base is None else load_base())

    try:
        config = load()
    except (ValueError, OSError) as error:
        print(f"lmperf gateway: {error}", file=sys.stderr)
        return EXIT_BAD_CONFIGURATION
    gateway = GatewayServer(config, resolve=resolve, on_outcome=on_outcome, reload=lambda: _same_port(load(), gateway))
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_serve(gateway, on_start))


def _same_port(config: GatewayConfig, gateway: GatewayServer) -> GatewayConfig:
    return replace(config, port=gateway.config.port)


async def _serve(gateway: GatewayServer, on_start: Callable[[GatewayServer], object] | None) -> int:
    loop = asyncio.get_running_loop()
    first, second = asyncio.Event(), asyncio.Event()

    def asked_to_stop() -> None:
        (second if first.is_set() else first).set()

    for signum in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(signum, asked_to_stop)
    try:
        await gateway.start()
    except (OSError, ValueError) as error:
        print(f"lmperf gateway: cannot serve: {error}", file=sys.stderr)
        return EXIT_BAD_CONFIGURATION if isinstance(error, ValueError) else EXIT_CANNOT_SERVE
    loop.add_signal_handler(signal.SIGHUP, _hang_up, gateway)
    # What start-up made stays for good: keep the collector from walking it while tokens wait.
    gc.collect()
    gc.freeze()
    print(f"{READY_PREFIX}{gateway.config.policy} at {gateway.url}", flush=True)
    if on_start is not None:
        on_start(gateway)
    await first.wait()
    draining = asyncio.ensure_future(gateway.drain())
    at_once = asyncio.ensure_future(second.wait())
    try:
        await asyncio.wait((draining, at_once), return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in (draining, at_once):
            task.cancel()
        await gateway.stop(drain=False)
    return EXIT_OK


def _hang_up(gateway: GatewayServer) -> None:
    try:
        gateway.reload()
    except ValueError as error:
        print(f"lmperf gateway: reload: nothing was changed: {error}", file=sys.stderr)


def main(argv: list[str] | None = None) -> int:
    parser = UsageParser(
        prog="lmperf gateway",
        description="An OpenAI-compatible reverse proxy that keeps a queue policy.",
        allow_abbrev=False,
    )
    add_arguments(parser)
    return run_from_args(parser.parse_args(argv))
