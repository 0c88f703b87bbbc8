"""Several differences of one trace, side by side: how they are asked for, and that they are comparable to each other."""

from __future__ import annotations

import io
import json
from contextlib import chdir, redirect_stderr, redirect_stdout
from dataclasses import replace

import msgspec
import pytest
from rich.console import Console
from test_what_if import SERVER, captured, one_at_a_time_trace, rows

from lmperf.__main__ import main
from lmperf.cli.comparison_text import print_as_captured
from lmperf.scenario.faults import ScenarioError
from lmperf.wiring.offline import policy_choices, replay_policies
from lmperf.wiring.what_if.alternatives import UNCHANGED, Alternative, parse_alternatives
from lmperf.wiring.what_if.compared import compare, played
from lmperf.wiring.what_if.settings import parse_what_if
from loadgen.recorder import record_trace
from loadgen.summary import summarise
from loadgen.summary.files import write_summary
from loadgen.trace.parts import TraceFile
from scheduler.server_model.spec import encode_server_model
from tenants.tenant import Tenant

CHOICES = policy_choices("fifo,wfq")


@pytest.fixture
def run(tmp_path):
    """200 requests in 20 s, 100 ms apart, two thirds of chat's: half of what the server can take."""
    return captured(tmp_path, rows(range(0, 20_000, 100), [int(i % 3 == 2) for i in range(200)]))


def named(found):
    return [(each.name, each.what_if.settings) for each in found]


# -- asked for -------------------------------------------------------------------------------------------------------


def test_settings_alone_are_one_difference_together(run):
    """However many; none is no what-if."""
    assert named(parse_alternatives(["rate=1.3", "replicas=2"], [], [], run)) == [
        ("rate=1.3, replicas=2", ("rate=1.3", "replicas=2"))
    ]
    assert parse_alternatives([], [], [], run) == []


def test_a_sweep_is_an_alternative_for_each_value(run):
    """In the order given; a common setting holds in each, and names none."""
    assert named(parse_alternatives(["replicas=2"], ["rate=1, 1.3,2"], [], run)) == [
        (f"rate={value}", ("replicas=2", f"rate={value}")) for value in ("1", "1.3", "2")
    ]


def test_two_sweeps_are_every_combination(run):
    """The first slowest."""
    assert [each.name for each in parse_alternatives([], ["rate=1,2", "slots.sequences=1,null"], [], run)] == [
        "rate=1 + slots.sequences=1",
        "rate=1 + slots.sequences=null",
        "rate=2 + slots.sequences=1",
        "rate=2 + slots.sequences=null",
    ]


def test_named_alternatives_stand_beside_a_sweep(run):
    """With settings that go together; a name may be left out, and quotes hold what would end it."""
    found = parse_alternatives(
        [],
        ["rate=2"],
        ["no batch: tenants.batch.remove=true, rate=2", "replicas=2,rate=3", 'tenants."batch".rate=2'],
        run,
    )
    assert named(found) == [
        ("rate=2", ("rate=2",)),
        ("no batch", ("tenants.batch.remove=true", "rate=2")),
        ("replicas=2 + rate=3", ("replicas=2", "rate=3")),
        ('tenants."batch".rate=2', ('tenants."batch".rate=2',)),
    ]


