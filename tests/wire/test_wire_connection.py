"""Connections on real sockets, plain, under TLS and through a proxy: what they deliver, and how they end."""

from __future__ import annotations

import asyncio
import gc
import socket
import ssl
import time
import warnings

import pytest
import uvloop
from scripted_server import DEADLINE_S, DONE, HEAD, call, text, tunnel_to

from backends.wire.dial import Dialer
from backends.wire.options import WireOptions
from backends.wire.url import Origin
from scheduler.request import ErrorClass, Status

ANSWER = (
    HEAD + b"".join(b"%x\r\n%s\r\n" % (len(body), body) for body in (text("a"), text("b", "stop"), DONE)) + b"0\r\n\r\n"
)
SCHEMES = pytest.mark.parametrize("scheme", ["http", "https"])


def server_tls(certificate, most=None):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificate)
    if most is not None:
        context.maximum_version = most
    return context


async def until(condition) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not condition():  # noqa: ASYNC110 (what is waited for has no event of its own)
            await asyncio.sleep(0)


class Kept:
    """A receiver that keeps all it is told, in order; ``raises``: from the first bytes on."""

    def __init__(self, raises: BaseException | None = None) -> None:
        self.told: list[object] = []
        self.over = asyncio.Event()
        self._raises = raises

    @property
    def data(self) -> bytes:
        return b"".join(told for told in self.told if isinstance(told, bytes))

    def sent(self, link):
        """For connections that say when a request is with the system."""

    def feed(self, data, now_ns):
        self.told.append(data)
        if self._raises is not None:
            raise self._raises

    def eof(self, now_ns):
        self.told.append("eof")

    def lost(self, exc):
        self.told.append(exc)
        self.over.set()

    async def end(self) -> None:
        async with asyncio.timeout(DEADLINE_S):
            await self.over.wait()


async def opened(bench, certificate, scheme, script):
    """A connection to a server with this script, and the list of those lost."""
    server = await bench.server(script, tls=server_tls(certificate) if scheme == "https" else None)
    lost = []
    dialer = Dialer(WireOptions(insecure=True), time.monotonic_ns)
    connection, _ = await dialer.open(Origin(scheme, "127.0.0.1", server.port), lost.append)
    return connection, lost


async def closed(connection) -> None:
    connection.abort()
    async with asyncio.timeout(DEADLINE_S):
        await connection.wait_closed()


async def idle(peer):
    await peer.gone()


@SCHEMES
async def test_who_gives_up_waiting_for_the_end_does_not_undo_it(bench, certificate, scheme):
    """One of several waiters is cancelled: the others, and one that comes later, are told."""
    connection, lost = await opened(bench, certificate, scheme, idle)
    waiters = [asyncio.create_task(connection.wait_closed()) for _ in range(3)]
    await asyncio.sleep(0)
    waiters[0].cancel()
    assert await asyncio.gather(waiters[0], return_exceptions=True) != [None]
    await closed(connection)
    assert await asyncio.gather(*waiters[1:]) == [None, None]
    await closed(connection)
    assert lost == [connection], "told once"


async def with_the_end_of_the_handshake(peer, context, data):
    """The server's end of TLS by hand: its last message and ``data`` in one segment, before anything was asked."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = context.wrap_bio(incoming, outgoing, server_side=True)
    while True:
        try:
            tls.do_handshake()
            break
        except ssl.SSLWantReadError:
            if outgoing.pending:
                await peer.send(outgoing.read())
            incoming.write(await peer.reader.read(65536))
    tls.write(data)
    await peer.send(outgoing.read())
    await peer.gone()


@pytest.mark.parametrize("through_a_proxy", [False, True])
async def test_what_comes_with_the_end_of_the_handshake_is_delivered(bench, certificate, through_a_proxy):
    """TLS 1.2 ends with the server's message, which may share its segment with data: all of it is the answer."""
    context = server_tls(certificate, ssl.TLSVersion.TLSv1_2)
    server = await bench.server(lambda peer: with_the_end_of_the_handshake(peer, context, ANSWER))
    proxy = await bench.server(tunnel_to(server.port))
    options = {"proxy": proxy.url} if through_a_proxy else {}
    client = bench.client(
        f"https://127.0.0.1:{server.port}", real_clock=True, insecure=True, total_timeout_s=10.0, **options
    )
    result = await bench.ask(client, call())
    assert (result.status, len(result.chunk_ns)) == (Status.OK, 2), result.detail
    assert result.sent_ns <= result.chunk_ns[0]


@pytest.mark.parametrize("at_once", [False, True])
async def test_a_proxy_that_closes_a_tunnel_it_opened_is_told_soon(bench, at_once):
    """With its reply, or when TLS begins: a fault of the connection, not a wait for the time-out."""

    async def proxy(peer):
        await peer.reader.readuntil(b"\r\n\r\n")
        await peer.send(b"HTTP/1.1 200 OK\r\n\r\n")
        if not at_once:
            await peer.reader.read(1)
        peer.close()

    server = await bench.server(proxy)
    client = bench.client("https://127.0.0.1:1", real_clock=True, proxy=server.url, connect_timeout_s=DEADLINE_S)
    result = await bench.ask(client, call())
    assert (result.status, result.error_class) == (Status.FAILED, ErrorClass.TLS)


