"""In a narrow terminal a table may fold names and become several; a figure always stands whole on one line."""

from __future__ import annotations

import io
from dataclasses import replace
from types import SimpleNamespace

import pytest
from report_runs import MS, policy_verdict
from rich.console import Console

from lmperf.cli.alternatives_text import print_alternatives
from lmperf.cli.beside_text import print_beside
from lmperf.cli.capacity_text import points_table
from lmperf.cli.compare_command import _table as compare_table
from lmperf.cli.comparison_text import print_as_captured, print_reproduction, print_verdicts
from lmperf.cli.demo_command import _table as demo_table
from lmperf.cli.live_checks import checks_table
from lmperf.cli.suite_command import _other_figures as suite_means
from lmperf.cli.suite_command import _table as suite_table
from lmperf.cli.trace_command import _tenants as trace_table
from lmperf.cli.tune_text import trials_table
from lmperf.wiring.beside import Beside
from lmperf.wiring.confirm import LiveCheck, TenantCheck
from lmperf.wiring.regression import Difference, Reading
from lmperf.wiring.setting import Setting
from lmperf.wiring.suite import SuiteResult, SuiteRow
from lmperf.wiring.tune_ranking import Trial
from loadgen.fitted_table import FittedTable
from loadgen.offline.experiment import PolicyChoice
from loadgen.offline.fidelity import FidelityRow
from loadgen.offline.search import Attained, Point
from loadgen.offline.verdicts import Figure
from loadgen.recorder import Recorder
from loadgen.report.comparison import Comparison
from loadgen.summary import summarise
from loadgen.table import tenant_table
from scheduler.request import Outcome, Request, Status
from scheduler.slots import Slots
from tenants.measures.attainment import Attainment
from tenants.measures.intervals import Interval
from tenants.slo import Slo
from tenants.tenant import Tenant

TENANTS = ("chat", "a-tenant-of-batch-jobs-with-a-long-name", "rag")
POLICIES = ("fifo", "committed:late=demote:order=deadline", "slo_aware:late=demote")
HUGE_MS = {
    "ttft_p50": 1_234_561.4,
    "ttft_p99": 2_345_672.4,
    "e2e_p50": 3_456_783.4,
    "e2e_p99": 4_567_894.4,
}


def verdicts(*, half=None):
    """Of every policy, with latencies of seven digits of ms, and intervals where ``half``."""
    return [_verdict(label, half) for label in POLICIES]


def _verdict(label, half):
    found = policy_verdict(label, 0.9876, decay=1234.56, half=half, tenants=TENANTS, hit_share=0.412)
    one = replace(found.raised["chat"], **{key: Figure(ms * MS, bound=True) for key, ms in HUGE_MS.items()})
    one = replace(one, goodput=Figure(7_654_321.12))
    return replace(
        found,
        baseline=dict.fromkeys(TENANTS, one),
        raised=dict.fromkeys(TENANTS, one),
        throughput=Figure(8_765_432.0),
    )


def recorder():
    """One answer of each tenant, after 1,234,561 ms."""
    tenants = tuple(Tenant(name=name, slo=Slo(ttft_ns=MS)) for name in TENANTS)
    kept = Recorder(tenants, (0, 10**16))
    at = 1_234_561 * MS
    for number, name in enumerate(TENANTS):
        kept.on_outcome(
            Outcome(
                request=Request(id=number, tenant=name, arrival_ns=0, prompt_tokens=10, target_output_tokens=1),
                status=Status.OK,
                ended_ns=at,
                enqueued_ns=0,
                dispatched_ns=0,
                connect_ns=0,
                sent_ns=0,
                first_token_ns=at,
                last_token_ns=at,
                finished_ns=at,
                output_tokens=1,
            )
        )
    return kept


def reproduced(console):
    rows = [FidelityRow(name, "TTFT P99", 1_234_561.4, 7_654_321.4) for name in TENANTS]
    print_reproduction(console, rows, "recorded")


def compared(console):
    interval = Interval(5.2, 0.1234, 4.5678, "t", 5)
    sides = Reading(value=1_234_561.4), Reading(value=7_654_321.4)
    rows = [
        Difference(
            tenant=name, figure="TTFT P99 ms", base=sides[0], run=sides[1], higher_is_worse=True, interval=interval
        )
        for name in TENANTS
    ]
    console.print(compare_table(rows, 0.1))


def points(console):
    known = Attained(0.95, 0.9876, 1000, Interval(0.9876, 0.9812, 0.9923, "t", 10))
    found = tuple(
        Point(1.2345 + n, dict.fromkeys(TENANTS, known), {"chat": 1_234.5}, {"chat": 7_654_321.0}) for n in range(3)
    )
    console.print(points_table("every load tried", "load", dict.fromkeys(TENANTS, 0.95), found))


def trials(console):
    slots = Slots(sequences=128, prefill_tokens=4096)
    of = [Setting(policy=PolicyChoice(label=label, policy="fifo"), slots=slots) for label in POLICIES]
    found = [
        Trial(setting, verdict, missed=(), unsure=(), seats=64)
        for setting, verdict in zip(of, verdicts(half=0.002), strict=True)
    ]
    console.print(trials_table("noisy", found, found[0], 5))
    shown = console.file.getvalue()
    assert all(label[:8] in shown for label in POLICIES)
    assert shown.count("\n >") == shown.count("noisy: what")


