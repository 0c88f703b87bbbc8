"""How long an upstream may take, whose limits hold, and what becomes of the slot and of the client when they pass."""

from __future__ import annotations

import argparse
import asyncio
import gzip
import json
import socket

import pytest
from gateway_upstream import DEADLINE_S, DONE, SSE_HEAD, chat_body, event, request_bytes, text, until, usage
from test_gateway_dialects import MESSAGES_STREAM, RESPONSES_STREAM

from backends.gateway.cli import add_arguments, config_from_args
from backends.gateway.config import ConfigError, GatewayConfig, GatewayLimits, Upstream, stated_timeouts
from backends.gateway.silence import Silence
from lmperf.cli.gateway_command import config_of
from lmperf.scenario.load import scenario_from_text
from scheduler.request import ErrorClass, Status
from scheduler.slots import Slots
from tenants.tenant import Tenant

CHAT = "/v1/chat/completions"
TENANT = {"x-lmperf-tenant": "chat"}
QUICK = {"upstream_first_token_s": 0.2, "upstream_answer_s": 0.2}
MESSAGES = {"model": "m", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 9}
ASKED = {
    "chat stream": (CHAT, {**MESSAGES, "stream": True}),
    "chat": (CHAT, MESSAGES),
    "chat tools": (CHAT, {**MESSAGES, "tools": [{"type": "function"}]}),
    "completions": ("/v1/completions", {"model": "m", "prompt": "hello"}),
    "responses stream": ("/v1/responses", {"model": "m", "input": "hello", "stream": True}),
    "responses": ("/v1/responses", {"model": "m", "input": "hello"}),
    "messages stream": ("/v1/messages", {**MESSAGES, "stream": True}),
    "messages": ("/v1/messages", MESSAGES),
    "embeddings": ("/v1/embeddings", {"model": "m", "input": "hello"}),
}


async def good(request, peer):
    await peer.stream(text("hi"), text("!", "stop"), usage(3, 2), DONE)


def first(script):
    """``script`` for the first request, a good answer for those that follow."""
    asked = []

    async def serve(request, peer):
        asked.append(request)
        await (script if len(asked) == 1 else good)(request, peer)

    return serve


async def silent(request, peer):
    await peer.gone()


async def post(bench, gateway, path: str = CHAT, body: object = None, tenant: str = "chat"):
    http = await bench.http(gateway.url)
    data = json.dumps(body or {**MESSAGES, "stream": True}).encode()
    async with http.post(path, data=data, headers={"x-lmperf-tenant": tenant}) as response:
        return response.status, await response.read()


def test_nothing_is_for_ever_where_nothing_is_configured():
    """Opening a connection, a first token, the next token, an answer that shows none: each has an end."""
    limits = GatewayLimits()
    assert limits.connect_timeout_s == 10
    assert limits.upstream_first_token_s == 600
    assert limits.token_timeout_s == 60
    assert limits.upstream_answer_s == 3600


@pytest.mark.parametrize("asked", ASKED)
async def test_an_upstream_that_never_answers_loses_its_slot(bench, asked):
    """504 in the shape that the API's clients read, the upstream's socket closed, the slot free for the next one."""
    path, body = ASKED[asked]
    upstream = await bench.upstream(first(silent))
    gateway = await bench.gateway(upstream.url, slots=Slots(sequences=1), limits=QUICK)
    asking = asyncio.create_task(post(bench, gateway, path, body))
    await until(lambda: upstream.requests)
    following = asyncio.create_task(post(bench, gateway))
    status, told = await asking
    assert status == 504
    told = json.loads(told)
    assert told.get("type") == ("error" if path == "/v1/messages" else None)
    reason = "total_timeout" if asked in {"chat tools", "embeddings"} else "first_token_timeout"
    assert (told["error"]["type"], told["error"]["code"]) == ("timeout_error", reason)
    assert (await following)[0] == 200
    outcome = await bench.outcome()
    assert outcome.status is Status.TIMED_OUT
    assert len(upstream.requests) == 2, "not sent twice: the second is the one that waited"
    assert gateway.gate.outstanding() == {"u1": 0}


@pytest.mark.parametrize(
    ("path", "begun"),
    [
        (CHAT, text("")),
        (CHAT, b": still working\n\n"),
        ("/v1/responses", event({"type": "response.created", "response": {}})),
        ("/v1/messages", event({"type": "message_start", "message": {}})),
    ],
)
async def test_a_stream_without_a_token_is_cut_with_an_event_that_says_why(bench, path, begun):
    """A role, a comment, the news of a beginning are no token, however often they come; the message does not end whole."""

    async def script(request, peer):
        await peer.send(SSE_HEAD)
        while True:
            await peer.chunk(begun)
            await asyncio.sleep(0.02)  # how often this upstream says that it works

    gateway = await bench.gateway((await bench.upstream(script)).url, limits=QUICK)
    http = await bench.http(gateway.url)
    async with http.post(path, data=chat_body(), headers=TENANT) as response:
        assert response.status == 200
        while b"first_token_timeout" not in (last := await response.content.readuntil(b"\n\n")):
            assert last == begun
        assert last.startswith(b"event: error\n") is (path == "/v1/messages")
        with pytest.raises(Exception, match=r"(?i)payload|transfer"):
            await response.content.read()
    assert (await bench.outcome()).error_class is ErrorClass.FIRST_TOKEN_TIMEOUT