@SCHEMES
async def test_an_error_of_the_receiver_is_no_fault_of_the_network(bench, certificate, scheme):
    """Its own OSError, of a full disk say, is told as what it is; the connection ends, and not as if a server had reset it."""

    async def script(peer):
        await peer.send(b"data")
        await peer.gone()

    loop_told = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: loop_told.append(context.get("exception")))
    ours = ConnectionResetError(28, "No space left on device")
    connection, lost = await opened(bench, certificate, scheme, script)
    receiver = Kept(ours)
    connection.send(b"x", receiver)
    await receiver.end()
    assert (receiver.told, loop_told) == ([b"data", None], [ours])
    await closed(connection)
    assert lost == [connection]


async def test_a_receiver_that_raises_at_the_end_of_the_handshake_ends_its_connection(bench, certificate):
    """Also where the bytes waited for it."""
    context = server_tls(certificate, ssl.TLSVersion.TLSv1_2)
    server = await bench.server(lambda peer: with_the_end_of_the_handshake(peer, context, b"data"))
    loop_told = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: loop_told.append(context.get("exception")))
    dialer = Dialer(WireOptions(insecure=True), time.monotonic_ns)
    connection, _ = await dialer.open(Origin("https", "127.0.0.1", server.port), lambda _: None)
    ours = OSError("ours")
    receiver = Kept(ours)
    connection.send(b"x", receiver)
    await receiver.end()
    assert (receiver.told, loop_told) == ([b"data", None], [ours])


@SCHEMES
async def test_what_came_while_reading_was_paused_is_delivered_before_the_end(bench, certificate, scheme):
    """Nothing while it is paused, also not the end; then every byte, then the end, though the server is long gone."""
    sent = asyncio.Event()
    data = bytes(range(256)) * 1000

    async def script(peer):
        await peer.reader.readexactly(1)
        await peer.send(data)
        sent.set()
        peer.close()

    connection, lost = await opened(bench, certificate, scheme, script)
    receiver = Kept()
    connection.pause_reading()
    connection.send(b"x", receiver)
    async with asyncio.timeout(DEADLINE_S):
        await sent.wait()
    for _ in range(50):
        await asyncio.sleep(0)
    assert receiver.told == []
    assert lost == []
    connection.resume_reading()
    await receiver.end()
    assert receiver.data == data
    assert receiver.told[-2:] == ["eof", None]
    connection.resume_reading()
    connection.pause_reading()
    await closed(connection)
    assert lost == [connection]


@SCHEMES
async def test_a_paused_connection_can_be_closed(bench, certificate, scheme):
    connection, lost = await opened(bench, certificate, scheme, idle)
    receiver = Kept()
    connection.send(b"x", receiver)
    connection.pause_reading()
    await closed(connection)
    connection.resume_reading()
    assert (receiver.told, lost) == ([None], [connection])


@SCHEMES
async def test_what_is_written_while_a_connection_closes_is_dropped_and_its_sender_told(bench, certificate, scheme):
    """Before the end is told and after some of an earlier request still waits to be sent."""
    got = bytearray()
    ended = asyncio.Event()

    async def script(peer):
        try:
            while piece := await peer.reader.read(65536):
                got.extend(piece)
        except (ConnectionError, ssl.SSLError):
            pass
        ended.set()

    connection, _ = await opened(bench, certificate, scheme, script)
    first, second = Kept(), Kept()
    connection.send(b"a" * (32 << 20), first)
    connection.abort()
    connection.send(b"b", second)
    await second.end()
    assert second.told == [None]
    assert not connection.is_open
    async with asyncio.timeout(DEADLINE_S):
        await ended.wait()
    assert len(got) < 32 << 20
    assert b"b" not in got


@pytest.mark.parametrize("factory", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_a_loop_that_closes_leaves_no_socket_open(factory):
    """Connections that nobody closed, one with unsent bytes, one paused: the loop closes without an error, and servers see
    the end once nothing refers to them."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]

        async def main():
            dialer = Dialer(WireOptions(), time.monotonic_ns)
            connections = [(await dialer.open(Origin("http", "127.0.0.1", port), lambda _: None))[0] for _ in range(3)]
            connections[0].send(b"x" * (32 << 20), Kept())
            connections[1].pause_reading()
            await asyncio.sleep(0)
            return connections

        with asyncio.Runner(loop_factory=factory) as runner:
            connections = runner.run(main())
        peers = [listener.accept()[0] for _ in connections]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)  # nobody closed them: that is what this is about
            del connections
            gc.collect()
        for peer in peers:
            with peer:
                peer.settimeout(DEADLINE_S)
                while peer.recv(1 << 20):
                    pass
