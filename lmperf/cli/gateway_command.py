"""``lmperf gateway``: the queue in front of real servers, for any client; tenants, policy and slots from a scenario or flags.

With ``--trace DIR`` production traffic becomes the simulator's input: the folder is that of a run.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from backends.gateway.cli import add_arguments, run_from_args
from backends.gateway.config import ConfigError, GatewayConfig, GatewayLimits, Upstream, stated_timeouts
from backends.gateway.server import GatewayServer
from backends.reference import resolve_references
from backends.wire.options import WireOptions
from lmperf.catalog import find_scenario
from lmperf.cli.parser import Parser
from lmperf.exit_codes import ExitCode
from lmperf.scenario.faults import ScenarioError
from lmperf.scenario.load import Scenario, load_scenario
from lmperf.scenario.resolve import resolve
from lmperf.scenario.server_model import TimeoutsModel
from lmperf.wiring.dispatching import auto_of, slots_of
from lmperf.wiring.known import installed
from lmperf.wiring.results import write_results
from lmperf.wiring.run_folder import claimed
from loadgen.offline.cell import slots_data
from loadgen.recorder import Recorder
from loadgen.recording.window import FOREVER_NS, window_as_run
from loadgen.table import tenant_table
from loadgen.trace.schema import TraceMetadata
from scheduler.request import Outcome


def main(argv: Sequence[str]) -> int:
    """Parse and serve; returns the exit code."""
    parser = Parser(
        prog="lmperf gateway",
        description="An OpenAI-compatible reverse proxy that keeps a queue policy in front of one or more servers.",
        allow_abbrev=False,
    )
    parser.add_argument("--scenario", metavar="FILE", help="tenants, policy, slots and the upstream; flags override it")
    parser.add_argument("--set", dest="settings", action="append", default=[], metavar="PATH=VALUE")
    parser.add_argument("--trace", metavar="DIR", help="record every request, as a run does: lmperf simulate DIR")
    add_arguments(parser)
    args = parser.parse_args(argv)
    try:
        return _serve(args)
    except ScenarioError as error:
        print(f"lmperf gateway: {error}", file=sys.stderr)
        return int(ExitCode.BAD_CONFIG)


def _serve(args: argparse.Namespace) -> int:
    load_base = None
    resolve_reference = resolve_references
    if args.scenario is not None:
        scenarios = [_scenario(args)]

        def load_base() -> GatewayConfig:
            try:
                scenarios[:] = [_scenario(args)]
                return config_of(scenarios[0])
            except ScenarioError as error:
                raise ConfigError(str(error)) from error

        def resolve_reference(text: str) -> str:
            try:
                return scenarios[0].secrets.resolve(text)
            except ScenarioError as error:
                raise ConfigError(str(error)) from error

    if args.trace is None:
        return run_from_args(args, load_base=load_base, resolve=resolve_reference)
    return _traced(args, load_base, resolve_reference)


def _scenario(args: argparse.Namespace) -> Scenario:
    scenario = load_scenario(find_scenario(args.scenario), overrides=args.settings, known=installed(), traffic=False)
    if scenario.secrets.written_out:
        raise ScenarioError(scenario.secrets.written_out)
    return scenario


def config_of(scenario: Scenario) -> GatewayConfig:
    """A gateway's configuration from a scenario: its url is the upstream, ``none`` is a queue without limits. Raises
    ScenarioError, ValueError.
    """
    backend = scenario.model.backend
    _refuse_servers_of_tenants(scenario)
    # The backend's key and headers are the upstreams'; a run's tenants inherit them, a gateway's clients must not need them.
    bare = backend.model_copy(update={"api_key": None, "headers": {}})
    plan = resolve(
        replace(scenario, model=scenario.model.model_copy(update={"backend": bare})),
        saturation=scenario.model.load.saturation,
    )
    urls = dict(plan.backend.urls)
    if plan.backend.url is not None:
        urls = {"upstream-1": plan.backend.url}
    if not urls:
        raise ValueError("the scenario names no server: set backend.url or urls, or give --upstream URL")
    of_tenants = {planned.tenant.name: scenario.model.tenants[planned.group].timeouts for planned in plan.tenants}
    return GatewayConfig(
        tenants=tuple(planned.tenant for planned in plan.tenants),
        upstreams=tuple(
            Upstream(
                name=name,
                url=scenario.secrets.resolve(url),
                slots=plan.slots.own.get(name) or slots_of(plan),
                api_key=backend.api_key,
                headers=backend.headers,
            )
            for name, url in urls.items()
        ),
        auto=auto_of(plan),
        routing=plan.backend.routing,
        policy=plan.policy.name if plan.policy.queues else "fifo",
        options=dict(plan.policy.options),
        cost=plan.cost,
        limits=replace(GatewayLimits(), **_stated(backend.timeouts)),
        own_limits={name: _stated(timeouts) for name, timeouts in of_tenants.items() if timeouts is not None},
        wire=WireOptions(insecure=plan.backend.insecure, ca_file=plan.backend.ca_file, proxy=plan.backend.proxy),
    )


def _stated(timeouts: TimeoutsModel) -> dict[str, Any]:
    return stated_timeouts(timeouts.model_dump(exclude_unset=True))


def _refuse_servers_of_tenants(scenario: Scenario) -> None:
    """A tenant with a server of its own would be served by another one than the scenario says."""
    faults = [
        scenario.document.fault(
            ("tenants", name, "base_url"), "is not for a gateway, whose upstreams serve all tenants", "remove it"
        )
        for name, tenant in scenario.model.tenants.items()
        if tenant.base_url is not None
    ]
    if faults:
        raise ScenarioError(faults)


def _traced(
    args: argparse.Namespace,
    load_base: Callable[[], GatewayConfig] | None,
    resolve_reference: Callable[[str], str],
) -> int:
    with claimed(Path(args.trace), flag="--trace") as directory:
        return _recorded(args, directory, load_base, resolve_reference)


def _recorded(
    args: argparse.Namespace,
    directory: Path,
    load_base: Callable[[], GatewayConfig] | None,
    resolve_reference: Callable[[str], str],
) -> int:
    holder: list[Recorder] = []
    gateways: list[GatewayServer] = []

    def on_start(gateway: GatewayServer) -> None:
        config = gateway.config
        slots = {upstream.name: upstream.slots for upstream in config.upstreams}
        metadata = TraceMetadata(
            kind="gateway",
            load_mode="open",
            policy=config.policy,
            policy_options=dict(config.options),
            slots=slots_data(config.upstreams[0].slots, config.auto, slots if len(slots) > 1 else {}, config.routing),
            start_monotonic_ns=gateway.started_ns,
            start_utc=datetime.now(UTC).isoformat(timespec="milliseconds"),
        )
        holder.append(Recorder(config.tenants, (0, FOREVER_NS), directory, metadata=metadata))
        gateways.append(gateway)

    def on_outcome(outcome: Outcome) -> None:
        holder[0].on_outcome(outcome)

    code = run_from_args(
        args,
        load_base=load_base,
        resolve=resolve_reference,
        on_outcome=on_outcome,
        on_start=on_start,
    )
    if holder:
        recorder = holder[0]
        end_ns = int(recorder.columns().end_ns.max(initial=0)) + 1
        recorder.window_ns = window_as_run(recorder.window_ns, cut_ns=None, ended_ns=end_ns)
        metadata = recorder.metadata = msgspec.structs.replace(
            recorder.metadata, end_ns=end_ns, window_ns=recorder.window_ns, slot_moves=gateways[0].slot_moves
        )
        result = write_results(recorder, None, metadata=metadata, directory=directory)
        from lmperf.console import results_console  # noqa: PLC0415 (only when there is a trace to show)

        results_console().print(tenant_table(result.summary))
        print(f"trace in {directory}: lmperf simulate {directory}")
    return code
