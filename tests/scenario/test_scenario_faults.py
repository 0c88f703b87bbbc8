"""Every mistake at once, each with file, line, path, what is wrong and what would be right."""

from __future__ import annotations

import pytest

from lmperf.scenario import Known


def test_field_faults_and_cross_faults_are_reported_together(faults):
    """A wrong key, a negative rate, a missing target, an objective without p, a duplicate tenant and unknown names: all
    in one go, in the order of the file."""
    text = """\
duration_s: 100
backend: {kind: emulatd}
policy: wfqq
tenants:
  chat:
    wieght: 2
    rate: -3
    prompt: 300
    output: 150
    slo:
      ttft_ms: 500
      objectives:
        - {metric: ttft, limit_ms: 400}
  batch: {rate: 1, prompt: 800, output: 300}
  chat: {rate: 1}
"""
    lines = faults(text)
    assert [line.partition(": ")[0] for line in lines] == [
        "file.yaml:2",
        "file.yaml:3",
        "file.yaml:6",
        "file.yaml:7",
        "file.yaml:10",
        "file.yaml:13",
        "file.yaml:15",
    ]
    said = "\n".join(lines)
    assert "unknown backend `emulatd`; did you mean `emulated`? known: emulated, openai, tgi" in said
    assert "unknown policy `wfqq`; did you mean `wfq`? known: fifo, none, slo_aware, wfq" in said
    assert "tenants.chat.wieght: unknown key; did you mean `weight`?" in said
    assert "tenants.chat.rate: must be > 0, got -3" in said
    assert "tenants.chat.slo.attainment: is missing" in said
    assert "tenants.chat.slo.objectives.0.p: is missing" in said
    assert "tenants.chat: is given twice, on lines 5 and 15" in said


