"""The report of alternatives: what it says of them, and that its page holds what it says."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from report_runs import Html
from rich.console import Console
from test_report_comparison import policy_verdict

from lmperf.cli.alternatives_text import print_alternatives
from loadgen.offline.verdicts import Figure
from loadgen.report.alternatives import answer_in_common, answer_of_alternatives, bests_of
from loadgen.report.comparison import Comparison
from loadgen.report.render_alternatives import render_alternatives


def alternative(name, **attained):
    """One realisation; attainment of chat, promised 90%, by policy."""
    verdicts = [policy_verdict(label, share, half=None) for label, share in attained.items()]
    return Comparison(verdicts=verdicts, targets={"chat": 0.9}, in_contract=("chat",), difference=True, name=name)


def said(*comparisons):
    return answer_of_alternatives(comparisons, unchanged="as captured")


BOTH = alternative("as captured", fifo=0.95, wfq=0.99)


def test_who_keeps_every_target_from_where_on_is_said():
    """A policy stays named as long as it is at its targets; the end of growing values is `from ... on`."""
    sweep = [alternative(f"rate={rate}", fifo=0.5, wfq=0.95) for rate in ("1.6", "2")]
    assert said(BOTH, alternative("rate=1.3", fifo=0.93, wfq=0.99), *sweep) == (
        "At every target (one realisation: undecided): every policy as captured and under rate=1.3; "
        "only wfq from rate=1.6 on. Best: wfq everywhere."
    )
    lost = [alternative(f"rate={rate}", fifo=0.8, wfq=0.5) for rate in ("3", "4")]
    assert said(BOTH, *sweep, *lost) == (
        "At every target (one realisation: undecided): every policy as captured; "
        "only wfq under rate=1.6 and rate=2; no policy from rate=3 on. "
        "Best: wfq as captured and under rate=1.6 and rate=2; fifo from rate=3 on."
    )


@pytest.mark.parametrize("names", [("rate=2", "rate=1.6"), ("replicas=2", "rate=2"), ("two", "three")])
def test_what_does_not_grow_has_no_from_on(names):
    """Values that fall, other keys, names."""
    others = [alternative(name, fifo=0.5, wfq=0.95) for name in names]
    assert f"only wfq under {names[0]} and {names[1]}" in said(BOTH, *others)


def test_one_policy_has_no_best_and_many_names_are_counted():
    """With one policy the question is where it is at its targets."""
    lone = alternative("as captured", fifo=0.95)
    bad = [alternative(f"n{number}", fifo=0.1) for number in range(8)]
    assert (
        said(lone, *bad)
        == "At every target (one realisation: undecided): fifo as captured; no policy under n0, n1, n2, n3 and 4 more."
    )
    assert said(*bad) == "At every target (one realisation: undecided): no policy anywhere."


def test_where_nothing_was_promised_one_policy_is_told_by_its_tail():
    """There is nothing to be best at, and nothing to keep."""
    slow, fast = (replace(alternative(name, fifo=None), targets={}) for name in ("as captured", "replicas=2"))
    (verdict,) = fast.verdicts
    quick = {name: replace(tenant, ttft_p99=Figure(100e6)) for name, tenant in verdict.raised.items()}
    fast = replace(fast, verdicts=[replace(verdict, raised=quick)])
    assert said(slow, fast) == "TTFT P99 is least under replicas=2."


def test_equal_policies_are_all_alike():
    """Nobody is called best, nor marked."""
    equal = alternative("removed", fifo=0.95, wfq=0.95)
    assert bests_of(equal, ("fifo", "wfq")) == []
    assert bests_of(BOTH, ("fifo", "wfq")) == ["wfq"]
    assert said(BOTH, equal).endswith("Best: wfq as captured; all alike under removed.")


def test_an_alternative_that_was_cut_off_decides_nothing():
    """It lacks a policy, since an interrupt came first: the sentence is of the others, and nobody is marked best in it."""
    cut = alternative("rate=2", fifo=0.5)
    assert said(BOTH, cut) == said(BOTH)
    assert bests_of(cut, ("fifo", "wfq")) == []
    assert said(cut, alternative("rate=3", wfq=0.5)) == "No alternative was simulated under every policy."


def test_of_several_folders_only_policies_in_common_are_judged():
    """One that was tried in one folder alone may have been best in the other too."""
    words = answer_in_common([BOTH, alternative("other", fifo=0.95, edf=1.0)], unchanged="as captured")
    assert (
        words == "Of what stands in all of them (fifo). At every target (one realisation: undecided): fifo everywhere."
    )
    assert answer_in_common([alternative("x", edf=1.0), BOTH]).startswith("No policy stands in all")


def test_with_intervals_it_says_what_is_shown():
    """Over seeds a target is kept when the interval says so."""
    sure = Comparison(
        verdicts=[policy_verdict("fifo", 0.5), policy_verdict("wfq", 0.99)],
        targets={"chat": 0.9},
        in_contract=("chat",),
        name="a",
    )
    assert answer_of_alternatives([sure, replace(sure, name="b")]).startswith(
        "Shown to keep every SLO: only wfq everywhere."
    )


def test_the_page_has_every_alternative_and_a_line_for_each_policy():
    """The answer as its heading; the tables; three figures whose points are in the order of the alternatives; a section for
    each alternative, none for the trace itself. A name is text, whatever it holds."""
    hostile = alternative("<b>&'\"", fifo=0.5, wfq=0.95)
    page = Html(render_alternatives(BOTH, [hostile, alternative("rate=2", fifo=0.4, wfq=0.92)], notes=["mind this"]))
    assert (
        "At every target (one realisation: undecided): every policy as captured; only wfq under <b>&'\" and rate=2."
        in page.words
    )
    assert "mind this." in page.words
    assert set(page.figures) == {"alternatives-attainment", "alternatives-ttft", "alternatives-decay"}
    lines = {trace["name"]: trace for trace in page.figures["alternatives-attainment"]["data"]}
    assert (lines["fifo"]["x"], lines["fifo"]["y"]) == ([0, 1, 2], [0.95, 0.5, 0.4])
    assert lines["wfq"]["y"] == [0.99, 0.95, 0.92]
    assert lines["target"]["y"] == [0.9, 0.9]
    assert "Policies: <b>&'\"" in page.words
    assert "Policies: as captured" not in page.words


def test_a_policy_that_was_not_reached_has_a_gap():
    """No point where nothing was simulated, and a dash in the table."""
    page = Html(render_alternatives(BOTH, [alternative("rate=2", fifo=0.5)]))
    lines = {trace["name"]: trace for trace in page.figures["alternatives-attainment"]["data"]}
    assert lines["wfq"]["x"] == [0]
    assert "50.0%" in page.words


def test_a_line_joins_neighbours_alone():
    """Between two alternatives of one folder stand those of another, in which this policy was not simulated."""
    page = Html(render_alternatives(BOTH, [alternative("a", fifo=0.5), alternative("b", fifo=0.4, wfq=0.95)]))
    drawn = [t for t in page.figures["alternatives-attainment"]["data"] if t["name"] == "wfq"]
    line = next(trace for trace in drawn if trace["mode"] == "lines")
    points = next(trace for trace in drawn if trace["mode"] == "markers")
    assert (line["x"], line["y"], line["connectgaps"]) == ([0, 1, 2], [0.99, None, 0.95], False)
    assert (points["x"], points["y"]) == ([0, 2], [0.99, 0.95])


def test_hit_shares_stand_beside_the_tenants_that_have_any():
    """In a what-if about the cache they are what is looked for."""
    cached = replace(alternative("cache"), verdicts=[policy_verdict("fifo", 0.9, half=None, hit_share=0.412)])
    assert "hit share" in Html(render_alternatives(alternative("as captured", fifo=0.5), [cached])).words
    assert "41.2%" in Html(render_alternatives(alternative("as captured", fifo=0.5), [cached])).words
    assert "hit share 41" not in Html(render_alternatives(BOTH, [])).words


@pytest.mark.parametrize("width", [80, 120])
def test_tables_have_room_for_their_figures_however_many_policies(width):
    """As many tables side after side as it takes: no name or figure is folded, no line is wider than the terminal."""
    labels = ("committed", "drr", "edf", "fifo", "priority", "slo_aware", "vtc", "wfq")
    many = [alternative(name, **dict.fromkeys(labels, 0.95)) for name in ("as captured", "tenants.batch.rate=1.5")]
    console = Console(width=width, file=io.StringIO(), markup=False)
    print_alternatives(console, many, answer="")
    lines = console.file.getvalue().splitlines()
    assert max(map(len, lines)) <= width
    tenants = lines[next(n for n, line in enumerate(lines) if "every tenant" in line) :]
    heads = [word for line in tenants for word in line.split() if word in labels]
    assert heads == list(labels)
    figures = [line.count("95.0 / 400") for line in tenants if "tenants.batch.rate=1.5" in line]
    assert sum(figures) == len(labels) * 2
