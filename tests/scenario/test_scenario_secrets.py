"""Secrets are references: resolved on demand, never in anything written, printed or raised."""

from __future__ import annotations

import pickle
import re

import pytest

from lmperf.scenario import ScenarioError, redact_argv, resolve, resolved_yaml, scenario_from_text
from lmperf.scenario.secrets import is_secret

VALUE = "sk-s3cr3t-0123456789"


@pytest.fixture
def secretive(sound) -> str:
    """A scenario with a secret written out in every place that can hold one."""
    return (
        sound.replace(
            "{kind: emulated}", f"{{url: 'http://localhost:8000', api_key: {VALUE}-a, options: {{secret: {VALUE}-o}}}}"
        )
        .replace(
            "  batch:\n",
            f"  batch:\n    headers: {{Authorization: Bearer {VALUE}-b, x-team: open, X-Api-Key: {VALUE}-c}}\n",
        )
        .replace(
            "rate: 10",
            f"rate: 10\n    api_key: {VALUE}-d\n    extra_body: {{nested: {{api_key: {VALUE}-e}}, top_k: 5}}",
        )
    )


def everything(scenario, plan) -> str:
    """All that could be written or printed of a scenario and its plan."""
    shown = [resolved_yaml(scenario, plan), repr(scenario), repr(plan), str(scenario.document.data)]
    shown += [str(warning) for warning in scenario.warnings + plan.warnings]
    return "\n".join(shown)


def test_nothing_written_or_printed_holds_a_secret(load, secretive):
    """Resolved file, plan, data, reprs and warnings: the value is in none, and each written-out one is warned about."""
    scenario = load(secretive)
    assert VALUE not in everything(scenario, resolve(scenario))
    assert len(scenario.warnings) == 6
    assert all("a secret is written out" in str(warning) for warning in scenario.warnings)


def test_a_secret_of_the_command_line_is_no_different(load):
    """``--set`` of a key is text whatever it looks like, and is never shown."""
    scenario = load(overrides=[f"tenants.chat.api_key={VALUE}", "tenants.batch.api_key=[1"])
    plan = resolve(scenario)
    assert VALUE not in everything(scenario, plan)
    assert scenario.secrets.resolve(plan.tenants[0].tenant.identity.api_key) == VALUE
    assert scenario.secrets.resolve(plan.tenants[1].tenant.identity.api_key) == "[1"


def test_a_written_out_secret_still_reaches_the_wire(load, secretive):
    """The plan's references resolve to the values that were written, each to its own."""
    scenario = load(secretive)
    chat, batch = (planned.tenant.identity for planned in resolve(scenario).tenants)
    of = scenario.secrets.resolve
    assert of(chat.api_key) == f"{VALUE}-d"
    assert of(chat.extra_body["nested"]["api_key"]) == f"{VALUE}-e"
    assert chat.extra_body["top_k"] == 5
    assert of(batch.api_key) == f"{VALUE}-a", "the backend's key is every tenant's"
    assert of(batch.headers["Authorization"]) == f"Bearer {VALUE}-b"
    assert batch.headers["x-team"] == "open"
    assert of(batch.headers["X-Api-Key"]) == f"{VALUE}-c"


def test_the_resolved_file_names_the_variables_that_it_needs(load, secretive, monkeypatch):
    """Who re-runs it sets the variables that stand for the values, and gets the same plan."""
    scenario = load(secretive)
    plan = resolve(scenario)
    again = scenario_from_text(resolved_yaml(scenario, plan))
    assert resolve(again) == plan
    names = again.secrets.variables()
    assert all(name in resolved_yaml(scenario, plan).partition("version:")[0] for name in names)
    assert len(again.secrets.missing()) == len(names) == 6
    for name in names:
        monkeypatch.setenv(name, "v")
    assert not again.secrets.missing()