CASES = [
    # what is put in the place of a part of the sound scenario; what must be said, and at which line
    ("duration_s: 100", "num_prompt: 1", 2, "num_prompt: unknown key; did you mean `num_prompts`?"),
    ("duration_s: 100", "seed: 1", 1, "duration_s: is missing; say how long"),
    ("duration_s: 100", "duration_s: 0", 2, "must be > 0, got 0"),
    ("duration_s: 100", "duration_s: '100'", 2, "must be a number, got the text '100'"),
    ("duration_s: 100", "duration_s: 100s", 2, "write the number alone, the unit is in the key"),
    ("duration_s: 100", "duration_s: true", 2, "must be a number, got true"),
    ("duration_s: 100", "duration_s: .inf", 2, "must be a finite number"),
    ("duration_s: 100", "duration_s: 1e12", 2, "must be <= 2,592,000, got 1e+12"),
    ("duration_s: 100", "duration_s: 100\ndrain_s: 1e9", 3, "must be <= 2,592,000, got 1e+09"),
    ("rate: 10", "rate: 1e12", 7, "must be <= 1,000,000, got 1e+12"),
    ("rate: 10", "count: 1000000\n    rate: 10", 7, "must be <= 10,000, got 1000000"),
    ("rate: 10", "users: 1000000000", 7, "must be <= 100,000, got 1000000000"),
    ("ttft_ms: 500", "ttft_ms: 1e300", 10, "must be <= 2,592,000,000, got 1e+300"),
    (
        "rate: 10",
        "rate: 10\n    arrivals: {process: poisson, on_s: 1e-6, period_s: 1e-5}",
        8,
        "so 100 s hold 10,000,000 on/off periods",
    ),
    ("duration_s: 100", "duration_s: 100\nwarmup_s: 60\ncooldown_s: 40", 3, "nothing is left to judge"),
    ("duration_s: 100", "duration_s: 100\nwarmup_s: 6\njudge: [0, 1]", 4, "is given beside warmup_s"),
    ("duration_s: 100", "duration_s: 100\njudge: [0.9, 0.1]", 3, "ends (0.1) before it starts (0.9)"),
    ("duration_s: 100", "duration_s: 100\njudge: [0.5]", 3, "needs at least 2 entries"),
    ("duration_s: 100", "duration_s: 100\nseed: 1.5", 3, "must be a whole number, got 1.5"),
    ("version: 1", "version: 2", 1, "cannot be 2; known: 1"),
    ("{kind: emulated}", "{kind: emulated, url: 'localhost:1'}", 3, "starts its own server and takes no url"),
    ("{kind: emulated}", "{kind: openai}", 3, "backend.url: the `openai` backend needs one"),
    ("{kind: emulated}", "{url: 'ftp://x'}", 3, "scheme 'ftp' is not http or https"),
    ("{kind: emulated}", "{url: 'http://me:pw@x'}", 3, "holds credentials"),
    ("{kind: emulated}", "{endpoint: chats}", 3, "did you mean `chat`? known: auto, chat, completions"),
    (
        "{kind: emulated}",
        "{limits: {max_num_seqs: 8, max_num_batched_tokens: 4}}",
        3,
        "backend.limits.max_num_batched_tokens: is 4, below max_num_seqs (8)",
    ),
    ("policy: wfq", "policy: {name: wfq, late: drop}", 4, "known: demote, keep, shed"),
    ("policy: wfq", "policy: {name: none, late: shed}", 4, "the policy `none` has no options"),
    ("policy: wfq", "policy: {late: shed}", 4, "policy.name: is missing"),
    ("policy: wfq", "policy: 5", 4, "must be a mapping (`key: value`), got 5"),
    ("policy: wfq", "slots: {sequences: 0}", 4, "slots.sequences: must be >= 1, got 0"),
    ("policy: wfq", "slots: auto", 4, "follows TPOT limits, and no tenant has one"),
    ("policy: wfq", "slots: {auto: waiting, sequences: 2000}", 4, "starts at 2000, outside [1, 1024]"),
    ("policy: wfq", "slots: {auto: waiting, max_sequences: 3, min_sequences: 4}", 4, "is 3, below min_sequences (4)"),
    ("policy: wfq", "slots: {auto: waiting, min_sequences: 2000}", 4, "is 2000, above max_sequences (1024)"),
    ("{kind: emulated}", "{urls: []}", 3, "needs at least one entry"),
    ("{kind: emulated}", "{url: 'a:1', urls: ['b:1']}", 3, "backend.urls: is given beside url"),
    ("{kind: emulated}", "{urls: ['a:1', 'ftp://x']}", 3, "scheme 'ftp' is not http or https"),
    ("{kind: emulated}", "{kind: emulated, urls: ['a:1']}", 3, "starts its own server and takes no url"),
    ("{kind: emulated}", "{urls: [{url: 'a:1', name: server-2}, 'b:1']}", 3, "a second server called `server-2`"),
    ("{kind: emulated}", "{routing: prefix}", 3, "chooses between servers, and there is one"),
    ("{kind: emulated}", "{urls: ['a:1', 'b:1'], routing: prefx}", 3, "did you mean `prefix`?"),
    (
        "{kind: emulated}",
        "{urls: ['a:1', 'b:1'], routing: {rule: prefix, slack: -1}}",
        3,
        "routing.slack: must be >= 0",
    ),
    ("{kind: emulated}", "{urls: ['a:1', 'b:1'], routing: {rule: session, slack: 3}}", 3, "bound of the rule `prefix`"),
    ("policy: wfq", "slots: {max_sequences: 30}", 4, "is for automatic slots only"),
    ("policy: wfq", "load: {at: high}", 4, "known: baseline, none, raised"),
    ("policy: wfq", "load: {noisy: btch}", 4, "there is no tenant `btch`; did you mean `batch`?"),
    ("policy: wfq", "load: {raised: 1}", 4, "must be > 1, got 1"),
    ("policy: wfq", "thresholds: ['p99(ttft) < 350']", 4, "thresholds.0: "),
    ("policy: wfq", "thresholds: ['chta: failed < 1%']", 4, "there is no tenant `chta`; did you mean `chat`?"),
    ("policy: wfq", "trace: {path: x}", 4, "no tenant's requests come from it"),
    ("tenants:", "tenants: {}\nname:", 5, "tenants: needs at least one entry, got an empty mapping"),
    ("rate: 10", "load: 0.3\n    share: 0.3", 8, "tenants.chat.share: is given beside load"),
    ("rate: 10", "weight: 1", 6, "tenants.chat: how much it sends is missing; give rate"),
    ("rate: 10", "rate:", 6, "tenants.chat: how much it sends is missing"),
    ("rate: 10", "rate: 10\n    think_s: 1", 8, "is for a closed loop"),
    ("rate: 10", "users: 2\n    arrivals: gamma", 7, "a closed loop has no gamma arrivals"),
    ("rate: 10", "arrivals: closed", 6, "tenants.chat.users: is missing"),
    ("rate: 10", "arrivals: trace", 7, "there is no trace"),
    ("rate: 10", "rate: 10\n    arrivals: gama", 8, "did you mean `gamma`?"),
    ("rate: 10", "rate: 10\n    arrivals: burst", 8, "tenants.chat.arrivals.burst_size: is missing"),
    ("rate: 10", "rate: 10\n    arrivals: {burstiness: 2}", 8, "means nothing for poisson arrivals"),
    ("rate: 10", "rate: 10\n    arrivals: {on_s: 5}", 8, "on_s and period_s go together"),
    ("rate: 10", "rate: 10\n    arrivals: {on_s: 5, period_s: 2}", 8, "0 < on_s <= period_s would be right"),
    ("rate: 10", "rate: 10\n    arrivals: {active: [[0.5, 0.2]]}", 8, "0 <= start < end <= 1 would be right"),
    ("rate: 10", "rate: 1\n    arrivals: {process: steps, steps: [[0, 1]]}", 7, "the steps state the rates themselves"),
    ("rate: 10", "arrivals: {process: steps, steps: [[0.5, 1], [0, 2]]}", 7, "each must start later"),
    ("prompt: 300", "prompt: 0", 8, "must be >= 1, got 0"),
    ("prompt: 300", "prompt: long", 8, "must be a mapping (`key: value`), got the text 'long'"),
    ("prompt: 300", "prompt: {}", 8, "says nothing about the lengths"),
    ("prompt: 300", "prompt: {mean: 300, cv: -1}", 8, "cv: must be >= 0, got -1"),
    ("prompt: 300", "prompt: {cv: 1}", 8, "prompt.mean: is missing; a lognormal distribution needs it"),
    ("prompt: 300", "prompt: {min: 5}", 8, "prompt.max: is missing; a uniform distribution needs it"),
    ("prompt: 300", "prompt: {min: 5, max: 3}", 8, "is 3, below min (5)"),
    ("prompt: 300", "prompt: {mean: 9, cv: 1, max: 3}", 8, "is 9, outside [min, max]"),
    ("prompt: 300", "prompt: {mean: 9, alpha: 2, max: 30}", 8, "mean: means nothing for a zipf distribution"),
    ("prompt: 300", "prompt: {distribution: pareto}", 8, "known: empirical, fixed, lognormal"),
    ("prompt: 300", "prompt: {parts: [{weight: 1, cv: 2}]}", 8, "prompt.parts.0.mean: is missing"),
    ("prompt: 300", "weight: 1", 6, "tenants.chat.prompt: is missing; say how many prompt tokens"),
    ("prompt: 300", "prompt: 300\n    pairs: [[1, 2]]", 9, "tenants.chat.pairs: is given beside prompt"),
    ("attainment: 0.99", "attainment: 99", 10, "must be < 1, got 99"),
    ("{ttft_ms: 500, attainment: 0.99}", "{attainment: 0.99}", 10, "there is no limit to attain"),
    ("{ttft_ms: 500, attainment: 0.99}", "{ttft_ms: 500}", 10, "limits need a target"),
    (
        "{ttft_ms: 500, attainment: 0.99}",
        "{ttft_ms: 500, e2e_ms: 400, attainment: 0.99}",
        10,
        "is 400, below ttft_ms (500)",
    ),
    (
        "{ttft_ms: 500, attainment: 0.99}",
        "{objectives: [{metric: ttft, p: 0.99, limit_ms: 4}]}",
        10,
        "must be >= 1, got 0.99; Percentile, in percent",
    ),
    ("  batch:", "  bat.ch:", 11, "cannot be a tenant's name"),
]