FAULTS = [
    ([], ["rate"], [], "--vary rate: names no key with values"),
    ([], ["rate=1,"], [], "names no key with values"),
    ([], ["rate=1,replicas=2"], [], "replicas=2 is a second key"),
    ([], ["rate=1,2", "rate=3"], [], "--vary rate=3: varies rate again"),
    ([], ["rate=1,1"], [], "there is an alternative 'rate=1' already"),
    ([], ["rate=1,x"], [], "--vary rate=1,x: rate: 'x' is no number above 0"),
    (["rate=2"], ["rate=1,3"], [], "--vary rate=1,3: rate: is given twice, rate=2 and rate=1"),
    (["rat=2"], ["replicas=1,3"], [], "--set: rat: unknown key"),
    ([], [], ["two:"], "--alternative two:: names nothing that is different"),
    ([], ["rate=1,1.0"], [], "--vary rate=1,1.0: 'rate=1.0' is the same difference as 'rate=1'"),
    ([], ["rate=2"], ["more: rate=2e0"], "--alternative more: rate=2e0: 'more' is the same difference as 'rate=2'"),
    ([], ["rate=1,x", "replicas=1,2"], [], "--vary rate=1,x: rate: 'x' is no number above 0"),
    ([], [], ['a "b: rate=2'], '--alternative a "b: rate=2: has an open quote'),
    ([], [], ['a: tenants."b.rate=2'], "has an open quote"),
    ([], ['tenants."b.rate=2,3'], [], '--vary tenants."b.rate=2,3: has an open quote'),
    (['tenants."b.rate=2'], [], [], "--set: has an open quote"),
    ([], [], [": rate=2"], "has no name before its colon"),
    ([], [], ["as captured: rate=2"], "there is an alternative 'as captured' already"),
    ([], [], ["a: rate=2", "a: rate=3"], "there is an alternative 'a' already"),
    (
        [],
        [],
        ["a: tenants.caht.rate=2"],
        "--alternative a: tenants.caht.rate=2: tenants.caht.rate: the trace has no such",
    ),
]


@pytest.mark.parametrize(("common", "varied", "listed", "words"), FAULTS, ids=[words for *_, words in FAULTS])
def test_what_cannot_be_meant_is_refused_at_its_flag(run, common, varied, listed, words):
    """With the flag that gave it, as the user wrote it."""
    with pytest.raises(ScenarioError) as raised:
        parse_alternatives(common, varied, listed, run)
    assert words in str(raised.value)


def one_to(last):
    return ",".join(map(str, range(1, last + 1)))


@pytest.mark.parametrize(
    ("varied", "words"),
    [
        ([f"rate={one_to(501)}"], "rate 501 values, more than 500"),
        (
            [f"{key}={one_to(1000)}" for key in ("rate", "replicas", "slots.sequences", "tenants.chat.weight")],
            "rate 1,000, replicas 1,000, slots.sequences 1,000, tenants.chat.weight 1,000 values are 1,000,000,000,000 ",
        ),
    ],
    ids=["one", "four"],
)
def test_a_grid_that_nobody_could_wait_for_is_refused_before_it_is_made(run, varied, words):
    """With how many values each flag gives, and what they come to; 500 are taken."""
    with pytest.raises(ScenarioError) as raised:
        parse_alternatives([], varied, [], run)
    assert words in str(raised.value)
    assert len(str(raised.value)) < 1000
    assert len(parse_alternatives([], [f"rate={one_to(250)}", "replicas=1,2"], [], run)) == 500
    with pytest.raises(ScenarioError, match="501 alternatives, more than 500"):
        parse_alternatives([], [f"rate={one_to(250)}", "replicas=1,2"], ["replicas=3"], run)


def test_a_fault_of_a_common_setting_is_told_once(run):
    """Not once an alternative."""
    with pytest.raises(ScenarioError) as raised:
        parse_alternatives(["rate=0"], ["replicas=1,2,3"], ["more: slots.sequences=3"], run)
    assert len(raised.value.faults) == 1


# -- compared --------------------------------------------------------------------------------------------------------


def test_each_alternative_is_what_it_is_alone(run):
    """The same figures as a what-if of its own, and one simulation of the trace as captured for all of them."""
    asked = parse_alternatives([], ["rate=1.5,3"], ["no batch: tenants.batch.remove=true"], run)
    counts = []
    found = compare(asked, run, SERVER, CHOICES, processes=1, on_progress=lambda *count: counts.append(count))
    assert counts == [(n, 8) for n in range(1, 9)]
    for alternative, comparison in zip(asked, found.comparisons, strict=True):
        assert compare([alternative], run, SERVER, CHOICES, processes=1).comparisons == [comparison]
    assert [each.name for each in found.comparisons] == ["rate=1.5", "rate=3", "no batch"]


