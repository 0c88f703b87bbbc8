"""Policies side by side: the answer follows the intervals, live stands beside simulated, bounds are marked."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest
from report_runs import Html, busy_recorder, busy_summary, over_seeds, policy_verdict, recorder_of, slo, spread

from loadgen.offline.fidelity import FidelityRow
from loadgen.offline.verdicts import Figure
from loadgen.report import Comparison, curves_of, render_comparison, render_run, write_comparison
from loadgen.report.comparison import FidelityTable, judged, pair_rows, pairs_of
from loadgen.report.comparison_sentences import answer, answer_of_all
from loadgen.report.text import NOTHING
from loadgen.summary import summarise
from tenants.tenant import Tenant

TARGETS = {"chat": 0.99, "rag": 0.99}


def compared(*verdicts, **options):
    defaults = {"targets": TARGETS, "in_contract": ("chat", "rag"), "noisy": ("batch",), "raised": "1.2x baseline"}
    return Comparison(verdicts=verdicts, **(defaults | options))


GOOD = policy_verdict("slo_aware", 0.998, decay=1.02)
BAD = policy_verdict("fifo", 0.40, decay=3.4)
CLOSE = policy_verdict("wfq", 0.990, decay=1.05)


def test_the_answer_counts_only_what_the_intervals_show():
    """A policy keeps the SLO when the lower end of every tenant's interval meets the target; 99.0 +- 0.2 does not."""
    assert answer(compared(BAD, CLOSE, GOOD)) == (
        "Under 1.2x baseline, slo_aware keeps the SLO of every tenant in contract; best is slo_aware (worst attainment "
        "99.80% [99.60%, 100.0%], P99 decay 1.02 [1.02, 1.02], 100.0% of the throughput of fifo)."
    )
    assert answer(compared(BAD, CLOSE)).startswith(
        "Under 1.2x baseline no policy is shown to keep the SLO of every tenant in contract; best is wfq"
    )


FIDELITY = FidelityTable(
    rows=[
        FidelityRow("all", "TTFT P50", 100.0, 101.0),
        FidelityRow("all", "TTFT P99", 200.0, 190.0),
        FidelityRow("chat", "TTFT P99", 200.0, 400.0),
    ],
    arrivals="recorded",
)


def test_the_page_answers_first_then_ranks_then_says_how_far_to_believe_it():
    """The winner and one line of the fidelity head the page; the table of policies is best first and names who loses
    most; the fidelity table follows it, before the figures and the tenants."""
    page = Html(render_comparison(compared(BAD, CLOSE, GOOD, fidelity=FIDELITY)))
    order = [
        page.words.index(text)
        for text in (
            "slo_aware keeps the SLO of every tenant in contract",
            "errors of TTFT P50 +1.0%, TTFT P99 -5.0% (arrivals recorded)",
            "policy, best first",
            "slo_aware ✓ kept chat 99.80%",
            "wfq ? undecided chat 99.00%",
            "fifo ✗ broken chat 40.0%",
            "How well the simulation reproduces the captured run",
            "Policies by tenant",
        )
    ]
    assert order == sorted(order)
    assert page.words.count("How well the simulation reproduces") == 1


def test_runs_come_before_the_fidelity_of_their_simulation():
    runs = {"lab": run("live", "wfq", 60), "model": run("simulated", "wfq", 70)}
    words = Html(render_comparison(Comparison(runs=runs, fidelity=FIDELITY))).words
    assert words.index("Runs side by side") < words.index("How well the simulation reproduces")


def test_the_hit_share_stands_by_tenant_where_one_is_stated():
    """At both loads, in percent; of runs beside their latencies; nowhere when nobody states it."""
    cached = policy_verdict("wfq", 0.998, hit_share=0.4125)
    words = Html(render_comparison(compared(cached, GOOD))).words
    assert "hit share, % baseline hit share, % raised" in words
    assert "41.2 41.2 8.50" in words.replace(" [8.40, 8.60]", "")
    assert "hit share, %" not in Html(render_comparison(compared(GOOD))).words
    outcomes = [msgspec.structs.replace(one, cached_prompt_tokens=30) for one in spread("chat", 600)]
    on = summarise(recorder_of([Tenant(name="chat")], outcomes))
    off = summarise(recorder_of([Tenant(name="chat")], spread("chat", 600)))
    words = Html(render_comparison(Comparison(runs={"on": on, "off": off}))).words
    assert words.count("30.0%") == 1
    assert "cache hit share attained" in words
    assert "cache hit share attained" not in Html(render_comparison(Comparison(runs={"off": off}))).words