@pytest.mark.parametrize(
    ("old", "new", "line", "words"), CASES, ids=[f"{new} | {words}"[:70] for _, new, _, words in CASES]
)
def test_each_mistake_is_told_at_its_line(faults, sound, old, new, line, words):
    """One mistake in a sound scenario: it is reported, at its line (or at its parent's, when something is missing)."""
    assert old in sound
    lines = faults(sound.replace(old, new, 1))
    found = [fault for fault in lines if words in fault]
    assert found, lines
    assert found[0].startswith(f"file.yaml:{line}: "), found


def test_a_tenant_that_count_makes_may_not_exist_already(faults, sound):
    """`count: 3` makes batch-1 to batch-3; another tenant of that name is a duplicate."""
    text = sound.replace("rate: 5", "rate: 5\n    count: 3") + "  batch-2: {rate: 1, prompt: 1, output: 1}\n"
    assert faults(text) == [
        "file.yaml:16: tenants.batch-2: makes the tenant `batch-2`, and so does `batch`; rename one"
    ]


def test_the_sound_scenario_is_sound(load, sound):
    """What the other tests break has no fault to begin with."""
    scenario = load(sound)
    assert scenario.model.name == "file"
    assert scenario.warnings == ()


def test_names_are_checked_only_where_they_are_known(load, sound):
    """Without a list of what is installed no policy or backend is unknown."""
    scenario = load(sound.replace("wfq", "mine"), known=None)
    assert scenario.model.policy.name == "mine"