def test_the_trace_unchanged_is_an_alternative_too(run):
    """Equal to itself, with everybody in contract."""
    found = compare(parse_alternatives([], ["rate=1,3"], [], run), run, SERVER, CHOICES, processes=1)
    assert (found.unchanged.name, found.unchanged.noisy, found.unchanged.in_contract) == (
        UNCHANGED,
        (),
        ("chat", "batch"),
    )
    for verdict in found.unchanged.verdicts:
        assert verdict.baseline == verdict.raised
        assert verdict.decay_all.value == 1.0
    same, changed = found.comparisons
    assert same.verdicts == found.unchanged.verdicts
    assert [v.baseline for v in changed.verdicts] == [v.raised for v in found.unchanged.verdicts]


def test_a_figure_of_the_trace_as_captured_is_one_in_all_tables(tmp_path):
    """To the ns, in the reproduction, under each policy, and as what alternatives are against; waits grow by 13 ms a
    request, so that no two values are near enough to hide another source."""
    waiting = captured(tmp_path, rows(range(0, 7_400, 37), [int(i % 3 == 2) for i in range(200)]))
    answer = replay_policies(waiting, SERVER, None, CHOICES)
    reproduced = {(row.tenant, row.metric): row.simulated for row in answer.reproduction}
    alternatives = parse_alternatives([], ["rate=0.5"], [], waiting)
    (found,) = compare(alternatives, waiting, SERVER, CHOICES, processes=1).comparisons
    console = Console(width=128, file=io.StringIO(), markup=False)
    print_as_captured(console, answer.as_captured)
    printed = " ".join(console.file.getvalue().split())
    fifo = found.verdicts[0].baseline
    assert f"fifo chat {figures_of(fifo['chat'])} " in printed
    assert f" batch {figures_of(fifo['batch'])} " in printed
    for name in ("chat", "batch"):
        for metric, figure in (
            ("TTFT P50", fifo[name].ttft_p50),
            ("TTFT P99", fifo[name].ttft_p99),
            ("E2E P99", fifo[name].e2e_p99),
        ):
            assert reproduced[name, metric] == figure.value / 1e6


def figures_of(tenant):
    return " ".join(
        f"{each.value / 1e6:,.0f}" for each in (tenant.ttft_p50, tenant.ttft_p99, tenant.e2e_p50, tenant.e2e_p99)
    )


def test_alternatives_play_the_same_arrivals(tmp_path):
    """Where one must play recorded times, all do: the others would differ by that too."""
    loop = captured(tmp_path, rows([0, 100, 200, 300], [0, 0, 0, 1], after=[-1, 0, 1, -1]), span_ms=400)
    slots = Alternative("slots", parse_what_if(["slots.sequences=2"], loop))
    more = Alternative("more", parse_what_if(["rate=2"], loop))
    assert played([slots], loop) is loop
    assert played([slots, more], loop).recipe.recorded
    recorded = replace(loop, recipe=replace(loop.recipe, recorded=True))
    beside = compare([slots, more], loop, SERVER, CHOICES, processes=1)
    alone = compare([slots], recorded, SERVER, CHOICES, processes=1)
    assert beside.comparisons[0] == alone.comparisons[0]
    assert beside.unchanged == alone.unchanged


def test_an_interrupt_keeps_what_is_finished(run):
    """Runs are made alternative by alternative: the trace, the first one whole, the second under one policy."""

    def stop(done, _total):
        if done == 5:
            raise KeyboardInterrupt

    asked = parse_alternatives([], ["rate=1,2,3"], [], run)
    found = compare(asked, run, SERVER, CHOICES, processes=1, on_progress=stop)
    assert (found.interrupted, found.done, found.planned) == (True, 5, 8)
    assert [len(each.verdicts) for each in (found.unchanged, *found.comparisons)] == [2, 2, 1, 0]
    whole = compare(asked[:1], run, SERVER, CHOICES, processes=1)
    assert found.comparisons[0] == whole.comparisons[0]


# -- the commands ----------------------------------------------------------------------------------------------------


@pytest.fixture
def invoke(tmp_path):
    """Commands in a folder with the trace ``t.parquet``, whose requests are 100 ms apart, and a server that takes 50."""
    one_at_a_time_trace(tmp_path / "t.parquet")
    (tmp_path / "server.json").write_bytes(encode_server_model(SERVER))

    def run_in(*args):
        out, err = io.StringIO(), io.StringIO()
        with chdir(tmp_path), redirect_stdout(out), redirect_stderr(err):
            code = main([str(arg) for arg in args])
        return int(code), " ".join(out.getvalue().split()), err.getvalue()

    return run_in


