"""Wherever an attainment is shown, 0.9996 is no full one and 0.8999 does not read as a promised 0.9."""

from __future__ import annotations

import io
from types import SimpleNamespace

import pytest
from report_runs import Html, policy_verdict
from rich.console import Console

from lmperf.cli.capacity_text import attained_text
from lmperf.cli.compare_command import _table as compare_table
from lmperf.cli.comparison_text import print_verdicts
from lmperf.cli.live_checks import print_checks
from lmperf.cli.suite_command import _other_figures
from lmperf.cli.suite_command import _table as suite_table
from lmperf.wiring.confirm import Confirmation, TenantCheck
from lmperf.wiring.offline import PolicyChoice
from lmperf.wiring.regression import Difference, Reading
from lmperf.wiring.suite import SuiteResult, SuiteRow
from loadgen.offline.search import Attained
from loadgen.report import Comparison, render_comparison
from loadgen.report.text import allowed, budget
from loadgen.summary.schema import AttainmentSummary
from tenants.measures.attainment import Attainment
from tenants.measures.shares import percent

SHOWN = {0.9996: ("99.9", "99.96", "0.999"), 0.8999: ("89.9", "89.99", "0.899"), 0.89996: ("89.9", "89.99", "0.899")}
"""How the share reads in percent, with one digit and with two, and plain."""


def printed(show) -> str:
    out = io.StringIO()
    show(Console(file=out, width=200))
    return out.getvalue()


@pytest.fixture(params=SHOWN)
def share(request):
    return request.param


def suite(share):
    verdict = policy_verdict("wfq", share, half=None)
    return SuiteResult("policy-study", [SuiteRow("study-a-flooder", PolicyChoice(label="wfq", policy="wfq"), verdict)])


def compared(share):
    found = Reading(value=share)
    one = Difference(tenant="chat", figure="attained", base=found, run=found, higher_is_worse=False, share=True)
    return compare_table([one], 0.1)


def checked(share):
    seen = Attainment(round(share * 100_000), 100_000)
    check = SimpleNamespace(load=1.0, tenants=[TenantCheck("chat", 0.9, seen, seen)], agrees=True, valid=True)
    check.kept_live = check.kept_simulated = False
    return Confirmation((1.0,), [check])


TABLES = {
    "compare": (0, 2, lambda share: lambda console: console.print(compared(share))),
    "verdicts": (
        0,
        5,
        lambda share: (
            lambda console: print_verdicts(
                console, [policy_verdict("wfq", share, half=None)], ["batch"], loads="baseline against raised"
            )
        ),
    ),
    "suite": (2, 2, lambda share: lambda console: console.print(suite_table(suite(share), 5))),
    "suite means": (2, 2, lambda share: lambda console: console.print(_other_figures(suite(share)))),
    "capacity": (1, 1, lambda share: lambda console: console.print(attained_text(Attained(0.9, share, 10_000, None)))),
    "live checks": (1, 2, lambda share: lambda console: print_checks(console, checked(share), what="these")),
}
"""By name: which of the words in SHOWN, how often, and the table."""


@pytest.mark.parametrize("table", TABLES)
def test_no_table_shows_a_share_better_than_it_is(table, share):
    form, times, show = TABLES[table]
    text = printed(show(share))
    assert text.split().count(SHOWN[share][form]) == times, text


def test_a_figure_s_words_are_cut_like_its_table(share):
    """What shows under the pointer is written here, since the library rounds; the target stands as it was set."""
    verdict = policy_verdict("wfq", share, half=None)
    page = Html(render_comparison(Comparison(verdicts=[verdict], targets={"chat": 0.9995})))
    traces = page.figures["policies-attainment"]["data"]
    words = [text for trace in traces for text in trace.get("text", ())]
    assert words == 2 * [f"{percent(share, 3 if share > 0.985 else 2)}%"], "of two tenants"
    assert "target 99.95%" in [trace["hovertemplate"] for trace in traces]


def test_an_overdrawn_budget_is_no_full_one():
    """What is spent is raised, what the target allows is cut: one miss of 0.96 is one too many."""
    assert [budget(spent) for spent in (1.004, 1.0, 0.0, None)] == ["101%", "100%", "0%", "–"]
    found = AttainmentSummary(met=95, total=96, share=95 / 96, target=0.99, interval=None, budget_spent=1 / 0.96)
    assert (allowed(found), budget(found.budget_spent)) == ("0.9", "105%")