def test_a_policy_judges_its_own_options(faults, load, sound):
    """The check that is passed in sees name and options, ``late`` among them, and its words reach the people."""
    seen = {}

    def check(name, options):
        seen[name] = dict(options)
        if "windw_s" in options:
            raise ValueError("unknown option 'windw_s' (options: window_s)")

    known = Known(policies=["slo_aware"], check_policy=check)
    load(sound.replace("wfq", "{name: slo_aware, late: shed, window_s: 30}"), known=known)
    assert seen == {"slo_aware": {"late": "shed", "window_s": 30}}
    (fault,) = faults(sound.replace("wfq", "{name: slo_aware, windw_s: 30}"), known=known)
    assert fault == "file.yaml:4: policy: unknown option 'windw_s' (options: window_s)"


def test_a_gateway_needs_no_traffic(load, faults, sound):
    """Tenants without rates and lengths are faults of a load test, and none of a gateway."""
    text = "backend: {url: 'localhost:8000'}\ntenants:\n  a: {weight: 2}\n  b: {}\n"
    assert len(faults(text)) == 1 + 2 * 3
    assert list(load(text, traffic=False).model.tenants) == ["a", "b"]


TRACE = """\
policy: fifo
trace:
  path: t.csv
  tenants: %s
tenants:
  chat: {}
  rag: {}
  own: {rate: 1, prompt: 5, output: 5}
"""


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        ("{by: index, order: [chat, rga]}", "trace.tenants.order.1: there is no tenant `rga`; did you mean `rag`?"),
        ("{by: index, order: [chat, own]}", "`own` has arrivals of its own"),
        ("{by: index}", "trace.tenants.order: is missing; by: index needs it"),
        ("{by: index, order: [chat], column: x}", "means nothing with by: index"),
        ("{by: column, column: c, map: {x: nobody}}", "trace.tenants.map.x: there is no tenant `nobody`"),
        ("{by: prompt_tokens, thresholds: [9, 5], order: [chat, rag, rag]}", "do not rise"),
        ("{by: prompt_tokens, thresholds: [5], order: [chat]}", "make 2 classes, but 1 tenants are named"),
        ("{by: size}", "known: column, index, prompt_tokens"),
    ],
)
def test_rules_for_the_rows_of_a_trace_are_checked(faults, rule, words):
    """A rule names tenants that exist and whose requests come from the trace, and all that its kind needs."""
    found = faults(TRACE % rule)
    assert any(words in fault and fault.startswith("file.yaml:4: ") for fault in found), found


def test_numbers_in_messages_do_not_leak_into_secrets(faults, sound):
    """A key of the wrong type is reported without its value."""
    (fault,) = faults(sound + "    api_key: 123456789\n")
    assert "api_key: must be text, got another kind of value" in fault
    assert "123456789" not in fault
