"""The file that the engine's process reads, the versions that are supported, and what is said where vLLM is not."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

from backends.vllm_policy.config import PATH_VARIABLE, EngineConfigError, config_from_environment, read_config
from backends.vllm_policy.versions import SUPPORTED, UnsupportedVersionError, check_version
from scheduler.cost import CostModel
from tenants.slo import Metric, Objective
from tenants.tenant import Contract

ROOT = Path(__file__).resolve().parents[2]

WHOLE = """\
policy = {name = "committed", late = "shed", margin_ms = 20}
default_tenant = "batch"
tenant_key = "team"
prefill_rate = 20000
cost = {prompt = 1, output = 4}
allow_untested_version = true

[tenants.chat]
weight = 3
priority = -1
expected_output_tokens = 150
slo = {ttft_ms = 500, tpot_ms = 20, attainment = 0.99, objectives = [{metric = "ttft", p = 95, limit_ms = 300}]}
contract = {rate = 1000, burst_s = 10}

[tenants.batch]
"""


def written(folder, text, name="lmperf.toml"):
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def test_a_file_says_what_a_scenario_says(tmp_path):
    """Policy with options, cost, weights, SLOs and contracts, in the scenario's keys and units."""
    config = read_config(written(tmp_path, WHOLE))
    assert (config.policy.name, config.policy.options) == ("committed", {"late": "shed", "margin_ms": 20})
    assert (config.default_tenant, config.tenant_key, config.allow_untested_version) == ("batch", "team", True)
    assert (config.cost, config.prefill_rate) == (CostModel(prompt_weight=1, output_weight=4), 20_000)
    chat, batch = config.tenants
    assert (chat.name, chat.weight, chat.priority, chat.expected_output_tokens) == ("chat", 3, -1, 150)
    assert (chat.slo.ttft_ns, chat.slo.tpot_ns, chat.slo.attainment) == (500_000_000, 20_000_000, 0.99)
    assert chat.slo.objectives == (Objective(metric=Metric.TTFT, percentile=95, limit_ns=300_000_000),)
    assert chat.contract == Contract(rate=1000, burst=10_000)
    assert (batch.name, batch.weight, batch.contract) == ("batch", 1, None)
    assert config.build().snapshot()["policy"] == "committed"


def test_json_says_the_same(tmp_path):
    """One content, two formats."""
    content = {"policy": "wfq", "tenants": {"a": {"weight": 2}, "b": {}}, "default_tenant": "a"}
    toml = 'policy = "wfq"\ndefault_tenant = "a"\n[tenants.a]\nweight = 2\n[tenants.b]\n'
    from_json = read_config(written(tmp_path, json.dumps(content), "c.json"))
    assert from_json == read_config(written(tmp_path, toml))


@pytest.mark.parametrize(
    ("policy", "judges"),
    [
        ('"fifo"', False),
        ('"committed"', True),
        ('{name = "committed", late = "keep"}', False),
        ('{name = "wfq", late = "demote"}', True),
        ('{name = "wfq", late = "shed"}', True),
    ],
)
def test_it_is_known_whether_the_policy_judges_lateness(tmp_path, policy, judges):
    """By its ``late`` option, else by the policy's own default."""
    assert read_config(written(tmp_path, f"policy = {policy}\n[tenants.a]\n")).judges_lateness is judges


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('policy = "wfq"\n[tenants.a]\nwieght = 2\n', r"unknown field `wieght`.*tenants"),
        ('policy = "wfq"\n[tenants.a]\nweight = 0\n', r"> 0.*tenants"),
        ('policy = "wfq"\n', r"missing required field `tenants`"),
        ('policy = "wfq"\ntenants = {}\n', r"length >= 1"),
        ('policy = "wfqq"\n[tenants.a]\n', r"unknown policy 'wfqq'.*did you mean 'wfq'"),
        ('policy = {name = "wfq", lat = "shed"}\n[tenants.a]\n', r"`lat`.*options: late, margin_ms"),
        ('policy = {late = "shed"}\n[tenants.a]\n', r"needs the policy's name"),
        ('policy = "wfq"\ndefault_tenant = "b"\n[tenants.a]\n', r"default_tenant 'b' is not a tenant; known: a"),
        ('policy = "edf"\n[tenants.a]\nslo = {ttft_ms = 5}\n', r"tenants\.a\.slo: limits need a target"),
        ("policy = \n", r"[Ii]nvalid"),
    ],
)
def test_a_mistake_names_the_file_and_what_would_be_right(tmp_path, text, says):
    """Before the engine starts to serve, and in one sentence."""
    path = written(tmp_path, text)
    with pytest.raises(EngineConfigError, match=says) as refused:
        read_config(path)
    assert str(refused.value).startswith(f"{path}: ")


