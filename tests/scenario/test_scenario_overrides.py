"""``--set PATH=VALUE``: before validation, typed as YAML, with its own place in messages."""

from __future__ import annotations

import pytest


@pytest.mark.parametrize(
    ("setting", "path", "value"),
    [
        ("tenants.chat.rate=20", "tenants.chat.rate", 20.0),
        ("seed=7", "seed", 7),
        ("duration_s=1e2", "duration_s", 100.0),
        ("name=20", None, None),
        ("name='20'", "name", "20"),
        ("judge=[0.2, 0.8]", "judge", [0.2, 0.8]),
        ("policy=fifo", "policy.name", "fifo"),
        ("policy.late=shed", "policy.late", "shed"),
        ("policy.name=slo_aware", "policy.name", "slo_aware"),
        ("tenants.chat.prompt=40", "tenants.chat.prompt.mean", 40.0),
        ("tenants.chat.prompt.mean=40", "tenants.chat.prompt.mean", 40.0),
        ("tenants.chat.prompt.cv=0.5", "tenants.chat.prompt.cv", 0.5),
        ("slots.sequences=96", "slots.sequences", 96),
        ("backend.limits.kv_tokens=5000", "backend.limits.kv_tokens", 5000),
        ("tenants.batch.slo={e2e_ms: 5, attainment: 0.5}", "tenants.batch.slo.e2e_ms", 5.0),
        ("tenants.chat.arrivals=constant", "tenants.chat.arrivals.process", "constant"),
        ('backend.headers."x.team"=a', None, None),
        ("description=a=b", "description", "a=b"),
    ],
)
def test_a_setting_reaches_its_key(load, faults, setting, path, value):
    """The value arrives, with the type that YAML gives it, also through a short form (``policy: wfq``)."""
    if path is None and "headers" in setting:
        assert load(overrides=[setting]).model.backend.headers == {"x.team": "a"}
    elif path is None:
        (fault,) = faults(overrides=[setting])
        assert fault.startswith("--set: name: must be text, got 20")
    else:
        found = load(overrides=[setting]).model
        for key in path.split("."):
            found = found[key] if isinstance(found, dict) else getattr(found, key)
        assert found == value


def test_what_was_not_set_stays(load):
    """A setting inside a part leaves the part's other keys as they were."""
    slo = load(overrides=["tenants.chat.slo.ttft_ms=200"]).model.tenants["chat"].slo
    assert (slo.ttft_ms, slo.attainment) == (200, 0.99)
    assert load(overrides=["policy.late=shed"]).model.policy.name == "wfq"


def test_the_last_setting_wins(load):
    """Settings apply in order."""
    assert load(overrides=["seed=1", "seed=2"]).model.seed == 2


def test_lists_take_entries_and_grow_by_one(load, faults, sound):
    """An index counts from 0; the one after the last appends; anything further is a fault."""
    text = sound + "thresholds: ['failed < 1%']\n"
    assert load(text, overrides=["thresholds.0=failed < 2%"]).model.thresholds == ["failed < 2%"]
    assert load(text, overrides=["thresholds.1=goodput > 2"]).model.thresholds == ["failed < 1%", "goodput > 2"]
    (fault,) = faults(text, overrides=["thresholds.5=goodput > 2"])
    assert fault == "--set: thresholds.5: there is no such entry; the list has 1, counted from 0"


@pytest.mark.parametrize(
    ("given", "setting", "gone"),
    [("rate", "load=0.5", "rate"), ("rate", "users=3", "rate"), ("rate", "share=0.5", "rate")],
)
def test_setting_one_of_several_alternatives_takes_back_the_others(load, given, setting, gone):
    """``rate`` in the file and ``load`` on the command line: the command line's stands alone."""
    tenant = load(overrides=[f"tenants.chat.{setting}"]).model.tenants["chat"]
    assert getattr(tenant, gone) is None
    assert getattr(tenant, setting.partition("=")[0]) is not None


def test_a_window_replaces_a_warm_up(load, sound):
    """``judge`` takes back warm-up and cool-down, and the other way round."""
    text = sound + "warmup_s: 10\ncooldown_s: 5\n"
    model = load(text, overrides=["judge=[0, 0.5]"]).model
    assert (model.judge, model.warmup_s, model.cooldown_s) == ([0, 0.5], None, None)
    assert load(sound + "judge: [0, 0.5]\n", overrides=["warmup_s=3"]).model.judge is None


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("tenants.chta.rate=20", "--set: tenants.chta: there is no `chta`; did you mean `chat`? known: batch, chat"),
        ("tenants.chat.rat=20", "--set: tenants.chat.rat: unknown key; did you mean `rate`?"),
        ("tenats.chat.rate=20", "--set: tenats: unknown key; did you mean `tenants`?"),
        ("tenants.chat.rate.x=20", "--set: tenants.chat.rate: is a single value and has no keys"),
        ("tenants.chat.rate=-1", "--set: tenants.chat.rate: must be > 0, got -1"),
        ("tenants.chat.rate=fast", "--set: tenants.chat.rate: must be a number, got the text 'fast'"),
        ("tenants.chat.rate=[1", "--set: tenants.chat.rate: is not YAML"),
        ("policy=wfqq", "--set: policy.name: unknown policy `wfqq`; did you mean `wfq`?"),
        ("rate 20", "--set: a setting needs `=`; write --set tenants.chat.rate=20"),
        ("tenants..rate=3", "--set: `tenants..rate` is not a path"),
        ("=3", "--set: `` is not a path"),
    ],
)
def test_a_wrong_setting_is_a_fault_like_any_other(faults, setting, words):
    """An unknown path has suggestions; a wrong value is reported with ``--set`` as its place; other faults come too."""
    lines = faults(overrides=[setting, "seed=-1"])
    assert any(line.startswith(words) for line in lines), lines
    assert any(line.startswith("--set: seed: must be >= 0, got -1") for line in lines), lines


def test_a_setting_can_mend_a_fault(load, sound):
    """Overrides apply before validation: what they replace is never judged."""
    broken = sound.replace("rate: 10", "rate: -10")
    assert load(broken, overrides=["tenants.chat.rate=10"]).model.tenants["chat"].rate == 10
