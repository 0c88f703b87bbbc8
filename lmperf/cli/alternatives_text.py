"""Alternatives side by side in the terminal: who keeps what where, then every tenant."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Console
from rich.table import Table

from loadgen.offline.verdicts import PolicyVerdict, TenantVerdict
from loadgen.report.alternatives import bests_of, policies_of, tenants_of
from loadgen.report.comparison import (
    Comparison,
    at_targets,
    keeps_all,
    promised_in,
    tail_of,
    worst_tenant,
)
from loadgen.report.text import target
from loadgen.table import ruled
from tenants.measures.shares import percent_within

_TO_MS = 1e-6
_WORDS = {"kept": "kept", "broken": "broken", "undecided": "?", "no_slo": "-"}


def print_alternatives(
    console: Console, comparisons: Sequence[Comparison], *, answer: str, against: str = "the trace as captured"
) -> None:
    """``answer``: what they say, in words; ``against``: what decay is against."""
    shown = [each for each in comparisons if each.verdicts]
    console.print(_overview(shown, against))
    for table in _by_tenant(shown, console.width):
        console.print(table)
    console.print(answer, soft_wrap=True)


def _overview(comparisons: Sequence[Comparison], against: str) -> Table:
    policies = policies_of(comparisons)
    promised = any(promised_in(each) for each in comparisons)
    table = ruled(
        "alternatives side by side, of the tenants in contract",
        (
            "targets: whether all in contract are at theirs; worst %: attainment of the least attained; "
            if promised
            else ""
        )
        + f"TTFT P99: mean; decay: of TTFT P99, against {against}; * best: "
        + ("least attained tenant, then TTFT P99" if promised else "least TTFT P99"),
    )
    table.add_column("alternative", overflow="fold")
    table.add_column("policy", overflow="fold")
    if promised:
        table.add_column("targets")
    for column in (*(("worst %",) if promised else ()), "TTFT P99 ms", "decay", "tokens/s"):
        table.add_column(column, justify="right", overflow="fold")
    for each in comparisons:
        best, there = bests_of(each, policies), at_targets(each)
        for number, verdict in enumerate(each.verdicts):
            table.add_row(
                each.name if number == 0 else "",
                f"{verdict.label} *" if verdict.label in best else verdict.label,
                *((_kept(verdict, each, there), _worst(verdict, each)) if promised else ()),
                tail_of(verdict, each).mean(_TO_MS, 0),
                verdict.decay_in_contract.format(2),
                "-" if verdict.throughput.value is None else f"{verdict.throughput.value:,.0f}",
            )
        table.add_section()
    return table


def _worst(verdict: PolicyVerdict, comparison: Comparison) -> str:
    tenant = worst_tenant(verdict, comparison)
    found = verdict.worst_attainment.percent()
    return found if tenant is None else f"{tenant} {found}"


def _kept(verdict: PolicyVerdict, comparison: Comparison, there: Sequence[str]) -> str:
    """Of one realisation only whether it is at its targets; over seeds what that proves."""
    if not promised_in(comparison):
        return "-"
    if comparison.has_intervals:
        return _WORDS[keeps_all(verdict, comparison)]
    return "met" if verdict.label in there else "missed"


_ALTERNATIVE_WIDTH = 28
"""Of a long name's column: it is folded beyond."""

_GROWN = "↑: its load grows there, so it is not in contract unless all of them grow"


def _by_tenant(comparisons: Sequence[Comparison], width: int) -> Iterator[Table]:
    """Policies as columns; as many tables as it takes for their figures to stand on one line each."""
    every = [tenant for each in comparisons for verdict in each.verdicts for tenant in verdict.raised.values()]
    judged = any(tenant.attainment.value is not None for tenant in every)
    cached = any(each.states_hits for each in comparisons)
    figures = [*(["attained %"] if judged else []), "TTFT P99 ms", *(["hit share %"] if cached else [])]
    policies = policies_of(comparisons)
    names = max(len(name) + len(" (99.9%)") for name in tenants_of(comparisons))
    alternatives = min(max(len(each.name) for each in comparisons) + 2, _ALTERNATIVE_WIDTH)
    cell = max(*map(len, policies), len("100.0 / 12,345 / 99.9" if cached else "100.0 / 12,345"))
    at_once = max((width - names - alternatives - 4) // (cell + 2), 1)
    for first in range(0, len(policies), at_once):
        grown = first + at_once >= len(policies) and any(each.noisy for each in comparisons)
        table = ruled(f"every tenant: {' / '.join(figures)}", _GROWN if grown else None)
        table.add_column("tenant", overflow="fold")
        table.add_column("alternative", overflow="fold", max_width=_ALTERNATIVE_WIDTH)
        for label in policies[first : first + at_once]:
            table.add_column(label, justify="right", overflow="fold")
        _add_tenants(table, comparisons, policies[first : first + at_once], judged=judged, cached=cached)
        yield table


def _add_tenants(
    table: Table, comparisons: Sequence[Comparison], policies: Sequence[str], *, judged: bool, cached: bool
) -> None:
    for name in tenants_of(comparisons):
        shown = name
        for each in (each for each in comparisons if name in each.tenants and name not in each.removed):
            if shown and name in each.targets:
                shown = f"{name} ({target(each.targets[name])})"
            of = each.verdicts_by_label
            table.add_row(
                shown,
                f"{each.name}{' ↑' if name in each.noisy else ''}",
                *(
                    _figures(of[label].raised[name], judged=judged, cached=cached) if label in of else "-"
                    for label in policies
                ),
            )
            shown = ""
        table.add_section()


def _figures(found: TenantVerdict, *, judged: bool, cached: bool) -> str:
    attained = [percent_within(found.attainment.value, None)] if judged else []
    hits = ["-" if found.hit_share.value is None else f"{100 * found.hit_share.value:.1f}"] if cached else []
    return " / ".join([*attained, found.ttft_p99.mean(_TO_MS, 0), *hits])
