"""When bytes arrived, by the system's own stamp, on real sockets and in real time."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import struct
import threading
import time

import pytest
from scripted_server import DONE, HEAD, call, text

from backends.wire import stream_socket
from backends.wire.connection import Connection
from scheduler.request import Status

BUSY_S = 0.4


class ThreadServer:
    """Answers one request from a thread: the head at once, one token 0.1 s later, whatever the client's loop does.
    ``before_ns`` and ``after_ns``: around the sending of the token.
    """

    def __init__(self, tls: ssl.SSLContext | None) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._tls = tls
        self.port = self._listener.getsockname()[1]
        self.before_ns = self.after_ns = 0
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        sock, _ = self._listener.accept()
        if self._tls is not None:
            sock = self._tls.wrap_socket(sock, server_side=True)
        with sock:
            sock.settimeout(20)
            asked = b""
            while b"\r\n\r\n" not in asked:
                asked += sock.recv(65536)
            sock.sendall(HEAD)
            time.sleep(0.1)
            self.before_ns = time.monotonic_ns()
            sock.sendall(chunk(text("a", "stop")))
            self.after_ns = time.monotonic_ns()
            time.sleep(0.1)
            sock.sendall(chunk(DONE) + b"0\r\n\r\n")
            while sock.recv(65536):
                pass

    def close(self) -> None:
        self._listener.close()
        self._thread.join(20)


def chunk(body: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(body), body)


async def while_the_loop_is_away(bench, certificate, scheme):
    """One call, during which the client's event loop does nothing else but sleep from before the token is sent until all
    of the answer has come. The result, the server, and when the loop came back."""
    context = None
    if scheme == "https":
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*certificate)
    server = ThreadServer(context)
    try:
        client = bench.client(f"{scheme}://127.0.0.1:{server.port}", real_clock=True, insecure=True)
        await client.warm_up(1)
        asking = asyncio.ensure_future(bench.ask(client, call()))
        await asyncio.sleep(0.05)  # the request is sent, and the head has come
        time.sleep(BUSY_S)  # noqa: ASYNC251 (a loop that is away is what this is about)
        back_ns = time.monotonic_ns()
        result = await asking
        await client.close()
    finally:
        server.close()
    assert result.status is Status.OK, result.detail
    return result, server, back_ns


@pytest.mark.skipif(not stream_socket.STAMPS_SUPPORTED, reason="the system stamps no receipt")
@pytest.mark.parametrize("scheme", ["http", "https"])
async def test_receipt_is_when_the_system_received_it(bench, certificate, scheme):
    """A loop that was away for 0.4 s finds the stamp of the bytes, not of its own coming back."""
    result, server, back_ns = await while_the_loop_is_away(bench, certificate, scheme)
    assert server.before_ns <= result.chunk_ns[0] < back_ns
    # The end followed 0.1 s after the token: read together with it, it has the stamp of what came last.
    assert result.chunk_ns[0] <= result.finished_ns < back_ns


async def test_without_the_systems_stamps_it_is_when_it_was_read(bench, certificate, monkeypatch):
    """Systems that stamp nothing: as good as reading soon."""
    monkeypatch.setattr(stream_socket, "STAMPS_SUPPORTED", False)
    result, _, back_ns = await while_the_loop_is_away(bench, certificate, "http")
    assert result.chunk_ns[0] >= back_ns


@pytest.mark.parametrize("aside", [[0], [1], [2], [0, 2, 4], [1, 3]])
def test_clocks_are_compared_at_one_instant(monkeypatch, aside):
    """Our clock runs 5 s behind the system's; between some of the readings the process is put aside for 10 ms."""
    now_ns, readings = 100_000_000_000, -100

    def read() -> int:
        nonlocal now_ns, readings
        told_ns = now_ns
        now_ns += 10_000_000 if readings in aside else 100
        readings += 1
        return told_ns

    monkeypatch.setattr(stream_socket.time, "time_ns", read)
    receipt = stream_socket.ReceiptClock(lambda: read() - 5_000_000_000)
    readings = 0
    receipt.compare_clocks()
    assert -5_000_020_000 <= receipt.offset_ns <= -5_000_000_000, "never later than it is"
    assert receipt.from_ns < now_ns


