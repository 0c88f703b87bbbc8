"""From scenario to plan: ns, defaults, identities, files; and the resolved file that runs the same thing again."""

from __future__ import annotations

import gzip

import pytest

from lmperf.scenario import ScenarioError, load_scenario, resolve, resolved_yaml, scenario_from_data, scenario_from_text
from lmperf.scenario.plan import RuleKind, Timeouts, Window
from scheduler.routing import Routing, Rule
from scheduler.slots import Slots
from tenants.slo import Metric, Objective, Slo
from tenants.tenant import QueueLimits
from tenants.traffic import Distribution, Lengths

FULL = """\
version: 1
duration_s: 100
warmup_s: 10
cooldown_s: 5
backend:
  url: localhost:8000
  timeouts: {first_token_s: 3, between_tokens_s: null}
  limits: {kv_tokens: null, max_num_seqs: 32, offset_ms: 1.5}
policy: {name: slo_aware, late: shed, window_s: 30}
slots: {sequences: 8}
thresholds: ['p99(ttft) < 350ms', 'chat: failed < 1%']
tenants:
  chat:
    weight: 2
    priority: 1
    rate: 10
    arrivals: {process: burst, burst_size: 5, burst_rate: 20, fixed_epochs: true, on_s: 5, period_s: 20}
    prompt: {distribution: normal, mean: 300, cv: 0.2, min: 10, max: 500}
    output: {parts: [{weight: 3, mean: 100, cv: 1}, {weight: 1, min: 5, max: 9}], max: 400}
    slo:
      ttft_ms: 0.5
      tpot_ms: 20
      e2e_ms: 10000
      max_itl_ms: 100
      attainment: 0.99
      objectives: [{metric: ttft, p: 95, limit_ms: 400}]
    limits: {max_queued: 10, requests_per_s: 5, tokens_per_s: 100, burst_s: 2, ttl_s: 1.5, shed_out_of_contract: true}
    timeouts: {connect_s: 1, total_s: 60}
    shared_prefix_tokens: 20
    cancel: {share: 0.1, after_s: 2}
    max_tokens: 300
    headers: {X-LMPERF-Tenant: me}
    model: adapter
    extra_body: {top_k: 1}
"""


def test_everything_in_the_file_reaches_the_plan_in_ns(load):
    """Field by field, against values worked out by hand."""
    plan = resolve(load(FULL))
    (chat,) = plan.tenants
    tenant, traffic = chat.tenant, chat.traffic
    assert plan.duration_ns == 100 * 10**9
    assert plan.window == Window(10 * 10**9, 95 * 10**9)
    assert (plan.policy.name, plan.policy.options) == ("slo_aware", {"late": "shed", "window_s": 30})
    assert (plan.slots.sequences, plan.slots.prefill_tokens, plan.slots.auto) == (8, None, None)
    assert (plan.backend.kind, plan.backend.url) == ("openai", "http://localhost:8000")
    assert plan.backend.limits == {"kv_tokens": None, "max_num_seqs": 32}
    assert plan.backend.offset_ns == 1_500_000
    assert plan.backend.server_model is None
    assert plan.backend.timeouts == Timeouts(connect_ns=10**10, first_token_ns=3 * 10**9)
    assert chat.timeouts == Timeouts(connect_ns=10**9, first_token_ns=3 * 10**9, total_ns=60 * 10**9)
    assert [t.text for t in plan.thresholds] == ["p99(ttft) < 350ms", "chat: failed < 1%"]
    assert (tenant.name, tenant.weight, tenant.priority) == ("chat", 2, 1)
    assert tenant.slo == Slo(
        ttft_ns=500_000,
        tpot_ns=20_000_000,
        e2e_ns=10**10,
        max_itl_ns=10**8,
        attainment=0.99,
        objectives=(Objective(metric=Metric.TTFT, percentile=95, limit_ns=400_000_000),),
    )
    assert tenant.limits == QueueLimits(
        max_queued=10,
        requests_per_s=5,
        tokens_per_s=100,
        burst_s=2,
        ttl_ns=1_500_000_000,
        shed_out_of_contract=True,
    )
    assert tenant.identity.headers == {"X-LMPERF-Tenant": "me"}, "the default header gives way, whatever its case"
    assert (tenant.identity.model, tenant.identity.extra_body) == ("adapter", {"top_k": 1})
    assert traffic.prompt == Lengths(distribution=Distribution.NORMAL, mean=300, cv=0.2, low=10, high=500)
    assert traffic.output == Lengths(
        distribution=Distribution.MIXTURE,
        high=400,
        parts=(
            (3, Lengths(distribution=Distribution.LOGNORMAL, mean=100, cv=1)),
            (1, Lengths(distribution=Distribution.UNIFORM, low=5, high=9)),
        ),
    )
    arrivals = traffic.arrivals
    assert (arrivals.process, arrivals.rate, arrivals.burst_size, arrivals.burst_rate) == ("burst", 10, 5, 20)
    assert (arrivals.fixed_epochs, arrivals.on_s, arrivals.period_s) == (True, 5, 20)
    assert (traffic.cancel_share, traffic.cancel_after_s, traffic.max_tokens) == (0.1, 2, 300)
    assert (traffic.shared_prefix_tokens, traffic.first_token_timeout_s, traffic.timeout_s) == (20, 3, 60)


