"""The report of runs side by side: how each differs from the first, their percentile curves one over the other, and all their
figures."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from loadgen.report import comparison_sentences
from loadgen.report.comparison import Comparison
from loadgen.report.curves import Curve
from loadgen.report.page import page
from loadgen.report.palette import Look, looks_of
from loadgen.report.plots import Plot
from loadgen.report.render import MAX_CHARTED, comparison_context, write_page
from loadgen.report.run_plots import percentile_plots
from loadgen.summary.schema import Summary

TITLE = "Runs compared"

MAX_TENANTS = 6
"""Tenants with figures of their own: those with the most requests."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DifferenceRow:
    """One figure of one tenant of two sides, as it is shown. ``verdict``: the class of ``word``, of the verdict's colours."""

    tenant: str
    figure: str
    first: str
    this: str
    change: str
    word: str = ""
    verdict: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunsAgainst:
    """A side against the first. ``how``: what the intervals rest on; ``answer``: what is worse, sentences."""

    name: str
    how: str
    answer: Sequence[str]
    rows: Sequence[DifferenceRow]


def render_runs(
    runs: Mapping[str, Summary],
    against: Sequence[RunsAgainst],
    *,
    curves: Mapping[str, Sequence[Curve]],
    first: str,
    notes: Sequence[str] = (),
    command: str | None = None,
) -> str:
    """The text of an HTML file. ``runs``: every run by what it is called; ``curves``: of each side, by its name; ``first``: the
    name of the side that the others are compared with; ``notes``: what makes them doubtful, sentences."""
    comparison = Comparison(runs=runs)
    sides = looks_of(list(curves)[:MAX_CHARTED])
    busiest = _busiest(runs)
    figures = {name: list(_figures(name, number, curves, sides)) for number, name in enumerate(busiest, 1)}
    return page(
        "runs.html.j2",
        [plot for each in figures.values() for plot in each],
        heading=TITLE,
        name=TITLE,
        answer=comparison_sentences.answer(comparison),
        first=first,
        against=against,
        sides=sides,
        figures_of={name: [plot.key for plot in each] for name, each in figures.items() if each},
        looks=looks_of(comparison.tenants),
        charted={},
        notes=notes,
        fidelity=None,
        command=command,
        **comparison_context(comparison, ()),
    )


def write_runs(path: Path, html: str) -> Path:
    """Write :func:`render_runs` to ``path``, whole or not at all."""
    return write_page(path, html)


def _busiest(runs: Mapping[str, Summary]) -> list[str]:
    requests: dict[str, int] = {}
    for summary in runs.values():
        for tenant in summary.tenants:
            requests[tenant.tenant] = requests.get(tenant.tenant, 0) + tenant.requests
    most = set(sorted(requests, key=lambda name: -requests[name])[:MAX_TENANTS])
    return [name for name in requests if name in most]


def _figures(
    tenant: str, number: int, curves: Mapping[str, Sequence[Curve]], sides: Mapping[str, Look]
) -> Iterator[Plot]:
    """One a metric, a line for each side. ``number``: of the tenant, to end keys with."""
    mine = [
        msgspec.structs.replace(curve, tenant=side)
        for side, found in curves.items()
        for curve in found
        if curve.tenant == tenant
    ]
    for plot in percentile_plots(mine, sides):
        note = plot.note.replace("its tenant's curve", "a curve")
        yield replace(plot, key=f"{plot.key}-{number}", title=f"{tenant}: {plot.title}", note=note)
