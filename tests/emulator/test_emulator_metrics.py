"""/metrics and /lmperf/stats count what was really asked and given."""

import asyncio

import pytest
from prometheus_client.parser import text_string_to_metric_families

from backends.emulator.metrics import EngineMetrics


async def scrape(http):
    async with http.get("/metrics") as response:
        assert response.content_type == "text/plain"
        text = await response.text()
    return {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


MODEL = ("model_name", "fast-model")


async def complete(http, tenant, prompt_tokens, output_tokens):
    body = {"prompt": "w " * prompt_tokens, "max_tokens": output_tokens, "ignore_eos": True}
    headers = {"x-lmperf-tenant": tenant} if tenant else {}
    async with http.post("/v1/completions", json=body, headers=headers) as response:
        assert response.status == 200


async def test_counters_and_histograms_under_vllms_names_agree_with_the_load(http):
    """Sums over the requests that the test itself made."""
    load = [("chat", 5, 7), ("batch", 40, 3), ("chat", 6, 1), (None, 2, 4)]
    await asyncio.gather(*(complete(http, *one) for one in load))
    got = await scrape(http)
    tokens = sum(output for _, _, output in load)
    assert got["vllm:prompt_tokens_total", MODEL] == sum(prompt for _, prompt, _ in load)
    assert got["vllm:generation_tokens_total", MODEL] == tokens
    assert got["vllm:request_success_total", MODEL] == 4
    assert got["vllm:num_preemptions_total", MODEL] == 0
    assert got["vllm:num_requests_running", MODEL] == got["vllm:num_requests_waiting", MODEL] == 0
    assert got["vllm:kv_cache_usage_perc", MODEL] == 0
    assert got["vllm:time_to_first_token_seconds_count", MODEL] == 4
    assert got["vllm:e2e_request_latency_seconds_count", MODEL] == 4
    assert got["vllm:inter_token_latency_seconds_count", MODEL] == tokens - 4
    # The offset alone is 3 ms, so no first token can be counted at or below 1 ms; and all are in the last bucket.
    assert got["vllm:time_to_first_token_seconds_bucket", ("le", "0.001"), MODEL] == 0
    assert got["vllm:time_to_first_token_seconds_bucket", ("le", "+Inf"), MODEL] == 4
    for tenant, requests, prompt, output in (("chat", 2, 11, 8), ("batch", 1, 40, 3), ("default", 1, 2, 4)):
        key = (MODEL, ("tenant", tenant))
        assert got["lmperf_tenant_requests_total", *key] == requests
        assert got["lmperf_tenant_prompt_tokens_total", *key] == prompt
        assert got["lmperf_tenant_generation_tokens_total", *key] == output


async def test_the_servers_own_lateness_and_cpu_are_told_in_both_places(http):
    """One value a step; the maximum is not below the 99th percentile by more than the histogram's precision."""
    await complete(http, "t", 3, 20)
    async with http.get("/lmperf/stats") as response:
        stats = await response.json()
    got = await scrape(http)
    assert stats["steps"] == 20 == got["lmperf_emulator_steps_total", MODEL]
    assert got["lmperf_emulator_lateness_seconds_count", MODEL] == 20
    assert 0 < stats["lateness_p50_ns"] <= stats["lateness_p99_ns"] <= stats["lateness_max_ns"] * 1.001
    assert got["lmperf_emulator_lateness_seconds_sum", MODEL] * 1e9 <= 20 * stats["lateness_max_ns"]
    assert 0 < stats["cpu_s"] <= got["lmperf_emulator_cpu_seconds_total", MODEL]
    assert stats["server_model"]["law"]["a_us"] == 1000.0


async def test_gauges_show_what_runs_now(http):
    """Eight run, the rest wait in the engine's queue, and the cache holds their tokens."""
    tasks = [asyncio.create_task(complete(http, "t", 10, 300)) for _ in range(11)]
    async with asyncio.timeout(20):
        got = await scrape(http)
        # Eight may be running while the prompts of some are not in the cache yet: that takes another step.
        while (got["vllm:num_requests_running", MODEL], got["vllm:num_requests_waiting", MODEL]) != (8, 3) or (
            got["vllm:kv_cache_usage_perc", MODEL] < 80 / 4096
        ):
            got = await scrape(http)
    assert got["vllm:kv_cache_usage_perc", MODEL] <= 1
    await asyncio.gather(*tasks)
    assert (await scrape(http))["vllm:num_requests_running", MODEL] == 0


def test_tenant_names_come_from_clients_so_their_number_is_bounded():
    """Beyond 1,000 they share one entry; the first ones keep theirs."""
    metrics = EngineMetrics()
    for number in range(1500):
        metrics.tenant(f"tenant-{number}").requests += 1
    assert len(metrics.tenants) == 1001
    assert metrics.tenant("tenant-3").requests == 1
    assert sum(counts.requests for counts in metrics.tenants.values()) == 1500


@pytest.mark.parametrize(("late_ns", "counted_ns"), [(-5, 1), (0, 1), (2_000_000, 2_000_000), (10**13, 3_600 * 10**9)])
def test_no_lateness_is_lost_at_the_ends_of_the_range(late_ns, counted_ns):
    """The exact histogram drops nothing silently."""
    metrics = EngineMetrics()
    metrics.step_ended(late_ns)
    assert metrics.lateness_exact.get_total_count() == 1
    assert metrics.lateness_exact.get_value_at_percentile(100) == pytest.approx(counted_ns, rel=1e-3)