@pytest.mark.parametrize(
    ("of_the_backend", "own", "expected_s"),
    [
        ("{}", "{}", (10, 60)),
        ("{connect_s: 3, between_tokens_s: 4}", "{}", (3, 4)),
        ("{connect_s: 3, between_tokens_s: 4}", "{connect_s: 1}", (1, 4)),
        ("{connect_s: 3, between_tokens_s: 4}", "{connect_s: null, between_tokens_s: null}", (3, None)),
        ("{connect_s: null, between_tokens_s: null}", "{}", (10, None)),
        ("{connect_s: null, between_tokens_s: null}", "{between_tokens_s: 5}", (10, 5)),
    ],
)
def test_a_tenants_time_outs_stand_before_the_backends_key_by_key(of_the_backend, own, expected_s):
    """null is none; of connecting it is as if nothing were stated, for a connection must open within some time."""
    text = f"version: 1\nname: t\nduration_s: 1\nbackend: {{url: 'http://h:1', timeouts: {of_the_backend}}}\n"
    text += f"tenants:\n  a: {{rate: 1, prompt: 9, output: 4, timeouts: {own}}}\n"
    (tenant,) = resolve(scenario_from_text(text)).tenants
    connect_s, between_s = expected_s
    between_ns = None if between_s is None else between_s * 10**9
    assert tenant.timeouts == Timeouts(connect_ns=connect_s * 10**9, between_tokens_ns=between_ns)


def test_defaults_depend_on_where_requests_go(load, sound):
    """A url without a policy measures the target itself: `none`, no slots. The embedded server gets fifo, the shipped
    server model, and slots that let a policy matter.
    """
    bare = sound.replace("policy: wfq\n", "")
    own = resolve(load(bare))
    assert (own.backend.kind, own.policy.name, own.backend.server_model) == ("emulated", "fifo", "h200-llama-8b")
    assert (own.slots.sequences, own.slots.prefill_tokens) == (64, 2048)
    target = resolve(load(bare.replace("{kind: emulated}", "http://localhost:8000/v1")))
    assert (target.backend.kind, target.policy.name, target.backend.server_model) == ("openai", "none", None)
    assert (target.slots.sequences, target.slots.prefill_tokens) == (None, None)
    assert target.backend.url == "http://localhost:8000"


def test_slots_without_a_queue_are_warned_about(load, sound):
    """`none` overrules slots, so that one scenario serves a comparison with it; the plan says so."""
    plan = resolve(load(sound.replace("policy: wfq", "policy: none\nslots: {sequences: 4}")))
    assert plan.slots.sequences is None
    assert any("have no effect" in str(warning) and warning.place.line == 5 for warning in plan.warnings)


