"""From the traffic parts of a scenario to :class:`tenants.traffic.Traffic`."""

from __future__ import annotations

from collections.abc import Sequence

from lmperf.scenario.tenant_model import TenantModel
from lmperf.scenario.traffic_model import ArrivalsModel, LengthParameters, LengthsModel
from tenants.traffic import Arrivals, Distribution, Lengths, Process, Sessions, Traffic


def distribution_of(model: LengthParameters) -> Distribution:
    """The distribution that is named, else the one that the parameters imply."""
    if model.distribution is not None:
        return model.distribution
    given = model.model_fields_set
    implied = (
        ("parts", Distribution.MIXTURE),
        ("values", Distribution.EMPIRICAL),
        ("alpha", Distribution.ZIPF),
        ("cv", Distribution.LOGNORMAL),
        ("mean", Distribution.FIXED),
    )
    return next((kind for key, kind in implied if key in given), Distribution.UNIFORM)


def lengths_of(model: LengthParameters) -> Lengths:
    """The distribution as the workload draws it."""
    parts = model.parts if isinstance(model, LengthsModel) else None
    return Lengths(
        distribution=distribution_of(model),
        mean=1.0 if model.mean is None else model.mean,
        cv=model.cv or 0.0,
        low=model.min or 1,
        high=model.max,
        alpha=1.5 if model.alpha is None else model.alpha,
        values=tuple(model.values or ()),
        parts=tuple((part.weight, lengths_of(part)) for part in parts or ()),
    )


def process_of(tenant: TenantModel, *, traced: bool) -> Process:
    """The arrival process; ``users`` and a trace imply theirs."""
    if traced:
        return Process.TRACE
    return Process.CLOSED if tenant.users is not None else tenant.arrivals.process


def arrivals_of(
    model: ArrivalsModel,
    process: Process,
    *,
    rate: float | None = None,
    users: int | None = None,
    think_s: float | None = None,
) -> Arrivals:
    """The arrival process as the workload draws it."""
    defaults = Arrivals()
    pause = model.failure_pause_s
    return Arrivals(
        process=process,
        rate=rate,
        burstiness=1.0 if model.burstiness is None else model.burstiness,
        burst_size=model.burst_size or 1,
        burst_rate=model.burst_rate,
        fixed_epochs=model.fixed_epochs,
        ramp_from=model.ramp_from or 0.0,
        steps=tuple((start, steps_rate) for start, steps_rate in model.steps or ()),
        on_s=model.on_s,
        period_s=model.period_s,
        active=tuple((start, end) for start, end in model.active or ()),
        users=users,
        think_s=think_s or 0.0,
        failure_pause_s=defaults.failure_pause_s if pause is None else pause,
    )


def traffic_of(
    tenant: TenantModel,
    arrivals: Arrivals,
    *,
    file_columns: tuple[Sequence[int] | None, Sequence[int] | None] = (None, None),
    first_token_timeout_s: float | None = None,
    timeout_s: float | None = None,
) -> Traffic:
    """The tenant's traffic; ``file_columns`` are the prompt and output tokens of its ``lengths_file``."""
    prompts, outputs = file_columns
    joint: tuple[tuple[int, int], ...] = ()
    if tenant.pairs:
        joint = tuple((prompt, output) for prompt, output in tenant.pairs)
    elif prompts is not None and outputs is not None:
        joint = tuple(zip(prompts, outputs, strict=True))
    sessions = tenant.sessions
    return Traffic(
        arrivals=arrivals,
        prompt=_lengths(tenant.prompt, prompts),
        output=_lengths(tenant.output, outputs),
        joint=joint,
        sessions=None if sessions is None else Sessions(turns=lengths_of(sessions.turns), think_s=sessions.think_s),
        shared_prefix_tokens=tenant.shared_prefix_tokens,
        shared_prefixes=tenant.shared_prefixes,
        max_tokens=tenant.max_tokens,
        cancel_share=0.0 if tenant.cancel is None else tenant.cancel.share,
        cancel_after_s=None if tenant.cancel is None else tenant.cancel.after_s,
        first_token_timeout_s=first_token_timeout_s,
        timeout_s=timeout_s,
    )


def _lengths(model: LengthsModel | None, values: Sequence[int] | None) -> Lengths:
    if model is not None:
        return lengths_of(model)
    if values is not None:
        return Lengths(distribution=Distribution.EMPIRICAL, values=tuple(values))
    return Lengths()
