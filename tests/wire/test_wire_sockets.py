"""Sockets: reuse, stale ones, limits, warm-up, redirects, proxies, TLS, IPv6."""

from __future__ import annotations

import asyncio
import ssl

import pytest
from scripted_server import DONE, HEAD, Peer, answering, call, text, tunnel_to

from backends.wire.dial import Dialer
from backends.wire.faults import WireError
from backends.wire.options import WireOptions
from backends.wire.url import Origin
from scheduler.request import ErrorClass, Status

OK = answering(text("a"), text("b", "stop"), DONE)


async def one_answer(peer):
    await peer.request()
    await peer.send(HEAD)
    await peer.chunked(text("a", "stop") + DONE)
    await peer.end()


async def test_a_burst_of_n_starts_n_at_once(bench):
    """No hidden cap: the server holds every answer back until all N requests have arrived."""
    count, waiting, all_there = 200, [], asyncio.Event()

    async def script(peer):
        await peer.request()
        waiting.append(peer)
        if len(waiting) == count:
            all_there.set()
        await all_there.wait()
        await peer.send(HEAD)
        await peer.chunked(text("a", "stop") + DONE)
        await peer.end()
        await peer.gone()

    server = await bench.server(script)
    client = bench.client(server.url)
    results = await asyncio.gather(*(bench.ask(client) for _ in range(count)))
    assert {result.status for result in results} == {Status.OK}
    assert (client.stats.opened, server.connections) == (count, count)


async def test_a_limit_is_kept_and_waiters_are_served_in_order(bench):
    """With max_connections there are never more sockets, and nobody overtakes."""
    order, client_limit = [], 2

    async def script(peer):
        while True:
            order.append((await peer.request()).body)
            await peer.send(HEAD)
            await peer.chunked(text("a", "stop") + DONE)
            await peer.end()

    server = await bench.server(script)
    client = bench.client(server.url, max_connections=client_limit)
    bodies = [b"%d" % i for i in range(9)]
    results = await asyncio.gather(*(bench.ask(client, call(body=body)) for body in bodies))
    assert {result.status for result in results} == {Status.OK}
    assert server.connections == client_limit
    # Of those on the wire at one time the server may read either first.
    assert all(abs(place - int(body)) < client_limit for place, body in enumerate(order))


async def test_a_cancelled_waiter_leaves_its_place_to_the_next(bench):
    """Cancelling one that waits for a socket, and one that holds it, blocks nobody."""
    started = asyncio.Event()

    async def holds(peer):
        await peer.request()
        started.set()
        await peer.gone()

    server = await bench.server(holds, OK)
    client = bench.client(server.url, max_connections=1)
    holder = asyncio.create_task(bench.ask(client))
    async with asyncio.timeout(10):
        await started.wait()
        waiters = [asyncio.create_task(bench.ask(client)) for _ in range(3)]
        await asyncio.sleep(0)
        waiters[0].cancel()
        holder.cancel()
        done = await asyncio.gather(holder, *waiters, return_exceptions=True)
    assert [type(d) for d in done[:2]] == [asyncio.CancelledError, asyncio.CancelledError]
    assert [d.status for d in done[2:]] == [Status.OK, Status.OK]


async def test_a_failed_connect_gives_its_place_back(bench):
    """A limit of one is not used up by a connection that never came to be."""
    client = bench.client("no-such-host.invalid", max_connections=1)
    for _ in range(3):
        assert (await bench.ask(client)).error_class is ErrorClass.DNS


async def test_the_last_socket_used_is_the_first_reused(bench):
    """LIFO: sequential calls after a burst all use one socket."""
    used = []

    async def script(peer):
        while True:
            await peer.request()
            used.append(id(peer))
            await peer.send(HEAD)
            await peer.chunked(text("a", "stop") + DONE)
            await peer.end()

    server = await bench.server(script)
    client = bench.client(server.url)
    await asyncio.gather(*(bench.ask(client) for _ in range(5)))
    used.clear()
    for _ in range(5):
        await bench.ask(client)
    assert len(set(used)) == 1