class SetClocks:
    """Two clocks: ours, and the one that people set, which stamps what arrives. Nothing takes time but what ``at`` says."""

    def __init__(self):
        self.now_ns, self.ahead_ns = 3_000_000_000, 1_700_000_000_000_000_000
        self.receipt = stream_socket.ReceiptClock(lambda: self.now_ns, lambda: self.now_ns + self.ahead_ns)

    def at(self, ms):
        """``ms`` after the start; the stamp of what arrives then."""
        self.now_ns = 3_000_000_000 + round(ms * 1e6)
        return self.now_ns + self.ahead_ns

    def read(self, stamp_ns):
        """What a socket makes of a stamp that it reads now, in ms after the start."""
        receipt = self.receipt
        in_window = receipt.from_ns <= stamp_ns < receipt.until_ns
        arrived_ns = stamp_ns + receipt.offset_ns if in_window else receipt.arrival_ns(stamp_ns)
        return (arrived_ns - 3_000_000_000) / 1e6


STEPS_MS = [1000, -1000, 3_600_000, -3_600_000, 30, -30]


@pytest.mark.parametrize("step_ms", STEPS_MS)
@pytest.mark.parametrize("period_ms", [0.2, 7, 25, 400])
async def test_a_clock_that_is_set_moves_no_stamp(step_ms, period_ms):
    """Tokens of several streams, each read 3 ms after it came; the clock is set between two of them, between a token's coming
    and its reading too. Every stamp is when the token came.
    """
    clocks = SetClocks()
    came = [(k * period_ms, k * period_ms + 3.0) for k in range(20)]
    set_at_ms = came[10][0] + 0.1
    events = sorted(
        [(at, 0, k) for k, (at, _) in enumerate(came)]
        + [(at, 2, k) for k, (_, at) in enumerate(came)]
        + [(set_at_ms, 1, -1)]
    )
    stamps, told = {}, {}
    for at_ms, what, k in events:
        stamp_ns = clocks.at(at_ms)
        if what == 0:
            stamps[k] = stamp_ns
        elif what == 1:
            clocks.ahead_ns += step_ms * 1_000_000
        else:
            told[k] = clocks.read(stamps[k])
    assert [told[k] for k in range(20)] == pytest.approx([at for at, _ in came], abs=1e-3)


@pytest.mark.parametrize("step_ms", STEPS_MS)
@pytest.mark.parametrize("set_at_ms", [5, 995, 1005, 1975, 1995])
async def test_a_clock_that_is_set_while_the_loop_is_away_for_longer(step_ms, set_at_ms):
    """Which clock a stamp is of cannot be known then: it is never before its token came, nor after it was read."""
    clocks = SetClocks()
    came = list(range(0, 2000, 10))
    stamps = [clocks.at(at_ms) + (step_ms * 1_000_000 if at_ms > set_at_ms else 0) for at_ms in came]
    clocks.ahead_ns += step_ms * 1_000_000
    clocks.at(2001)
    told = [clocks.read(stamp_ns) for stamp_ns in stamps]
    assert all(at_ms - 1e-3 <= ms <= 2001 for at_ms, ms in zip(came, told, strict=True))
    assert clocks.read(clocks.at(2003)) == pytest.approx(2003, abs=1e-3)


async def test_a_clock_set_back_by_as_much_as_nothing_came():
    """The same stamps come again a second later: they are of that second."""
    clocks = SetClocks()
    assert clocks.read(clocks.at(0)) == 0
    async with asyncio.timeout(20):
        while clocks.receipt.from_ns < clocks.receipt.until_ns:  # noqa: ASYNC110 (what the loop does, seen from outside)
            await asyncio.sleep(0.001)
    clocks.ahead_ns -= 1_000_000_000
    assert clocks.read(clocks.at(1000)) == 1000