def simulate(*args):
    flags = ("--server-model", "server.json", "--quiet", "--processes", "1", "--policies", "fifo,wfq")
    return ("simulate", "t.parquet", *flags, *args)


def test_the_report_shows_alternatives_beside_the_trace(invoke, tmp_path):
    """In the terminal, as data with the trace as captured, and on a page with a section each."""
    flags = (
        "--set",
        "tenants.a.weight=2",
        "--vary",
        "rate=1,3",
        "--alternative",
        "two:replicas=2,rate=3",
        "--output-dir",
        "r",
    )
    code, out, err = invoke(*simulate(*flags))
    assert code == 0, err
    assert "what if: 3 alternatives beside the trace as captured; all have tenants.a.weight=2" in out
    assert "two: replicas=2, rate=3; 2 servers behind one queue" in out
    data = json.loads((tmp_path / "r/comparison.json").read_text())
    assert data["source"]["requests"] == 100
    assert [each["alternative"] for each in data["comparisons"]] == ["rate=1", "rate=3", "two"]
    assert data["comparisons"][2]["settings"] == ["tenants.a.weight=2", "replicas=2", "rate=3"]
    assert "2 servers" in data["comparisons"][2]["routing"]
    assert [policy["label"] for policy in data["as_captured"]["policies"]] == ["fifo", "wfq"]
    page = (tmp_path / "r/comparison.html").read_text()
    for words in ("Policies: rate=3", "Policies: two", "Alternatives side by side"):
        assert words in page


def test_an_impossible_alternative_is_named(invoke, tmp_path):
    """Before anything is simulated, and nothing is written."""
    code, _, err = invoke(*simulate("--vary", "server.kv_tokens=10,1000", "--output-dir", "kv"))
    assert (code, "what if (server.kv_tokens=10): no request can run" in err) == (104, True)
    assert not (tmp_path / "kv").exists()


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--vary", "server.max_num_seqs=0,1"), "--vary server.max_num_seqs=0,1: server.max_num_seqs:"),
        (
            ("--vary", "rate=1,2", "--vary", "server.max_num_seqs=0"),
            "--vary server.max_num_seqs=0: server.max_num_seqs:",
        ),
        (
            ("--alternative", "no: server.max_num_seqs=0"),
            "--alternative no: server.max_num_seqs=0: server.max_num_seqs:",
        ),
        (("--set", "server.max_num_seqs=0"), "--set: server.max_num_seqs:"),
        (("--set", "server.max_num_seqs=0", "--vary", "rate=1,2"), "--set: server.max_num_seqs:"),
        (("--vary", "rate=1,1e-9,1e9"), "--vary rate=1,1e-9,1e9: rate: makes 100,000,000,000 requests"),
    ],
)
def test_what_no_server_can_be_is_told_at_its_flag(invoke, tmp_path, flags, words):
    """Once, also where several alternatives have it; nothing is written."""
    code, out, err = invoke(*simulate(*flags, "--output-dir", "r"))
    assert (code, out) == (104, "")
    assert err.count(words) == 1, err
    assert not (tmp_path / "r").exists()


def test_one_alternative_is_one(invoke):
    """In the words of the report."""
    code, out, err = invoke(*simulate("--set", "replicas=2", "--vary", "rate=2"))
    assert code == 0, err
    assert "what if: 1 alternative beside the trace as captured; it has replicas=2;" in out


def test_a_scenario_has_no_alternatives(invoke):
    """It says how two of a scenario are compared."""
    code, _, err = invoke("simulate", "noisy-neighbour", "--vary", "rate=1,2")
    assert (code, "lmperf compare A B" in err) == (104, True)


def test_folders_of_what_ifs_are_compared(invoke):
    """Side by side as if they had been asked for together, the trace as captured once."""
    for name, setting in (("a", "rate=1.5"), ("b", "rate=3")):
        assert invoke(*simulate("--set", setting, "--output-dir", name))[0] == 0
    code, out, err = invoke("compare", "a", "b")
    assert code == 0, err
    assert "a: trace t.parquet (100 requests), server model one-at-a-time" in out
    _, together, _ = invoke(*simulate("--vary", "rate=1.5,3", "--output-dir", "ab"))
    table = together[together.index("alternatives side by side") : together.index("each alternative in full")]
    assert table in out
    assert out.count("as captured fifo") == 1


