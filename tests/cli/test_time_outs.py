"""Rules of time-outs in a live run: a tenant's own win over the backend's, key by key, whoever carries the run."""

from __future__ import annotations

import socket
from collections import defaultdict

import pytest
from cli_support import fast_server, invoke

from loadgen.trace.reader import read_trace

NEVER_MS = "600000"


@pytest.fixture(scope="module")
def unheard():
    """The URL of a TLS server that never answers the handshake: a connection there never opens."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen(256)
        yield f"https://127.0.0.1:{listening.getsockname()[1]}"


SHORT_OF_ITS_OWN = """\
  as-all: {rate: 20, prompt: 9, output: 4}
  own: {rate: 20, prompt: 9, output: 4, timeouts: {between_tokens_s: 0.1, total_s: null}}
  far-as-all: {rate: 20, prompt: 9, output: 4, base_url: "UNHEARD"}
  far-own: {rate: 20, prompt: 9, output: 4, base_url: "UNHEARD", timeouts: {connect_s: 0.1, total_s: null}}
"""
LONG_OF_ITS_OWN = """\
  as-all: {rate: 20, prompt: 9, output: 4}
  own: {rate: 20, prompt: 9, output: 4, timeouts: {between_tokens_s: 600, total_s: 1}}
  own-null: {rate: 20, prompt: 9, output: 4, timeouts: {between_tokens_s: null, total_s: 1}}
  far-as-all: {rate: 20, prompt: 9, output: 4, base_url: "UNHEARD"}
  far-own: {rate: 20, prompt: 9, output: 4, base_url: "UNHEARD", timeouts: {connect_s: 600, total_s: 3}}
  far-null: {rate: 20, prompt: 9, output: 4, base_url: "UNHEARD", timeouts: {connect_s: null}}
"""


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize(
    ("of_the_backend", "tenants", "ends"),
    [
        (
            "{connect_s: 600, between_tokens_s: 600, total_s: 1}",
            SHORT_OF_ITS_OWN,
            {
                "as-all": "total_timeout",
                "own": "token_timeout",
                "far-as-all": "total_timeout",
                "far-own": "connect_timeout",
            },
        ),
        (
            "{connect_s: 1.5, between_tokens_s: 0.1}",
            LONG_OF_ITS_OWN,
            {
                "as-all": "token_timeout",
                "own": "total_timeout",
                "own-null": "total_timeout",
                "far-as-all": "connect_timeout",
                "far-own": "total_timeout",
                "far-null": "connect_timeout",
            },
        ),
    ],
    ids=["shorter", "longer"],
)
def test_a_tenant_waits_as_long_as_it_says(tmp_path, unheard, workers, of_the_backend, tenants, ends):
    """A server that stalls after the first token, and one that no connection to opens: which limit ends a tenant's requests
    is its own where it states one. null is none; but a connection must open within some time, as in the gateway."""
    with fast_server("--first-ms", "5", "--gap-ms", NEVER_MS) as url:
        (tmp_path / "limits.yaml").write_text(f"""\
version: 1
name: limits
duration_s: 0.5
drain_s: 20
backend: {{kind: openai, url: "{url}", timeouts: {of_the_backend}}}
policy: fifo
slots: {{sequences: 128}}
tenants:
{tenants.replace("UNHEARD", unheard)}""")
        done = invoke("run", "limits.yaml", "--workers", workers, "--output-dir", "out", "--quiet", cwd=tmp_path)
    assert "Traceback" not in done.stderr
    found = defaultdict(set)
    for outcome in read_trace(tmp_path / "out").outcomes():
        found[outcome.request.tenant].add(outcome.error_class.value)
    assert found == {tenant: {ended} for tenant, ended in ends.items()}