def test_one_realisation_names_who_is_at_target_and_keeps_nothing():
    """Without intervals the answer still says what people look for, and does not call it kept."""
    said = answer(compared(policy_verdict("fifo", 0.4, half=None), policy_verdict("drr", 0.998, half=None)))
    assert said.startswith(
        "Under 1.2x baseline, drr is at every target in the one realisation simulated (undecided without an "
    )
    assert "; best is drr (" in said
    assert "no policy is at every target" in answer(compared(policy_verdict("fifo", 0.4, half=None)))


def changed(label, before_ns, after_ns, attainment=1.0):
    """A policy under a difference: chat's TTFT P99 on both sides, and batch, which only the baseline has."""
    found = policy_verdict(label, attainment, decay=after_ns / before_ns, half=None)
    tail = replace(found.raised["chat"], ttft_p99=Figure(float(after_ns)))
    gone = replace(tail, ttft_p99=Figure(None), attainment=Figure(None))
    return replace(found, baseline=dict.fromkeys(("chat", "batch"), tail), raised={"chat": tail, "batch": gone})


WITHOUT_BATCH = {
    "targets": {"chat": 0.99, "batch": 0.9},
    "in_contract": ("chat",),
    "noisy": (),
    "removed": ("batch",),
    "raised": "what if (tenants.batch.remove=true)",
    "difference": True,
}


def test_a_what_if_is_ranked_by_what_it_comes_to_and_not_by_how_bad_it_was():
    """A policy with a bad baseline gains most and is no better for it; a removed tenant counts nowhere, and has no verdict."""
    alike = compared(changed("fifo", 966e6, 48.3e6), changed("wfq", 50e6, 48.3e6), **WITHOUT_BATCH)
    assert answer(alike) == (
        "Under what if (tenants.batch.remove=true), fifo and wfq are at every target in the one realisation simulated "
        "(undecided without an interval); "
        "all policies come to the same (worst attainment 100.0%, mean TTFT P99 48.3 ms, 100.0% of the throughput of fifo)."
    )
    assert answer(replace(alike, in_contract=())) == answer(alike)
    better = [changed("fifo", 966e6, 52e6), changed("wfq", 40e6, 48e6), changed("drr", 60e6, 48e6)]
    assert "; best are wfq and drr (" in answer(compared(*better, **WITHOUT_BATCH))
    # One realisation does not tell 4% of a tail apart.
    close = [changed("fifo", 966e6, 50e6), changed("wfq", 40e6, 48e6), changed("drr", 60e6, 48e6)]
    assert "; all policies are alike, to a point and 5% (" in answer(compared(*close, **WITHOUT_BATCH))
    page = Html(render_comparison(alike))
    assert "in contract: chat; removed: batch." in page.words
    assert f"batch fifo {NOTHING} 90% removed" in page.words


def test_a_tail_that_is_a_bound_is_ranked_after_those_that_are_known():
    never = changed("fifo", 10e6, 20e6)
    bound = replace(never.raised["chat"], ttft_p99=Figure(20e6, bound=True))
    never = replace(never, raised=never.raised | {"chat": bound})
    said = answer(compared(never, changed("wfq", 10e6, 90e6), **WITHOUT_BATCH))
    assert "best is wfq" in said


def test_a_policy_that_answers_nothing_is_the_best_in_no_case():
    """Its tails are bounds that grow by nothing; when all are so there is no best."""
    silent = replace(policy_verdict("fifo", None, decay=1.0, half=None), throughput=Figure(0.0))
    works = policy_verdict("wfq", None, decay=3.0, half=None)
    assert "best is wfq" in answer(compared(silent, works, targets={}))
    assert answer(compared(silent)) == "Under 1.2x baseline, no request gets an answer under any policy."