def test_a_missing_file_and_a_missing_variable_are_said(tmp_path):
    """And the variable is named."""
    with pytest.raises(EngineConfigError, match=f"set {PATH_VARIABLE} to the path"):
        config_from_environment({})
    with pytest.raises(EngineConfigError, match=r"gone\.toml: cannot be read: No such file"):
        config_from_environment({PATH_VARIABLE: str(tmp_path / "gone.toml")})
    with pytest.raises(EngineConfigError, match=r"\.ini is no known format; use \.toml, \.json or \.yaml"):
        config_from_environment({PATH_VARIABLE: str(written(tmp_path, "", "c.ini"))})


@pytest.mark.parametrize("version", ["0.32.0", "0.32.7", "0.32.0+cpu", "0.32.1rc1", "0.32"])
def test_tried_versions_are_supported(version):
    """Every patch release, build and release candidate of a minor version that the engine tests ran on."""
    check_version(version, allow_untested=False)


@pytest.mark.parametrize("version", ["0.24.0", "0.33.0", "1.32.0", "0.320.0", "0.3.32", "dev", ""])
def test_any_other_version_is_refused_in_one_sentence(version):
    """It says which version this is, which are supported, and what to do; and can be overruled."""
    with pytest.raises(UnsupportedVersionError, match=r"supports vLLM 0\.32\.x") as refused:
        check_version(version, allow_untested=False)
    assert f"this is vLLM {version}" in str(refused.value)
    assert "allow_untested_version = true" in str(refused.value)
    check_version(version, allow_untested=True)


def test_the_docs_list_the_supported_versions():
    """docs/inside-vllm.md and the check name the same."""
    text = (ROOT / "docs" / "inside-vllm.md").read_text(encoding="utf-8")
    for major, minor in SUPPORTED:
        assert f"{major}.{minor}.x" in text


@pytest.mark.skipif(importlib.util.find_spec("vllm") is not None, reason="vLLM is installed here")
def test_without_vllm_the_import_error_says_where_it_belongs():
    """Importing the package does not need vLLM; importing the scheduler class says what is missing, and how it is used."""
    code = "import backends.vllm_policy.queue, backends.vllm_policy.config\nimport lmperf.vllm_scheduler"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("ImportError: backends.vllm_policy.scheduler runs inside vLLM's engine")
    assert "--scheduler-cls lmperf.vllm_scheduler.PolicyScheduler" in last
    assert "queue" not in last


def test_a_foreign_package_of_the_same_name_is_said_first(tmp_path):
    """The engine's environment may hold PyPI's ``scheduler``, which hides ours: one sentence, not an odd ImportError."""
    (tmp_path / "scheduler").mkdir()
    (tmp_path / "scheduler" / "__init__.py").touch()
    code = f"import sys; sys.path[:0] = [{str(tmp_path)!r}, {str(ROOT)!r}]\nimport lmperf.vllm_scheduler"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert f"ImportError: the package 'scheduler' at {tmp_path}" in done.stderr


def test_the_engines_python_needs_what_vllm_brings_and_nothing_else():
    """Beside the standard library and lmperf's own layers: msgspec (with what it takes if it is there) and numpy."""
    paths = [str(ROOT), *(path for path in sys.path if path.endswith("site-packages"))]
    code = (
        f"import sys; sys.path[:0] = {paths!r}\n"
        "sys.modules['mypy_extensions'] = None\n"  # as where it is not installed
        "import json, backends.vllm_policy.queue, backends.vllm_policy.config\n"
        "from scheduler.policies.build import POLICIES\n"
        "for name in POLICIES.names(): POLICIES.load(name)\n"
        "found = {name.partition('.')[0] for name, module in sys.modules.items() if module is not None}\n"
        "print(json.dumps(sorted(found - set(sys.stdlib_module_names))))"
    )
    # -S: no start-up hooks of installed packages, which import what they like.
    done = subprocess.run([sys.executable, "-S", "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    found = {name for name in json.loads(done.stdout) if not name.startswith("_")}
    assert found - {"backends", "scheduler", "tenants"} <= {"msgspec", "typing_extensions", "numpy"}
    assert "msgspec" in found