async def test_warm_up_opens_sockets_that_calls_then_use(bench):
    """After warm_up(N), N calls at once open nothing and connect in 0 ns."""
    server = await bench.server(OK)
    client = bench.client(server.url)
    await client.warm_up(20)
    await client.warm_up(20)
    assert client.stats.opened == 20
    results = await asyncio.gather(*(bench.ask(client) for _ in range(20)))
    assert {(result.status, result.connect_ns) for result in results} == {(Status.OK, 0)}
    assert (client.stats.opened, client.stats.reused) == (20, 20)


async def test_warm_up_says_when_it_cannot(bench):
    """A warm-up that fails is an error before the run, not a slow start in it."""
    with pytest.raises(WireError) as caught:
        await bench.client("no-such-host.invalid").warm_up(3)
    assert caught.value.error_class is ErrorClass.DNS


@pytest.mark.parametrize("ending", [Peer.close, Peer.reset])
async def test_a_kept_socket_that_the_server_closes_on_use_is_replaced(bench, ending):
    """Closed as the second request arrives, nothing answered: sent again on a new socket, unseen."""

    async def closes_on_second(peer):
        await one_answer(peer)
        await peer.request()
        ending(peer)

    server = await bench.server(closes_on_second, OK)
    client = bench.client(server.url)
    first, second = await bench.ask(client), await bench.ask(client)
    assert (first.status, second.status, server.connections) == (Status.OK, Status.OK, 2)
    assert client.stats.resent == 1


async def test_a_kept_socket_closed_while_idle_is_not_used(bench):
    """The server closes after its answer; the next call opens a socket, without a failed attempt."""

    async def closes(peer):
        await one_answer(peer)
        peer.close()

    server = await bench.server(closes, OK)
    client = bench.client(server.url)
    await bench.ask(client)
    async with asyncio.timeout(10):
        while client.open_connections:  # noqa: ASYNC110 (the client has no event for a socket that goes away idle)
            await asyncio.sleep(0)
    assert (await bench.ask(client)).status is Status.OK
    assert client.stats.resent == 0


async def test_nothing_is_sent_twice_once_an_answer_began(bench):
    """Any byte of a response makes it the answer: cut off, it is a failure and not repeated."""

    async def begins(peer):
        await one_answer(peer)
        await peer.request()
        await peer.send(b"HTTP/1.1 2")
        peer.close()

    server = await bench.server(begins, OK)
    client = bench.client(server.url)
    await bench.ask(client)
    result = await bench.ask(client)
    assert (result.status, server.connections, client.stats.resent) == (Status.FAILED, 1, 0)


async def test_a_new_socket_is_not_tried_twice(bench):
    """A request that was sent again and again finds nobody there is reset, after two tries."""

    async def dies(peer):
        await peer.request()
        peer.close()

    async def closes_on_second(peer):
        await one_answer(peer)
        await dies(peer)

    server = await bench.server(closes_on_second, dies)
    client = bench.client(server.url)
    await bench.ask(client)
    result = await bench.ask(client)
    assert (result.error_class, server.connections) == (ErrorClass.RESET, 2)


@pytest.mark.parametrize(
    "head",
    [
        b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n",
        b"HTTP/1.0 200 OK\r\ncontent-type: text/event-stream\r\n\r\n",
    ],
)
async def test_connection_close_is_obeyed(bench, head):
    """A body that ends with the connection is whole; the next call has a socket of its own."""

    async def script(peer):
        await peer.request()
        await peer.send(head + text("a", "stop") + DONE)
        peer.close()

    server = await bench.server(script)
    client = bench.client(server.url)
    for _ in range(2):
        assert (await bench.ask(client)).status is Status.OK
    assert server.connections == 2