@pytest.mark.parametrize("kind", ["application/json", "audio/wav", "text/event-stream"])
async def test_an_unknown_answer_may_go_on_but_not_stop(bench, kind):
    """Of an API that is not known here: each piece may take as long as the whole of another; a silent one is cut."""
    stop = asyncio.Event()

    async def script(request, peer):
        await peer.send(SSE_HEAD.replace(b"text/event-stream", kind.encode()))
        for _ in range(14):
            await peer.chunk(b"\n")
            await asyncio.sleep(0.25)
        stop.set()
        await peer.gone()

    gateway = await bench.gateway((await bench.upstream(script)).url, limits={"upstream_answer_s": 3.0})
    reader, writer = await bench.raw(gateway)
    body = b'{"input": "x"}'
    writer.write(
        b"POST /speak HTTP/1.1\r\nhost: g\r\nx-lmperf-tenant: chat\r\ncontent-length: %d\r\n\r\n" % len(body) + body
    )
    async with asyncio.timeout(DEADLINE_S):
        got = await reader.read()
    assert stop.is_set(), "what goes on is not cut"
    assert got.startswith(b"HTTP/1.1 200 ")
    assert not got.endswith(b"0\r\n\r\n"), "what was cut does not end as if it were whole"
    assert (b"total_timeout" in got) is (kind == "text/event-stream")
    assert (await bench.outcome()).error_class is ErrorClass.TOTAL_TIMEOUT


async def test_a_proxied_request_is_not_waited_for_for_ever_either(bench):
    """It takes no slot, and a drain waits for it."""
    gateway = await bench.gateway((await bench.upstream(silent)).url, limits=QUICK)
    http = await bench.http(gateway.url)
    async with http.get("/v1/models") as response:
        assert (response.status, (await response.json())["error"]["code"]) == (504, "upstream_failed")


async def test_a_slow_client_s_time_is_not_its_upstream_s(bench):
    """A client that reads again within its own limit gets all of it, though no token was taken meanwhile for longer than may
    lie between two."""
    piece = text("x" * 60_000)

    async def script(request, peer):
        await peer.send(SSE_HEAD)
        for _ in range(400):
            await peer.chunk(piece)
        await peer.chunk(text("", "stop") + DONE)
        await peer.end()

    gateway = await bench.gateway((await bench.upstream(script)).url, limits={"token_timeout_s": 3.0})
    reader, writer = await bench.raw(gateway)
    writer.transport.pause_reading()
    body = chat_body(stream_options={"include_usage": True})
    writer.write(request_bytes(body, "x-lmperf-tenant: chat", "connection: close"))
    await asyncio.sleep(4.5)  # how slow this client is
    assert not bench.outcomes, "more than fits between the two"
    writer.transport.resume_reading()
    async with asyncio.timeout(DEADLINE_S):
        got = await reader.read()
    assert got.endswith(b"0\r\n\r\n")
    assert (await bench.outcome()).status is Status.OK


