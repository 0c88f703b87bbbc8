"""Requests longer than the server's context are told of before the clock starts, not one failure at a time."""

from __future__ import annotations

import pytest
from cli_support import invoke, served, summary_of, two_tenants


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """A server with a context of 120 tokens."""
    with served(tmp_path_factory.mktemp("small"), "--max-model-len", "120") as url:
        yield url


def test_a_tenant_none_of_whose_requests_fits_is_a_mistake(small, tmp_path):
    """104: the tenant, the length, the limit and what would be right; no request was sent."""
    done = invoke(
        *("run", "--model", small, "--random-input-len", 100, "--random-output-len", 21, "--num-prompts", 4),
        *("--output-dir", "r", "--quiet"),
        cwd=tmp_path,
    )
    assert done.returncode == 104, done
    assert "tenants.default: of its 4 requests looked at none fits the server" in done.stderr
    assert "come to 121 tokens, and its max_model_len is 120" in done.stderr
    assert "sum at most 120" in done.stderr
    assert not (tmp_path / "r/summary.json").exists()


def test_what_fits_exactly_is_sent_without_a_word(small, tmp_path):
    done = invoke(
        *("run", "--model", small, "--random-input-len", 100, "--random-output-len", 20, "--num-prompts", 4),
        *("--output-dir", "r"),
        cwd=tmp_path,
    )
    assert done.returncode in {0, 107}, done
    assert "max_model_len" not in done.stdout + done.stderr
    assert summary_of(tmp_path / "r")["total"]["statuses"]["ok"] == 4


def test_a_tenant_that_draws_a_long_one_now_and_then_is_warned_of(small, tmp_path):
    """The warning stands on the screen before the run, and in its results; the long ones fail and count as misses."""
    text = two_tenants(small, duration_s=1.0).replace("prompt: {mean: 150, cv: 0.5, max: 500}", "prompt: 30")
    (tmp_path / "s.yaml").write_text(
        text.replace("prompt: {mean: 40, cv: 0.5, max: 200}", "prompt: {mean: 90, cv: 0.5}")
    )
    done = invoke("run", "s.yaml", "--output-dir", "r", cwd=tmp_path)
    assert "warning: s.yaml:11: tenants.chat: of its" in done.stderr
    assert "tenants.bulk" not in done.stderr
    found = summary_of(tmp_path / "r")
    assert any("max_model_len is 120" in warning for warning in found["warnings"])
    (chat,) = (tenant for tenant in found["tenants"] if tenant["tenant"] == "chat")
    assert 0 < chat["error_classes"]["http_4xx"] < chat["requests"]