async def test_content_length_frames_a_stream(bench):
    """A stream of known length leaves the socket usable."""
    body = text("a", "stop") + DONE

    async def script(peer):
        while True:
            await peer.request()
            await peer.send(
                b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: %d\r\n\r\n" % len(body)
            )
            await peer.send(body)

    server = await bench.server(script)
    client = bench.client(server.url)
    for _ in range(2):
        assert (await bench.ask(client)).status is Status.OK
    assert server.connections == 1


async def test_interim_responses_are_passed_over(bench):
    """100 and 103 are not the answer."""

    async def script(peer):
        await peer.request()
        await peer.send(b"HTTP/1.1 100 Continue\r\n\r\n")
        await peer.send(b"HTTP/1.1 103 Early Hints\r\nlink: x\r\ncontent-type: text/html\r\n\r\n" + HEAD)
        await peer.chunked(text("a", "stop") + DONE)
        await peer.end()
        await peer.gone()

    assert (await bench.answer(script)).status is Status.OK


async def test_data_nobody_asked_for_closes_the_socket(bench):
    """After the end of a response, more bytes mean that the framing cannot be trusted."""

    async def script(peer):
        await peer.request()
        await peer.send(HEAD)
        await peer.chunked(text("a", "stop") + DONE)
        await peer.send(b"0\r\n\r\nHTTP/1.1 408 Timeout\r\ncontent-length: 0\r\n\r\n")
        await peer.gone()

    server = await bench.server(script, OK)
    client = bench.client(server.url)
    for _ in range(2):
        assert (await bench.ask(client)).status is Status.OK
    assert server.connections == 2


async def test_what_is_on_the_wire(bench):
    """One POST: base path and path, host, identity; the body byte for byte; framing headers of a call are not sent."""
    seen = []

    async def script(peer):
        seen.append(await peer.request())
        await peer.send(HEAD)
        await peer.chunked(text("a", "stop") + DONE)
        await peer.end()
        await peer.gone()

    server = await bench.server(script)
    request = call(body=b'{"x": 1}', headers={"Authorization": "Bearer k", "Content-Length": "3", "TE": "trailers"})
    await bench.ask(bench.client(server.url + "/team/v1/"), request)
    got = seen[0]
    assert (got.method, got.target, got.body) == ("POST", "/team/v1/chat/completions", b'{"x": 1}')
    assert got.headers == {
        "host": f"127.0.0.1:{server.port}",
        "content-type": "application/json",
        "authorization": "Bearer k",
        "te": "trailers",
        "accept-encoding": "identity",
        "content-length": "8",
    }


async def test_a_call_may_name_its_own_base_url(bench):
    """A tenant's own server is reached over its own sockets."""
    shared, own = await bench.server(OK), await bench.server(OK)
    client = bench.client(shared.url)
    await bench.ask(client, call(base_url=f"{own.url}/v1"))
    assert (shared.connections, own.connections) == (0, 1)


@pytest.mark.parametrize("status", [307, 308])
async def test_redirects_within_the_host_are_followed(bench, status):
    """The request is repeated as it was, key and body included, at most three times."""
    seen = []

    async def script(peer):
        while True:
            got = await peer.request()
            seen.append((got.target, got.body, got.headers["authorization"]))
            hops = len(seen)
            if hops <= 3:
                await peer.send(
                    f"HTTP/1.1 {status} X\r\nlocation: /hop{hops}?a=b\r\ncontent-length: 0\r\n\r\n".encode()
                )
            else:
                await peer.send(HEAD)
                await peer.chunked(text("a", "stop") + DONE)
                await peer.end()

    server = await bench.server(script)
    client = bench.client(server.url)
    result = await bench.ask(client, call("/start", headers={"authorization": "Bearer k"}))
    assert result.status is Status.OK, result.detail
    assert [target for target, _, _ in seen] == ["/start", "/hop1?a=b", "/hop2?a=b", "/hop3?a=b"]
    assert {rest for _, *rest in seen for rest in [tuple(rest)]} == {(b"{}", "Bearer k")}
    assert server.connections == 1