def test_faults_never_quote_a_secret(faults, secretive):
    """A scenario that is wrong elsewhere, in the very places of its secrets too, shows none of them."""
    text = secretive.replace("rate: 5", "rate: -5").replace(f"api_key: {VALUE}-d", f"api_key: [{VALUE}]")
    said = "\n".join(faults(text, overrides=[f"tenants.nobody.api_key={VALUE}", f"tenants.chat.api_key.x={VALUE}"]))
    assert "tenants.chat.api_key" in said
    assert VALUE not in said


@pytest.mark.parametrize("text", ["${NAME}", "${env:}", "${env:A B}", "${file:}", "${vault:x}", "a ${env:OK} ${"])
def test_what_only_looks_like_a_reference_is_a_fault(faults, sound, text):
    """``${...}`` of another kind would be sent as it stands: it is reported."""
    lines = faults(sound + f"    headers: {{x: '{text}'}}\n")
    assert lines == [
        "file.yaml:15: tenants.batch.headers.x: holds `${`, but not a reference; write `${env:NAME}` or `${file:PATH}`"
    ]


def test_references_resolve_on_demand_and_a_missing_one_is_a_fault_with_its_line(load, sound, monkeypatch):
    """Loading needs no variable; resolving one that is not set says which, where, and what to do."""
    monkeypatch.delenv("LMPERF_TEST_KEY", raising=False)
    scenario = load(sound + "    api_key: ${env:LMPERF_TEST_KEY}\n")
    assert scenario.warnings == ()
    words = r"file.yaml:15: tenants.batch.api_key: the environment variable LMPERF_TEST_KEY is not set; export"
    with pytest.raises(ScenarioError, match=words):
        scenario.secrets.resolve("Bearer ${env:LMPERF_TEST_KEY}")
    assert [fault.place.line for fault in scenario.secrets.missing()] == [15]
    monkeypatch.setenv("LMPERF_TEST_KEY", VALUE)
    assert scenario.secrets.resolve("Bearer ${env:LMPERF_TEST_KEY}") == f"Bearer {VALUE}"
    assert scenario.secrets.missing() == []
    assert scenario.secrets.redact(f"failed with key {VALUE}!") == "failed with key ***!"


def test_a_tenant_with_its_own_server_gets_none_of_the_backends_credentials(load, sound):
    """A key that was meant for one host is not sent to another."""
    text = sound.replace("{kind: emulated}", "{url: 'http://a:1', api_key: '${env:K}', headers: {x-a: '1'}}")
    scenario = load(text + "    base_url: http://b:2\n")
    chat, batch = (planned.tenant.identity for planned in resolve(scenario).tenants)
    assert (chat.api_key, chat.headers) == ("${env:K}", {"x-lmperf-tenant": "chat", "x-a": "1"})
    assert (batch.api_key, batch.headers) == (None, {"x-lmperf-tenant": "batch"})


def test_a_printed_command_line_holds_no_secret():
    """Values of keys and of secret headers and settings are gone, in both spellings; everything else stays."""
    argv = [
        "lmperf", "run", "x.yaml", "--api-key", VALUE, f"--api-key={VALUE}",
        "--header", f"Authorization: Bearer {VALUE}", "--header=x-team: a",
        "--set", f"tenants.chat.api_key={VALUE}", "--set", "tenants.chat.rate=20",
        f"--set=tenants.chat={{api_key: {VALUE}}}", "--set", f'backend.headers."X-Api-Key"={VALUE}',
        "--api-key", "${env:KEY}", "--set", f"backend.url=http://me:{VALUE}@host",
    ]  # fmt: skip
    shown = redact_argv(argv)
    assert VALUE not in " ".join(shown)
    assert len(shown) == len(argv)
    assert [word for word in shown if word in argv] == [
        "lmperf", "run", "x.yaml", "--api-key", "--header", "--header=x-team: a", "--set", "--set",
        "tenants.chat.rate=20", "--set", "--api-key", "${env:KEY}", "--set",
    ]  # fmt: skip
    assert "--api-key=***" in shown
    assert "tenants.chat.api_key=***" in shown