@pytest.mark.parametrize(
    ("slots", "expected"),
    [
        ("unlimited", (None, None, None)),
        ("{sequences: 8}", (8, None, None)),
        ("{prefill_tokens: 512}", (None, 512, None)),
        ("auto", (64, 2048, "tpot")),
        ("auto-waiting", (64, 2048, "waiting")),
        ("{auto: waiting}", (64, 2048, "waiting")),
        ("{auto: waiting, sequences: 50, prefill_tokens: null}", (50, None, "waiting")),
        ("{auto: waiting, max_sequences: 48}", (48, 2048, "waiting")),
    ],
)
def test_every_form_of_slots(load, sound, slots, expected):
    """Fixed, unlimited in either dimension, and automatic with a start inside its bounds."""
    text = sound.replace("policy: wfq", f"policy: wfq\nslots: {slots}").replace("ttft_ms: 500", "tpot_ms: 20")
    plan = resolve(load(text))
    assert (plan.slots.sequences, plan.slots.prefill_tokens, plan.slots.auto) == expected


SEVERAL = """\
duration_s: 100
backend:
  urls: ["gpu-1:8000", {url: "http://gpu-2:8000/v1", name: big, sequences: 96, prefill_tokens: 4096}]
  routing: prefix
policy: wfq
slots: {sequences: 32, prefill_tokens: 1024}
tenants:
  chat: {rate: 10, prompt: 300, output: 150, slo: {ttft_ms: 500, tpot_ms: 30, attainment: 0.99}}
"""


def test_several_servers_have_names_urls_and_slots_of_their_own(load):
    """Each url is a server; what it does not state is what `slots` says."""
    plan = resolve(load(SEVERAL))
    assert plan.backend.kind == "openai"
    assert plan.backend.url is None
    assert plan.backend.urls == {"server-1": "http://gpu-1:8000", "big": "http://gpu-2:8000"}
    assert plan.slots.own == {
        "server-1": Slots(sequences=32, prefill_tokens=1024),
        "big": Slots(sequences=96, prefill_tokens=4096),
    }
    assert plan.backend.routing == Routing(rule=Rule.PREFIX)


def test_several_servers_without_a_policy_have_no_limits(load):
    """In front of urls the default is no queue, as in front of a url."""
    plan = resolve(load(SEVERAL.replace("policy: wfq\n", "")))
    assert not plan.policy.queues
    assert plan.slots.own == {"server-1": Slots(), "big": Slots()}


def test_one_number_of_slots_follows_tpot(load, faults):
    """A server of several cannot have a fixed number while a controller moves all of them."""
    moved = SEVERAL.replace("slots: {sequences: 32, prefill_tokens: 1024}", "slots: auto")
    assert any("backend.urls.1.sequences: is fixed" in line for line in faults(moved))
    plan = resolve(load(moved.replace("auto\n", "auto-waiting\n")))
    assert plan.slots.own["big"].sequences == 96


def test_a_tenants_own_address_would_get_around_the_servers(faults):
    """A base_url beside urls is a fault, since nothing would balance it."""
    (line,) = faults(SEVERAL.replace("{rate: 10,", "{base_url: 'gpu-9:1', rate: 10,"))
    assert "would get around the servers" in line


def test_the_window_is_in_fractions_or_seconds(load, sound):
    """``judge`` is a part of the duration; without anything the whole run is judged."""
    assert resolve(load(sound)).window == Window(0, 100 * 10**9)
    assert resolve(load(sound + "judge: [0.1, 0.95]\n")).window == Window(10 * 10**9, 95 * 10**9)
    assert resolve(load(sound + "judge: [0.1, 0.95]\n")).judged.window(10**9) == Window(10**8, 95 * 10**7)


def test_count_makes_equal_tenants_that_remember_their_group(load, sound):
    """`count: 12` makes names that sort, each with the whole entry's rate, weight and SLO; noisy may name the group."""
    text = sound.replace("rate: 5", "rate: 5\n    count: 12") + "load: {noisy: batch}\n"
    plan = resolve(load(text))
    names = [t.tenant.name for t in plan.tenants if t.group == "batch"]
    assert names == [f"batch-{i:02d}" for i in range(1, 13)] == sorted(names)
    assert {t.traffic.arrivals.rate for t in plan.tenants if t.group == "batch"} == {5}
    assert plan.noisy == tuple(names)


