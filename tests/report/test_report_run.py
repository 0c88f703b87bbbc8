"""The report of a run: one offline file that says first what matters, names everyone, and hides nothing."""

from __future__ import annotations

import base64
import gzip
import json
import re

import msgspec
import pytest
from report_runs import MS, Html, S, busy_recorder, busy_summary, lost, ok, recorder_of, slo, spread

from loadgen.offline.fidelity import FidelityRow
from loadgen.report import FidelityTable, curves_of, render_run, write_report
from loadgen.report import sentences as said
from loadgen.report.page import figures_json
from loadgen.report.plots import Plot
from loadgen.summary import summarise
from loadgen.summary.schema import Validity
from scheduler.slot_control import SlotMove
from tenants.slo import Slo
from tenants.tenant import Tenant

HOSTILE = "</script><script>alert(1)</script>"
MARKUP = "<b>\"bold\"</b> & %{x} <a href='http://evil.example'>x</a>"
ANSWER = (
    "1 of 3 tenants kept their SLO under wfq at 1.2x baseline; "
    "batch: broken, 40.0% of its requests met its limits, promised 90%; "
    "brief: undecided, too few requests, or too many unfinished, for an upper end of the interval."
)


@pytest.fixture(scope="module")
def busy():
    recorder = busy_recorder()
    summary = summarise(recorder, plan={"name": "office", "seed": 7})
    return summary, render_run(summary, curves=curves_of(recorder), load="1.2x baseline")


def shown(summary, **options):
    return Html(render_run(summary, **options))


def rows_of(source):
    """Every table row as its visible text."""
    return [Html(f"<table>{row}</table>").words for row in re.findall("<tr.*?</tr>", source, re.DOTALL)]


def test_the_page_is_well_formed(busy):
    """Every element is closed in order, ids are unique, every anchor leads somewhere, every figure has a place."""
    page = Html(busy[1])
    assert page.open == []
    ids = page.values("id")
    assert len(ids) == len(set(ids))
    assert {href.removeprefix("#") for href in page.values("href")} <= set(ids)
    assert {f"plot-{key}" for key in page.figures} <= set(ids)


def test_the_answer_stands_first_in_one_sentence(busy):
    """How many kept their SLO, under what, at which load; then who did not, and why; the broken before the
    undecided."""
    assert said.answer(busy[0], "1.2x baseline") == ANSWER
    assert re.search("<h1>(.*?)</h1>", busy[1]).group(1) == ANSWER


@pytest.mark.parametrize(
    ("setting", "sentence"),
    [
        ({"queueing": "target"}, "with the target's own queueing at 3.82 requests/s"),
        ({"policy": "fifo"}, "under fifo at 3.82 requests/s"),
    ],
)
def test_the_answer_names_who_queues_and_the_rate_when_the_load_has_no_name(setting, sentence):
    assert sentence in said.answer(busy_summary(**setting))


def test_a_run_without_promises_says_so():
    summary = summarise(recorder_of([Tenant(name="a")], spread("a", 300)))
    answer = said.answer(summary)
    assert answer.startswith("300 of 300 requests succeeded under wfq at 1.00 requests/s: TTFT P99 4")
    assert answer.endswith("no SLO was promised.")
    assert "Promises" not in shown(summary).words


@pytest.mark.parametrize(("queue_ms", "answer"), [(5, "a kept its SLO under"), (900, "a broke its SLO under")])
def test_one_tenant_needs_no_counting(queue_ms, answer):
    summary = summarise(recorder_of([Tenant(name="a", slo=slo())], spread("a", 600, queue_ms=queue_ms)))
    assert said.answer(summary).startswith(answer)


@pytest.mark.parametrize(("names", "who"), [("ab", "a and b"), ("abc", "a, b and c"), ("abcdef", "a, b, c and 3 more")])
def test_what_is_alike_is_said_once(names, who):
    """Few requests decide nothing for anybody: one reason, and no zero that looks like a failure."""
    tenants = [Tenant(name=name, slo=slo()) for name in names]
    rows = [row for k, name in enumerate(names) for row in spread(name, 3, start_id=1000 * k)]
    summary = summarise(recorder_of(tenants, rows))
    answer = said.answer(summary)
    assert answer.startswith(f"None of {len(names)} tenants has a verdict under wfq at ")
    assert f"; {who}: undecided, its attainment lies in [" in answer
    assert answer.count("undecided") == 1


