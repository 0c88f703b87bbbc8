"""The configuration file that the engine's process reads: policy, tenants, and who is meant when nobody is named.

The path stands in the environment variable ``LMPERF_VLLM_CONFIG``, because the engine makes the scheduler in a process of
its own and gives it nothing but vLLM's configuration. TOML, JSON, and YAML where the engine's python has PyYAML (vLLM
brings it). The keys are those of a scenario: what a scenario says of its policy, cost, weights and SLOs holds here.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import msgspec

from scheduler.cost import CostModel
from scheduler.lateness import Late
from scheduler.policies.build import POLICIES, PolicyContext, PolicyError, build_policy
from scheduler.policy import Policy
from tenants.slo import Metric, Objective, Slo
from tenants.tenant import Contract, Tenant

PATH_VARIABLE = "LMPERF_VLLM_CONFIG"
DEFAULT_TENANT_KEY = "lmperf_tenant"

Positive = Annotated[float, msgspec.Meta(gt=0)]
NotNegative = Annotated[float, msgspec.Meta(ge=0)]
Share = Annotated[float, msgspec.Meta(gt=0, lt=1)]


class EngineConfigError(ValueError):
    """The configuration cannot be used; the message says what, in which file, and what would be right."""


class _Part(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A table of the file: a key that is not known is a mistake, never ignored."""


class PolicyEntry(_Part, frozen=True):
    """``options``: the policy's own, and ``late``, ``margin_ms``, ``prefill_rate``."""

    name: str
    options: dict[str, Any] = {}


class CostEntry(_Part, frozen=True):
    prompt: NotNegative = 1.0
    output: Positive = 2.0


class ObjectiveEntry(_Part, frozen=True):
    metric: Metric
    p: Annotated[float, msgspec.Meta(ge=1, lt=100)]
    limit_ms: Positive


class SloEntry(_Part, frozen=True):
    """Policies steer by the TTFT alone; the other limits are taken so that a scenario's entry can be copied whole."""

    ttft_ms: Positive | None = None
    tpot_ms: Positive | None = None
    e2e_ms: Positive | None = None
    max_itl_ms: Positive | None = None
    attainment: Share | None = None
    objectives: list[ObjectiveEntry] = []


class ContractEntry(_Part, frozen=True):
    """``rate`` in cost units/s; the bucket holds ``burst_s`` seconds of it."""

    rate: Positive
    burst_s: Positive = 30.0


class TenantEntry(_Part, frozen=True):
    weight: Positive = 1.0
    priority: int = 0
    slo: SloEntry = SloEntry()
    contract: ContractEntry | None = None
    expected_output_tokens: Positive | None = None


class _File(_Part, frozen=True):
    policy: str | dict[str, Any]
    tenants: Annotated[dict[str, TenantEntry], msgspec.Meta(min_length=1)]
    default_tenant: str | None = None
    tenant_key: Annotated[str, msgspec.Meta(min_length=1)] = DEFAULT_TENANT_KEY
    cost: CostEntry = CostEntry()
    prefill_rate: Positive = 40_000.0
    allow_untested_version: bool = False


class EngineConfig(msgspec.Struct, frozen=True, kw_only=True):
    """``tenant_key``: the name in ``vllm_xargs`` under which a request names its tenant. ``default_tenant`` None: a request
    that names no known tenant is refused. ``prefill_rate`` in tokens/s, for the lateness of requests.
    """

    policy: PolicyEntry
    tenants: tuple[Tenant, ...]
    default_tenant: str | None = None
    tenant_key: str = DEFAULT_TENANT_KEY
    cost: CostModel = CostModel()
    prefill_rate: float = 40_000.0
    allow_untested_version: bool = False

    @property
    def judges_lateness(self) -> bool:
        """True when the policy demotes or sheds what can no longer meet its TTFT limit."""
        return bool(self.policy.options.get("late", POLICIES.load(self.policy.name).default_late) != Late.KEEP)

    def build(self) -> Policy:
        """The policy, told its tenants. Raises PolicyError."""
        context = PolicyContext(cost=self.cost, prefill_rate=self.prefill_rate)
        policy = build_policy(self.policy.name, self.policy.options, context)
        policy.set_tenants(self.tenants, 0)
        return policy