@pytest.mark.parametrize("location", ["http://localhost:{port}/x", "ftp://127.0.0.1/x", "/loop", None])
async def test_other_redirects_are_errors(bench, location):
    """Another host would get this one's key; a loop never ends."""

    async def script(peer):
        where = f"location: {location.format(port=1)}\r\n" if location else ""
        while True:
            await peer.request()
            await peer.send(f"HTTP/1.1 307 X\r\n{where}content-length: 0\r\n\r\n".encode())

    result = await bench.answer(script)
    assert (result.status, result.error_class, "redirect" in result.detail) == (
        Status.FAILED,
        ErrorClass.BAD_STREAM,
        True,
    )


async def test_ipv6(bench):
    """[::1] in a base URL."""
    server = await bench.server(OK, host="::1")
    assert (await bench.ask(bench.client(server.url))).status is Status.OK


async def test_localhost_works_whichever_family_the_server_has(bench):
    """A name with several addresses: the one that answers is found, and remembered."""
    server = await bench.server(OK)
    client = bench.client(f"localhost:{server.port}")
    results = await asyncio.gather(*(bench.ask(client) for _ in range(3)))
    assert {result.status for result in results} == {Status.OK}


async def test_a_dead_address_leaves_time_for_a_living_one(bench):
    """Of several addresses one answers: it is found, and one lookup serves a whole burst, cancelled calls or not."""
    server = await bench.server(OK)
    lookups, released = [], asyncio.Event()

    async def lookup(host, port):
        lookups.append(host)
        await released.wait()
        return ["127.0.0.9", "127.0.0.1", "127.0.0.8"]

    dialer = Dialer(WireOptions(), bench.clock, lookup)
    origin = Origin("http", "three.invalid", server.port)
    burst = [asyncio.create_task(dialer.open(origin, lambda connection: None)) for _ in range(5)]
    await asyncio.sleep(0)
    burst.pop().cancel()
    released.set()
    for connection, _ in await asyncio.gather(*burst):
        assert connection.is_open
        connection.abort()
        await connection.wait_closed()
    async with asyncio.timeout(20):
        while server.connections < 4:  # noqa: ASYNC110 (a server's count, seen from outside)
            await asyncio.sleep(0)
    assert lookups == ["three.invalid"]


async def test_addresses_are_looked_up_again_when_none_works(bench):
    """A server that moved is found at its new address by the next call."""
    server = await bench.server(OK)
    answers = [["127.0.0.9"], ["127.0.0.1"]]

    async def lookup(host, port):
        return answers.pop(0)

    dialer = Dialer(WireOptions(), bench.clock, lookup)
    origin = Origin("http", "moved.invalid", server.port)
    with pytest.raises(WireError) as caught:
        await dialer.open(origin, lambda connection: None)
    assert caught.value.error_class is ErrorClass.REFUSED
    connection, _ = await dialer.open(origin, lambda connection: None)
    connection.abort()
    await connection.wait_closed()


def server_tls(certificate):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificate)
    return context


async def test_tls(bench, certificate):
    """Verified against a trusted authority, refused without one, accepted when asked to be insecure."""
    server = await bench.server(OK, tls=server_tls(certificate))
    trusting = await bench.ask(bench.client(server.url, ca_file=str(certificate[0])))
    assert trusting.status is Status.OK, trusting.detail
    assert len(trusting.chunk_ns) == 2
    refusing = await bench.ask(bench.client(server.url))
    assert (refusing.status, refusing.error_class) == (Status.FAILED, ErrorClass.TLS)
    insecure = bench.client(server.url, insecure=True)
    for _ in range(2):
        assert (await bench.ask(insecure)).status is Status.OK
    assert insecure.stats.reused == 1