def test_every_tenant_and_every_verdict_is_there(busy):
    words = Html(busy[1]).words
    for name in ("chat", "batch", "brief", "free"):
        assert name in words
    for verdict in ("✓ kept", "✗ broken", "? undecided", "no SLO"):
        assert verdict in words
    for tenant in busy[0].tenants:
        for promise in tenant.promises:
            assert promise.sentence in words


def test_a_percentile_beyond_what_was_watched_is_printed_as_a_bound(busy):
    """More than half of batch never got a first token: its P99 is `> 30,000`, in ms, and not a number."""
    row = next(row for row in rows_of(busy[1]) if row.startswith("batch 500 200 / 280 / 20"))
    assert row.split(" / ")[-1].startswith("20 > 30,000 > 30,000")


def test_an_invalid_run_is_said_to_be_so_before_anything_else():
    """The banner holds every reason, and the answer itself carries the warning."""
    broken = msgspec.structs.replace(
        busy_summary(), validity=Validity(valid=False, reasons=["own lateness <P99> 61 ms", "CPU at 100%"])
    )
    source = render_run(broken)
    page = Html(source)
    banner = source.index('class="banner"')
    assert source.index("<h1>The run is invalid and proves nothing. It says: ") < banner < source.index('id="tenants"')
    assert "own lateness <P99> 61 ms" in page.words
    assert "CPU at 100%" in page.words
    assert 'class="banner"' not in render_run(busy_summary())


@pytest.mark.parametrize(
    ("setting", "sentence"),
    [
        ({"load_mode": "open"}, "Open loop: arrivals come from a schedule that never waits for the server"),
        ({"load_mode": "closed"}, "Closed loop: each user sends, waits for the answer"),
        ({"queueing": "target"}, "The target queues: every request was sent as it arrived"),
        (
            {"policy": "edf", "slots": {"sequences": 64, "prefill_tokens": 2048}},
            "in the order of edf, with slots for 64 sequences and 2,048 prefill tokens.",
        ),
        (
            {"slots": {"sequences": 64, "backends": {"a": {}, "b": {}}, "routing": {"rule": "prefix", "slack": None}}},
            "with slots for 64 sequences. 2 servers behind one queue, routing prefix, no slack bound.",
        ),
        ({"kind": "simulated"}, "Simulated: the requests went through the policy and a model of the server"),
    ],
)
def test_how_the_load_was_made_and_who_queued(setting, sentence):
    assert sentence in shown(busy_summary(**setting)).words


def test_the_file_asks_no_network_for_anything(busy):
    """No address of a foreign host in clear, no element that loads something, and a policy that forbids it."""
    assert re.findall(r"https?:", busy[1]) == []
    page = Html(busy[1])
    assert not {"src", "srcset", "action", "data"} & {name for _, attrs in page.elements for name in attrs}
    assert {tag for tag, _ in page.elements} & {"link", "iframe", "object", "embed", "img", "base"} == set()
    assert "@import" not in page.raw["style"]
    assert "url(" not in page.raw["style"]
    csp = next(attrs["content"] for _, attrs in page.elements if "http-equiv" in attrs)
    assert csp.startswith("default-src 'none';")
    assert "connect-src" not in csp


def test_plotly_travels_whole_and_once(busy):
    """What the page unpacks is the library that the package ships, and the whole file stays below 6 MB."""
    from plotly.offline import get_plotlyjs

    library = Html(busy[1]).raw["library"]
    assert gzip.decompress(base64.b64decode(library)).decode() == get_plotlyjs()
    assert busy[1].count(library[:200]) == 1
    assert len(busy[1].encode()) < 6_000_000


def test_the_same_run_gives_the_same_bytes(busy):
    assert render_run(busy[0], curves=curves_of(busy_recorder()), load="1.2x baseline") == busy[1]


