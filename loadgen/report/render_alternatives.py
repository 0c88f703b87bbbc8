"""The report of alternatives: one page, the side-by-side tables and figures first, then each alternative in full."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from loadgen.report import comparison as comparing
from loadgen.report.alternatives import AS_CAPTURED, answer_of_alternatives, bests_of, policies_of, tenants_of
from loadgen.report.alternatives_plots import alternatives_plots
from loadgen.report.comparison import Comparison, FidelityTable
from loadgen.report.page import page
from loadgen.report.palette import looks_of
from loadgen.report.render import Section, comparison_context, write_page

TITLE = "Alternatives compared"


def render_alternatives(
    unchanged: Comparison | None,
    alternatives: Sequence[Comparison],
    *,
    notes: Sequence[str] = (),
    fidelity: FidelityTable | None = None,
    command: str | None = None,
    answer: str | None = None,
    against: str = AS_CAPTURED,
) -> str:
    """The text of an HTML file. ``unchanged``: what the others are alternatives to, as if it were one of them; None where they
    are alternatives to each other. ``notes``: what makes them doubtful, sentences. ``answer``: what they say, where not what
    :func:`~loadgen.report.alternatives.answer_of_alternatives` finds. ``against``: what decay is against."""
    everything = [each for each in (unchanged, *alternatives) if each is not None and each.verdicts]
    looks = looks_of(policies_of(everything))
    plots = alternatives_plots(everything, looks)
    sections = [Section(each, [], f"-{number}") for number, each in enumerate(alternatives, 1) if each.verdicts]
    return page(
        "alternatives.html.j2",
        plots,
        heading=TITLE,
        name=TITLE,
        answer=answer or answer_of_alternatives(everything, unchanged="" if unchanged is None else unchanged.name),
        against=against,
        alternatives=everything,
        sections=sections,
        sure=all(each.has_intervals for each in everything),
        cached=any(each.states_hits for each in everything),
        notes=notes,
        tenants=tenants_of(everything),
        policy_looks=looks,
        looks=looks_of(tenants_of(everything)),
        charted={},
        trust=None if fidelity is None else comparing.fidelity_line(fidelity),
        fidelity=fidelity,
        command=command,
        bests_of=bests_of,
        at_targets=comparing.at_targets,
        promised_in=comparing.promised_in,
        tail_of=comparing.tail_of,
        **comparison_context(None, plots),
    )


def write_alternatives(
    path: Path,
    unchanged: Comparison | None,
    alternatives: Sequence[Comparison],
    *,
    notes: Sequence[str] = (),
    fidelity: FidelityTable | None = None,
    command: str | None = None,
    answer: str | None = None,
    against: str = AS_CAPTURED,
) -> Path:
    """Write :func:`render_alternatives` to ``path``, whole or not at all."""
    html = render_alternatives(
        unchanged, alternatives, notes=notes, fidelity=fidelity, command=command, answer=answer, against=against
    )
    return write_page(path, html)
