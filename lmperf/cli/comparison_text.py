"""Comparisons as tables for the terminal: policies side by side, and how well a captured run is reproduced."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.console import Console

from loadgen.offline.fidelity import FidelityRow
from loadgen.offline.verdicts import Figure, PolicyVerdict, state_hits
from loadgen.recorder import Recorder
from loadgen.recording.window import rated_s
from loadgen.table import HIT_SHARE, hit_share_text, ruled
from tenants.measures.attainment import attainment, goodput
from tenants.measures.percentile import PercentileValue
from tenants.measures.prefix_cache import cache_hits
from tenants.measures.shares import percent, percent_within
from tenants.slo import Metric


def print_reproduction(console: Console, rows: Sequence[FidelityRow], arrivals: str) -> None:
    """How well the captured run is reproduced, before any comparison."""
    table = ruled(f"the captured run, reproduced (arrivals: {arrivals}); errors are simulated / captured - 1")
    for column in ("tenant", "figure", "captured", "simulated", "error"):
        table.add_column(column, justify="left" if column in ("tenant", "figure") else "right", no_wrap=True)
    for row in rows:
        table.add_row(
            row.tenant,
            row.metric,
            "-" if row.captured is None else f"{row.captured:,.1f} {row.unit}",
            "-" if row.simulated is None else f"{row.simulated:,.1f} {row.unit}",
            "-" if row.error is None else f"{row.error:+.1%}",
        )
    console.print(table)


def print_as_captured(console: Console, runs: Mapping[str, Recorder]) -> None:
    """Every policy on the captured arrivals, per tenant."""
    table = ruled("the captured arrivals under each policy (simulated)")
    cached = any(cache_hits(recorder.columns()).requests for recorder in runs.values())
    hits = ("hit share",) if cached else ()
    if cached:
        table.caption = HIT_SHARE
    for column in ("policy", "tenant", "TTFT P50", "P99", "E2E P50", "P99", *hits, "attained", "goodput 1/s"):
        table.add_column(column, justify="left" if column in ("policy", "tenant") else "right", no_wrap=True)
    for label, recorder in runs.items():
        columns = recorder.columns().judged()
        window_s = rated_s(recorder.window_ns, columns)
        for index, tenant in enumerate(recorder.tenants):
            rows = columns.of(tenant.name)
            share = attainment(rows, tenant.slo).share if tenant.slo.has_limits else None
            cells = [
                _ms(recorder.histogram(metric, tenant.name).percentile(p))
                for metric, p in ((Metric.TTFT, 50.0), (Metric.TTFT, 99.0), (Metric.E2E, 50.0), (Metric.E2E, 99.0))
            ]
            if cached:
                cells.append(hit_share_text(cache_hits(rows).share))
            table.add_row(
                label if index == 0 else "",
                tenant.name,
                *cells,
                "-" if share is None else f"{percent(share)}%",
                f"{goodput(rows, tenant.slo, window_s).requests_per_s:.2f}",
            )
        table.add_section()
    console.print(table)


def print_verdicts(
    console: Console,
    verdicts: Sequence[PolicyVerdict],
    noisy: Sequence[str],
    *,
    loads: str,
    nobody: str = "every tenant",
) -> None:
    """Decay, interference, attainment and throughput of every policy; below it every tenant's tail at both loads.
    ``nobody``: who grows when ``noisy`` is empty."""
    grown = ", ".join(noisy) or nobody
    known = any(verdict.throughput.interval is not None for verdict in verdicts)
    over_seeds = " [95% interval over seeds]" if known else ""
    table = ruled(f"P99 decay and interference: {loads}; {grown} grows.{over_seeds}")
    for column in ("policy", "decay all", "decay in contract", "rho", "worst in contract", "throughput", "Jain"):
        table.add_column(column, justify="left" if column == "policy" else "right", overflow="fold")
    for verdict in verdicts:
        table.add_row(
            verdict.label,
            verdict.decay_all.format(2),
            verdict.decay_in_contract.format(2),
            verdict.rho.format(2),
            verdict.worst_attainment.percent(),
            verdict.throughput_ratio.format(3),
            "-" if verdict.jain.value is None else f"{verdict.jain.value:.3f}",
        )
    table.caption = (
        "decay: TTFT P99 raised / baseline, mean over tenants; rho: 1 - P99 baseline / raised, mean over those in contract, "
        "signed; worst in contract: attainment of the least attained tenant in contract, %, raised load; throughput: against "
        "the first row"
    )
    console.print(table)
    silent = [verdict.label for verdict in verdicts if not verdict.throughput.value]
    if silent:
        console.print(f"no request gets an answer at the raised load under: {', '.join(silent)}", soft_wrap=True)
    _print_tenants(console, verdicts)


def _print_tenants(console: Console, verdicts: Sequence[PolicyVerdict]) -> None:
    table = ruled("per tenant, baseline -> raised load")
    cached = state_hits(verdicts)
    hits = ("hit share %",) if cached else ()
    if cached:
        table.caption = HIT_SHARE
    for column in ("policy", "tenant", "TTFT P50 ms", "TTFT P99 ms", "E2E P99 ms", *hits, "attained %", "goodput 1/s"):
        table.add_column(column, justify="left" if column in ("policy", "tenant") else "right", no_wrap=True)
    for verdict in verdicts:
        for index, name in enumerate(verdict.raised):
            before, after = verdict.baseline[name], verdict.raised[name]
            table.add_row(
                verdict.label if index == 0 else "",
                name,
                _pair(before.ttft_p50, after.ttft_p50, 1e-6, 0),
                _pair(before.ttft_p99, after.ttft_p99, 1e-6, 0),
                _pair(before.e2e_p99, after.e2e_p99, 1e-6, 0),
                *([_pair(before.hit_share, after.hit_share, 100.0, 1)] if cached else []),
                f"{_share(before.attainment)} -> {_share(after.attainment)}",
                _pair(before.goodput, after.goodput, 1.0, 2),
            )
        table.add_section()
    console.print(table)


def _share(found: Figure) -> str:
    return percent_within(found.value, None)


def _pair(before: Figure, after: Figure, scale: float, digits: int) -> str:
    return f"{before.mean(scale, digits)} -> {after.mean(scale, digits)}"


def _ms(value: PercentileValue) -> str:
    bound = value.at_least_ns
    return "-" if bound is None else f"{'> ' if value.never else ''}{bound / 1e6:,.0f}"
