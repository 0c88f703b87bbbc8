"""The reports themselves: of one run, and of a comparison."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from loadgen.report import comparison as comparing
from loadgen.report import comparison_sentences, sentences
from loadgen.report.comparison import Comparison, FidelityTable
from loadgen.report.comparison_plots import comparison_plots
from loadgen.report.curves import Curve
from loadgen.report.page import page
from loadgen.report.palette import Look, looks_of
from loadgen.report.plots import Plot
from loadgen.report.run_plots import percentile_plots, series_plots
from loadgen.report.slots_plot import slots_plots
from loadgen.report.thin import MAX_POINTS, drawn_of
from loadgen.summary.schema import Summary
from loadgen.summary.target import target_failed
from loadgen.table import title_of
from loadgen.whole_file import write_whole

REPORT_HTML = "report.html"
COMPARISON_HTML = "comparison.html"

MAX_CHARTED = 12
"""Tenants in one figure; more lines cannot be told apart, so those with the most requests are drawn."""

_TOTAL_POINTS = 6000
_PLAN_CHARACTERS = 100_000


def render_run(
    summary: Summary,
    *,
    curves: Sequence[Curve] = (),
    load: str | None = None,
    command: str | None = None,
    fidelity: FidelityTable | None = None,
    comparison: Comparison | None = None,
) -> str:
    """The report of one run, as the text of an HTML file.

    ``curves``: from :func:`loadgen.report.curves.curves_of`. ``load``: which load it was, in words ("1.2x baseline").
    ``command``: the shell command that runs the same again; default: `lmperf run` (or `simulate`) of the resolved
    scenario beside the report. ``fidelity``: how well a simulation reproduces this run. ``comparison``: what stands in
    the section on policies.
    """
    others = [] if comparison is None else comparison.tenants
    looks = looks_of([*(tenant.tenant for tenant in summary.tenants), *others])
    charted = _charted(summary, looks)
    points = min(MAX_POINTS, _TOTAL_POINTS // max(1, len(charted)))
    series = [drawn_of(one, points) for one in summary.series if one.tenant in charted]
    moved = slots_plots(summary.slots_over_time, summary.duration_s)
    plots = [*percentile_plots(curves, charted), *series_plots(series, charted, summary.window_s), *moved]
    policies = [] if comparison is None else comparison_plots(comparison, _some(looks))
    if comparison is not None and fidelity is None:
        fidelity = comparison.fidelity
    return page(
        "run.html.j2",
        [*plots, *policies],
        heading=title_of(summary),
        name=_name(summary),
        answer=sentences.answer(summary, load),
        summary=summary,
        target_failed=target_failed(summary),
        looks=looks,
        charted=charted,
        curve_plots=[plot.key for plot in plots if plot.key.startswith("curve-")],
        time_plots=[plot.key for plot in plots if plot.key.startswith("series-")],
        command=command or _default_command(summary),
        plan=_plan_text(summary.plan),
        fidelity=fidelity,
        **comparison_context(comparison, policies),
    )


@dataclass(frozen=True, slots=True)
class Section:
    """One comparison of several on a page. ``suffix``: ends its anchors."""

    comparison: Comparison
    plots: list[str]
    suffix: str


def render_comparison(
    comparison: Comparison,
    *,
    others: Sequence[Comparison] = (),
    title: str = "Policies compared",
    command: str | None = None,
) -> str:
    """The report of a comparison alone. ``others``: the same policies with another tenant's load raised, each. Raises
    ValueError when it holds neither verdicts nor runs."""
    if not comparison.verdicts and not comparison.runs:
        raise ValueError("a comparison report needs verdicts of policies, or runs: it was given neither")
    everything = (comparison, *others)
    looks = looks_of(list(dict.fromkeys(name for each in everything for name in each.tenants)))
    plots, sections = [], []
    for number, each in enumerate(everything, 1):
        suffix = "" if number == 1 else f"-{number}"
        drawn = comparison_plots(each, _some(looks), suffix=suffix)
        plots += drawn
        sections.append(Section(each, [plot.key for plot in drawn], suffix))
    policies = plots[: len(sections[0].plots)]
    return page(
        "comparison.html.j2",
        plots,
        heading=title,
        name=title,
        answer=comparison_sentences.answer_of_all(everything),
        sections=sections,
        trust=None if comparison.fidelity is None else comparing.fidelity_line(comparison.fidelity),
        looks=looks,
        charted=_some(looks),
        command=command,
        fidelity=comparison.fidelity,
        **comparison_context(comparison, policies, several=bool(others)),
    )


def write_report(directory: Path, summary: Summary, **options: Any) -> Path:  # noqa: ANN401 (those of render_run)
    """Write ``report.html`` into a run's folder, whole or not at all; ``options`` are those of :func:`render_run`."""
    return write_page(directory / REPORT_HTML, render_run(summary, **options))


def write_comparison(path: Path, comparison: Comparison, **options: Any) -> Path:  # noqa: ANN401 (see below)
    """Write a comparison to ``path`` (a folder: ``comparison.html`` in it), whole or not at all; ``options`` are those
    of :func:`render_comparison`.
    """
    file = path / COMPARISON_HTML if path.is_dir() else path
    return write_page(file, render_comparison(comparison, **options))


def write_page(path: Path, html: str) -> Path:
    """A page, whole or not at all."""
    return write_whole(path, html.encode())


def _charted(summary: Summary, looks: Mapping[str, Look]) -> dict[str, Look]:
    busiest = sorted(summary.tenants, key=lambda tenant: -tenant.requests)[:MAX_CHARTED]
    names = {tenant.tenant for tenant in busiest}
    return {name: look for name, look in looks.items() if name in names}


def _some(looks: Mapping[str, Look]) -> dict[str, Look]:
    return dict(list(looks.items())[:MAX_CHARTED])


def _name(summary: Summary) -> str:
    named = (summary.plan or {}).get("name")
    return named if isinstance(named, str) and named else (summary.policy or summary.kind)


def _default_command(summary: Summary) -> str | None:
    if summary.plan is None or summary.kind not in {"live", "simulated"}:
        return None
    if summary.kind == "live":
        return "lmperf run scenario.resolved.yaml"
    policies = f" --policies {shlex.quote(summary.policy)}" if summary.policy else ""
    return f"lmperf simulate scenario.resolved.yaml{policies}"


def _plan_text(plan: Mapping[str, Any] | None) -> str | None:
    if plan is None:
        return None
    whole = msgspec.json.format(msgspec.json.encode(plan), indent=2).decode()
    if len(whole) <= _PLAN_CHARACTERS:
        return whole
    return f"{whole[:_PLAN_CHARACTERS]}\n... {len(whole) - _PLAN_CHARACTERS:,} characters more in summary.json"


def comparison_context(
    comparison: Comparison | None, policies: Sequence[Plot], *, several: bool = False
) -> dict[str, Any]:
    runs = {} if comparison is None else comparison.runs
    pairs = [(pair, comparing.pair_rows(runs[pair.live], runs[pair.simulated])) for pair in comparing.pairs_of(runs)]
    return {
        "comparison": comparison,
        "policy_plots": [plot.key for plot in policies],
        "suffix": "",
        "several": several,
        "pairs": pairs,
        "judged": comparing.judged,
        "ranked": comparing.ranked,
        "keeps_all": comparing.keeps_all,
        "worst_tenant": comparing.worst_tenant,
    }
