"""vLLM's own load generator through ``lmperf gateway``, in front of the embedded server."""

from __future__ import annotations

import urllib.request

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.engines.support.bench import bench_serve, serving

# The first run on a machine installs 3.5 GB before the first test starts.
pytestmark = [pytest.mark.engine, pytest.mark.timeout(3600)]

REQUESTS, PROMPT, OUTPUT = 40, 64, 16
SERVER_KEY, CHAT_KEY = "sk-of-the-server", "sk-of-the-tenant"


def samples(url: str) -> dict[tuple[str, ...], float]:
    """Every sample of a metrics page, by its name and the values of its labels, in the order of the labels' names."""
    with urllib.request.urlopen(f"{url}/metrics") as response:
        families = text_string_to_metric_families(response.read().decode())
        found = [sample for family in families for sample in family.samples]
    return {(s.name, *(value for _, value in sorted(s.labels.items()))): s.value for s in found}


@pytest.fixture(scope="module")
def driven(engine_python, tiny_model, tmp_path_factory):
    """Completions as a tenant with a key, chat as one that a header names; both results, both metrics pages."""
    folder = tmp_path_factory.mktemp("bench")
    keys = {"SERVER_KEY": SERVER_KEY, "CHAT_KEY": CHAT_KEY}
    load = [
        "--model",
        "embedded",
        "--dataset-name",
        "random",
        "--num-prompts",
        str(REQUESTS),
        "--max-concurrency",
        "16",
    ]
    load += ["--random-input-len", str(PROMPT), "--random-output-len", str(OUTPUT), "--ignore-eos"]
    emulate = ("emulate", "--model-name", "embedded", "--api-key-env", "SERVER_KEY", "--time-scale", "0.2")
    with serving(*emulate, environment=keys) as server:
        gateway = ["gateway", "--upstream", server, "--upstream-key", "${env:SERVER_KEY}", "--policy", "wfq"]
        gateway += ["--tenant", "chat=2", "--tenant", "batch", "--tenant-key", "chat=${env:CHAT_KEY}", "--slots", "8"]
        with serving(*gateway, "--log-level", "warning", environment=keys) as url:
            results = {}
            for tenant, how, environment in (
                ("chat", ["--backend", "openai"], {"OPENAI_API_KEY": CHAT_KEY}),
                ("batch", ["--backend", "openai-chat", "--endpoint", "/v1/chat/completions"], {}),
            ):
                header = [] if environment else ["--header", f"x-lmperf-tenant={tenant}"]
                into = folder / tenant
                into.mkdir()
                told = (*load, *how, *header, "--num-warmups", "0", "--ready-check-timeout-sec", "0")
                results[tenant] = bench_serve(engine_python, tiny_model, url, into, *told, environment=environment)
            return results, samples(url), samples(server)


@pytest.mark.parametrize("tenant", ["chat", "batch"])
def test_every_request_of_vllms_bench_serve_succeeds(driven, tenant):
    """None failed; each answer has all of its tokens, and as many gaps as there were chunks after the first (in chat one
    with the role alone): nothing was joined, held back or lost."""
    result = driven[0][tenant]
    assert (result["completed"], result["failed"]) == (REQUESTS, 0)
    assert result["output_lens"] == [OUTPUT] * REQUESTS
    assert [len(gaps) for gaps in result["itls"]] == [OUTPUT - (tenant == "chat")] * REQUESTS
    assert all(ttft > 0 for ttft in result["ttfts"])


@pytest.mark.parametrize("tenant", ["chat", "batch"])
def test_requests_and_tokens_are_counted_for_the_tenant_who_asked(driven, tenant):
    """By its key or by its header; all of them ended well and waited in the queue."""
    results, counted, _ = driven
    assert counted["lmperf_gateway_requests_total", "ok", tenant] == REQUESTS
    assert counted["lmperf_gateway_output_tokens_total", tenant] == sum(results[tenant]["output_lens"])
    for stage in ("queue", "ttft", "e2e"):
        assert counted[f"lmperf_gateway_{stage}_seconds_count", tenant] == REQUESTS
    assert counted["lmperf_gateway_outstanding", "upstream-1"] == 0


def test_gateway_and_server_count_alike(driven):
    """The server saw what the gateway counted, and nothing else: no request was doubled, tried again or refused."""
    _, counted, served = driven
    assert served["vllm:request_success_total", "embedded"] == 2 * REQUESTS
    for tenant in ("chat", "batch"):
        assert served["lmperf_tenant_requests_total", "embedded", tenant] == REQUESTS
        for server, gateway in (("prompt", "prompt"), ("generation", "output")):
            at_server = served[f"lmperf_tenant_{server}_tokens_total", "embedded", tenant]
            assert counted[f"lmperf_gateway_{gateway}_tokens_total", tenant] == at_server
    assert not [key for key in counted if key[0] == "lmperf_gateway_retries_total"]
    assert {key[1] for key in counted if key[0] == "lmperf_gateway_requests_total"} == {"ok"}
    # It also asks for /tokenize, without a tenant or its key, and can do without the answer.
    assert {key[1:] for key in counted if key[0] == "lmperf_gateway_reasons_total"} <= {("missing_key", "")}
