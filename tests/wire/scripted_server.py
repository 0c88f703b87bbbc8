"""A server that does exactly what a test says: whole requests in, exact byte segments out, over a real socket.

``ManualClock`` makes every stamp exact. The script sets the time, sends a segment, and goes on when the client has read
the clock, which it does first thing when the segment arrives: so each segment is received on its own, at the time set.
"""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
import struct
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from backends.protocol import Call, WireResult
from backends.wire.client import WireClient
from backends.wire.options import WireOptions

DEADLINE_S = 20.0
MS = 1_000_000


class ManualClock:
    def __init__(self) -> None:
        self.now_ns = 0
        self.reads = 0

    def __call__(self) -> int:
        self.reads += 1
        return self.now_ns


@dataclass
class Received:
    method: str
    target: str
    headers: dict[str, str]
    body: bytes


class Peer:
    """The server's end of one connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, clock: ManualClock) -> None:
        self.reader = reader
        self.writer = writer
        self.clock = clock

    async def request(self) -> Received:
        head = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        first, *lines = head.strip().split("\r\n")
        method, target, _ = first.split(" ")
        headers = {k.strip().lower(): v.strip() for k, _, v in (line.partition(":") for line in lines)}
        body = await self.reader.readexactly(int(headers.get("content-length", "0")))
        return Received(method, target, headers, body)

    async def send(self, segment: bytes, at_ms: float | None = None) -> None:
        """One segment, received on its own (at ``at_ms`` on the manual clock)."""
        if at_ms is not None:
            self.clock.now_ns = int(at_ms * MS)
        if self.writer.is_closing():
            raise ConnectionResetError("the client has closed")
        before = self.clock.reads
        self.writer.write(segment)
        await self.writer.drain()
        if at_ms is not None:
            deadline = time.monotonic() + DEADLINE_S
            while self.clock.reads == before:
                assert time.monotonic() < deadline, "the client never received the segment"
                await asyncio.sleep(0)

    async def chunked(self, body: bytes, at_ms: float | None = None) -> None:
        await self.send(b"%x\r\n%s\r\n" % (len(body), body), at_ms)

    async def end(self, at_ms: float | None = None) -> None:
        await self.send(b"0\r\n\r\n", at_ms)

    def reset(self) -> None:
        """Close with RST, as a crashing server does."""
        raw = self.writer.get_extra_info("socket")
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()

    def close(self) -> None:
        self.writer.close()

    async def gone(self) -> None:
        """Until the client has closed its end."""
        async with asyncio.timeout(DEADLINE_S):
            try:
                while await self.reader.read(65536):
                    pass
            except ConnectionError:
                pass


Script = Callable[[Peer], Awaitable[None]]

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


def event(value: object) -> bytes:
    return b"data: " + json.dumps(value).encode() + b"\n\n"


def delta(finish: str | None = None, **fields: object) -> dict[str, object]:
    return {"choices": [{"index": 0, "delta": fields, "finish_reason": finish}]}


def text(content: str, finish: str | None = None) -> bytes:
    return event(delta(finish, content=content))


def usage(completion: int, prompt: int = 7, **more: object) -> dict[str, object]:
    return {"prompt_tokens": prompt, "completion_tokens": completion, **more}


DONE = b"data: [DONE]\n\n"


def tunnel_to(port: int, refuse: bytes | None = None) -> Script:
    """A proxy's script: answers CONNECT (with ``refuse``, if given) and hands bytes on as they come."""

    async def proxy(peer: Peer) -> None:
        head = await peer.reader.readuntil(b"\r\n\r\n")
        peer.asked = head.split(b"\r\n")[0]
        if refuse:
            await peer.send(refuse)
            return
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        await peer.send(b"HTTP/1.1 200 Connection established\r\n\r\n")

        async def pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
            while data := await source.read(65536):
                sink.write(data)
            sink.close()

        await asyncio.gather(pump(peer.reader, writer), pump(reader, peer.writer))

    return proxy


def answering(*segments: bytes) -> Script:
    """A script that answers each request of a connection with ``segments``, chunked."""

    async def script(peer: Peer) -> None:
        while True:
            await peer.request()
            await peer.send(HEAD)
            for segment in segments:
                await peer.chunked(segment)
            await peer.end()

    return script


class ScriptedServer:
    """``scripts``: one a connection, in the order in which they come; the last one serves all further connections."""

    def __init__(self, *scripts: Script, clock: ManualClock, host: str, tls: ssl.SSLContext | None = None) -> None:
        self.scripts = scripts
        self.clock = clock
        self.host = host
        self.tls = tls
        self.connections = 0
        self.errors: list[BaseException] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    async def start(self) -> ScriptedServer:
        self._server = await asyncio.start_server(self._serve, self.host, 0, ssl=self.tls, limit=1 << 26, backlog=1024)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    @property
    def url(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'https' if self.tls else 'http'}://{host}:{self.port}"

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        script = self.scripts[min(self.connections, len(self.scripts) - 1)]
        self.connections += 1
        task = asyncio.current_task()
        self._tasks.add(task)
        try:
            await script(Peer(reader, writer, self.clock))
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass  # the client closed, or the test is over: how a script that serves for ever ends
        except BaseException as exc:  # noqa: BLE001 (kept, and raised in stop)
            self.errors.append(exc)
        finally:
            self._tasks.discard(task)
            writer.transport.abort()

    async def stop(self) -> None:
        self._server.close()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self.errors:
            raise self.errors[0]


def call(path: str = "/v1/chat/completions", *, body: bytes = b"{}", **fields: object) -> Call:
    headers = {"content-type": "application/json", **fields.pop("headers", {})}
    return Call(request_id=1, path=path, body=body, headers=headers, **fields)


class Bench:
    """Servers and clients of one test, closed at its end."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self._servers: list[ScriptedServer] = []
        self._clients: list[WireClient] = []
        self.seen: list[tuple[int, int | None]] = []

    async def server(self, *scripts: Script, host: str = "127.0.0.1", tls: ssl.SSLContext | None = None):
        server = await ScriptedServer(*scripts, clock=self.clock, host=host, tls=tls).start()
        self._servers.append(server)
        return server

    def client(self, url: str, *, real_clock: bool = False, **options: object) -> WireClient:
        clock = time.monotonic_ns if real_clock else self.clock
        options = {"system_stamps": real_clock, **options}
        client = WireClient(url, clock=clock, options=WireOptions(**options))
        self._clients.append(client)
        return client

    async def ask(self, client: WireClient, request: Call | None = None) -> WireResult:
        async with asyncio.timeout(DEADLINE_S):
            return await client.generate(request or call(), lambda now_ns, k: self.seen.append((now_ns, k)))

    async def answer(self, *scripts: Script, **options: object) -> WireResult:
        """What one call to a server with these scripts comes to."""
        server = await self.server(*scripts)
        return await self.ask(self.client(server.url, **options))

    async def close(self) -> None:
        for client in self._clients:
            await client.close()
        for server in self._servers:
            await server.stop()
