"""An upstream that does exactly what a test says, over a real socket, and clients that do what no client should."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

DEADLINE_S = 20.0
SSE_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
DONE = b"data: [DONE]\n\n"


@dataclass
class Received:
    """A request as it came."""

    method: str
    target: str
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> dict[str, object]:
        return json.loads(self.body)


class Peer:
    """The upstream's end of one connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def request(self) -> Received:
        head = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        first, *lines = head.strip().split("\r\n")
        method, target, _ = first.split(" ")
        headers = {k.strip().lower(): v.strip() for k, _, v in (line.partition(":") for line in lines)}
        body = await self.reader.readexactly(int(headers.get("content-length", "0")))
        return Received(method, target, headers, body)

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def chunk(self, body: bytes) -> None:
        await self.send(b"%x\r\n%b\r\n" % (len(body), body))

    async def end(self) -> None:
        await self.send(b"0\r\n\r\n")

    async def stream(self, *bodies: bytes) -> None:
        """A whole streamed answer."""
        await self.send(SSE_HEAD)
        for body in bodies:
            await self.chunk(body)
        await self.end()

    async def answer(
        self, body: bytes, status: str = "200 OK", kind: str = "application/json", extra: str = ""
    ) -> None:
        head = f"HTTP/1.1 {status}\r\ncontent-type: {kind}\r\ncontent-length: {len(body)}\r\n{extra}\r\n"
        await self.send(head.encode() + body)

    def reset(self) -> None:
        """Close with RST, as a crashing server does."""
        raw = self.writer.get_extra_info("socket")
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()

    async def gone(self) -> None:
        """Until the gateway has closed its end."""
        async with asyncio.timeout(DEADLINE_S):
            try:
                while await self.reader.read(65536):
                    pass
            except ConnectionError:
                pass


async def until(condition: Callable[[], object]) -> None:
    """Wait, turn by turn of the loop, until something that has no event of its own is so."""
    async with asyncio.timeout(DEADLINE_S):
        while not condition():  # noqa: ASYNC110 (what is waited for is another object's state, seen from outside)
            await asyncio.sleep(0)


Script = Callable[[Received, Peer], Awaitable[None]]


def event(value: object) -> bytes:
    return b"data: " + json.dumps(value, separators=(",", ":")).encode() + b"\n\n"


def text(content: str, finish: str | None = None, **more: object) -> bytes:
    choice = {"index": 0, "delta": {"content": content}, "finish_reason": finish}
    return event(
        {"id": "a", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice], **more}
    )


def usage(prompt: int, completion: int) -> bytes:
    counts = {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}
    return event(
        {"id": "a", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [], "usage": counts}
    )


@dataclass
class ScriptedUpstream:
    """``script(request, peer)`` answers each request but probes; ``healthy`` False: probes get 500."""

    script: Script
    requests: list[Received] = field(default_factory=list)
    probes: list[Received] = field(default_factory=list)
    errors: list[BaseException] = field(default_factory=list)
    healthy: bool = True
    connections: int = 0
    port: int = 0

    async def start(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port, limit=1 << 26)
        self.port = self._server.sockets[0].getsockname()[1]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        self._tasks.add(task)
        self.connections += 1
        peer = Peer(reader, writer)
        try:
            while True:
                request = await peer.request()
                if request.target == "/health":
                    self.probes.append(request)
                    await peer.answer(b"", "200 OK" if self.healthy else "500 Oops")
                else:
                    self.requests.append(request)
                    await self.script(request, peer)
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass  # the gateway closed, or the test is over: how a script that serves for ever ends
        except BaseException as error:  # noqa: BLE001 (kept, and raised in stop)
            self.errors.append(error)
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


def request_bytes(body: bytes, *headers: str, path: str = "/v1/chat/completions", version: str = "1.1") -> bytes:
    lines = [f"POST {path} HTTP/{version}", "host: gateway", f"content-length: {len(body)}", *headers]
    return ("\r\n".join(lines) + "\r\n\r\n").encode() + body


def chat_body(stream: bool = True, **more: object) -> bytes:
    return json.dumps(
        {"model": "m", "messages": [{"role": "user", "content": "hello"}], "stream": stream, **more}
    ).encode()