async def test_the_first_bytes_of_what_cannot_be_read_free_the_prefill_slot(bench):
    """Sound, a compressed stream: nobody can count its tokens, and whoever waits for the prefill slot need not wait for its
    end."""
    go_on = asyncio.Event()

    async def script(request, peer):
        if request.target == "/speak":
            await peer.send(SSE_HEAD.replace(b"text/event-stream", b"audio/wav"))
        elif b"first" in request.body:
            await peer.send(SSE_HEAD[:-2] + b"content-encoding: gzip\r\n\r\n")
        else:
            await good(request, peer)
            return
        packed = gzip.compress(text("hi", "stop") + DONE)
        await peer.chunk(packed[:5])
        await go_on.wait()
        await peer.chunk(packed[5:])
        await peer.end()

    upstream = await bench.upstream(script)
    gateway = await bench.gateway(upstream.url, slots=Slots(sequences=9, prefill_tokens=1))
    body = {**MESSAGES, "stream": True, "user": "first"}
    asking = []
    for path in ("/speak", CHAT):
        asking.append(asyncio.create_task(post(bench, gateway, path, body)))
        await until(lambda: len(upstream.requests) == len(asking))
    assert await post(bench, gateway) == (200, text("hi") + text("!", "stop") + DONE)
    go_on.set()
    assert [status for status, _ in await asyncio.gather(*asking)] == [200, 200]


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("path", [CHAT, "/v1/responses", "/v1/messages"])
async def test_an_answer_that_is_whole_needs_no_end_of_its_message(bench, path, stream):
    """A server that says that it is done and then forgets to close: the client has its answer, the slot is free, no fault."""
    events = {
        CHAT: [text("hi"), text("!", "stop"), usage(3, 2), DONE],
        "/v1/responses": RESPONSES_STREAM,
        "/v1/messages": MESSAGES_STREAM,
    }[path]

    async def script(request, peer):
        await peer.send(SSE_HEAD)
        for one in events:
            await peer.chunk(one)
        await peer.gone()

    upstream = await bench.upstream(script)
    gateway = await bench.gateway(upstream.url, slots=Slots(sequences=1), limits={"token_timeout_s": None})
    body = ASKED["responses" if path == "/v1/responses" else "messages"][1] | {"stream": stream}
    if stream and path == CHAT:
        body["stream_options"] = {"include_usage": True}
    for _ in range(2):
        status, told = await post(bench, gateway, path, body)
        assert status == 200
        assert told == b"".join(events) if stream else json.loads(told)
    outcome = await bench.outcome(2)
    assert (outcome.status, outcome.output_tokens) == (Status.OK, 2)
    assert outcome.last_token_ns <= outcome.finished_ns <= outcome.ended_ns


async def test_comments_after_the_end_hold_no_slot(bench):
    """Comments that go on for ever after the closing mark are nothing of the answer."""

    async def script(request, peer):
        await peer.send(SSE_HEAD)
        for one in (text("hi"), text("!", "stop"), usage(3, 2), DONE):
            await peer.chunk(one)
        while True:
            await peer.chunk(b": ping\n\n")
            await asyncio.sleep(0.1)

    gateway = await bench.gateway((await bench.upstream(script)).url, slots=Slots(sequences=1))
    body = {**MESSAGES, "stream": True, "stream_options": {"include_usage": True}}
    for _ in range(2):
        async with asyncio.timeout(DEADLINE_S):
            status, told = await post(bench, gateway, CHAT, body)
        assert (status, told.count(DONE)) == (200, 1)
    assert (await bench.outcome(2)).status is Status.OK


# -- whose limits hold ---------------------------------------------------------------------------------------------


def scenario(timeouts: str, tenants: str):
    backend = f"{{kind: openai, url: 'http://h:1', timeouts: {timeouts}}}"
    return config_of(
        scenario_from_text(f"version: 1\nbackend: {backend}\npolicy: fifo\ntenants: {tenants}\n", traffic=False)
    )


def with_flags(base: GatewayConfig, *flags: str) -> GatewayConfig:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return config_from_args(parser.parse_args(flags), base)


def held(limits: GatewayLimits) -> tuple[float | None, ...]:
    """Connecting, the first token (stated, else by default), the next, the whole (stated, else by default)."""
    return (
        limits.connect_timeout_s,
        limits.first_token_timeout_s or limits.upstream_first_token_s,
        limits.token_timeout_s,
        limits.total_timeout_s or limits.upstream_answer_s,
    )


def test_a_tenant_s_own_time_outs_win():
    """Over the backend's and over a flag's, one by one; null is a tenant's word too; each of ``count`` has its own."""
    config = scenario(
        "{first_token_s: 5, total_s: 70}",
        "{chat: {timeouts: {first_token_s: 2}}, batch: {timeouts: {connect_s: 3, between_tokens_s: 9, total_s: null}}, "
        "many: {count: 2, timeouts: {total_s: 8}}, plain: {}}",
    )
    assert held(config.limits_of("chat")) == (10, 2, 60, 70)
    assert held(config.limits_of("batch")) == (3, 5, 9, None)
    assert held(config.limits_of("many-1")) == held(config.limits_of("many-2")) == (10, 5, 60, 8)
    assert held(config.limits_of("plain")) == held(config.limits) == (10, 5, 60, 70)
    flagged = with_flags(config, "--first-token-timeout-s", "4", "--timeout-s", "6", "--token-timeout-s", "7")
    assert held(flagged.limits_of("chat")) == (10, 2, 7, 6)
    assert held(flagged.limits_of("batch")) == (3, 4, 9, None)
    assert held(flagged.limits_of("plain")) == (10, 4, 7, 6)


