"""Alternatives side by side in the terminal: who keeps what where, then every tenant."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console

from loadgen.fitted_table import FittedTable
from loadgen.offline.verdicts import PolicyVerdict, TenantVerdict
from loadgen.report.alternatives import AS_CAPTURED, bests_of, policies_of, tenants_of
from loadgen.report.comparison import (
    Comparison,
    at_targets,
    keeps_all,
    promised_in,
    tail_of,
    worst_tenant,
)
from loadgen.report.text import target
from tenants.measures.shares import percent_within

_TO_MS = 1e-6
_WORDS = {"kept": "kept", "broken": "broken", "undecided": "?", "no_slo": "-"}


def print_alternatives(
    console: Console, comparisons: Sequence[Comparison], *, answer: str, against: str = AS_CAPTURED
) -> None:
    """``answer``: what they say, in words; ``against``: what decay is against."""
    shown = [each for each in comparisons if each.verdicts]
    console.print(_overview(shown, against))
    console.print(_by_tenant(shown))
    console.print(answer, soft_wrap=True)


def _overview(comparisons: Sequence[Comparison], against: str) -> FittedTable:
    policies = policies_of(comparisons)
    promised = any(promised_in(each) for each in comparisons)
    table = FittedTable(
        "alternatives side by side, of the tenants in contract",
        ("alternative", "policy"),
        (*(("targets", "worst %") if promised else ()), "TTFT P99 ms", "decay", "tokens/s"),
        caption=(
            "targets: whether all in contract are at theirs; worst %: attainment of the least attained; "
            if promised
            else ""
        )
        + f"TTFT P99: mean; decay: of TTFT P99, against {against}; * best: "
        + ("least attained tenant, then TTFT P99" if promised else "least TTFT P99"),
        left=("targets",),
    )
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


_GROWN = "↑: its load grows there, so it is not in contract unless all of them grow"


def _by_tenant(comparisons: Sequence[Comparison]) -> FittedTable:
    """Policies as columns."""
    every = [tenant for each in comparisons for verdict in each.verdicts for tenant in verdict.raised.values()]
    judged = any(tenant.attainment.value is not None for tenant in every)
    cached = any(each.states_hits for each in comparisons)
    figures = [*(["attained %"] if judged else []), "TTFT P99 ms", *(["hit share %"] if cached else [])]
    policies = policies_of(comparisons)
    table = FittedTable(
        f"every tenant: {' / '.join(figures)}",
        ("tenant", "alternative"),
        policies,
        caption=_GROWN if any(each.noisy for each in comparisons) else None,
    )
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
    return table


def _figures(found: TenantVerdict, *, judged: bool, cached: bool) -> str:
    attained = [percent_within(found.attainment.value, None)] if judged else []
    hits = ["-" if found.hit_share.value is None else f"{100 * found.hit_share.value:.1f}"] if cached else []
    return " / ".join([*attained, found.ttft_p99.mean(_TO_MS, 0), *hits])
