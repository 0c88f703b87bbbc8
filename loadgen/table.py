"""Summaries as tables for the terminal (rich). The words carry everything: colour only repeats them.

The title says which loop made the load (open: arrivals come from a schedule; closed: from users who wait) and which
part of the run was measured. A percentile that falls among requests that never got there prints ``> age``.
"""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.text import Text

from loadgen.fitted_table import Cell, FittedTable
from loadgen.summary.schema import AttainmentSummary, Percentile, Summary, TenantSummary
from tenants.measures.shares import percent

_VERDICT_STYLE = {"kept": "green", "broken": "bold red", "undecided": "yellow", "no_slo": "dim"}
_VERDICT_WORD = {"kept": "kept", "broken": "BROKEN", "undecided": "undecided", "no_slo": "no SLO"}
HIT_SHARE = "hit share: cached of prompt tokens"


def title_of(summary: Summary) -> str:
    """``open loop, measured 10.0 s to 310.0 s, policy wfq``; who queues when it is not us."""
    start, end = summary.window_s
    queue = f"policy {summary.policy or 'none'}" if summary.queueing == "policy" else "queueing: target"
    simulated = "simulated, " if summary.kind == "simulated" else ""
    return f"{simulated}{summary.load_mode} loop, measured {start:.1f} s to {end:.1f} s, {queue}"


def tenant_table(summary: Summary) -> RenderableType:
    """One row a tenant and one for all, latencies in ms; below it what makes the run invalid or doubtful."""
    cached = summary.total.hit_share is not None
    hits = ("hit share",) if cached else ()
    caption = "ms from the intended arrival, TPOT per token; percentiles count what never finished"
    table = FittedTable(
        title_of(summary),
        ("tenant",),
        ("requests", "ok/fail/shed", "TTFT P50", "P99", "TPOT P50", "E2E P99", *hits, "attained", "verdict"),
        caption=f"{caption}; {HIT_SHARE}" if cached else caption,
        left=("verdict",),
    )
    for tenant in summary.tenants:
        table.add_row(*_cells(tenant, cached=cached))
    if len(summary.tenants) > 1:
        table.add_section()
        table.add_row(*_cells(summary.total, cached=cached))
    return Group(*banner(summary), table, *(Text(f"note: {warning}") for warning in summary.warnings))


def banner(summary: Summary) -> list[Text]:
    """What stands above every report of an invalid run; nothing for a valid one."""
    return [Text(f"INVALID RUN: {reason}", style="bold red") for reason in summary.validity.reasons]


def verdict_text(verdict: str) -> Text:
    return Text(_VERDICT_WORD.get(verdict, verdict), style=_VERDICT_STYLE.get(verdict, ""))


def _cells(tenant: TenantSummary, *, cached: bool) -> list[Cell]:
    ended = tenant.statuses
    ok, shed = ended.get("ok", 0), ended.get("shed", 0)
    return [
        tenant.tenant,
        f"{tenant.requests:,}",
        f"{ok:,}/{tenant.requests - ok - shed:,}/{shed:,}",
        _figure(tenant, "ttft", 50.0),
        _figure(tenant, "ttft", 99.0),
        _figure(tenant, "tpot", 50.0),
        _figure(tenant, "e2e", 99.0),
        *([hit_share_text(tenant.hit_share)] if cached else []),
        attainment_text(tenant.attainment),
        verdict_text(tenant.verdict),
    ]


def attainment_text(attained: AttainmentSummary | None) -> str:
    """``99.2%``, cut and not rounded (99.996% is not 100%); ``-`` without limits or requests."""
    if attained is None or attained.share is None:
        return "-"
    return f"{percent(attained.share)}%"


def hit_share_text(share: float | None) -> str:
    """``41.2%``, rounded: nobody promises it; ``-`` where no request states its cached tokens."""
    return "-" if share is None else f"{share:.1%}"


def _figure(tenant: TenantSummary, metric: str, p: float) -> str:
    try:
        return latency_text(tenant.metric(metric).at(p))
    except KeyError:
        return "-"


def latency_text(found: Percentile) -> str:
    """A latency in ms with about three digits: ``7.31``, ``84.2``, ``1,204``, ``> 30,000``, ``-``."""
    if found.beyond_ms is not None:
        return "> " + _short(found.beyond_ms)
    return "-" if found.value_ms is None else _short(found.value_ms)


def _short(value_ms: float) -> str:
    if value_ms < 10:
        return f"{value_ms:.2f}"
    return f"{value_ms:.1f}" if value_ms < 1000 else f"{value_ms:,.0f}"