def test_equal_names_have_their_folder_before_them(invoke):
    """The same difference under two server models; what differs is said."""
    assert invoke(*simulate("--set", "rate=3", "--output-dir", "a"))[0] == 0
    assert invoke(*simulate("--set", "rate=3", "--output-dir", "b"), "--server-model", "h200-llama-8b")[0] == 0
    code, out, err = invoke("compare", "a", "b")
    assert code == 0, err
    for words in ("a: rate=3", "b: rate=3", "b: as captured", "their server models differ"):
        assert words in out


def test_only_policies_that_all_have_are_called_best(invoke):
    """One that stands in one folder alone was not tried in the others."""
    assert invoke(*simulate("--set", "rate=2", "--output-dir", "a"))[0] == 0
    assert invoke(*simulate("--set", "rate=3", "--output-dir", "b"), "--policies", "edf,wfq")[0] == 0
    code, out, _ = invoke("compare", "a", "b")
    assert (code, "Of what stands in all of them (wfq)." in out) == (0, True)
    assert invoke(*simulate("--set", "rate=3", "--output-dir", "c"), "--policies", "edf")[0] == 0
    assert "No policy stands in all of them" in invoke("compare", "a", "c")[1]


def test_folders_side_by_side_are_written_as_one_with_its_page(invoke, tmp_path):
    """As if their alternatives had been asked for together: the same page but for the command, and data that says the same of
    each and can itself stand beside others."""
    for name, setting in (("a", "rate=1.5"), ("b", "rate=3"), ("c", "rate=2")):
        assert invoke(*simulate("--set", setting, "--output-dir", name))[0] == 0
    code, out, err = invoke("compare", "a", "b", "--output-dir", "both")
    assert code == 0, err
    assert "written: both/comparison.html, both/comparison.json" in out
    assert sorted(path.name for path in (tmp_path / "both").iterdir()) == [
        "comparison.html",
        "comparison.json",
        "log.txt",
    ]
    assert invoke(*simulate("--vary", "rate=1.5,3", "--output-dir", "ab"))[0] == 0
    pages = [(tmp_path / name / "comparison.html").read_text() for name in ("both", "ab")]
    for words in ("Alternatives side by side", "Policies: rate=1.5", "Policies: rate=3"):
        assert words in pages[0]
    sides = [
        page[page.index('<section id="alternatives">') : page.index('<section id="policies-1">')] for page in pages
    ]
    assert sides[0] == sides[1]
    assert "lmperf compare a b --output-dir both" in pages[0]
    data = {name: json.loads((tmp_path / name / "comparison.json").read_text()) for name in ("both", "ab")}
    for key in ("source", "server_model", "interrupted", "targets", "as_captured", "replayed"):
        assert data["both"][key] == data["ab"][key]
    assert [each["policies"] for each in data["both"]["comparisons"]] == [
        each["policies"] for each in data["ab"]["comparisons"]
    ]
    of_two, of_three = invoke("compare", "both", "c")[1], invoke("compare", "a", "b", "c")[1]
    assert (
        of_two[of_two.index("alternatives side by side") :] == of_three[of_three.index("alternatives side by side") :]
    )


def test_folders_under_two_server_models_keep_their_names_and_say_so_on_the_page(invoke, tmp_path):
    """The trace as captured is not one thing then: its second is an alternative, and nothing is said to be replayed."""
    assert invoke(*simulate("--set", "rate=3", "--output-dir", "a"))[0] == 0
    assert invoke(*simulate("--set", "rate=3", "--output-dir", "b"), "--server-model", "h200-llama-8b")[0] == 0
    assert invoke("compare", "a", "b", "--output-dir", "both")[0] == 0
    page = (tmp_path / "both/comparison.html").read_text()
    for words in ("Policies: a: rate=3", "Policies: b: rate=3", "their server models differ"):
        assert words in page
    data = json.loads((tmp_path / "both/comparison.json").read_text())
    assert [each["name"] for each in data["comparisons"]] == ["b: as captured", "a: rate=3", "b: rate=3"]
    assert data["server_model"].count(",") == 1
    assert "replayed" not in data
    out = invoke("compare", "both", "a")[1]
    for words in ("as captured fifo", "b: as captured fifo", "a: rate=3 fifo"):
        assert words in out