def test_what_is_stated_takes_the_default_s_place():
    """Also null, and 0 of a flag: none."""
    tenants = "{chat: {}}"
    assert held(scenario("{}", tenants).limits) == (10, 600, 60, 3600)
    assert held(scenario("{first_token_s: 1000, between_tokens_s: 300, total_s: 9000}", tenants).limits) == (
        10,
        1000,
        300,
        9000,
    )
    assert held(scenario("{connect_s: null, first_token_s: null, between_tokens_s: null, total_s: null}", tenants).limits) == (
        10, None, None, None,
    )  # fmt: skip
    none = ("--first-token-timeout-s", "0", "--token-timeout-s", "0", "--timeout-s", "0", "--queue-timeout-s", "0")
    config = with_flags(scenario("{first_token_s: 5, total_s: 70}", tenants), *none)
    assert (held(config.limits), config.limits.queue_timeout_s) == ((10, None, None, None), None)
    with pytest.raises(ConfigError, match="token_timeout_s must be > 0"):
        with_flags(config, "--token-timeout-s", "-1")


@pytest.mark.parametrize(
    ("own", "said"),
    [
        ({"chta": {"total_timeout_s": 1.0}}, "'chta': no tenant of this name; known: chat"),
        ({"chat": {"total_s": 1.0}}, "'total_s' is no time-out; known: connect_timeout_s, "),
        ({"chat": {"max_body_bytes": 1}}, "'max_body_bytes' is no time-out"),
        ({"chat": stated_timeouts({"total_s": -1.0})}, "total_timeout_s must be > 0"),
    ],
)
def test_a_tenant_s_own_limits_are_checked(own, said):
    """At the start, not with its first request."""
    with pytest.raises(ConfigError, match=said):
        GatewayConfig(tenants=(Tenant(name="chat"),), upstreams=(Upstream(name="u", url="http://h:1"),), own_limits=own)


@pytest.mark.parametrize(
    ("own", "error_class"),
    [
        ({"first_token_s": 0.2}, ErrorClass.FIRST_TOKEN_TIMEOUT),
        ({"between_tokens_s": 0.2}, ErrorClass.TOKEN_TIMEOUT),
        ({"total_s": 0.2}, ErrorClass.TOTAL_TIMEOUT),
    ],
)
async def test_a_tenant_s_own_time_outs_hold_for_it_alone(bench, own, error_class):
    """At one upstream that takes too long for it: the other tenant's request is served."""
    hold = asyncio.Event()

    async def script(request, peer):
        await peer.send(SSE_HEAD)
        if "first_token_s" not in own:
            await peer.chunk(text("hi"))
        await hold.wait()
        await peer.chunk(text("!", "stop") + DONE)
        await peer.end()

    upstream = await bench.upstream(script)
    gateway = await bench.gateway(upstream.url, own_limits={"chat": stated_timeouts(own)})
    others = asyncio.create_task(post(bench, gateway, tenant="batch"))
    await until(lambda: upstream.requests)
    status, told = await post(bench, gateway, body=MESSAGES)
    assert (status, json.loads(told)["error"]["type"]) == (504, "timeout_error")
    outcome = await bench.outcome()
    assert (outcome.request.tenant, outcome.status, outcome.error_class) == ("chat", Status.TIMED_OUT, error_class)
    hold.set()
    assert (await others)[0] == 200


async def test_a_tenant_s_own_limit_of_connecting(bench):
    """A server that takes the connection and says nothing of TLS: 504 for the tenant with a limit; the other still waits."""
    with socket.create_server(("127.0.0.1", 0)) as mute:
        gateway = await bench.gateway(
            f"https://127.0.0.1:{mute.getsockname()[1]}",
            own_limits={"chat": stated_timeouts({"connect_s": 0.2})},
            limits={"connect_timeout_s": DEADLINE_S},
        )
        gateway.gate.upstreams._prober.cancel()  # or it would find the upstream down before this is over
        others = asyncio.create_task(post(bench, gateway, tenant="batch"))
        await until(lambda: gateway.gate.driver.dispatcher.outstanding)
        status, told = await post(bench, gateway)
        assert (status, json.loads(told)["error"]["code"]) == (504, "upstream_failed")
        assert (await bench.outcome()).error_class is ErrorClass.CONNECT_TIMEOUT
        assert not others.done()
        others.cancel()
        await asyncio.gather(others, return_exceptions=True)


async def test_silence_is_measured_from_the_last_sign(bench):
    """However often it is looked at; one that owes nothing any more is let be."""
    now_ns, looks, over = 0, 0, asyncio.Event()

    def since() -> int | None:
        nonlocal now_ns, looks
        looks += 1
        now_ns += 10_000_000
        return now_ns if looks < 4 else 30_000_000

    Silence(0.01, lambda: now_ns, since, over.set)
    async with asyncio.timeout(DEADLINE_S):
        await over.wait()
    assert looks == 4, "three times something had just come"
    gone = asyncio.Event()
    Silence(0.001, lambda: 10**12, gone.set, pytest.fail)
    async with asyncio.timeout(DEADLINE_S):
        await gone.wait()
    closed = Silence(0.001, lambda: 10**12, pytest.fail, pytest.fail)
    closed.close()
    await asyncio.sleep(0.01)