def test_policies_that_do_not_differ_have_no_best():
    same = [policy_verdict(label, 0.998, decay=1.5) for label in ("fifo", "wfq")]
    assert "all policies come to the same (worst attainment 99.80%" in answer(compared(*same))


def test_without_a_promise_no_attainment_is_drawn():
    free = policy_verdict("fifo", None, half=None)
    page = Html(render_comparison(compared(free, targets={})))
    assert "policies-attainment" not in page.figures
    assert "policies-attainment" in Html(render_comparison(compared(GOOD))).figures


def test_a_share_over_seeds_is_never_printed_above_all():
    """99.8 +- 0.4% ends at 100%, in the terminal as on the page."""
    assert over_seeds(0.998, 0.004).percent() == "99.8 [99.4, 100.0]"


def test_an_answer_without_a_kept_run_names_the_closest():
    runs = {"slow": run("live", "fifo", 900), "slower": run("live", "wfq", 900)}
    assert answer(Comparison(runs=runs)) == (
        "None of the 2 runs shows that every tenant kept its SLO; closest is slow, whose least attained tenant in contract, "
        "chat, got 0.0% of a promised 90%."
    )


def test_an_invalid_run_is_never_the_answer():
    """Its figures are the generator's: it neither kept an SLO nor came closest to it."""
    good = run("live", "wfq", 5)
    spoilt = msgspec.structs.replace(
        good, validity=msgspec.structs.replace(good.validity, valid=False, reasons=["late"])
    )
    said = answer(Comparison(runs={"spoilt": spoilt, "slow": run("live", "fifo", 900)}))
    assert said.startswith("None of the 2 runs shows that every tenant kept its SLO; closest is slow")


def test_a_trace_without_latencies_has_no_fidelity_to_tell():
    empty = FidelityTable(rows=[FidelityRow("all", "TTFT P99", None, 5.0)], arrivals="regenerated")
    assert "no latencies to compare with" in Html(render_comparison(compared(GOOD, fidelity=empty))).words


def test_the_decay_decides_between_policies_that_attain_the_same():
    slower = policy_verdict("wfq", 0.998, decay=1.2)
    assert "best is slo_aware" in answer(compared(slower, GOOD))
    assert "best is slo_aware" in answer(compared(GOOD, slower))


@pytest.mark.parametrize(
    ("value", "half", "target", "verdict"),
    [
        (0.995, 0.002, 0.99, "kept"),
        (0.98, 0.002, 0.99, "broken"),
        (0.99, 0.002, 0.99, "undecided"),
        (0.999, None, 0.99, "undecided"),
        (0.999, 0.0001, None, "no_slo"),
    ],
)
def test_an_attainment_over_seeds_is_judged_by_its_interval(value, half, target, verdict):
    """The worse end decides; without an interval (fewer than five seeds) nothing is decided."""
    assert judged(over_seeds(value, half), target) == verdict


def test_every_policy_tenant_and_verdict_is_there():
    page = Html(render_comparison(compared(BAD, CLOSE, GOOD)))
    for word in ("fifo", "wfq", "slo_aware", "chat", "rag", "✓ kept", "✗ broken", "? undecided"):
        assert word in page.words
    assert "the load of batch is raised; in contract: chat and rag" in page.words
    assert page.open == []


def test_without_intervals_the_page_says_why_nothing_is_decided():
    words = Html(render_comparison(compared(policy_verdict("fifo", 0.999, half=None)))).words
    assert "fewer than five seeds, so there are no intervals and no verdicts" in words
    assert "✓" not in words
    assert "fewer than five seeds, so" not in Html(render_comparison(compared(GOOD))).words


def test_a_lower_bound_is_marked_in_table_and_figure():
    """A P99 that some seed never reached makes a decay a lower bound: ≥ in the table, a triangle in the figure."""
    page = Html(render_comparison(compared(GOOD, policy_verdict("fifo", 0.4, decay=3.4, bound=True))))
    assert "≥ 3.40" in page.words
    (points,) = page.figures["policies-decay"]["data"]
    assert points["marker"]["symbol"] == ["circle", "triangle-up"]
    assert "▲ a lower bound" in page.words
    assert "▲" not in Html(render_comparison(compared(GOOD))).words


