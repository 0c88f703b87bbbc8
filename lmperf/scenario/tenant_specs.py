"""From a tenant's entry in a scenario to :class:`tenants.tenant.Tenant` and its time-outs."""

from __future__ import annotations

from lmperf.scenario.load import Scenario
from lmperf.scenario.members import Member
from lmperf.scenario.model import ScenarioModel
from lmperf.scenario.plan import Timeouts
from lmperf.scenario.server_model import TimeoutsModel
from lmperf.scenario.tenant_model import ContractModel, QueueLimitsModel, SloModel, TenantModel
from lmperf.scenario.units import ns_of_ms, ns_of_s
from tenants.slo import Metric, Objective, Slo
from tenants.tenant import Contract, Identity, QueueLimits, Tenant

TENANT_HEADER = "x-lmperf-tenant"
_CONNECT_S, _BETWEEN_TOKENS_S = 10.0, 60.0


def tenant_of(scenario: Scenario, member: Member, saturation: float | None, weights: float) -> Tenant:
    """The tenant; ``weights`` is the sum over all tenants, for the default contract."""
    model = member.model
    fair_rate = None if saturation is None else saturation * model.weight / weights
    return Tenant(
        name=member.name,
        weight=model.weight,
        priority=model.priority,
        slo=slo_of(model.slo),
        contract=_contract(model.contract or ContractModel(), fair_rate),
        limits=_limits(model.limits),
        expected_output_tokens=model.expected_output_tokens or member.mean_output,
        identity=_identity(scenario.model, model, member.name),
    )


def slo_of(model: SloModel) -> Slo:
    """The SLO in ns."""
    return Slo(
        ttft_ns=ns_of_ms(model.ttft_ms),
        tpot_ns=ns_of_ms(model.tpot_ms),
        e2e_ns=ns_of_ms(model.e2e_ms),
        max_itl_ns=ns_of_ms(model.max_itl_ms),
        attainment=model.attainment,
        objectives=tuple(
            Objective(metric=Metric(o.metric.value), percentile=o.p, limit_ns=ns_of_ms(o.limit_ms))
            for o in model.objectives
        ),
    )


def _contract(model: ContractModel, fair_rate: float | None) -> Contract | None:
    rate = fair_rate if model.rate is None else model.rate
    return None if rate is None else Contract(rate=rate, burst=rate * model.burst_s)


def _limits(model: QueueLimitsModel) -> QueueLimits:
    return QueueLimits(
        max_queued=model.max_queued,
        requests_per_s=model.requests_per_s,
        tokens_per_s=model.tokens_per_s,
        burst_s=model.burst_s,
        ttl_ns=ns_of_s(model.ttl_s),
        shed_out_of_contract=model.shed_out_of_contract,
        reject_late=model.reject_late,
    )


def _identity(scenario: ScenarioModel, model: TenantModel, name: str) -> Identity:
    """The backend's identity with the tenant's over it. A tenant with a server of its own inherits none of the
    backend's key and headers: they were meant for another host.
    """
    backend = scenario.backend
    inherits = model.base_url is None
    headers = {TENANT_HEADER: name}
    for extra in (backend.headers if inherits else {}, model.headers):
        replaced = {key.lower() for key in extra}
        headers = {key: value for key, value in headers.items() if key.lower() not in replaced} | extra
    return Identity(
        api_key=model.api_key or (backend.api_key if inherits else None),
        headers=headers,
        model=model.model,
        base_url=model.base_url,
        extra_body={**backend.extra_body, **model.extra_body},
    )


def timeouts_of(scenario: ScenarioModel, model: TenantModel | None = None) -> Timeouts:
    """Time-outs of a tenant (None: of the backend): its own where stated, else the backend's, else the defaults. A
    ``connect_s`` of null is not stated, since a connection must open within some time."""
    connect_s, stated = _CONNECT_S, {"between_tokens_s": _BETWEEN_TOKENS_S}
    for part in (scenario.backend.timeouts, model.timeouts if model is not None else None):
        if isinstance(part, TimeoutsModel):
            connect_s = part.connect_s or connect_s
            stated.update(part.model_dump(exclude_unset=True))
    return Timeouts(
        connect_ns=ns_of_s(connect_s),
        first_token_ns=ns_of_s(stated.get("first_token_s")),
        between_tokens_ns=ns_of_s(stated.get("between_tokens_s")),
        total_ns=ns_of_s(stated.get("total_s")),
    )