@pytest.mark.parametrize("name", [HOSTILE, MARKUP, "$x^2$", "naïve ünïcode 名前", "'; DROP", "{{ 7*7 }}"])
def test_a_name_is_shown_as_it_is_and_runs_nothing(name):
    """Names are user input: they add no element, end no script, and read in the figures as they are written."""
    plain = recorder_of([Tenant(name="a", slo=slo())], spread("a", 30))
    named = recorder_of([Tenant(name=name, slo=slo())], spread(name, 30))
    before = Html(render_run(summarise(plain), curves=curves_of(plain)))
    after = Html(render_run(summarise(named, warnings=[name]), curves=curves_of(named)))
    assert [tag for tag, _ in after.elements if tag in {"script", "b", "a"}] == [
        tag for tag, _ in before.elements if tag in {"script", "b", "a"}
    ]
    assert " ".join(name.split()) in after.words
    for figure in after.figures.values():
        for trace in figure["data"]:
            assert "<" not in trace["name"]
            assert "%{" not in trace["name"]


def test_no_text_in_the_figures_can_end_the_script_that_holds_them():
    """Whatever a figure holds, its JSON has no angle bracket and no line separator in clear, and reads back the same."""
    trace = {"name": "</script><!--\u2028&", "y": [1]}
    encoded = str(figures_json([Plot("k", "t", [trace], {})]))
    assert not set("<>&\u2028") & set(encoded)
    assert json.loads(encoded)["k"]["data"] == [trace]


def test_hostile_options_of_policy_server_and_command_are_escaped():
    summary = msgspec.structs.replace(
        busy_summary(), policy=HOSTILE, policy_options={HOSTILE: HOSTILE}, server={HOSTILE: HOSTILE}, plan={HOSTILE: 1}
    )
    assert HOSTILE not in render_run(summary, command=HOSTILE, load=HOSTILE)


def test_every_line_of_a_tenant_has_its_colour(busy):
    """One colour a tenant, the same in all figures and beside its name."""
    colours: dict[str, set[str]] = {}
    for figure in Html(busy[1]).figures.values():
        for trace in figure["data"]:
            colour = trace["line"]["color"] if "lines" in trace["mode"] else trace["marker"]["color"]
            colours.setdefault(trace["name"], set()).add(colour)
    assert set(colours) == {"chat", "batch", "brief", "free"}
    assert all(len(found) == 1 for found in colours.values())
    assert len(set.union(*colours.values())) == 4
    assert all(next(iter(found)) in busy[1] for found in colours.values())


def test_every_axis_says_what_it_counts(busy):
    for figure in Html(busy[1]).figures.values():
        for axis in ("xaxis", "yaxis"):
            assert figure["layout"][axis]["title"]["text"]


def test_a_curve_that_is_a_bound_is_marked(busy):
    """batch's TTFT goes on as a dotted line with triangles where its requests never got a first token; chat's, all
    measured, does not."""
    traces = Html(busy[1]).figures["curve-ttft"]["data"]
    bounds = [trace for trace in traces if trace.get("marker", {}).get("symbol") == "triangle-up"]
    assert [trace["name"] for trace in bounds] == ["batch"]
    assert bounds[0]["y"] == [30_000, 30_000]
    assert bounds[0]["line"]["dash"] == "dot"
    assert "▲" in Html(busy[1]).words


def test_seconds_whose_p99_was_never_reached_are_marked_in_the_series(busy):
    """280 of batch's requests never got a first token, one in each of 280 s; another 20 were shed beside them."""
    traces = Html(busy[1]).figures["series-ttft"]["data"]
    (marked,) = (trace for trace in traces if trace.get("marker", {}).get("symbol") == "triangle-up")
    assert marked["name"] == "batch"
    assert len(marked["x"]) == 280
    known = [y for trace in traces if trace is not marked for y in trace["y"] if y is not None]
    assert min(marked["y"]) > max(known)


def test_what_is_not_counted_is_drawn_on_grey(busy):
    before, after = Html(busy[1]).figures["series-arrivals"]["layout"]["shapes"]
    assert (before["x0"], before["x1"], after["x0"]) == (0, 10, 310)


