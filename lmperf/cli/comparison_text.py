"""Comparisons as tables for the terminal: policies side by side, and how well a captured run is reproduced."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.console import Console

from loadgen.fitted_table import FittedTable
from loadgen.offline.fidelity import HOW_READ, FidelityRow
from loadgen.offline.verdicts import Figure, PolicyVerdict, state_hits, verdicts_of_run
from loadgen.recorder import Recorder
from loadgen.table import HIT_SHARE, hit_share_text
from tenants.measures.shares import percent, percent_within

_TO_MS = 1e-6
_LATENCIES = {"TTFT P50": "ttft_p50", "TTFT P99": "ttft_p99", "E2E P50": "e2e_p50", "E2E P99": "e2e_p99"}


def print_reproduction(console: Console, rows: Sequence[FidelityRow], arrivals: str) -> None:
    """How well the captured run is reproduced, before any comparison."""
    table = FittedTable(
        f"the captured run, reproduced (arrivals: {arrivals}); errors are simulated / captured - 1",
        ("tenant", "figure"),
        ("captured", "simulated", "error"),
        caption=HOW_READ,
    )
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
    """Every policy on the captured arrivals, per tenant; from rows, as whatever is compared with them."""
    found = {label: verdicts_of_run(recorder) for label, recorder in runs.items()}
    cached = any(each.hit_share.value is not None for tenants in found.values() for each in tenants.values())
    table = FittedTable(
        "the captured arrivals under each policy (simulated)",
        ("policy", "tenant"),
        (*_LATENCIES, *(("hit share",) if cached else ()), "attained", "goodput 1/s"),
        caption=HIT_SHARE if cached else None,
    )
    for label, tenants in found.items():
        for index, (name, each) in enumerate(tenants.items()):
            share = each.attainment.value
            table.add_row(
                label if index == 0 else "",
                name,
                *(getattr(each, key).mean(_TO_MS, 0) for key in _LATENCIES.values()),
                *([hit_share_text(each.hit_share.value)] if cached else []),
                "-" if share is None else f"{percent(share)}%",
                each.goodput.mean(1.0, 2),
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
    table = FittedTable(
        f"P99 decay and interference: {loads}; {grown} {'grow' if len(noisy) > 1 else 'grows'}.{over_seeds}",
        ("policy",),
        ("decay all", "decay in contract", "rho", "worst in contract", "throughput", "Jain"),
        caption="decay: TTFT P99 raised / baseline, mean over tenants; rho: 1 - P99 baseline / raised, mean over those in "
        "contract, signed; worst in contract: attainment of the least attained tenant in contract, %, raised load; throughput: "
        "against the first row",
    )
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
    console.print(table)
    silent = [verdict.label for verdict in verdicts if not verdict.throughput.value]
    if silent:
        console.print(f"no request gets an answer at the raised load under: {', '.join(silent)}", soft_wrap=True)
    _print_tenants(console, verdicts)


def _print_tenants(console: Console, verdicts: Sequence[PolicyVerdict]) -> None:
    cached = state_hits(verdicts)
    table = FittedTable(
        "per tenant, baseline -> raised load",
        ("policy", "tenant"),
        (
            "TTFT P50 ms",
            "TTFT P99 ms",
            "E2E P99 ms",
            *(("hit share %",) if cached else ()),
            "attained %",
            "goodput 1/s",
        ),
        caption=HIT_SHARE if cached else None,
    )
    for verdict in verdicts:
        for index, name in enumerate(verdict.raised):
            before, after = verdict.baseline[name], verdict.raised[name]
            table.add_row(
                verdict.label if index == 0 else "",
                name,
                _pair(before.ttft_p50, after.ttft_p50, _TO_MS, 0),
                _pair(before.ttft_p99, after.ttft_p99, _TO_MS, 0),
                _pair(before.e2e_p99, after.e2e_p99, _TO_MS, 0),
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
