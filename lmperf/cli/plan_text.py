"""A plan as text for people: what would be sent, where, and how sure its verdicts could be."""

from __future__ import annotations

from rich.table import Table

from lmperf.console import results_console
from lmperf.scenario.plan import Plan, PlannedTenant
from tenants.measures.shares import promised
from tenants.verdict import limits_text


def print_plan(plan: Plan) -> None:
    """Prints to stdout."""
    console = results_console()
    console.print(f"scenario {plan.name}: {plan.description}" if plan.description else f"scenario {plan.name}")
    duration = "until its requests are sent" if plan.duration_ns is None else f"{plan.duration_ns / 1e9:g} s"
    window = plan.window
    judged = "" if window is None else f", judged {window.start_ns / 1e9:g} s to {window.end_ns / 1e9:g} s"
    console.print(f"arrivals: {duration}{judged}; seed {plan.seed}; load: {plan.at.value}")
    slots = plan.slots
    queue = f"policy {plan.policy.name}, slots: {slots_text(slots.sequences, slots.prefill_tokens)}"
    console.print(f"queueing: {queue if plan.policy.queues else 'the target (no queue of ours)'}")
    console.print(f"backend: {plan.backend.where} {plan.backend.server_model or ''}")
    if plan.routed:
        console.print(f"servers: {plan.routed}", soft_wrap=True)
    if plan.workers > 1:
        console.print(f"workers: {plan.workers} processes carry a live run")
    if plan.saturation is not None:
        console.print(f"saturation: {plan.saturation:,.0f} cost units/s")
    table = Table(box=None, pad_edge=False)
    for column in ("tenant", "weight", "rate 1/s", "of saturation", "promise", "P99 known to", "verdict needs"):
        table.add_column(column)
    for planned in plan.tenants:
        table.add_row(*_row(plan, planned))
    console.print(table)
    for warning in plan.warnings:
        console.print(f"warning: {warning}")


def slots_text(sequences: object, prefill_tokens: object) -> str:
    """``64 sequences, 2048 prefill tokens``; without a limit: ``unlimited``."""
    parts = [
        f"{n} {what}" for n, what in ((sequences, "sequences"), (prefill_tokens, "prefill tokens")) if n is not None
    ]
    return ", ".join(parts) or "unlimited"


def _row(plan: Plan, planned: PlannedTenant) -> tuple[str, ...]:
    from tenants.measures.precision import duration_for_verdict_s, expected_width  # noqa: PLC0415 (heavy; only here)

    rate = planned.traffic.arrivals.rate if planned.traffic is not None else None
    slo = planned.tenant.slo
    promise = f"{promised(slo.attainment)}% with {limits_text(slo)}" if slo.attainment is not None else "-"
    width = needs = "-"
    window = plan.window
    if rate is not None and window is not None:
        requests = round(rate * (window.end_ns - window.start_ns) / 1e9)
        if requests > 0:
            expected = expected_width(requests, 99.0)
            width = str(expected)
        if slo.attainment is not None:
            needs = f"{duration_for_verdict_s(rate, slo.attainment):,.0f} s"
    share = "-" if planned.offered is None or not plan.saturation else f"{planned.offered / plan.saturation:.3f}"
    return (
        planned.tenant.name,
        f"{planned.tenant.weight:g}",
        "-" if rate is None else f"{rate:.3g}",
        share,
        promise,
        width,
        needs,
    )