def test_tenants_whose_tokens_are_unknown_show_the_inter_chunk_latency_instead():
    """Where the tokens of a chunk are unknown there is no ITL to draw, and the raw gaps carry their own name."""
    outcomes = [msgspec.structs.replace(outcome, tokens_known=False) for outcome in spread("a", 30)]
    recorder = recorder_of([Tenant(name="a"), Tenant(name="b")], [*outcomes, *spread("b", 30, 100)])
    figures = shown(summarise(recorder), curves=curves_of(recorder)).figures
    assert [trace["name"] for trace in figures["curve-itl"]["data"]] == ["b"]
    assert [trace["name"] for trace in figures["curve-inter_chunk"]["data"]] == ["a"]


def test_with_many_tenants_the_tables_hold_all_and_the_figures_the_busiest():
    """Forty tenants: no line is drawn that cannot be told apart, and the page says which were left out."""
    tenants = [Tenant(name=f"t{i:02d}", slo=slo()) for i in range(40)]
    outcomes = [ok(100 * i + k, f"t{i:02d}", 20 * S + k * S) for i in range(40) for k in range(i + 1)]
    recorder = recorder_of(tenants, outcomes)
    source = render_run(summarise(recorder), curves=curves_of(recorder))
    page = Html(source)
    drawn = {trace["name"] for figure in page.figures.values() for trace in figure["data"]}
    assert drawn == {f"t{i:02d}" for i in range(28, 40)}
    assert all(f"t{i:02d}" in page.words for i in range(40))
    assert "the 12 tenants with the most requests, of 40" in page.words
    assert len(source.encode()) < 6_000_000


def test_an_hour_of_a_dozen_tenants_stays_small():
    """Two hours of twelve tenants: the series are thinned, so that the file stays quick to open."""
    tenants = [Tenant(name=f"t{i}") for i in range(12)]
    outcomes = [ok(12 * k + i, f"t{i}", 10 * S + k * 5 * S) for i in range(12) for k in range(60)]
    outcomes.append(lost(99_999, "t0", 300 * S, age_ms=7_000_000))
    recorder = recorder_of(tenants, outcomes, end_ns=7_300 * S)
    source = render_run(summarise(recorder), curves=curves_of(recorder))
    points = [len(trace["x"]) for trace in Html(source).figures["series-queued"]["data"]]
    assert max(points) <= 600
    assert len(source.encode()) < 4_000_000


def test_errors_are_counted_by_class_and_the_budget_is_shown(busy):
    """batch was promised 90% and met 40% of 500: 300 misses where 50 are allowed, 600% of the budget."""
    rows = rows_of(busy[1])
    assert "batch 280 20" in rows
    assert any(row.startswith("batch 300 50.0 600%") for row in rows)
    assert (
        "Every request of the window succeeded."
        in shown(summarise(recorder_of([Tenant(name="a")], spread("a", 9)))).words
    )


def test_where_the_waiting_was(busy):
    """300 of batch's 340 ms to the first token were spent in our queue."""
    assert "batch 88.2% 11.7% 0.0%" in rows_of(busy[1])


def test_how_to_run_it_again_and_where_it_ran(busy):
    """A live run has its resolved scenario beside it; a simulated one is simulated again, under its policy."""
    summary = busy[0]
    words = Html(busy[1]).words
    assert "lmperf run scenario.resolved.yaml" in words
    assert summary.host.system in words
    for package, version in summary.versions.items():
        assert f"{package} {version}" in words
    simulated = shown(busy_summary(kind="simulated")).words
    assert "lmperf simulate scenario.resolved.yaml --policies wfq" in simulated
    assert "lmperf run demo --seed 3" in shown(summary, command="lmperf run demo --seed 3").words


def test_fidelity_is_shown_with_signed_errors_and_how_arrivals_were_made():
    table = FidelityTable(
        rows=[
            FidelityRow("all", "TTFT P99", 200.0, 190.0),
            FidelityRow("all", "hit share", 40.0, None),
            FidelityRow("all", "throughput", 4000.0, 4040.0),
        ],
        arrivals="recorded",
        repeats={("all", "TTFT P99"): (180.0, 215.0)},
    )
    words = shown(busy_summary(), fidelity=table).words
    assert "all TTFT P99, ms 200.0 190.0 -5.0% 180.0 to 215.0" in words
    assert "all hit share, % 40.0 – –" in words
    assert "all throughput, tokens/s 4,000 4,040 +1.0%" in words
    assert "retries) were recorded" in words


