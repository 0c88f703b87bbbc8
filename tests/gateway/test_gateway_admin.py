"""Administration: hot reload, drain, health; closed unless a key opens it."""

import asyncio
import json
from dataclasses import replace

import pytest
from gateway_upstream import DONE, chat_body, text, until, usage

from backends.gateway.config import ConfigError, GatewayConfig
from scheduler.request import Status
from scheduler.slots import Slots
from tenants.tenant import Identity, Tenant

CHAT = "/v1/chat/completions"
ADMIN = {"Authorization": "Bearer adm1n"}
KEYS = {"${env:ADMIN}": "adm1n", "${env:A}": "key-a", "${env:B}": "key-b"}


async def good(request, peer):
    await peer.stream(text("hi"), text("!", "stop"), usage(3, 2), DONE)


class Held:
    """An upstream that answers when told: each request waits for one ``release.release()``."""

    def __init__(self) -> None:
        self.release = asyncio.Semaphore(0)
        self.order: list[str] = []
        self.came = asyncio.Event()

    async def __call__(self, request, peer) -> None:
        self.order.append(request.headers["x-lmperf-tenant"])
        self.came.set()
        await self.release.acquire()
        await good(request, peer)


async def ask(http, tenant: str = "chat", **headers: str) -> int:
    async with http.post(CHAT, data=chat_body(), headers={"x-lmperf-tenant": tenant, **headers}) as response:
        await response.read()
        return response.status


async def test_administration_is_closed_by_default_and_needs_its_own_key(bench):
    """404 without an admin key configured, never proxied; with one, 401 for any other key, a tenant's too."""
    upstream = await bench.upstream(good)
    closed = await bench.http((await bench.gateway(upstream.url)).url)
    tenants = (Tenant(name="chat", identity=Identity(api_key="${env:A}")),)
    opened = await bench.gateway(upstream.url, tenants=tenants, admin_key="${env:ADMIN}", resolve=KEYS.__getitem__)
    opened_http = await bench.http(opened.url)
    for method, path in (("POST", "/admin/reload"), ("GET", "/admin/status")):
        async with closed.request(method, path, headers=ADMIN) as response:
            assert response.status == 404
        for headers in ({}, {"Authorization": "Bearer key-a"}, {"Authorization": "adm1n"}):
            async with opened_http.request(method, path, headers=headers) as response:
                assert response.status == 401
    async with opened_http.get("/admin/status", headers=ADMIN) as response:
        assert (response.status, (await response.json())["policy"]) == (200, "fifo")
    assert upstream.requests == []


async def test_weights_and_policy_change_for_what_is_already_queued(bench):
    """Under fifo the queue is chat, chat, batch, batch; after a reload to priority classes, batch goes first."""
    held = Held()
    upstream = await bench.upstream(held)
    tenants = (Tenant(name="chat", priority=2), Tenant(name="batch", priority=1))
    gateway = await bench.gateway(
        upstream.url, slots=Slots(sequences=1), tenants=tenants, admin_key="${env:ADMIN}", resolve=KEYS.__getitem__
    )
    http = await bench.http(gateway.url)
    dispatcher = gateway.gate.driver.dispatcher
    asked = [asyncio.create_task(ask(http))]
    await until(lambda: held.order)
    for number, tenant in enumerate(("chat", "chat", "batch", "batch"), 1):
        asked.append(asyncio.create_task(ask(http, tenant)))
        await until(lambda number=number: dispatcher.queued == number)
    async with http.post(
        "/admin/reload", headers=ADMIN, json={"policy": "priority", "weights": {"chat": 3}}
    ) as response:
        assert (response.status, await response.json()) == (200, {"changed": ["tenants", "policy"]})
    async with http.get("/admin/status", headers=ADMIN) as response:
        assert (await response.json())["weights"] == {"chat": 3.0, "batch": 1.0}
    for _ in asked:
        held.release.release()
    assert await asyncio.gather(*asked) == [200] * 5
    assert held.order == ["chat", "batch", "batch", "chat", "chat"]


async def test_slots_can_be_opened_while_requests_wait(bench):
    """More slots take effect at once, without any request ending."""
    held = Held()
    gateway = await bench.gateway((await bench.upstream(held)).url, slots=Slots(sequences=1))
    http = await bench.http(gateway.url)
    asked = [asyncio.create_task(ask(http)) for _ in range(3)]
    await until(lambda: held.order and gateway.gate.driver.dispatcher.queued == 2)
    config = gateway.gate.config
    wider = replace(config, upstreams=tuple(replace(u, slots=Slots(sequences=3)) for u in config.upstreams))
    assert gateway.gate.change(wider) == ["slots of u1"]
    await until(lambda: len(held.order) == 3)
    for _ in asked:
        held.release.release()
    assert await asyncio.gather(*asked) == [200] * 3