def config_from_environment(environment: Mapping[str, str] = os.environ) -> EngineConfig:
    """The file that the environment names. Raises EngineConfigError."""
    path = environment.get(PATH_VARIABLE)
    if not path:
        raise EngineConfigError(
            f"lmperf's scheduler class needs a configuration: set {PATH_VARIABLE} to the path of a TOML, JSON or YAML "
            "file with `policy` and `tenants` in the environment that vLLM is started in"
        )
    return read_config(Path(path))


def read_config(path: Path) -> EngineConfig:
    """Checked whole: the policy is built once, so that a wrong option is found here. Raises EngineConfigError."""
    try:
        file = _decode(path, path.read_bytes())
        config = _config(file)
        config.build()
    except OSError as error:
        raise EngineConfigError(f"{path}: cannot be read: {error.strerror}; {PATH_VARIABLE} names it") from error
    except (msgspec.MsgspecError, PolicyError, ValueError) as error:
        raise EngineConfigError(f"{path}: {error}") from error
    return config


def _decode(path: Path, data: bytes) -> _File:
    if path.suffix == ".toml":
        return msgspec.toml.decode(data, type=_File)
    if path.suffix == ".json":
        return msgspec.json.decode(data, type=_File)
    if path.suffix in {".yaml", ".yml"}:
        try:
            return msgspec.yaml.decode(data, type=_File)
        except ImportError as error:
            raise EngineConfigError("YAML needs PyYAML in the engine's python; write it as .toml or .json") from error
    raise EngineConfigError(f"{path.suffix or 'a name without suffix'} is no known format; use .toml, .json or .yaml")


def _config(file: _File) -> EngineConfig:
    if file.default_tenant is not None and file.default_tenant not in file.tenants:
        known = ", ".join(file.tenants)
        raise EngineConfigError(f"default_tenant {file.default_tenant!r} is not a tenant; known: {known}")
    return EngineConfig(
        policy=_policy(file.policy),
        tenants=tuple(_tenant(name, entry) for name, entry in file.tenants.items()),
        default_tenant=file.default_tenant,
        tenant_key=file.tenant_key,
        cost=CostModel(prompt_weight=file.cost.prompt, output_weight=file.cost.output),
        prefill_rate=file.prefill_rate,
        allow_untested_version=file.allow_untested_version,
    )


def _policy(given: str | dict[str, Any]) -> PolicyEntry:
    """A name, or a table of the name and its options, as in a scenario."""
    if isinstance(given, str):
        return PolicyEntry(name=given)
    options = dict(given)
    name = options.pop("name", None)
    if not isinstance(name, str):
        raise EngineConfigError('policy: a table needs the policy\'s name, such as {name = "wfq", late = "demote"}')
    return PolicyEntry(name=name, options=options)


def _tenant(name: str, entry: TenantEntry) -> Tenant:
    slo = entry.slo
    limits = (slo.ttft_ms, slo.tpot_ms, slo.e2e_ms, slo.max_itl_ms)
    if slo.attainment is None and any(limit is not None for limit in limits):
        raise EngineConfigError(f"tenants.{name}.slo: limits need a target, such as attainment = 0.99")
    contract = entry.contract
    return Tenant(
        name=name,
        weight=entry.weight,
        priority=entry.priority,
        slo=Slo(
            ttft_ns=_ns(slo.ttft_ms),
            tpot_ns=_ns(slo.tpot_ms),
            e2e_ns=_ns(slo.e2e_ms),
            max_itl_ns=_ns(slo.max_itl_ms),
            attainment=slo.attainment,
            objectives=tuple(
                Objective(metric=o.metric, percentile=o.p, limit_ns=round(o.limit_ms * 1e6)) for o in slo.objectives
            ),
        ),
        contract=None if contract is None else Contract(rate=contract.rate, burst=contract.rate * contract.burst_s),
        expected_output_tokens=entry.expected_output_tokens,
    )


def _ns(milliseconds: float | None) -> int | None:
    return None if milliseconds is None else round(milliseconds * 1e6)