@pytest.mark.parametrize("suffix", [".csv", ".csv.gz"])
def test_lengths_from_a_file_are_its_rows(load, sound, tmp_path, suffix):
    """Both columns: pairs drawn together. One: that length alone, empirical. The path is relative to the scenario."""
    rows = b"t,in,out\n1,10,20\n2,30,40\n"
    (tmp_path / f"l{suffix}").write_bytes(gzip.compress(rows) if suffix.endswith("gz") else rows)
    both = sound.replace("prompt: 300\n    output: 150", f"lengths_file: {{path: l{suffix}, prompt: in, output: out}}")
    chat = resolve(load(both)).tenants[0]
    assert chat.traffic.joint == ((10, 20), (30, 40))
    assert chat.tenant.expected_output_tokens == 30
    one = sound.replace("output: 150", f"lengths_file: {{path: l{suffix}, output: out}}")
    chat = resolve(load(one)).tenants[0]
    assert chat.traffic.output == Lengths(distribution=Distribution.EMPIRICAL, values=(20, 40))
    assert chat.traffic.joint == ()


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        (None, "there is no file"),
        ("a,b\n1,2\n", "has no column 'out'; it has a, b"),
        ("out\n1\nx\n", "line 3: 'x' is not a token count"),
        ("out\n0\n", "line 2: '0' is not a token count"),
        ("out\n", "has no rows"),
    ],
)
def test_a_lengths_file_that_cannot_be_used_is_a_fault_with_its_line(load, sound, tmp_path, rows, words):
    """What is wrong in the file, and where the scenario names it."""
    if rows is not None:
        (tmp_path / "l.csv").write_text(rows, encoding="utf-8")
    scenario = load(sound.replace("output: 150", "lengths_file: {path: l.csv, output: out}"))
    with pytest.raises(ScenarioError) as caught:
        resolve(scenario)
    (fault,) = caught.value.faults
    assert words in str(fault)
    assert fault.place.line == 9


def test_missing_files_are_all_reported(load):
    """Server model, tokenizer and trace: each missing one, at its line, with what would be right."""
    text = (
        "backend: {server_model: h200-lama, tokenizer: tok}\npolicy: fifo\ntrace: {path: t.csv}\ntenants: {chat: {}}\n"
    )
    with pytest.raises(ScenarioError) as caught:
        resolve(load(text))
    said = str(caught.value)
    assert [fault.place.line for fault in caught.value.faults] == [1, 1, 3]
    assert "a preset: h200-llama-8b" in said
    assert "--set trace.path=FILE" in said


def test_relative_files_are_the_scenarios_and_those_of_set_the_current_folders(load, tmp_path, monkeypatch, sound):
    """A scenario can be run from anywhere; what is typed on the command line means what it means in a shell."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (tmp_path / "m.json").write_text("{}", encoding="utf-8")
    (elsewhere / "n.json").write_text("{}", encoding="utf-8")
    monkeypatch.chdir(elsewhere)
    text = sound.replace("{kind: emulated}", "{kind: emulated, server_model: m.json}")
    assert resolve(load(text)).backend.server_model == str(tmp_path / "m.json")
    over = load(text, overrides=["backend.server_model=n.json"])
    assert resolve(over).backend.server_model == str(elsewhere / "n.json")


@pytest.mark.parametrize(
    ("rule", "kind"),
    [
        ("", RuleKind.OWN),
        (", tenants: {by: index, order: [b, a]}", RuleKind.INDEX),
        (", tenants: {by: column, column: key, map: {x: a}}", RuleKind.COLUMN),
        (", tenants: {by: prompt_tokens, thresholds: [100], order: [a, b]}", RuleKind.PROMPT_TOKENS),
    ],
)
def test_the_slice_of_a_trace(load, tmp_path, rule, kind):
    """Slice and speed as written, in ns; the run's duration follows from them."""
    (tmp_path / "t.csv").touch()
    trace = f"trace: {{path: t.csv, speed: 2, start_s: 1, duration_s: 30, rows: 9{rule}}}\n"
    text = trace + "tenants: {a: {}, b: {}}\n"
    plan = resolve(load(text))
    assert plan.duration_ns == 15 * 10**9
    trace = plan.trace
    assert (trace.path, trace.speed, trace.start_ns, trace.length_ns, trace.rows) == (
        tmp_path / "t.csv",
        2,
        10**9,
        30 * 10**9,
        9,
    )
    assert trace.rule.kind is kind