def test_a_server_that_died_stands_above_every_figure():
    """When it stopped answering, and what was lost; nothing of the kind for a server that served."""
    gone = {"stopped_answering_s": 12.34, "requests_after_it_stopped": 480}
    words = shown(msgspec.structs.replace(busy_summary(), server=gone)).words
    assert "The target failed: the server stopped answering 12.3 s into the run: all of the 480 requests" in words
    assert "The target failed" not in shown(busy_summary()).words


def test_the_hit_share_has_a_column_where_a_request_states_it():
    """200 of 1,000 prompt tokens of chat, and nothing of rag; no column when nobody states it."""
    outcomes = [msgspec.structs.replace(one, cached_prompt_tokens=20) for one in spread("chat", 10)]
    tenants = [Tenant(name="chat"), Tenant(name="rag")]
    html = shown(summarise(recorder_of(tenants, [*outcomes, *spread("rag", 10, 100)])))
    assert "E2E P99 cache hit share attained" in html.words
    assert html.words.count("20.0%") == 2, "chat and all"
    assert "cache hit share attained" not in shown(busy_summary()).words


def test_every_term_of_the_tables_is_explained(busy):
    terms = re.findall("<dt>(.*?)</dt>", busy[1])
    for term in (
        "TTFT",
        "backend TTFT",
        "ITL",
        "TPOT",
        "E2E",
        "attainment",
        "verdict",
        "goodput",
        "own lateness",
        "cache hit share",
    ):
        assert term in terms


def test_a_run_without_any_request_still_has_a_report():
    """Nothing arrived: the report says so instead of failing."""
    recorder = recorder_of([Tenant(name="idle", slo=Slo(ttft_ns=500 * MS, attainment=0.9))], [])
    page = shown(summarise(recorder), curves=curves_of(recorder))
    assert "idle: undecided, it had no request in the window" in page.words
    assert page.open == []


def test_the_file_appears_whole_in_the_folder_of_the_run(tmp_path, busy):
    path = write_report(tmp_path, busy[0], load="1.2x baseline")
    assert path == tmp_path / "report.html"
    assert path.read_text(encoding="utf-8") == render_run(busy[0], load="1.2x baseline")
    assert list(tmp_path.iterdir()) == [path]


def test_slots_that_moved_are_drawn_and_told():
    """A step line for each backend, in no tenant's colour, and a sentence each; a run with fixed slots has neither."""
    recorder = busy_recorder()
    moves = [SlotMove(at_ns=k * S, backend=name, sequences=40 + k) for k in range(5) for name in ("a <b>", "c")]
    recorder.metadata = msgspec.structs.replace(recorder.metadata, slot_moves=tuple(moves))
    summary = summarise(recorder)
    page = shown(summary)
    lines = page.figures["series-slots"]["data"]
    assert [line["name"] for line in lines] == ["a &lt;b&gt;", "c"]
    for line in lines:
        assert line["line"]["shape"] == "hv"
        assert line["line"]["color"] == "ink"
        assert line["y"] == [40, 41, 42, 43, 44, 44]
        assert line["x"][-1] == summary.duration_s
    assert "slots of a <b>: moved between 40 and 44" in page.words
    assert "series-slots" not in shown(summarise(busy_recorder())).figures


def test_where_the_waiting_was_is_told_in_words():
    """Each tenant's share before and after its dispatch, of a run whose policy queues; many tenants are counted."""
    rows = [ok(1, "a", 20 * S, queue_ms=30, server_ms=10), ok(2, "b", 20 * S, queue_ms=0, server_ms=10)]
    recorder = recorder_of([Tenant(name="a"), Tenant(name="b")], rows)
    summary = summarise(recorder)
    assert said.where_waiting_was(summary) == (
        "time to the first token, in our queue / at the server: a 75.0% / 25.0%, b 0.0% / 100.0%"
    )
    assert said.where_waiting_was(msgspec.structs.replace(summary, queueing="target")) == ""
    names = [f"t{k}" for k in range(8)]
    many = [ok(k, name, 20 * S) for k, name in enumerate(names)]
    text = said.where_waiting_was(summarise(recorder_of([Tenant(name=name) for name in names], many)))
    assert text.endswith(", and 2 more")