def test_secrets_are_not_pickled_by_accident(load, secretive):
    """A scenario that travels to a worker process would carry its secrets in bytes: it refuses."""
    with pytest.raises(TypeError, match="secrets"):
        pickle.dumps(load(secretive).secrets)


@pytest.mark.parametrize("name", ["Ocp-Apim-Subscription-Key", "X-Tok", "X-Session-Id", "X-Goog-Signature", "X-Auth"])
def test_vendors_names_for_key_headers_are_secrets_too(name):
    """A header that may hold a key is treated as one; what it is called is its vendor's business."""
    assert is_secret(("backend", "headers", name))
    assert is_secret(("tenants", "chat", "headers", name))
    assert "AAASECRET" not in " ".join(redact_argv(["run", "--header", f"{name}=AAASECRET"]))


@pytest.mark.parametrize("name", ["Accept", "User-Agent", "x-lmperf-tenant", "X-Request-Id"])
def test_ordinary_headers_are_written_as_they_are(name):
    """Else a run could not be repeated from its folder."""
    assert not is_secret(("backend", "headers", name))


def test_a_key_may_be_in_a_file(load, sound, tmp_path, monkeypatch):
    """Relative to the scenario (with ``--set``: to the current folder), stripped, read once, and written nowhere."""
    (tmp_path / "chat.key").write_text(f" {VALUE}\n")
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "chat.key").write_text(f"{VALUE}-here\n")
    monkeypatch.chdir(tmp_path / "here")
    text = sound + "    headers: {Authorization: 'Bearer ${file:chat.key}'}\n"
    scenario = load(text, overrides=["tenants.chat.api_key=${file:chat.key}"])
    plan = resolve(scenario)
    chat, batch = (planned.tenant.identity for planned in plan.tenants)
    assert scenario.secrets.resolve(chat.api_key) == f"{VALUE}-here"
    assert scenario.secrets.resolve(batch.headers["Authorization"]) == f"Bearer {VALUE}"
    assert scenario.warnings == ()
    assert scenario.secrets.missing() == []
    assert VALUE not in everything(scenario, plan)
    assert scenario.secrets.redact(f"{VALUE}-here, {VALUE}") == "***, ***"
    (tmp_path / "chat.key").unlink()
    assert scenario.secrets.resolve("${file:" + str(tmp_path / "chat.key") + "}") == VALUE
    again = scenario_from_text(resolved_yaml(scenario, plan))
    assert resolve(again).tenants == plan.tenants, "wherever the resolved file lies"


def test_every_place_of_a_server_s_address_may_refer_to_a_file(load, tmp_path):
    """Beside the scenario, whether there is one server or several; one that is missing is told beforehand."""
    (tmp_path / "host").write_text("gpu-1\n")
    text = """
version: 1
duration_s: 10
backend: {urls: ["http://${file:host}:1", {name: b, url: "http://${file:none}:2"}]}
policy: fifo
tenants: {chat: {rate: 1, prompt: 10, output: 10}}
"""
    scenario = load(text)
    urls = resolve(scenario).backend.urls
    assert scenario.secrets.resolve(next(iter(urls.values()))) == "http://gpu-1:1"
    assert [str(fault.path) for fault in scenario.secrets.missing()] == ["('backend', 'urls', 1, 'url')"]


def test_a_key_file_that_is_not_there_is_a_fault_with_its_line(load, sound, tmp_path):
    """As a variable that is not set: said before anything is sent, and again where it is asked for."""
    scenario = load(sound + "    api_key: ${file:keys/batch}\n")
    said = f"file.yaml:15: tenants.batch.api_key: the file {tmp_path / 'keys/batch'} does not exist; it should hold"
    (fault,) = scenario.secrets.missing()
    assert said in str(fault)
    with pytest.raises(ScenarioError, match=re.escape(said)):
        scenario.secrets.resolve(scenario.model.tenants["batch"].api_key)