def test_intervals_are_drawn_and_a_share_never_passes_one():
    """The bar of 99.8 +- 0.4% ends at 100%."""
    page = Html(render_comparison(compared(policy_verdict("a", 0.998, half=0.004))))
    points = next(t for t in page.figures["policies-attainment"]["data"] if "error_y" in t)
    assert points["y"][0] + points["error_y"]["array"][0] == pytest.approx(1.0)
    assert points["y"][0] - points["error_y"]["arrayminus"][0] == pytest.approx(0.994)


def test_a_figure_without_value_is_left_out_and_not_drawn_as_zero():
    """A policy whose rho is unknown has no point."""
    unknown = policy_verdict("b", 0.99)
    unknown = type(unknown)(**{f: getattr(unknown, f) for f in unknown.__slots__} | {"rho": over_seeds(None)})
    (points,) = Html(render_comparison(compared(GOOD, unknown))).figures["policies-rho"]["data"]
    assert len(points["x"]) == len(points["y"]) == 1


def run(kind, policy, queue_ms, **options):
    tenants = [Tenant(name="chat", slo=slo())]
    return summarise(recorder_of(tenants, spread("chat", 600, queue_ms=queue_ms), kind=kind, policy=policy, **options))


def test_a_live_run_is_paired_with_the_simulation_of_its_policy():
    """Same policy and options first; each simulation once; what has no counterpart has no pair."""
    runs = {
        "a": run("live", "wfq", 5, policy_options={"late": "shed"}),
        "b": run("simulated", "wfq", 5, policy_options={"late": "keep"}),
        "c": run("simulated", "wfq", 5, policy_options={"late": "shed"}),
        "d": run("live", "fifo", 5),
        "e": run("live", "wfq", 5, policy_options={"late": "keep"}),
    }
    assert [(pair.live, pair.simulated) for pair in pairs_of(runs)] == [("a", "c"), ("e", "b")]


def test_live_beside_simulated_has_signed_errors():
    """A simulated TTFT of 110 ms against 100 ms live is +10%; equal attainment differs by 0 points."""
    live, simulated = run("live", "wfq", 60), run("simulated", "wfq", 70)
    rows = {(row.tenant, row.figure): row for row in pair_rows(live, simulated)}
    assert float(rows["chat", "TTFT P50, ms"].error.rstrip("%")) == pytest.approx(10, abs=0.2)
    assert rows["chat", "attainment"].error == "+0.0 points"
    back = {(row.tenant, row.figure): row for row in pair_rows(simulated, live)}
    assert back["chat", "TTFT P50, ms"].error.startswith("-9.")
    words = Html(render_comparison(Comparison(runs={"lab": live, "model": simulated}))).words
    assert "Live beside simulated: lab and model" in words


def test_a_bound_has_no_error():
    """batch's P99 was never reached in either run: two bounds say nothing of each other."""
    rows = {(row.tenant, row.figure): row for row in pair_rows(busy_summary(), busy_summary(kind="simulated"))}
    assert rows["batch", "TTFT P99, ms"].live == "> 30,000"
    assert rows["batch", "TTFT P99, ms"].error == "–"


def test_runs_alone_are_compared_by_their_verdicts():
    runs = {"good": run("live", "wfq", 5), "slow": run("live", "fifo", 900)}
    assert answer(Comparison(runs=runs)) == "1 of 2 runs kept every tenant's SLO: good."
    assert answer(Comparison(runs={"slow": runs["slow"]})).startswith(
        "The one run does not show that every tenant kept its SLO; closest is slow"
    )
    page = Html(render_comparison(Comparison(runs=runs)))
    assert "good live wfq chat 600" in page.words
    assert "figures" not in page.raw


def test_names_of_policies_and_tenants_are_escaped():
    evil = "</script><i>%{y}"
    source = render_comparison(
        compared(policy_verdict(evil, 0.998, tenants=(evil,)), targets={evil: 0.9}, notes=[evil]), title=evil
    )
    page = Html(source)
    assert evil not in source
    assert "i" not in {tag for tag, _ in page.elements}
    labels = page.figures["policies-decay"]["layout"]["xaxis"]["ticktext"]
    assert labels == ["&lt;/script&gt;&lt;i&gt;%&#123;y}"]


