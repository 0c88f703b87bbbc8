"""From the server-side parts of a scenario to backend, policy, slots and trace of a plan."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from backends.wire.url import parse_base_url
from lmperf.scenario.checks import EMBEDDED, policy_options
from lmperf.scenario.faults import Fault
from lmperf.scenario.faults import Path as KeyPath
from lmperf.scenario.load import Scenario
from lmperf.scenario.model import ScenarioModel, TenantRule
from lmperf.scenario.plan import BackendSpec, PolicySpec, RowRule, RuleKind, SlotsSpec, TraceSpec
from lmperf.scenario.server_model import BackendModel, ServerLimitsModel, ServerModel, SlotsModel
from lmperf.scenario.tenant_specs import timeouts_of
from lmperf.scenario.units import ns_of_ms, ns_of_s
from scheduler.routing import Routing
from scheduler.server_model.spec import PRESETS
from scheduler.slots import Slots

DEFAULT_SERVER_MODEL = "h200-llama-8b"
DEFAULT_SEQUENCES = 64
DEFAULT_PREFILL_TOKENS = 2048


def kind_of(model: ScenarioModel) -> str:
    """The kind of backend: what is stated, else ``openai`` for a url, else the embedded server."""
    return model.backend.kind or ("openai" if model.backend.names_a_server else EMBEDDED)


def backend_of(scenario: Scenario, faults: list[Fault]) -> BackendSpec:
    """The backend; missing files are added to ``faults``."""
    model = scenario.model.backend
    kind = kind_of(scenario.model)
    return BackendSpec(
        kind=kind,
        url=None if model.url is None else _normal(model.url),
        urls={name: _normal(server.url) for name, server in servers_of(model).items()},
        routing=Routing(rule=model.routing.rule, slack=model.routing.slack),
        model=model.model,
        endpoint=model.endpoint,
        server_model=_server_model(scenario, faults),
        time_scale=model.time_scale,
        limits=_limits(model.limits),
        offset_ns=ns_of_ms(model.limits.offset_ms),
        insecure=model.insecure,
        ca_file=_file(scenario, ("backend", "ca_file"), model.ca_file, faults),
        proxy=model.proxy,
        timeouts=timeouts_of(scenario.model),
        ignore_eos=model.ignore_eos,
        tokenizer=_file(scenario, ("backend", "tokenizer"), model.tokenizer, faults),
        options=dict(model.options),
    )


def servers_of(model: BackendModel) -> dict[str, ServerModel]:
    """Several servers by name; nothing where the scenario has a single backend."""
    return {server.name or f"server-{number}": server for number, server in enumerate(model.urls or (), 1)}


def _normal(url: str) -> str:
    return url if "${" in url else str(parse_base_url(url))


def _limits(model: ServerLimitsModel) -> dict[str, int | float | bool | None]:
    stated: dict[str, int | float | bool | None] = model.model_dump(exclude_unset=True, exclude={"offset_ms"})
    return stated


def _server_model(scenario: Scenario, faults: list[Fault]) -> str | None:
    name = scenario.model.backend.server_model
    if name is None:
        return DEFAULT_SERVER_MODEL if kind_of(scenario.model) == EMBEDDED else None
    if name in PRESETS:
        return name
    remedy = f"name a file that `lmperf calibrate` wrote, or a preset: {', '.join(sorted(PRESETS))}"
    return _file(scenario, ("backend", "server_model"), name, faults, remedy=remedy)


def _file(
    scenario: Scenario, path: KeyPath, name: str | None, faults: list[Fault], *, remedy: str = "check the path"
) -> str | None:
    """The absolute path of what ``name`` names; a fault when there is nothing."""
    if name is None:
        return None
    file = (scenario.document.folder_of(path) / Path(name).expanduser()).resolve()
    if not file.exists():
        faults.append(scenario.document.fault(path, f"there is no file {file}", remedy))
    return str(file)


def policy_of(model: ScenarioModel) -> PolicySpec:
    """The policy: what is stated, else ``none`` in front of a url (the target's own behaviour), else ``fifo``."""
    if model.policy is None:
        return PolicySpec(name="none" if model.backend.names_a_server else "fifo")
    return PolicySpec(name=model.policy.name, options=policy_options(model.policy))


def slots_of(scenario: Scenario, warnings: list[Fault]) -> SlotsSpec:
    """The slots; unlimited without a queue, and a warning when the scenario states some all the same."""
    stated = scenario.model.slots
    if not policy_of(scenario.model).queues:
        if stated is not None and (stated.sequences is not None or stated.auto is not None):
            warnings.append(
                scenario.document.fault(("slots",), "have no effect: the policy `none` has no queue", "name a policy")
            )
        return SlotsSpec(own=dict.fromkeys(servers_of(scenario.model.backend), Slots()))
    found = _slots_spec(stated)
    return replace(found, own=_own_slots(scenario.model.backend, found))


def _own_slots(backend: BackendModel, common: SlotsSpec) -> dict[str, Slots]:
    return {
        name: Slots(
            sequences=common.sequences if server.sequences is None else server.sequences,
            prefill_tokens=common.prefill_tokens if server.prefill_tokens is None else server.prefill_tokens,
        )
        for name, server in servers_of(backend).items()
    }


def _slots_spec(stated: SlotsModel | None) -> SlotsSpec:
    if stated is None:
        return SlotsSpec(sequences=DEFAULT_SEQUENCES, prefill_tokens=DEFAULT_PREFILL_TOKENS)
    if stated.auto is None:
        return SlotsSpec(sequences=stated.sequences, prefill_tokens=stated.prefill_tokens)
    start = DEFAULT_SEQUENCES if stated.sequences is None else stated.sequences
    least, most = stated.bounds
    unstated = "prefill_tokens" not in stated.model_fields_set
    return SlotsSpec(
        sequences=min(max(start, least), most),
        prefill_tokens=DEFAULT_PREFILL_TOKENS if unstated else stated.prefill_tokens,
        auto=stated.auto,
        least=least,
        most=most,
    )


def trace_of(scenario: Scenario, faults: list[Fault]) -> TraceSpec | None:
    """The slice of a trace that is replayed; a missing file is added to ``faults``."""
    trace = scenario.model.trace
    if trace is None:
        return None
    if trace.path is None:
        faults.append(scenario.document.fault(("trace", "path"), "no trace file is named", "add --set trace.path=FILE"))
    file = _file(scenario, ("trace", "path"), trace.path, faults, remedy="name another: --set trace.path=FILE")
    return TraceSpec(
        path=Path(file or ""),
        format=trace.format,
        speed=trace.speed,
        start_ns=ns_of_s(trace.start_s),
        length_ns=ns_of_s(trace.duration_s),
        rows=trace.rows,
        rule=_rule(trace.tenants, list(scenario.model.tenants)),
    )


def _rule(rule: TenantRule | None, groups: list[str]) -> RowRule:
    if rule is None:
        return RowRule(kind=RuleKind.INDEX, order=(groups[0],)) if len(groups) == 1 else RowRule(kind=RuleKind.OWN)
    return RowRule(
        kind=RuleKind(rule.by),
        order=tuple(rule.order or ()),
        column=rule.column,
        map=rule.map,
        thresholds=tuple(rule.thresholds or ()),
    )
