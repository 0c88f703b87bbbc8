"""Two bare clients that a measuring client can be held against: what the least possible work costs on this machine.

    python -m benchmarks.client_floors protocol|aiohttp --url URL --requests N --streams S --tokens T --output FILE

Both stream ``N`` chat completions over ``S`` connections, decode every chunk with msgspec, stamp every chunk that has
text, and write the stamps as JSON at the end. Neither handles an error, a redirect, a time-out, a split event or a count
of tokens; there is no queue, no histogram and no trace. ``protocol``: an ``asyncio.Protocol`` over httptools.
``aiohttp``: its client, with the body read as it comes. Both run on uvloop.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import cast
from urllib.parse import urlsplit

import aiohttp
import httptools
import msgspec
import uvloop

PATH = "/v1/chat/completions"


class Delta(msgspec.Struct):
    content: str | None = None


class Choice(msgspec.Struct):
    delta: Delta | None = None


class Chunk(msgspec.Struct):
    choices: list[Choice]


class Stamps(msgspec.Struct):
    """What a client measured of one request, ns of the monotonic clock."""

    client_id: str
    start_ns: int
    chunk_ns: list[int]
    end_ns: int


decode = msgspec.json.Decoder(Chunk).decode


def body(tokens: int) -> bytes:
    """About as large as the request that the other clients send for a prompt of 128 tokens."""
    prompt = "word " * 128
    options = {"stream": True, "stream_options": {"include_usage": True}, "max_tokens": tokens, "ignore_eos": True}
    return msgspec.json.encode({"model": "fast", "messages": [{"role": "user", "content": prompt}], **options})


def payloads(data: bytes) -> Iterator[bytes]:
    """The events of a segment, which holds whole ones: the fast server writes each at once."""
    for event in data.split(b"\n\n"):
        if event and event != b"data: [DONE]":
            yield event[6:]


def has_text(payload: bytes) -> bool:
    choices = decode(payload).choices
    return bool(choices and choices[0].delta is not None and choices[0].delta.content)


class Stream(asyncio.Protocol):
    """One connection: the next request follows the end of the one before."""

    def __init__(self, ids: Iterator[int], data: bytes, host: str, results: list[Stamps]) -> None:
        self._ids = ids
        self._body = data
        self._host = host
        self._results = results
        self._transport: asyncio.Transport | None = None
        self._parser: httptools.HttpResponseParser | None = None
        self._now_ns = self._start_ns = 0
        self._client_id = ""
        self._chunk_ns = array("q")
        self.over = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=0)
        self._next()

    def _next(self) -> None:
        assert self._transport is not None, "connected"
        number = next(self._ids, None)
        if number is None:
            self._transport.close()
            self.over.set_result(None)
            return
        self._client_id = f"floor-{number}"
        head = (
            f"POST {PATH} HTTP/1.1\r\nhost: {self._host}\r\ncontent-type: application/json\r\n"
            f"x-request-id: {self._client_id}\r\ncontent-length: {len(self._body)}\r\n\r\n"
        )
        self._parser = httptools.HttpResponseParser(self)
        self._chunk_ns = array("q")
        self._start_ns = time.monotonic_ns()
        self._transport.write(head.encode() + self._body)

    def data_received(self, data: bytes) -> None:
        self._now_ns = time.monotonic_ns()
        assert self._parser is not None, "a request is out"
        self._parser.feed_data(data)

    def on_body(self, data: bytes) -> None:
        for payload in payloads(data):
            if has_text(payload):
                self._chunk_ns.append(self._now_ns)

    def on_message_complete(self) -> None:
        self._results.append(Stamps(self._client_id, self._start_ns, self._chunk_ns.tolist(), self._now_ns))
        self._next()


async def bare_protocol(url: str, ids: Iterator[int], data: bytes, streams: int) -> list[Stamps]:
    results: list[Stamps] = []
    parts = urlsplit(url)
    host, port = parts.hostname or "127.0.0.1", parts.port or 80
    loop = asyncio.get_running_loop()
    opened = [
        (await loop.create_connection(lambda: Stream(ids, data, parts.netloc, results), host, port))[1]
        for _ in range(streams)
    ]
    await asyncio.gather(*(stream.over for stream in opened))
    return results


async def bare_aiohttp(url: str, ids: Iterator[int], data: bytes, streams: int) -> list[Stamps]:
    results: list[Stamps] = []
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=None)) as session:

        async def user() -> None:
            for number in ids:
                client_id = f"floor-{number}"
                headers = {"content-type": "application/json", "x-request-id": client_id}
                chunk_ns = array("q")
                start_ns = time.monotonic_ns()
                async with session.post(url + PATH, data=data, headers=headers) as response:
                    async for segment in response.content.iter_any():
                        now_ns = time.monotonic_ns()
                        for payload in payloads(segment):
                            if has_text(payload):
                                chunk_ns.append(now_ns)
                results.append(Stamps(client_id, start_ns, chunk_ns.tolist(), time.monotonic_ns()))

        await asyncio.gather(*(user() for _ in range(streams)))
    return results


KINDS = {"protocol": bare_protocol, "aiohttp": bare_aiohttp}


def main() -> None:
    parser = argparse.ArgumentParser(description="A bare client: the floor of what streaming costs.")
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("--url", required=True)
    parser.add_argument("--requests", type=int, required=True)
    parser.add_argument("--streams", type=int, required=True)
    parser.add_argument("--tokens", type=int, required=True)
    parser.add_argument("--output", type=Path, required=True)
    args = parser.parse_args()
    work = KINDS[args.kind](args.url, iter(range(args.requests)), body(args.tokens), args.streams)
    results = uvloop.run(work)
    args.output.write_bytes(msgspec.json.encode(results))


if __name__ == "__main__":
    main()