def test_two_server_models_of_one_name_are_told_apart(invoke, tmp_path):
    """By what they do: a file that was calibrated again may keep its name. Both rows say whose they are."""
    for folder, a_us in (("a", 5000.0), ("b", 9000.0)):
        law = msgspec.structs.replace(SERVER.law, a_us=a_us)
        (tmp_path / f"{folder}.json").write_bytes(encode_server_model(msgspec.structs.replace(SERVER, law=law)))
        found = invoke(*simulate("--set", "rate=3", "--output-dir", folder), "--server-model", f"{folder}.json")
        assert found[0] == 0, found
    out = invoke("compare", "a", "b")[1]
    assert "note: their server models differ" in out
    assert "a: as captured" in out
    assert "b: as captured" in out


def test_loads_of_a_scenario_are_written_side_by_side(invoke, tmp_path):
    """Nothing was captured, so decay is against the baseline load; each keeps the targets that it had."""
    text = """\
version: 1
name: s
duration_s: 20
backend: {kind: emulated, limits: {max_num_seqs: 4}}
slots: {sequences: 4, prefill_tokens: 2048}
load: {noisy: b}
tenants:
  a: {rate: 2, prompt: {mean: 100}, output: {mean: 20}, slo: {ttft_ms: 500, attainment: 0.9}}
  b: {rate: 2, prompt: {mean: 100}, output: {mean: 20}}
"""
    (tmp_path / "s.yaml").write_text(text)
    for name, target in (("a", 0.9), ("b", 0.8)):
        flags = ("--quiet", "--processes", 1, "--seeds", 2, "--policies", "fifo,wfq", "--output-dir", name)
        code, _, err = invoke("simulate", "s.yaml", "--set", f"tenants.a.slo.attainment={target}", *flags)
        assert code == 0, err
    code, _, err = invoke("compare", "a", "b", "--output-dir", "both")
    assert code == 0, err
    page = (tmp_path / "both/comparison.html").read_text()
    assert "Decay is against the baseline load." in page
    assert "as captured" not in page
    for words in ("Policies: a: b grows", "Policies: b: b grows", "90%", "80%"):
        assert words in page
    data = json.loads((tmp_path / "both/comparison.json").read_text())
    assert (data["source"]["kind"], data["source"]["seeds"], "as_captured" in data) == ("scenario", 2, False)
    again = invoke("compare", "both", "a")[1]
    for words in (" both: a: b grows", " b: b grows", " a: b grows"):
        assert words in again


def test_a_page_of_live_runs_and_simulations_is_refused(invoke, tmp_path):
    """There is none, and nothing is written."""
    finished_run(tmp_path / "run")
    assert invoke(*simulate("--set", "rate=3", "--output-dir", "a"))[0] == 0
    code, _, err = invoke("compare", "run", "a", "--output-dir", "both")
    assert (code, "--output-dir writes a page of runs, or of folders of simulate" in err) == (104, True)
    assert not (tmp_path / "both").exists()


