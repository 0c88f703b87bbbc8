"""A gateway whose slots move by themselves, and whose requests go where their prefix is."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import replace

import aiohttp
import pytest
from gateway_upstream import DONE, chat_body, text, until, usage

from backends.emulator.config import EmulatorConfig
from backends.emulator.server import EmulatorServer
from backends.gateway.cli import add_arguments, config_from_args
from backends.gateway.config import ConfigError
from backends.gateway.gate import Change
from lmperf.cli.parser import Parser
from scheduler.auto_rule import AutoRule, Follows, usual_rule
from scheduler.request import Outcome, Request, Status
from scheduler.routing import Routing, Rule
from scheduler.server_model.spec import ServerLimits, ServerModelSpec, StepLaw
from scheduler.slots import Slots
from scheduler.waiting_slots import WaitingSlots
from tenants.slo import Slo
from tenants.tenant import Tenant

CHAT = "/v1/chat/completions"
MS = 1_000_000
EIGHT = ServerModelSpec(
    name="eight",
    law=StepLaw(a_us=10_000.0, b_us=1.0, c_us=2.0, d_us=0.0),
    limits=ServerLimits(max_num_seqs=8, max_num_batched_tokens=2048),
)
PROMISED = (Tenant(name="chat", slo=Slo(tpot_ns=20 * MS, attainment=0.9)), Tenant(name="batch"))


async def good(request, peer):
    await peer.stream(text("hi"), text("!", "stop"), usage(3, 2), DONE)


def metrics(waiting: int | None):
    async def script(request, peer):
        if request.target != "/metrics":
            await good(request, peer)
        elif waiting is None:
            await peer.answer(b"nothing here", "404 Not Found")
        else:
            await peer.answer(b'vllm:num_requests_waiting{engine="0"} %d\n' % waiting, kind="text/plain")

    return script


def slow(at_ns: int) -> Outcome:
    return Outcome(
        request=Request(id=1, tenant="chat", arrival_ns=0, prompt_tokens=1),
        status=Status.OK,
        ended_ns=at_ns,
        first_token_ns=at_ns - 300 * MS,
        last_token_ns=at_ns,
        output_tokens=11,
    )


async def gateway_by_waiting(bench, url):
    """From 16 slots, moved by what the upstream says that waits; the administration's key is k."""
    return await bench.gateway(
        url,
        slots=Slots(sequences=16),
        auto=usual_rule(Follows.WAITING),
        admin_key="${env:ADMIN}",
        resolve={"${env:ADMIN}": "k"}.__getitem__,
    )


async def test_slots_by_waiting_come_down_to_what_the_engine_runs(bench):
    """An embedded server that runs 8 at once, 30 clients: from 16 slots to 8 or a few more, seen in /metrics and /admin."""
    server = await bench.stack.enter_async_context(EmulatorServer(EmulatorConfig(server_model=EIGHT)))
    gateway = await gateway_by_waiting(bench, server.url)
    http = await bench.http(gateway.url)
    body = chat_body(model=EIGHT.name, max_tokens=30, ignore_eos=True)
    over = asyncio.Event()

    async def client() -> None:
        while not over.is_set():
            async with http.post(CHAT, data=body, headers={"x-lmperf-tenant": "chat"}) as response:
                assert response.status == 200, await response.text()
                await response.read()

    clients = [asyncio.create_task(client()) for _ in range(30)]
    try:
        await until(lambda: gateway.slot_moves[-1].sequences <= 10 or any(task.done() for task in clients))
        async with http.get("/metrics") as response:
            shown = await response.text()
        async with http.get("/admin/status", headers={"Authorization": "Bearer k"}) as response:
            status = await response.json()
    finally:
        over.set()
        await asyncio.gather(*clients)
    now = gateway.slot_moves[-1].sequences
    assert 8 <= now <= 10
    assert f'lmperf_gateway_slots{{upstream="u1"}} {float(now)}' in shown
    assert status["auto_slots"] == {
        "rule": {"follows": "waiting", "least": 1, "most": 1024},
        "now": {"u1": now},
        "failed": False,
    }
    assert status["dispatcher"]["backends"]["u1"]["slots"]["sequences"] == now