@pytest.mark.skipif(not stream_socket.STAMPS_SUPPORTED, reason="the system stamps no receipt")
@pytest.mark.parametrize("step_s", [1, -1])
async def test_tokens_of_an_answer_in_which_the_clock_is_set(bench, monkeypatch, step_s):
    """On real sockets, set between the coming of a token and its reading: no stamp goes back, and none lies outside the time
    in which the answer was asked for and read."""
    set_at_ns, ahead_ns = 1 << 62, step_s * 1_000_000_000
    stamp_of, time_ns = stream_socket._timespec, time.time_ns

    def shown(real_ns: int) -> int:
        return real_ns + (ahead_ns if real_ns >= set_at_ns else 0)

    monkeypatch.setattr(stream_socket.time, "time_ns", lambda: shown(time_ns()))
    monkeypatch.setattr(
        stream_socket, "_timespec", lambda data: divmod(shown(stamp_of(data)[0] * 10**9 + stamp_of(data)[1]), 10**9)
    )

    async def script(peer):
        nonlocal set_at_ns
        await peer.request()
        await peer.send(HEAD)
        for number in range(30):
            await asyncio.sleep(0.003)
            peer.writer.write(chunk(text("a")))  # with the client's system at once
            if number == 15:
                set_at_ns = time_ns()
        await peer.chunked(text("b", "stop") + DONE)
        await peer.end()

    server = await bench.server(script)
    before_ns = time.monotonic_ns()
    result = await bench.ask(bench.client(server.url, real_clock=True))
    assert result.status is Status.OK, result.detail
    stamps = list(result.chunk_ns)
    assert len(stamps) == 31
    assert stamps == sorted(stamps)
    assert before_ns <= stamps[0]
    assert stamps[-1] <= time.monotonic_ns()


class QuietLink:
    """Takes everything at once."""

    unsent = 0

    def start(self, sink):
        self.sink = sink

    def write(self, data):
        pass


class Kept:
    def __init__(self):
        self.stamps = []

    def sent(self, link):
        pass

    def feed(self, data, now_ns):
        self.stamps.append(now_ns)


async def test_nothing_is_received_before_it_was_asked_for():
    """A process that is put aside between sending and reading the clock stamps the sending late: the answer is not
    moved before it."""
    link, kept = QuietLink(), Kept()
    connection = Connection(link, lambda: 1000, lambda _: None)
    connection.send(b"x", kept)
    for arrived_ns in (900, 1000, 1100):
        link.sink.received(b"y", arrived_ns)
    assert kept.stamps == [1000, 1000, 1100]


class BrokenSink:
    """Raises whatever comes, as only a bug of ours does."""

    def __init__(self):
        self.calls = 0
        self.gone = asyncio.Event()

    def received(self, data, arrived_ns):
        self.calls += 1
        raise LookupError("a bug")

    def lost(self, exc):
        self.gone.set()


@pytest.mark.parametrize("stamps", [False, True])
async def test_a_sink_that_raises_ends_its_socket(stamps):
    """The error is told once and the socket closed: not read again and again while bytes come in."""
    told, sink = [], BrokenSink()
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: told.append(context.get("exception")))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        link = await stream_socket.StreamSocket.connect(
            *listener.getsockname(), time.monotonic_ns, system_stamps=stamps
        )
        peer, _ = listener.accept()
        with peer:
            link.start(sink)
            peer.sendall(b"x")
            async with asyncio.timeout(20):
                await sink.gone.wait()
            peer.settimeout(20)
            with contextlib.suppress(ConnectionResetError):
                assert peer.recv(1) == b""
    assert (sink.calls, [type(error) for error in told]) == (1, [LookupError])


async def test_a_reset_at_the_end_of_the_handshake_is_told(bench, certificate):
    """A server that sends its part of the handshake and resets: the call fails, no socket stays, closing ends."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificate)

    def reset_after_the_flight(listener):
        while True:
            try:
                sock, _ = listener.accept()
            except OSError:
                return
            with sock:
                incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
                incoming.write(sock.recv(65536))
                with contextlib.suppress(ssl.SSLWantReadError):
                    context.wrap_bio(incoming, outgoing, server_side=True).do_handshake()
                sock.sendall(outgoing.read())
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    listener = socket.create_server(("127.0.0.1", 0))
    thread = threading.Thread(target=reset_after_the_flight, args=(listener,), daemon=True)
    thread.start()
    try:
        client = bench.client(f"https://127.0.0.1:{listener.getsockname()[1]}", real_clock=True, insecure=True)
        results = [await bench.ask(client, call()) for _ in range(10)]
        async with asyncio.timeout(20):
            await client.close()
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
    assert {result.status for result in results} == {Status.FAILED}
    assert client.open_connections == 0