def test_a_run_report_holds_the_policies_in_the_tenants_own_colours():
    """chat has one colour in the run's figures and in those of the policies."""
    recorder = busy_recorder()
    comparison = compared(BAD, GOOD)
    page = Html(render_run(summarise(recorder), curves=curves_of(recorder), comparison=comparison))
    colour = {t["line"]["color"] for t in page.figures["series-arrivals"]["data"] if t["name"] == "chat"}
    points = [t for t in page.figures["policies-ttft"]["data"] if t["name"] == "chat"]
    assert {t["marker"]["color"] for t in points} == colour
    assert page.open == []
    ids = page.values("id")
    assert len(ids) == len(set(ids))


def test_an_empty_comparison_is_refused():
    with pytest.raises(ValueError, match="needs verdicts of policies, or runs"):
        render_comparison(Comparison())


def test_an_invalid_run_is_marked_in_a_comparison():
    valid = run("live", "wfq", 5)
    invalid = msgspec.structs.replace(valid, validity=msgspec.structs.replace(valid.validity, valid=False))
    assert "invalid run" in Html(render_comparison(Comparison(runs={"a": invalid}))).words
    assert "invalid run" not in Html(render_comparison(Comparison(runs={"a": valid}))).words


def test_the_comparison_is_written_to_a_file_or_into_a_folder(tmp_path):
    comparison = compared(BAD, GOOD)
    assert write_comparison(tmp_path, comparison) == tmp_path / "comparison.html"
    path = write_comparison(tmp_path / "other.html", comparison, command="lmperf simulate demo")
    assert "lmperf simulate demo" in Html(path.read_text(encoding="utf-8")).words


def grown(name, *verdicts, **options):
    others = tuple(tenant for tenant in ("chat", "rag", "batch") if tenant != name)
    return compared(*verdicts, noisy=(name,), in_contract=others, **options)


def test_every_tenant_that_grows_in_turn_has_its_tables_and_figures():
    """One comparison a noisy tenant: an overview of policies by who grows, then each comparison under anchors of its own."""
    first, second = grown("batch", BAD, GOOD), grown("chat", BAD, replace(CLOSE, label=GOOD.label))
    page = Html(render_comparison(first, others=[second]))
    order = [
        page.words.index(text)
        for text in (
            "Whoever grows",
            "Policies when batch grows",
            "Policies when chat grows",
            "Policies by tenant when chat",
        )
    ]
    assert order == sorted(order)
    plots = {"policies-attainment", "policies-ttft", "policies-decay", "policies-rho", "policies-throughput"}
    assert {key for key in page.figures if key.startswith("policies")} == plots | {f"{key}-2" for key in plots}
    overview = page.words[page.words.index("Whoever grows") : page.words.index("Policies when batch grows")]
    assert "batch grows chat grows" in overview
    assert "slo_aware ✓ kept chat 99.80%" in overview
    assert "fifo ✗ broken" in overview


def test_the_answer_over_several_is_what_holds_whoever_grows():
    """A policy that keeps the SLO when one tenant grows and not when another does keeps it not."""
    close = replace(CLOSE, label=GOOD.label)
    assert answer_of_all([grown("batch", BAD, GOOD), grown("chat", BAD, GOOD)]) == (
        "Whichever tenant grows, slo_aware keeps the SLO of all others; best is slo_aware when batch grows and slo_aware "
        "when chat grows."
    )
    assert answer_of_all([grown("batch", BAD, GOOD), grown("chat", BAD, close)]).startswith(
        "No policy is shown to keep every SLO whichever tenant grows; best is slo_aware when batch grows"
    )
    once = policy_verdict("drr", 0.998, half=None)
    assert answer_of_all([grown("batch", once), grown("chat", once)]).startswith(
        "Whichever tenant grows, drr is at the target of all others in the one realisation simulated"
    )
    assert answer_of_all([grown("batch", GOOD)]) == answer(grown("batch", GOOD))