def test_the_only_tenant_gets_every_row(load, tmp_path):
    """Without a rule, a scenario with one tenant deals all rows to it."""
    (tmp_path / "t.csv").touch()
    rule = resolve(load("trace: {path: t.csv}\ntenants: {a: {}}\n")).trace.rule
    assert (rule.kind, rule.order) == (RuleKind.INDEX, ("a",))


def test_a_scenario_can_come_from_flags():
    """Data without a file goes the same way, and its faults name where it came from."""
    data = {
        "duration_s": 5,
        "backend": "localhost:8000",
        "tenants": {"default": {"users": 4, "prompt": 10, "output": 5}},
    }
    assert resolve(scenario_from_data(data)).tenants[0].traffic.arrivals.users == 4
    data["tenants"]["default"]["prompt"] = -1
    with pytest.raises(ScenarioError, match=r"^<command line>: tenants\.default\.prompt: must be >= 1"):
        scenario_from_data(data)


@pytest.mark.parametrize(
    "text",
    [
        FULL,
        FULL.replace("slots: {sequences: 8}", "slots: auto"),
        SEVERAL,
        FULL.replace("policy: {name: slo_aware, late: shed, window_s: 30}\nslots: {sequences: 8}\n", ""),
        FULL.replace("rate: 10", "load: 0.3\n    raised_load: 0.7\n    count: 3") + "load: {at: raised, saturation: "
        "1000}\n",
        FULL.replace(
            "    rate: 10\n    arrivals: {process: burst, burst_size: 5, burst_rate: 20, fixed_epochs: true, "
            "on_s: 5, period_s: 20}\n",
            "    users: 3\n",
        ),
    ],
    ids=["full", "auto", "several", "defaults", "raised", "closed"],
)
def test_the_resolved_file_resolves_to_the_same_plan(load, text, tmp_path):
    """`scenario.resolved.yaml` runs the same thing again, wherever it lies."""
    scenario = load(text)
    plan = resolve(scenario)
    folder = tmp_path / "results"
    folder.mkdir()
    file = folder / "scenario.resolved.yaml"
    file.write_text(resolved_yaml(scenario, plan), encoding="utf-8")
    assert resolve(load_scenario(file)) == plan


def test_the_resolved_file_holds_what_the_run_was_told(load, sound, tmp_path):
    """Overrides, the measured saturation, and the load, noisy tenant and seed of an experiment are in it; files are
    absolute.
    """
    (tmp_path / "l.csv").write_text("out\n7\n", encoding="utf-8")
    text = sound.replace("output: 150", "lengths_file: {path: l.csv, output: out}")
    scenario = load(text, overrides=["tenants.chat.rate=20"])
    plan = resolve(scenario, saturation=12_345.5, at="raised", noisy="batch", seed=9)
    again = scenario_from_text(resolved_yaml(scenario, plan))
    assert again.model.tenants["chat"].rate == 20
    assert again.model.load.saturation == 12_345.5
    assert (again.model.load.at, again.model.load.noisy, again.model.seed) == ("raised", "batch", 9)
    assert again.model.tenants["chat"].lengths_file.path == str(tmp_path / "l.csv")
    assert resolve(again) == plan


def test_a_url_on_the_command_line_takes_the_place_of_several(load):
    """And several take the place of one: to set one is to take back the other."""
    one = resolve(load(SEVERAL, overrides=["backend.url=gpu-9:8000"]))
    assert (one.backend.url, one.backend.urls, one.slots.own) == ("http://gpu-9:8000", {}, {})
    two = resolve(load(SEVERAL, overrides=["backend.url=gpu-9:8000", "backend.urls=[a:1, b:1]"]))
    assert (two.backend.url, list(two.backend.urls.values())) == (None, ["http://a:1", "http://b:1"])
