"""What the gateway tells: metrics that Prometheus can read, logs that hold no prompt and no key, headers that leak none."""

import io
import json
import logging

from gateway_upstream import DONE, text, usage
from prometheus_client.parser import text_string_to_metric_families

from backends.gateway.logs import JsonFormatter, log
from tenants.slo import Slo
from tenants.tenant import Identity, Tenant

CHAT = "/v1/chat/completions"
KEYS = {"${env:A}": "key-of-a-tenant", "${env:UP}": "key-of-the-upstream"}
PROMPT = "the-secret-of-the-prompt"
KEYED = Tenant(name="chat", identity=Identity(api_key="${env:A}"))


def body(**more: object) -> bytes:
    return json.dumps(
        {"model": "m", "messages": [{"role": "user", "content": PROMPT}], "stream": True, **more}
    ).encode()


async def good(request, peer):
    await peer.stream(text("hi"), text("!", "stop"), usage(3, 2), DONE)


async def test_metrics_are_one_valid_exposition_with_a_series_per_tenant(bench):
    """Read by the parser of the client library; every name declared once; counts are those of what was done."""
    tenants = (Tenant(name="chat", slo=Slo(e2e_ns=10**12, attainment=0.9)), Tenant(name="batch"))
    gateway = await bench.gateway((await bench.upstream(good)).url, tenants=tenants)
    http = await bench.http(gateway.url)
    for tenant in ("chat", "chat", "batch", "nobody"):
        async with http.post(CHAT, data=body(), headers={"x-lmperf-tenant": tenant}) as response:
            await response.read()
    async with http.get("/metrics") as response:
        families = list(text_string_to_metric_families(await response.text()))
    names = [family.name for family in families]
    assert len(names) == len(set(names))
    samples = {(s.name, *sorted(s.labels.items())): s.value for family in families for s in family.samples}

    def value(name: str, **labels: str) -> float:
        return samples[f"lmperf_gateway_{name}", *sorted(labels.items())]

    assert value("requests_total", tenant="chat", status="ok") == 2
    assert value("requests_total", tenant="batch", status="ok") == 1
    assert value("reasons_total", tenant="", reason="unknown_tenant") == 1
    assert value("output_tokens_total", tenant="chat") == 4
    assert value("prompt_tokens_total", tenant="chat") == 6
    assert value("slo_judged_total", tenant="chat") == value("slo_met_total", tenant="chat") == 2
    assert value("slo_judged_total", tenant="batch") == 0
    for histogram in ("ttft", "queue", "e2e"):
        assert value(f"{histogram}_seconds_count", tenant="chat") == 2
        assert value(f"{histogram}_seconds_bucket", tenant="batch", le="+Inf") == 1
    assert value("upstream_up", upstream="u1") == 1
    assert value("queued", tenant="chat") == value("outstanding", upstream="u1") == 0


async def test_no_log_line_holds_a_prompt_a_key_or_an_answer(bench):
    """Requests that succeed, fail upstream (whose words quote the prompt) and are refused: each has its line, and none
    holds what was said; the exception of a fault of ours is named by its type alone.
    """

    async def script(request, peer):
        if request.json.get("fail"):
            await peer.answer(json.dumps({"error": {"message": f"bad prompt {PROMPT}"}}).encode(), "400 Bad Request")
        else:
            await peer.stream(text("the-secret-of-the-answer"), text("", "stop"), usage(3, 2), DONE)

    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonFormatter())
    log.addHandler(handler)
    log.setLevel(logging.DEBUG)
    try:
        gateway = await bench.gateway(
            (await bench.upstream(script)).url, tenants=(KEYED,), key="${env:UP}", resolve=KEYS.__getitem__
        )
        http = await bench.http(gateway.url)
        for key, more in (("key-of-a-tenant", {}), ("key-of-a-tenant", {"fail": True}), ("wrong-key-given", {})):
            path = f"{CHAT}?token=query-secret"
            async with http.post(path, data=body(**more), headers={"Authorization": f"Bearer {key}"}) as response:
                await response.read()
        try:
            raise ValueError(PROMPT)
        except ValueError:
            log.exception("a fault")
    finally:
        log.removeHandler(handler)
        log.setLevel(logging.NOTSET)
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    events = [(line["event"], line.get("status") or line.get("reason")) for line in lines]
    assert [e for e in events if e[0] in {"request", "refused"}] == [
        ("request", "ok"),
        ("request", "failed"),
        ("refused", "unknown_key"),
    ]
    assert lines[-1]["exception"] == "ValueError"
    for secret in (PROMPT, "secret", "key-of", "wrong-key-given"):
        assert secret not in stream.getvalue()
    assert all(secret not in repr(outcome) for outcome in bench.outcomes for secret in (PROMPT, "key-of"))


async def test_a_tenant_s_key_ends_at_the_gateway(bench):
    """Upstream gets the upstream's key, or none; with no keys configured here the client's own goes on."""
    upstream = await bench.upstream(good)
    cases = [
        ({"tenants": (KEYED,), "key": "${env:UP}"}, "Bearer key-of-the-upstream"),
        ({"tenants": (KEYED,)}, None),
        ({"tenants": (Tenant(name="chat"),), "default_tenant": "chat"}, "Bearer key-of-a-tenant"),
    ]
    for config, expected in cases:
        gateway = await bench.gateway(upstream.url, resolve=KEYS.__getitem__, **config)
        http = await bench.http(gateway.url)
        for path in (CHAT, "/v1/embeddings", "/tokenize"):
            async with http.post(path, data=body(), headers={"Authorization": "Bearer key-of-a-tenant"}) as response:
                assert response.status == 200
            assert upstream.requests[-1].headers.get("authorization") == expected
            assert upstream.requests[-1].target == path


async def test_plain_paths_need_a_key_too_where_keys_are_configured(bench):
    upstream = await bench.upstream(good)
    gateway = await bench.gateway(upstream.url, tenants=(KEYED,), resolve=KEYS.__getitem__)
    http = await bench.http(gateway.url)
    async with http.get("/v1/models") as response:
        assert (response.status, response.headers["WWW-Authenticate"]) == (401, "Bearer")
    assert upstream.requests == []