def checked(console):
    checks = [
        LiveCheck(
            1.2345,
            tuple(TenantCheck(name, 0.95, Attainment(950, 1000), Attainment(990, 1000)) for name in TENANTS),
            SimpleNamespace(target_failed=None, summary=SimpleNamespace(validity=SimpleNamespace(valid=True))),
        )
    ]
    console.print(checks_table(checks, "policy fifo"))


def suite(console):
    choices = [PolicyChoice(label=label, policy="fifo") for label in POLICIES]
    rows = [
        SuiteRow(f"study-noisy{n}-neighbour", choice, found)
        for n in range(8)
        for choice, found in zip(choices, verdicts(), strict=True)
    ]
    result = SuiteResult("study", rows)
    console.print(suite_table(result, 20))
    console.print(suite_means(result))


def demo(console):
    console.print(demo_table({}, dict.fromkeys(("fifo", "slo_aware"), recorder())))


def of_a_run(console):
    console.print(tenant_table(summarise(recorder())))


def inspected(console):
    lengths = {"mean": 123_456.7, "p50": 1_234_567, "p99": 2_345_678, "max": 3_456_789}
    rows = [
        {"tenant": name, "requests": 7_654_321, "prompt_tokens": lengths, "output_tokens": None} for name in TENANTS
    ]
    console.print(trace_table(rows))


PAIRS = ["> 1,234,561 -> > 1,234,561", "> 2,345,672 -> > 2,345,672", "> 4,567,894 -> > 4,567,894"]
TABLES = {
    "verdicts": (
        lambda console: print_verdicts(console, verdicts(), TENANTS[1:2], loads="one against another"),
        [*PAIRS, "98.7 -> 98.7", "41.2 -> 41.2", "7,654,321.12 -> 7,654,321.12"],
        9,
    ),
    "verdicts over seeds": (
        lambda console: print_verdicts(console, verdicts(half=0.002), TENANTS[1:2], loads="one against another"),
        ["1234.56 [1234.56, 1234.56]", "98.7 [98.5, 98.9]", "1.000 [0.998, 1.002]"],
        3,
    ),
    "as captured": (
        lambda console: print_as_captured(console, dict.fromkeys(POLICIES, recorder())),
        ["1,234,561", "0.0%", "0.00"],
        9,
    ),
    "reproduction": (reproduced, ["1,234,561.4 ms", "7,654,321.4 ms"], 3),
    "beside": (
        lambda console: print_beside(
            console,
            [
                Beside("results/" + "r" * 60, "results/" + "s" * 60, "fifo", v.baseline, v.raised)
                for v in verdicts()[:1]
            ],
        ),
        ["> 1,234,561.4", "> 4,567,894.4"],
        3,
    ),
    "alternatives": (
        lambda console: print_alternatives(
            console,
            [
                Comparison(
                    verdicts=verdicts(),
                    targets=dict.fromkeys(TENANTS, 0.9),
                    name=f"a difference with a long name, number {number}",
                )
                for number in (1, 2)
            ],
            answer="",
        ),
        ["98.7 / > 2,345,672 / 41.2"],
        18,
    ),
    "loads tried": (points, ["1,234.50", "98.76 [98.12, 99.23]", "7,654,321", "kept"], 3),
    "settings tried": (trials, ["1234.56 [1234.56, 1234.56]", "98.7 [98.5, 98.9]"], 3),
    "live checks": (checked, ["95.00 [93.46, 96.26]", "99.00", "agree"], 3),
    "a suite": (suite, ["0.987"], 27),
    "the demo": (demo, ["1,235,223 ms", "0.0%"], 6),
    "a run": (of_a_run, ["1,235,223", "1/0/0", "0.0%", "no SLO"], 3),
    "a trace": (inspected, ["123,456.7", "3,456,789", "7,654,321", "unknown"], 3),
    "compared runs": (compared, ["1,234,561.40", "7,654,321.40", "+520.0% [+12.3, +456.8]"], 3),
}


@pytest.mark.parametrize("width", [60, 80, 128])
@pytest.mark.parametrize("table", TABLES)
def test_no_figure_is_cut_however_narrow_the_terminal(table, width):
    """Each stands on a line as often as there are rows, no line is wider than the terminal, and nothing is left out."""
    show, figures, times = TABLES[table]
    console = Console(width=width, file=io.StringIO(), markup=False)
    show(console)
    lines = console.file.getvalue().splitlines()
    assert max(map(len, lines)) <= width
    text = "\n".join(lines)
    assert "…" not in text
    for figure in figures:
        assert text.count(figure) >= times, f"{figure}\n{text}"


def test_a_table_that_fits_is_one_whose_names_are_whole():
    """And the caption stands once, below the last of several."""
    table = FittedTable("title", ("tenant",), ("first figure", "second figure"), caption="what it means")
    table.add_row("a name of some length", "1,234", "5,678")
    for width, tables in ((60, 1), (24, 2)):
        console = Console(width=width, file=io.StringIO(), markup=False)
        console.print(table)
        text = console.file.getvalue()
        assert (text.count("title"), text.count("what it means")) == (tables, 1)
        assert ("a name of some length" in text) is (tables == 1)
