"""What a scenario says of its servers holds behind a gateway; what a gateway cannot keep is refused."""

import argparse

import pytest
from gateway_upstream import DONE, chat_body, text, usage

from backends.gateway.cli import add_arguments, config_from_args
from backends.gateway.config import ConfigError
from backends.gateway.server import GatewayServer
from backends.reference import resolve_references
from lmperf.cli.gateway_command import config_of
from lmperf.scenario.faults import ScenarioError
from lmperf.scenario.load import scenario_from_text

CHAT = "/v1/chat/completions"
TENANTS = "tenants: {chat: {}, batch: {}}"


async def good(request, peer):
    if request.target == CHAT:
        await peer.stream(text("hi"), text("!", "stop"), usage(3, 2), DONE)
    else:
        await peer.answer(b"{}")


def scenario_of(backend: str, tenants: str = TENANTS):
    return scenario_from_text(f"version: 1\nbackend: {backend}\npolicy: fifo\n{tenants}\n", traffic=False)


async def served(bench, read):
    """A gateway of what ``read`` gives, which it reads anew at a reload."""
    scenarios = [read()]

    def reload():
        scenarios[:] = [read()]
        return config_of(scenarios[0])

    def resolve(text):
        return scenarios[0].secrets.resolve(text)

    made = GatewayServer(config_of(scenarios[0]), resolve=resolve, reload=reload)
    return await bench.stack.enter_async_context(made)


async def ask(http, path: str = CHAT, **headers: str) -> int:
    async with http.post(path, data=chat_body(), headers={"x-lmperf-tenant": "chat", **headers}) as response:
        await response.read()
        return response.status


async def test_the_backend_s_headers_go_upstream(bench, tmp_path, monkeypatch):
    """With queued requests, others and probes, in place of the client's; references are read anew at a reload."""
    monkeypatch.setenv("TEAM_TOKEN", "t0ken")
    key = tmp_path / "key"
    key.write_text("k1\n")
    upstream = await bench.upstream(good)
    headers = f'{{X-Team: research, X-Auth: "${{env:TEAM_TOKEN}}", X-Api-Key: "${{file:{key}}}"}}'
    gateway = await served(bench, lambda: scenario_of(f'{{kind: openai, url: "{upstream.url}", headers: {headers}}}'))
    http = await bench.http(gateway.url)
    for path in (CHAT, "/tokenize", "/v1/messages"):
        assert await ask(http, path, **{"x-team": "other", "x-mine": "kept", "authorization": "Bearer own"}) == 200
    for request in (*upstream.requests, *upstream.probes):
        got = request.headers
        assert (got["x-team"], got["x-auth"], got["x-api-key"]) == ("research", "t0ken", "k1")
        assert "authorization" not in got, "the upstream has a key of its own"
    assert len(upstream.requests) == 3
    assert upstream.probes
    assert {request.headers["x-mine"] for request in upstream.requests} == {"kept"}
    assert not {"t0ken", "k1"} & set(repr(gateway.config).replace("'", " ").split())
    key.write_text("k2\n")
    gateway.reload()
    assert await ask(http) == 200
    assert upstream.requests[-1].headers["x-api-key"] == "k2"


async def test_the_backend_s_key_is_the_upstream_s_not_its_tenants(bench, monkeypatch):
    """A run's tenants send it; clients of a gateway must neither need nor share it."""
    monkeypatch.setenv("UP_KEY", "up")
    upstream = await bench.upstream(good)
    gateway = await served(
        bench, lambda: scenario_of(f'{{kind: openai, url: "{upstream.url}", api_key: "${{env:UP_KEY}}"}}')
    )
    assert await ask(await bench.http(gateway.url)) == 200
    assert upstream.requests[-1].headers["authorization"] == "Bearer up"


@pytest.mark.parametrize("how", ["url: '{}'", "urls: [{{name: a, url: '{}'}}]"])
async def test_a_url_may_hold_references(bench, tmp_path, how):
    """Resolved at the start; another server at a reload is refused, as any change of upstreams."""
    upstream = await bench.upstream(good)
    where = tmp_path / "where"
    where.write_text(f"127.0.0.1:{upstream.port}\n")
    backend = f"{{kind: openai, {how.format('http://${file:' + str(where) + '}')}}}"
    gateway = await served(bench, lambda: scenario_of(backend))
    assert await ask(await bench.http(gateway.url)) == 200
    where.write_text("127.0.0.1:1\n")
    with pytest.raises(ConfigError, match="upstreams cannot change"):
        gateway.reload()
    where.unlink()
    with pytest.raises(ScenarioError, match=r"url: the file .*/where does not exist"):
        config_of(scenario_of(backend))


def test_a_flag_s_url_may_hold_references(monkeypatch):
    monkeypatch.setenv("HOST_OF_IT", "gpu-1")
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    args = parser.parse_args(["--upstream", "http://${env:HOST_OF_IT}:8000", "--tenant", "chat"])
    assert config_from_args(args).upstreams[0].url == "http://gpu-1:8000"
    monkeypatch.delenv("HOST_OF_IT")
    with pytest.raises(ValueError, match="HOST_OF_IT is not set"):
        config_from_args(args)


def test_time_outs_of_the_backend_are_the_gateway_s():
    config = config_of(scenario_of("{kind: openai, url: 'http://h:1', timeouts: {first_token_s: 5, total_s: 70}}"))
    assert (config.limits.first_token_timeout_s, config.limits.total_timeout_s) == (5.0, 70.0)


def test_a_tenant_with_a_server_of_its_own_is_refused():
    """Its requests would go to another server than the scenario says; the place is named."""
    scenario = scenario_of("{kind: openai, url: 'http://h:1'}", "tenants: {chat: {base_url: 'http://i:2'}, batch: {}}")
    with pytest.raises(ScenarioError, match=r":4: tenants\.chat\.base_url: .*remove it"):
        config_of(scenario)


@pytest.mark.parametrize(
    ("headers", "said"),
    [
        ({"host": "other"}, "'host' cannot be set"),
        ({"content-length": "7"}, "'content-length' cannot be set"),
        ({"x y": "7"}, "'x y' cannot be sent"),
        ({"x-key": "${env:TWO_LINES}"}, "'x-key' cannot be sent"),
    ],
)
async def test_a_header_that_cannot_be_sent_stops_the_start(bench, monkeypatch, headers, said):
    """Not each request; its value is not told."""
    monkeypatch.setenv("TWO_LINES", "s3cret\r\nx-more: 1")
    with pytest.raises(ConfigError, match=said) as raised:
        await bench.gateway("http://127.0.0.1:1", headers=headers, resolve=resolve_references)
    assert "s3cret" not in str(raised.value)
