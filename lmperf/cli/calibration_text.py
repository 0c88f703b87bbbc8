"""A calibration for the terminal: the law with its intervals, what speaks against it, and its held-out errors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.console import Console

from lmperf.wiring.ranked import ATTAINED as RANKED_ATTAINED
from lmperf.wiring.ranked import TTFT_P99 as RANKED_TTFT
from lmperf.wiring.ranked import Ranking
from loadgen.fitted_table import FittedTable, ruled
from scheduler.calibration.by_tenant import ATTAINED
from scheduler.calibration.calibrate import Calibration, HeldOut
from scheduler.calibration.figures import mean_errors
from scheduler.calibration.jackknife import MIN_CAPTURES
from scheduler.calibration.within_run import MOST_REQUESTS
from scheduler.calibration.words import FIGURES, PARAMETERS, symbol

_OF_TENANTS = ("ttft_p50", "ttft_p99", "tpot_mean", "e2e_mean")
"""Of a tenant's figures, those that 80 columns have room for; the file has all."""

NOT_TOLD = "not told"
"""In place of the interval of a parameter that the captures leave where the fit starts."""

MOST_ROWS = 12
"""Of tenants, beyond which they are folded."""


def print_calibration(console: Console, found: Calibration) -> None:
    """All of it; nothing of it needs more than 80 columns."""
    _print_law(console, found)
    for warning in found.warnings:
        console.print(f"warning: {warning}", soft_wrap=True)
    _print_errors(console, found)


def _print_law(console: Console, found: Calibration) -> None:
    law, limits, spans = found.spec.law, found.spec.limits, found.spans
    attended = " + attended * pairs of attended tokens" if law.attended_us else ""
    console.print(
        f"step = a + b * prefilled tokens + c * decoding sequences + d * resident KV tokens{attended}", soft_wrap=True
    )
    table = ruled()
    intervals, untold = found.intervals(), found.untold
    table.add_column("parameter", no_wrap=True)
    table.add_column("value", justify="right", no_wrap=True)
    if intervals:
        table.add_column("95% interval", justify="right", no_wrap=True)
    table.add_column("unit", overflow="fold")
    for term in law.__struct_fields__:
        value = getattr(law, term)
        if not value and term not in spans.intervals:
            continue
        one = intervals.get(term)
        told = NOT_TOLD if term in untold else "" if one is None else f"[{one.low:,.4g}, {one.high:,.4g}]"
        interval = [told] if intervals else []
        table.add_row(symbol(term), f"{value:,.4g}", *interval, PARAMETERS[term])
    console.print(table)
    console.print(_kind_of_intervals(found), soft_wrap=True)
    start = ", ".join(
        f"{symbol(term)} {one.value:,.4g} [{one.low:,.4g}, {one.high:,.4g}]" for term, one in spans.intervals.items()
    )
    console.print(f"the fit started from least squares on spans, with a bootstrap's 95%: {start}", soft_wrap=True)
    console.print(
        f"max_num_seqs {limits.max_num_seqs}, max_num_batched_tokens {limits.max_num_batched_tokens}; fitted to "
        f"{spans.requests:,} requests, condition number {spans.condition:.0f}",
        soft_wrap=True,
    )


def _kind_of_intervals(found: Calibration) -> str:
    left = f"; {NOT_TOLD}: the captures leave it where the fit starts" if found.untold else ""
    if found.over_captures():
        return f"intervals: 95%, jackknife over captures{left}"
    if found.within:
        stretch = (
            f", by {MOST_REQUESTS:,} of them, so wider than all would give"
            if found.spans.requests > MOST_REQUESTS
            else ""
        )
        return (
            f"intervals: 95%, bootstrap within the run: how far its own requests leave the law open{stretch}, not how the next "
            f"run may differ; for that, give {MIN_CAPTURES} captures or more{left}"
        )
    return f"no intervals of the parameters: they take {MIN_CAPTURES} captures or more, each of which the others can predict"


def _print_errors(console: Console, found: Calibration) -> None:
    if not found.held_out:
        console.print("no held-out error: the capture is too short to be split in two", soft_wrap=True)
        return
    console.print(
        "held out: each capture predicted by a model that never saw it (of one capture, its second half by its first); "
        "simulated / captured - 1",
        soft_wrap=True,
    )
    rows = [(held.capture, held.errors) for held in found.held_out]
    console.print(_errors_table(rows, found.mean_absolute()))
    _print_tenants(console, found.held_out)


