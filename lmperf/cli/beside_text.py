"""Live runs beside their simulations in the terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Console

from lmperf.wiring.beside import Beside
from loadgen.fitted_table import FittedTable
from loadgen.offline.verdicts import TenantVerdict
from tenants.measures.shares import percent_within

_TO_MS = 1e-6
_LATENCIES = ("ttft_p50", "ttft_p99", "e2e_p50", "e2e_p99")


def print_beside(console: Console, found: Sequence[Beside]) -> None:
    for each in found:
        table = FittedTable(
            f"{each.run} beside {each.simulation}, under {each.policy}: errors are simulated / live - 1",
            ("tenant", "figure"),
            ("live", "simulated", "error"),
        )
        for name, live in each.live.items():
            simulated = each.simulated.get(name)
            if simulated is not None:
                for row, cells in enumerate(_cells(live, simulated)):
                    table.add_row(name if row == 0 else "", *cells)
                table.add_section()
        console.print(table)


def _cells(live: TenantVerdict, simulated: TenantVerdict) -> Iterator[tuple[str, ...]]:
    for key in _LATENCIES:
        metric, _, percentile = key.upper().partition("_")
        measured, predicted = getattr(live, key), getattr(simulated, key)
        error = "-"
        if measured.value and predicted.value is not None and not measured.bound and not predicted.bound:
            error = f"{predicted.value / measured.value - 1:+.1%}"
        yield f"{metric} {percentile} ms", measured.mean(_TO_MS, 1), predicted.mean(_TO_MS, 1), error
    shares = live.attainment.value, simulated.attainment.value
    if shares[0] is not None and shares[1] is not None:
        yield (
            "attained %",
            *(percent_within(share, None) for share in shares),
            f"{100 * (shares[1] - shares[0]):+.1f} points",
        )