def test_what_cannot_stand_beside_each_other_is_said(invoke, tmp_path):
    """Another trace, another kind of folder, a folder that is no answer."""
    one_at_a_time_trace(tmp_path / "other.parquet", requests=50)
    assert invoke(*simulate("--set", "rate=2", "--output-dir", "a"))[0] == 0
    _, source, *flags = simulate("--set", "rate=2", "--output-dir", "b")
    assert source == "t.parquet"
    assert invoke("simulate", "other.parquet", *flags)[0] == 0
    code, _, err = invoke("compare", "a", "b")
    assert (code, "cannot be compared with a: it is of the trace other.parquet (50 requests" in err) == (104, True)
    (tmp_path / "old").mkdir()
    for text, words in (
        ('{"schema": "lmperf.comparison/1.0", "comparisons": []}', "simulate again"),
        ('{"schema": "lmperf.comparison/2.0"}', "2.0"),
        ("{", "simulate again"),
    ):
        (tmp_path / "old/comparison.json").write_text(text)
        code, _, err = invoke("compare", "a", "old")
        assert (code, words in err) == (104, True)
    for file, words in (("capacity.json", "`lmperf capacity` found"), ("tune.json", "`lmperf tune` found")):
        (tmp_path / file[:3]).mkdir()
        (tmp_path / file[:3] / file).write_text("{}")
        code, _, err = invoke("compare", file[:3], "a")
        assert (code, words in err) == (104, True)
    code, _, err = invoke("compare", "a", "nothing")
    assert (code, "nothing: cannot be read" in err) == (104, True)


def test_a_folder_stands_beside_others_once(invoke):
    """However it is spelt."""
    assert invoke(*simulate("--set", "rate=2", "--output-dir", "a"))[0] == 0
    for again in ("a", "a/", "./a"):
        code, out, err = invoke("compare", "a", again)
        assert (code, out) == (104, "")
        assert f"{again}: is the folder a again; name each folder once" in err


def test_the_file_of_a_comparison_is_told_to_be_of_a_folder(invoke):
    """Which one to name."""
    assert invoke(*simulate("--set", "rate=2", "--output-dir", "a"))[0] == 0
    code, _, err = invoke("compare", "a/comparison.json", "a")
    assert (code, "a/comparison.json: is a file of a folder; name the folder: a\n" in err) == (104, True)


@pytest.mark.parametrize(
    ("interrupted", "words"),
    [(False, "--set, --vary or --alternative"), (True, "it was interrupted before there was a comparison")],
)
def test_a_folder_without_comparisons_has_nothing_to_compare(invoke, tmp_path, interrupted, words):
    """Whether it was cut short, or nothing was ever asked; with or without the trace as captured."""
    for name in "ab":
        assert invoke(*simulate("--set", "rate=2", "--output-dir", name))[0] == 0
    file = tmp_path / "b/comparison.json"
    data = json.loads(file.read_text()) | {"comparisons": [], "interrupted": interrupted}
    for as_captured in (data["as_captured"], None):
        file.write_text(json.dumps(data | {"as_captured": as_captured}))
        code, out, err = invoke("compare", "a", "b")
        assert (code, out) == (104, "")
        assert "b: holds nothing to compare" in err
        assert words in err


def finished_run(folder):
    """The folder of a run under fifo that served the trace as it is."""
    folder.mkdir()
    one_at_a_time_trace(folder / "requests.parquet")
    trace = TraceFile(folder)
    recorder = record_trace(trace, [Tenant(name=name) for name in "ab"])
    write_summary(summarise(recorder), folder)


def test_a_run_stands_beside_what_was_simulated_of_its_arrivals(invoke, tmp_path):
    """Of its own policy, whatever the trace was called; the server that takes 50 ms is the one that the run had."""
    finished_run(tmp_path / "run")
    assert invoke(*simulate("--vary", "rate=2,3", "--output-dir", "a"))[0] == 0
    code, out, err = invoke("compare", "run", "a")
    assert code == 0, err
    assert "run beside a, under fifo" in out
    assert out.count("TTFT P99 ms 50.0 50.0 +0.0%") == 2


def test_a_run_of_other_arrivals_or_another_policy_stands_beside_nothing(invoke, tmp_path):
    """It says what would have to be simulated."""
    finished_run(tmp_path / "run")
    assert invoke(*simulate("--set", "rate=2", "--output-dir", "a"), "--policies", "wfq")[0] == 0
    code, _, err = invoke("compare", "a", "run")
    assert (code, "run: ran under fifo, which a did not simulate; simulate it with --policies fifo" in err) == (
        104,
        True,
    )
    one_at_a_time_trace(tmp_path / "t.parquet", requests=60)
    assert invoke(*simulate("--set", "rate=2", "--output-dir", "b"))[0] == 0
    code, _, err = invoke("compare", "run", "b")
    assert (code, "run: its arrivals are not those that b simulated" in err) == (104, True)