@pytest.mark.parametrize(
    "body",
    [
        b"nonsense",
        b'{"policy": "no-such"}',
        b'{"policy": "wfq", "options": {"no_such": 1}}',
        b'{"weights": {"nobody": 1}}',
        b'{"weights": {"chat": -1}}',
        b'{"slots": {"u1": {"sequences": 0}}}',
        b'{"unknown": 1}',
        b"",
    ],
)
async def test_a_change_that_cannot_be_used_changes_nothing(bench, body):
    """400 that says why; policy, weights and slots stay as they were, whatever part was wrong."""
    gateway = await bench.gateway(
        (await bench.upstream(good)).url, policy="wfq", admin_key="${env:ADMIN}", resolve=KEYS.__getitem__
    )
    before, policy = gateway.gate.config, gateway.gate.driver.dispatcher.policy
    http = await bench.http(gateway.url)
    async with http.post("/admin/reload", headers=ADMIN, data=body) as response:
        assert response.status == 400
        assert "nothing was changed" in (await response.json())["error"]["message"]
    assert gateway.gate.config == before
    assert gateway.gate.driver.dispatcher.policy is policy
    assert await ask(http) == 200


async def test_a_reload_reads_the_source_anew_and_keys_with_it(bench):
    """A key that is gone is unknown from then on; a new tenant is served; what needs a restart is refused."""
    upstream = await bench.upstream(good)
    source: list[GatewayConfig] = []
    first = (Tenant(name="chat", identity=Identity(api_key="${env:A}")),)
    gateway = await bench.gateway(upstream.url, tenants=first, resolve=KEYS.__getitem__, reload=lambda: source[-1])
    http = await bench.http(gateway.url)
    assert await ask(http, Authorization="Bearer key-a") == 200
    second = (Tenant(name="chat", identity=Identity(api_key="${env:B}")), Tenant(name="new"))
    source.append(replace(gateway.config, tenants=second))
    assert gateway.reload() == ["tenants"]
    assert await ask(http, Authorization="Bearer key-a") == 401
    assert await ask(http, Authorization="Bearer key-b") == 200
    assert await ask(http, "new") == 200
    source.append(
        replace(gateway.config, tenants=second, upstreams=(replace(gateway.config.upstreams[0], url="other:1"),))
    )
    with pytest.raises(ConfigError, match="restart"):
        gateway.reload()
    assert gateway.metrics.reloads == {"ok": 1, "failed": 1}


async def test_a_tenant_that_is_removed_is_told_so_in_the_queue(bench):
    """Its queued requests are refused with 400, its running one is served to the end."""
    held = Held()
    gateway = await bench.gateway((await bench.upstream(held)).url, slots=Slots(sequences=1))
    http = await bench.http(gateway.url)
    running = asyncio.create_task(ask(http, "batch"))
    await until(lambda: held.order)
    queued = asyncio.create_task(ask(http, "batch"))
    await until(lambda: gateway.gate.driver.dispatcher.queued)
    gateway.gate.change(replace(gateway.gate.config, tenants=(Tenant(name="chat"),)))
    assert await queued == 400
    held.release.release()
    assert await running == 200


async def test_a_drain_serves_what_was_accepted_and_refuses_the_rest(bench):
    """Readiness fails, health does not; new work gets 503 with Retry-After; queued and running requests end well."""
    held = Held()
    gateway = await bench.gateway((await bench.upstream(held)).url, slots=Slots(sequences=1))
    http = await bench.http(gateway.url)
    accepted = [asyncio.create_task(ask(http)) for _ in range(2)]
    await until(lambda: held.order and gateway.gate.driver.dispatcher.queued)
    draining = asyncio.create_task(gateway.drain())
    await until(lambda: gateway.gate.draining)
    for path, status in (("/ready", 503), ("/health", 200)):
        async with http.get(path) as response:
            assert response.status == status
    async with http.post(CHAT, data=chat_body(), headers={"x-lmperf-tenant": "chat"}) as response:
        assert (response.status, response.headers["x-lmperf-reason"]) == (503, "draining")
        assert "Retry-After" in response.headers
    assert not draining.done()
    for _ in accepted:
        held.release.release()
    assert await asyncio.gather(*accepted) == [200, 200]
    assert await draining is True


async def test_what_outlives_the_drain_is_cut_and_recorded_as_unfinished(bench):
    held = Held()
    gateway = await bench.gateway((await bench.upstream(held)).url, limits={"drain_s": 0.05})
    http = await bench.http(gateway.url)
    asked = asyncio.create_task(ask(http))
    await until(lambda: held.order)
    await gateway.stop()
    with pytest.raises(Exception, match=r"(?i)disconnect"):
        await asked
    assert (await bench.outcome()).status is Status.UNFINISHED


async def test_strict_classes_decide_who_leaves_the_queue(bench):
    """Policy in front of an upstream: with one slot, the class order holds at the upstream, and reaches its body."""
    held = Held()
    upstream = await bench.upstream(held)
    tenants = (Tenant(name="low", priority=9), Tenant(name="high", priority=1))
    gateway = await bench.gateway(upstream.url, slots=Slots(sequences=1), tenants=tenants, policy="priority")
    gateway.gate.config = replace(
        gateway.gate.config, upstreams=tuple(replace(u, takes_priority=True) for u in gateway.gate.config.upstreams)
    )
    http = await bench.http(gateway.url)
    asked = [asyncio.create_task(ask(http, "low"))]
    await until(lambda: held.order)
    for number, tenant in enumerate(("low", "high"), 1):
        asked.append(asyncio.create_task(ask(http, tenant)))
        await until(lambda number=number: gateway.gate.driver.dispatcher.queued == number)
    for _ in asked:
        held.release.release()
    await asyncio.gather(*asked)
    assert held.order == ["low", "high", "low"]
    assert [json.loads(request.body)["priority"] for request in upstream.requests] == [9, 1, 9]