async def test_tls_sent_waits_for_a_large_body_to_leave(bench, certificate):
    """Under TLS too, sent is when the socket has taken the last byte."""

    async def script(peer):
        await peer.reader.readexactly(1)
        bench.clock.now_ns = 500_000_000  # the client wrote what it could at 0; only now is the rest read
        await peer.request()
        await peer.send(HEAD)
        await peer.chunked(text("a", "stop") + DONE)
        await peer.end()
        await peer.gone()

    server = await bench.server(script, tls=server_tls(certificate))
    client = bench.client(server.url, insecure=True)
    await client.warm_up(1)
    result = await bench.ask(client, call(body=b"x" * (24 << 20)))
    assert (result.status, result.sent_ns) == (Status.OK, 500_000_000)


async def test_tls_to_a_plain_server_is_a_tls_failure(bench):
    """https:// for a server that speaks http."""

    async def plain(peer):
        await peer.reader.read(1)
        await peer.send(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    async def hangs_up(peer):
        await peer.reader.read(1)
        peer.close()

    for script in (plain, hangs_up):
        server = await bench.server(script)
        result = await bench.ask(bench.client(server.url.replace("http:", "https:")))
        assert (result.status, result.error_class) == (Status.FAILED, ErrorClass.TLS)


async def test_a_proxy_gets_the_absolute_form(bench):
    """http through a proxy: absolute target, credentials for the proxy, which no detail shows."""
    seen = []

    async def proxy(peer):
        while True:
            seen.append(await peer.request())
            await peer.send(b"HTTP/1.1 502 X\r\ncontent-length: 0\r\n\r\n")

    server = await bench.server(proxy)
    client = bench.client("http://backend.invalid:81/x", proxy=f"http://user:p%40ss@127.0.0.1:{server.port}")
    result = await bench.ask(client, call("/v1/completions"))
    assert (seen[0].target, seen[0].headers["host"]) == (
        "http://backend.invalid:81/x/v1/completions",
        "backend.invalid:81",
    )
    assert seen[0].headers["proxy-authorization"] == "Basic dXNlcjpwQHNz"
    assert "ss" not in result.detail


async def test_https_goes_through_a_connect_tunnel(bench, certificate):
    """TLS is with the server, not with the proxy."""
    server = await bench.server(OK, tls=server_tls(certificate))
    proxy = await bench.server(tunnel_to(server.port))
    client = bench.client(f"https://localhost:{server.port}", ca_file=str(certificate[0]), proxy=proxy.url)
    result = await bench.ask(client)
    assert (result.status, proxy.connections) == (Status.OK, 1), result.detail


@pytest.mark.parametrize("reply", [b"HTTP/1.1 407 Auth\r\n\r\n", b"junk\r\n\r\n", b"", b"HTTP/1.1 200 OK\r\n\r\nmore"])
async def test_a_proxy_that_refuses_is_named(bench, reply):
    """No tunnel: refused, and it says by whom."""

    async def proxy(peer):
        await peer.reader.readuntil(b"\r\n\r\n")
        await peer.send(reply)
        peer.close()

    server = await bench.server(proxy)
    result = await bench.ask(bench.client("https://backend.invalid", proxy=server.url))
    assert (result.error_class, "proxy" in result.detail) == (ErrorClass.REFUSED, True)


async def test_the_environment_counts_only_when_asked(bench, monkeypatch):
    """HTTP_PROXY and NO_PROXY are honoured with proxy="env" alone."""
    direct, proxy = await bench.server(OK), await bench.server(OK)
    for name in ("HTTP_PROXY", "NO_PROXY", "no_proxy", "HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("http_proxy", proxy.url)
    await bench.ask(bench.client(direct.url))
    assert (direct.connections, proxy.connections) == (1, 0)
    await bench.ask(bench.client(direct.url, proxy="env"))
    assert (direct.connections, proxy.connections) == (1, 1)
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    await bench.ask(bench.client(direct.url, proxy="env"))
    assert (direct.connections, proxy.connections) == (2, 1)


async def test_close_leaves_no_socket(bench):
    """After close nothing is open, on either side."""
    server = await bench.server(OK)
    client = bench.client(server.url)
    await client.warm_up(3)
    await bench.ask(client)
    await client.close()
    assert client.open_connections == 0