async def test_an_upstream_without_a_waiting_count_is_told_at_the_start(bench):
    """Not after an hour of slots that never move."""
    upstream = await bench.upstream(metrics(None))
    with pytest.raises(ConfigError, match=r"'u1'.*/metrics answered HTTP 404, which slots by waiting need"):
        await bench.gateway(upstream.url, auto=usual_rule(Follows.WAITING))


async def test_a_reload_leaves_the_slots_where_the_controller_had_them(bench):
    """Other tenants and another policy move nothing; another rule goes on from there; stated slots begin anew."""
    gateway = await bench.gateway(
        (await bench.upstream(metrics(0))).url,
        slots=Slots(sequences=100, prefill_tokens=512),
        auto=usual_rule(Follows.TPOT),
        tenants=PROMISED,
    )

    def slots() -> Slots:
        return gateway.gate.driver.dispatcher.slots()["u1"]

    for _ in range(10):
        gateway.gate.slots.observe(slow(gateway.gate.clock()))
    await until(lambda: slots().sequences != 100)
    assert slots() == Slots(sequences=92, prefill_tokens=512)
    assert gateway.reload(Change(policy="wfq", weights={"batch": 3.0})) == ["tenants", "policy"]
    assert slots().sequences == 92
    gate = gateway.gate
    assert gate.change(replace(gate.config, auto=AutoRule(follows=Follows.WAITING, least=2, most=90))) == ["auto slots"]
    assert slots() == Slots(sequences=90, prefill_tokens=512)
    assert gateway.reload(Change(slots={"u1": Slots(sequences=30)})) == ["slots of u1"]
    assert slots() == Slots(sequences=30)
    assert gate.change(replace(gate.config, auto=None)) == ["auto slots"]
    assert slots() == Slots(sequences=30)
    assert gate.slots.status() is None
    assert [move.sequences for move in gateway.slot_moves] == [100, 92, 90, 30]


async def test_new_limits_of_a_reload_steer(bench):
    """A TPOT limit that a reload tightens is what the controller then goes by."""
    wide = (replace(PROMISED[0], slo=Slo(tpot_ns=50 * MS, attainment=0.9)),)
    gateway = await bench.gateway(
        (await bench.upstream(good)).url, slots=Slots(sequences=100), auto=usual_rule(Follows.TPOT), tenants=wide
    )
    gate = gateway.gate
    assert gate.change(replace(gate.config, tenants=PROMISED)) == ["tenants"]
    for _ in range(10):
        gate.slots.observe(slow(gate.clock()))
    await until(lambda: gateway.slot_moves[-1].sequences == 92)


@pytest.mark.parametrize("breaks", ["decide", "observe"])
async def test_a_controller_that_fails_is_told_of_at_once_and_stops_no_request(bench, monkeypatch, caplog, breaks):
    """In the log, the readiness page, the metrics and the status, while the gateway serves on with the slots as they were;
    a reload starts it anew.
    """

    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError("private words")

    upstream = await bench.upstream(metrics(0))
    gateway = await gateway_by_waiting(bench, upstream.url)
    http = await bench.http(gateway.url)

    async def ask() -> int:
        async with http.post(CHAT, data=chat_body(), headers={"x-lmperf-tenant": "chat"}) as response:
            await response.read()
            return response.status

    async def told() -> tuple[int, str, bool, bool]:
        async with http.get("/ready") as ready, http.get("/metrics") as shown:
            page, text_of = await ready.json(), await shown.text()
        async with http.get("/admin/status", headers={"Authorization": "Bearer k"}) as response:
            failed = (await response.json())["auto_slots"]["failed"]
        return ready.status, page["slot_control"], "lmperf_gateway_slot_control_up 1.0" in text_of, failed

    assert await told() == (200, "running", True, False)
    with monkeypatch.context() as patched:
        patched.setattr(WaitingSlots, breaks, broken)
        assert await ask() == 200
        await until(lambda: gateway.gate.slots.controlled is False)
        assert await ask() == 200
    assert await told() == (200, "failed", False, True)
    (line,) = [record for record in caplog.records if record.getMessage() == "slot_control_failed"]
    assert line.fields == {"exception": "ZeroDivisionError", "at": f"{__name__}:{broken.__code__.co_firstlineno + 1}"}
    assert gateway.gate.driver.dispatcher.slots() == {"u1": Slots(sequences=16)}
    gate = gateway.gate
    assert gate.change(gate.config) == ["auto slots"]
    assert await told() == (200, "running", True, False)
    assert len(bench.outcomes) == 2