def _errors_table(rows: Sequence[tuple[str, Mapping[str, float]]], means: Mapping[str, float]) -> FittedTable:
    shown = [name for name in FIGURES if name in means]
    table = FittedTable(None, ("capture",), ["tokens/s" if name == "throughput" else FIGURES[name] for name in shown])
    for capture, errors in rows:
        table.add_row(capture, *(_signed(errors.get(name)) for name in shown))
    if len(rows) > 1:
        table.add_section()
        table.add_row("mean absolute", *(f"{means[name]:.1%}" for name in shown))
    return table


def _print_tenants(console: Console, held_out: Sequence[HeldOut]) -> None:
    """Each tenant of each capture; of more than MOST_ROWS the mean absolute over captures, of the worst so many tenants."""
    rows = [(held.capture, name, errors) for held in held_out for name, errors in held.tenants.items()]
    if not rows:
        return
    console.print(
        "by tenant, held out; attained: share of requests that keep all limits, simulated - captured, in points, where a "
        "request waits for its sending as long as it did",
        soft_wrap=True,
    )
    shown = [name for name in (*_OF_TENANTS, ATTAINED) if any(name in errors for _, _, errors in rows)]
    if len(rows) > MOST_ROWS:
        _print_worst_tenants(console, rows, shown)
        return
    table = _tenants_table(shown)
    for held in held_out:
        if held.tenants:
            table.add_row(held.capture, *[""] * len(shown))
        for tenant, errors in held.tenants.items():
            table.add_row(f"  {tenant}", *(_cell(name, errors) for name in shown))
    console.print(table)


def _print_worst_tenants(
    console: Console, rows: Sequence[tuple[str, str, Mapping[str, float]]], shown: Sequence[str]
) -> None:
    by_tenant: dict[str, list[Mapping[str, float]]] = {}
    for _, tenant, errors in rows:
        by_tenant.setdefault(tenant, []).append(errors)
    means = {tenant: mean_errors(found) for tenant, found in by_tenant.items()}
    worst = sorted(means, key=lambda tenant: -max(means[tenant].values(), default=0.0))
    table = _tenants_table(shown)
    for tenant in worst[:MOST_ROWS]:
        table.add_row(tenant, *(_cell(name, means[tenant]).removeprefix("+") for name in shown))
    console.print(table)
    left = f"; {len(worst) - MOST_ROWS} more tenants err less" if len(worst) > MOST_ROWS else ""
    console.print(
        f"mean absolute over captures, the worst first{left}: each is in the file that -o writes (fit.held_out_tenants)",
        soft_wrap=True,
    )


def _tenants_table(shown: Sequence[str]) -> FittedTable:
    return FittedTable(None, ("tenant",), ["attained" if name == ATTAINED else FIGURES[name] for name in shown])


def print_ranking(console: Console, ranking: Ranking) -> None:
    """Whether the policies that were captured come in the same order when they are simulated."""
    if ranking.not_told:
        console.print(f"ranking of policies: not told, {ranking.not_told}", soft_wrap=True)
        return
    table = FittedTable(None, ("policy",), ("worst attained %", "simulated", "TTFT P99 ms", "simulated"))
    for load in ranking.loads:
        for row in load:
            attained = [_percent(side.get(RANKED_ATTAINED)) for side in (row.captured, row.simulated)]
            tails = [f"{side[RANKED_TTFT] / 1e6:,.0f}" for side in (row.captured, row.simulated)]
            table.add_row(row.policy, *attained, *tails)
        table.add_section()
    console.print(
        "ranking of policies, each capture simulated by a model that never saw it; captured and simulated, from the intended "
        "arrival",
        soft_wrap=True,
    )
    console.print(table)
    told = []
    for figure in (RANKED_ATTAINED, RANKED_TTFT):
        ranked, pairs = ranking.pairs(figure)
        told.append(f"by {figure} {f'{ranked} of {pairs} pairs' if pairs else 'not told, they are alike as captured'}")
    console.print(f"ranked as measured: {'; '.join(told)}", soft_wrap=True)


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.1f}"


def _cell(name: str, errors: Mapping[str, float]) -> str:
    return f"{100 * errors[name]:+.1f}" if name == ATTAINED and name in errors else _signed(errors.get(name))


def _signed(error: float | None) -> str:
    return "-" if error is None else f"{error:+.1%}"
