"""A key reaches the server and nothing else: no file of a run's folder, no line of output, however it was given."""

from __future__ import annotations

import base64
import gzip

import pytest
from cli_support import files_of, invoke, served, summary_of, two_tenants

KEY = "sk-Zq7wLmPerfSecret0042"
SMALL = ("--num-prompts", "3", "--random-input-len", "8", "--random-output-len", "2", "--quiet", "--event-log")


@pytest.fixture(scope="module")
def keyed(tmp_path_factory):
    """A server that answers nobody without the key: an answer proves that it was received."""
    with served(tmp_path_factory.mktemp("keyed"), "--api-key-env", "SERVER_KEY", env={"SERVER_KEY": KEY}) as url:
        yield url


GIVEN = {
    "literal": (("--api-key", KEY), {}),
    "equals": ((f"--api-key={KEY}",), {}),
    "reference": (("--api-key", "${env:LMPERF_TEST_KEY}"), {"LMPERF_TEST_KEY": KEY}),
    "file": (("--api-key", "${file:../server.key}"), {}),
    "header file": (("--header", "Authorization=Bearer ${file:../server.key}"), {}),
    "header": (("--header", f"Authorization=Bearer {KEY}"), {}),
    "header with a colon": (("--header", f"Authorization: Bearer {KEY}"), {}),
    "header reference": (("--header", "Authorization=Bearer ${env:LMPERF_TEST_KEY}"), {"LMPERF_TEST_KEY": KEY}),
    "set": (("--set", f"backend.api_key={KEY}"), {}),
    "set a header": (("--set", f"backend.headers={{Authorization: 'Bearer {KEY}'}}"), {}),
    "set a tenant's": (("--set", f"tenants.default.api_key={KEY}", "--api-key", KEY), {}),
}


def holds(data: bytes) -> bool:
    """True when the key is in ``data``, plain, packed or in base64."""
    raw = gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data
    return KEY.encode() in raw or base64.b64encode(KEY.encode())[:-4] in raw


@pytest.mark.parametrize(("flags", "env"), GIVEN.values(), ids=GIVEN.keys())
def test_a_key_is_received_and_written_nowhere(keyed, tmp_path, flags, env):
    """The server answered every request; the key is in no file, nor in what was printed."""
    (tmp_path / "server.key").write_text(f"{KEY}\n")
    tmp_path = tmp_path / "here"
    tmp_path.mkdir()
    done = invoke("run", "--model", keyed, "--output-dir", "r", *flags, *SMALL, cwd=tmp_path, env=env)
    assert done.returncode in {0, 107}, done
    assert summary_of(tmp_path / "r")["total"]["statuses"]["ok"] == 3
    written = files_of(tmp_path)
    assert len(written) > 10
    assert [name for name, data in written.items() if holds(data)] == []
    assert not holds((done.stdout + done.stderr).encode())


def test_a_tenants_own_key_is_its_own(keyed, tmp_path):
    """One tenant has the right key, the other a wrong one: the first is answered, the second refused, and neither key is
    in what the run leaves, the server's refusals included."""
    wrong = "sk-wrong-9f8e7d6c5b4a"
    text = two_tenants(keyed, duration_s=0.3).replace("  bulk:\n", f"  bulk:\n    api_key: {wrong}\n")
    text = text.replace(f'url: "{keyed}"', f'url: "{keyed}", api_key: "${{env:LMPERF_TEST_KEY}}"')
    text = text.replace("  chat:\n", "  chat:\n    api_key: ${env:LMPERF_TEST_KEY}\n")
    (tmp_path / "s.yaml").write_text(text)
    env = {"LMPERF_TEST_KEY": KEY}
    done = invoke("run", "s.yaml", "--output-dir", "r", "--event-log", "--quiet", cwd=tmp_path, env=env)
    tenants = {tenant["tenant"]: tenant for tenant in summary_of(tmp_path / "r")["tenants"]}
    assert tenants["chat"]["statuses"]["ok"] == tenants["chat"]["requests"] > 0
    assert tenants["bulk"]["error_classes"] == {"http_4xx": tenants["bulk"]["requests"]}
    (tmp_path / "s.yaml").unlink()
    for name, data in files_of(tmp_path).items():
        assert not holds(data), name
        assert wrong.encode() not in data, name
    assert KEY not in done.stdout + done.stderr
    assert wrong not in done.stdout + done.stderr


def test_the_backends_key_is_every_tenants_default(keyed, tmp_path):
    """Tenants without a key of their own use the backend's."""
    text = two_tenants(keyed, duration_s=0.2).replace(
        f'url: "{keyed}"', f'url: "{keyed}", api_key: "${{env:LMPERF_TEST_KEY}}"'
    )
    (tmp_path / "s.yaml").write_text(text)
    invoke("run", "s.yaml", "--output-dir", "r", "--quiet", cwd=tmp_path, env={"LMPERF_TEST_KEY": KEY})
    total = summary_of(tmp_path / "r")["total"]
    assert total["statuses"]["ok"] == total["requests"] > 0


def test_headers_of_the_command_line_join_a_scenario(keyed, tmp_path):
    """--header with a scenario file is sent too, and not silently ignored."""
    (tmp_path / "s.yaml").write_text(two_tenants(keyed, duration_s=0.2))
    flags = ("--header", "Authorization=Bearer ${env:LMPERF_TEST_KEY}")
    invoke("run", "s.yaml", "--output-dir", "r", "--quiet", *flags, cwd=tmp_path, env={"LMPERF_TEST_KEY": KEY})
    total = summary_of(tmp_path / "r")["total"]
    assert total["statuses"]["ok"] == total["requests"] > 0


def test_a_missing_variable_stops_the_run_before_it_starts(tmp_path):
    """Every reference without a value is named, with the place and what to type."""
    (tmp_path / "s.yaml").write_text(
        two_tenants("http://127.0.0.1:9").replace("  chat:\n", "  chat:\n    api_key: ${env:LMPERF_TEST_UNSET}\n")
    )
    done = invoke("run", "s.yaml", cwd=tmp_path)
    assert done.returncode == 104
    assert "s.yaml:" in done.stderr
    assert "LMPERF_TEST_UNSET is not set" in done.stderr
    assert "export LMPERF_TEST_UNSET" in done.stderr