def test_slots_by_tpot_need_a_promise_and_counts():
    """Nothing would ever be judged."""
    parser = Parser()
    add_arguments(parser)
    argv = ["--upstream", "http://x:1", "--tenant", "chat", "--auto-slots"]
    with pytest.raises(ConfigError, match="need a tenant with one"):
        config_from_args(parser.parse_args([*argv, "tpot"]))
    assert config_from_args(parser.parse_args([*argv, "waiting"])).auto == usual_rule(Follows.WAITING)
    bounded = config_from_args(parser.parse_args([*argv, "waiting", "--min-slots", "4", "--max-slots", "9"]))
    assert bounded.auto == AutoRule(follows=Follows.WAITING, least=4, most=9)
    with pytest.raises(ConfigError, match="--min-slots and --max-slots are for automatic slots"):
        config_from_args(parser.parse_args([*argv[:-1], "--min-slots", "4"]))
    base = replace(bounded, tenants=PROMISED)
    assert config_from_args(parser.parse_args(["--auto-slots", "off"]), base).auto is None
    assert config_from_args(parser.parse_args(["--max-slots", "8"]), base).auto.most == 8
    with pytest.raises(ConfigError, match="need token counts"):
        config_from_args(parser.parse_args(["--auto-slots", "tpot", "--no-count-tokens"]), base)
    with pytest.raises(ValueError, match="least <= most"):
        config_from_args(parser.parse_args(["--max-slots", "2"]), base)


def test_the_flag_changes_the_rule_and_keeps_the_scenarios_slack():
    """``--routing`` alone starts from the default bound."""
    parser = Parser()
    add_arguments(parser)
    argv = ["--upstream", "http://x:1", "--upstream", "http://y:1", "--tenant", "chat"]
    plain = config_from_args(parser.parse_args(argv))
    assert plain.routing == Routing()
    assert config_from_args(parser.parse_args([*argv, "--routing", "session"])).routing == Routing(rule=Rule.SESSION)
    base = replace(plain, routing=Routing(rule=Rule.PREFIX, slack=5.0))
    assert config_from_args(parser.parse_args(argv), base).routing == base.routing
    flagged = config_from_args(parser.parse_args(["--routing", "round_robin"]), base)
    assert flagged.routing == Routing(rule=Rule.ROUND_ROBIN, slack=5.0)


async def test_a_prompt_goes_where_its_first_kilobyte_went(bench):
    """By prefix, one conversation stays on one upstream though the other has less to do; a record tells no hash."""
    held: list[asyncio.Event] = []

    async def script(request, peer):
        done = asyncio.Event()
        held.append(done)
        await done.wait()
        await good(request, peer)

    upstreams = [await bench.upstream(script), await bench.upstream(script)]
    routing = Routing(rule=Rule.PREFIX)
    gateway = await bench.gateway(*(u.url for u in upstreams), slots=Slots(sequences=8), routing=routing)
    http = await bench.http(gateway.url)

    async def ask(words: str) -> None:
        body = chat_body(messages=[{"role": "user", "content": words}])
        async with http.post(CHAT, data=body, headers={"x-lmperf-tenant": "chat"}) as response:
            assert response.status == 200
            await response.read()

    prompts = ["a" * 2000 + str(turn) for turn in range(4)] + ["b" * 2000] + ["short"]
    asking = []
    for number, words in enumerate(prompts):
        asking.append(asyncio.create_task(ask(words)))
        await until(lambda number=number: len(held) == number + 1)
    counts = [len(u.requests) for u in upstreams]
    for done in held:
        done.set()
    await asyncio.gather(*asking)
    assert counts == [4, 2], "four turns of one conversation; the others to the less busy one"
    assert {outcome.request.prefix_blocks for outcome in bench.outcomes} == {()}


async def test_a_failed_request_leaves_other_conversations_where_they_were(bench):
    """An upstream that answers one request with 500 keeps its cache: the next turn of another conversation returns to it."""
    release = asyncio.Event()

    async def first(request, peer):
        if b"wait" in request.body:
            await release.wait()
        await good(request, peer)

    async def second(request, peer):
        if b"fail" in request.body:
            await peer.answer(b"{}", "500 Internal Server Error")
        else:
            await good(request, peer)

    upstreams = [await bench.upstream(first), await bench.upstream(second)]
    gateway = await bench.gateway(*(u.url for u in upstreams), routing=Routing(rule=Rule.PREFIX))
    http = await bench.http(gateway.url)

    async def ask(words: str) -> None:
        body = chat_body(messages=[{"role": "user", "content": words}])
        async with http.post(CHAT, data=body, headers={"x-lmperf-tenant": "chat"}) as response:
            assert response.status == 200
            await response.read()

    waiting = asyncio.create_task(ask("wait"))
    await until(lambda: upstreams[0].requests)
    await ask("a" * 2000)
    await ask("fail")
    release.set()
    await waiting
    assert [len(u.requests) for u in upstreams] == [2, 2], "the failed one was served by the other"
    await ask("a" * 2000 + "next turn")
    assert [len(u.requests) for u in upstreams] == [2, 3]


async def test_an_embedded_server_that_is_killed_and_comes_back(bench):
    """Clients of the gateway notice nothing but the requests that were being answered; then both serve again."""
    servers = [EmulatorServer(EmulatorConfig(server_model=EIGHT)) for _ in range(2)]
    for server in servers:
        await server.start()
    gateway = await bench.gateway(*(s.url for s in servers), slots=Slots(sequences=4), probe_interval_s=0.05)
    http = await bench.http(gateway.url)
    body = chat_body(model=EIGHT.name, max_tokens=5, ignore_eos=True)
    over = asyncio.Event()

    async def client() -> None:
        while not over.is_set():
            with contextlib.suppress(aiohttp.ClientPayloadError):  # cut in the middle of its answer
                async with http.post(CHAT, data=body, headers={"x-lmperf-tenant": "chat"}) as response:
                    assert response.status in {200, 502}
                    await response.read()

    clients = [asyncio.create_task(client()) for _ in range(6)]

    def served(name: str, since_ns: int = 0) -> int:
        return sum(o.backend == name and o.status is Status.OK and o.dispatched_ns > since_ns for o in bench.outcomes)

    try:
        await until(lambda: served("u1") > 5)
        await servers[0].stop()
        await until(lambda: not gateway.gate.upstreams["u1"].up)
        down_ns = gateway.gate.clock()
        await until(lambda: served("u2", down_ns) > 5)
        assert served("u1", down_ns) == 0
        servers[0] = EmulatorServer(EmulatorConfig(server_model=EIGHT, port=servers[0].port))
        await servers[0].start()
        await until(lambda: served("u1", down_ns) > 5)
    finally:
        over.set()
        await asyncio.gather(*clients, return_exceptions=True)
        for server in servers:
            await server.stop()
    for task in clients:
        task.result()
    lost = [o for o in bench.outcomes if o.status is not Status.OK]
    assert len(lost) <= 4, "at most what the killed server had"
    assert {o.backend for o in lost} <= {"u1"}
