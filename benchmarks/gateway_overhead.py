"""What the gateway adds: latency of every token and CPU of every token, beside going direct and beside other proxies.

    python benchmarks/gateway_overhead.py [--streams 64] [--seconds 6] [--rounds 3] [--also "NAME=COMMAND {port} {upstream}"]

One upstream process streams answers of 100 tokens (50 ms to the first, then one every 10 ms) and writes into each chunk when
it was sent (the monotonic clock, which all processes of a host share). The client notes when it arrived, so each token's way
is known exactly: added latency = percentile through a proxy - the same percentile direct. The targets take turns in short
rounds, so that a noisy machine is noisy for all of them. CPU is user + system time of the proxy's process and its children.

Targets: direct; the gateway (two tenants, wfq, 64 slots); a pass-through of 40 lines of aiohttp, the floor of what the usual
framework can do; and any other proxy given as a command (it must listen on {port} and forward to {upstream}).
"""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import shlex
import socket
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
import numpy as np
import uvloop
from aiohttp import web

ME = Path(__file__).resolve()
ROOT = ME.parents[1]
TOKENS, FIRST_S, GAP_S = 100, 0.05, 0.01
CHUNK = (
    b'data: {"id":"chatcmpl-0123456789abcdef","object":"chat.completion.chunk","created":1700000000,"model":"bench",'
    b'"choices":[{"index":0,"delta":{"content":" %d"},"logprobs":null,"finish_reason":%s}]}\n\n'
)
USAGE = (
    b'data: {"id":"chatcmpl-0123456789abcdef","object":"chat.completion.chunk","created":1700000000,"model":"bench",'
    b'"choices":[],"usage":{"prompt_tokens":200,"total_tokens":300,"completion_tokens":100}}\n\n'
)
STAMP = re.compile(rb'"content":" (\d+)"')
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
BODY = b'{"model":"bench","messages":[{"role":"user","content":"%s"}],"max_tokens":100,"stream":true}' % (
    b"word " * 200
)


class Upstream(asyncio.Protocol):
    """Streams one answer a request, each token at its absolute time."""

    def connection_made(self, transport):
        self.transport, self.loop, self.data = transport, asyncio.get_running_loop(), b""

    def data_received(self, data):
        self.data += data
        head, found, body = self.data.partition(b"\r\n\r\n")
        if not found:
            return
        if head.startswith(b"GET"):
            self.data = b""
            self.transport.write(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
            return
        length = int(re.search(rb"content-length: *(\d+)", head, re.IGNORECASE)[1])
        if len(body) < length:
            return
        self.usage, self.data = b"include_usage" in body, b""
        self.start_s, self.sent = self.loop.time() + FIRST_S, 0
        self.transport.write(HEAD)
        self.loop.call_at(self.start_s, self.token)

    def token(self):
        if self.transport.is_closing():
            return
        self.sent += 1
        last = self.sent == TOKENS
        event = CHUNK % (time.monotonic_ns(), b'"length"' if last else b"null")
        self.transport.write(b"%x\r\n%b\r\n" % (len(event), event))
        if last:
            rest = (USAGE if self.usage else b"") + b"data: [DONE]\n\n"
            self.transport.write(b"%x\r\n%b\r\n0\r\n\r\n" % (len(rest), rest))
        else:
            self.loop.call_at(self.start_s + self.sent * GAP_S, self.token)


def pass_through(upstream: str) -> web.Application:
    """The floor: what aiohttp costs when it only forwards."""
    app = web.Application(client_max_size=1 << 26)

    async def session(_):
        app["session"] = aiohttp.ClientSession(upstream, auto_decompress=False, connector=aiohttp.TCPConnector(limit=0))
        yield
        await app["session"].close()

    async def forward(request):
        headers = {
            name: value for name, value in request.headers.items() if name.lower() not in {"host", "content-length"}
        }
        body = await request.read()
        async with app["session"].request(request.method, request.path_qs, data=body, headers=headers) as answer:
            response = web.StreamResponse(status=answer.status, headers={"content-type": answer.content_type})
            response.enable_chunked_encoding()
            await response.prepare(request)
            async for piece in answer.content.iter_any():
                await response.write(piece)
            await response.write_eof()
            return response

    app.cleanup_ctx.append(session)
    app.router.add_route("*", "/{path:.*}", forward)
    return app


class Client(asyncio.Protocol):
    """One user: asks, reads to the end, asks again, until told to stop."""

    def __init__(self, ways_ns, firsts_ns, request, until_s):
        self.ways_ns, self.firsts_ns, self.request, self.until_s = ways_ns, firsts_ns, request, until_s
        self.done, self.loop = asyncio.get_running_loop().create_future(), asyncio.get_running_loop()

    def connection_made(self, transport):
        self.transport = transport
        self.ask()

    def ask(self):
        if self.loop.time() > self.until_s:
            self.transport.close()
            self.done.set_result(None)
            return
        self.asked_ns, self.tokens = time.monotonic_ns(), 0
        self.transport.write(self.request)

    def data_received(self, data):
        now_ns = time.monotonic_ns()
        for stamp in STAMP.findall(data):
            if not self.tokens:
                self.firsts_ns.append(now_ns - self.asked_ns)
            self.tokens += 1
            self.ways_ns.append(now_ns - int(stamp))
        if data.endswith(b"0\r\n\r\n"):
            self.ask()

    def connection_lost(self, exc):
        if not self.done.done():
            self.done.set_exception(ConnectionError(f"the target closed the connection: {exc}"))


@dataclass
class Target:
    name: str
    port: int
    pid: int | None = None
    ways_ns: list[int] = field(default_factory=list)
    firsts_ns: list[int] = field(default_factory=list)
    cpu_s: float = 0.0


def cpu_s(pid: int | None) -> float:
    """User + system seconds of a process and its children, from Linux's /proc."""
    if pid is None:
        return 0.0
    ticks = 0
    pids = [pid]
    while pids:
        one = pids.pop()
        try:
            fields = Path(f"/proc/{one}/stat").read_text().rpartition(")")[2].split()
            pids += map(int, Path(f"/proc/{one}/task/{one}/children").read_text().split())
        except FileNotFoundError:
            continue
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


async def round_of(target: Target, streams: int, seconds: float) -> None:
    request = (
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: bench\r\nx-lmperf-tenant: chat\r\ncontent-type: application/json\r\n"
        b"content-length: %d\r\n\r\n%b" % (len(BODY), BODY)
    )
    loop = asyncio.get_running_loop()
    until_s, before_s = loop.time() + seconds, cpu_s(target.pid)
    clients = []
    for _ in range(streams):
        _, client = await loop.create_connection(
            lambda: Client(target.ways_ns, target.firsts_ns, request, until_s), "127.0.0.1", target.port
        )
        clients.append(client)
        await asyncio.sleep((FIRST_S + TOKENS * GAP_S) / streams)  # users spread over an answer's length, not in step
    try:
        async with asyncio.timeout(seconds + 20):
            await asyncio.gather(*(client.done for client in clients))
    except (TimeoutError, ConnectionError) as error:
        raise SystemExit(f"{target.name} did not answer all of {streams} streams: {error or 'it hung'}") from error
    target.cpu_s += cpu_s(target.pid) - before_s


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


async def listening(port: int, process: asyncio.subprocess.Process) -> None:
    for _ in range(600):
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            if process.returncode is not None:
                raise RuntimeError(f"a target ended with code {process.returncode} before it listened") from None
            await asyncio.sleep(0.05)
        else:
            writer.close()
            return
    raise RuntimeError(f"nothing listens on port {port}")


def commands(upstream: str, also: list[str]) -> dict[str, str]:
    me = f"{sys.executable} {ME}"
    found = {
        "gateway": f"{sys.executable} -m backends.gateway --port {{port}} --upstream {{upstream}} --tenant chat --tenant b "
        "--policy wfq --slots 64 --log-level warning",
        "aiohttp pass-through": f"{me} --serve-pass-through {{port}} {{upstream}}",
    }
    found |= {name: command for name, _, command in (text.partition("=") for text in also)}
    return {name: command.replace("{upstream}", upstream) for name, command in found.items()}


async def measure(args) -> None:
    processes: list[asyncio.subprocess.Process] = []
    env = {**os.environ, "PYTHONPATH": str(ROOT)}

    async def spawn(command: str) -> tuple[int, int]:
        port = free_port()
        quiet = asyncio.subprocess.DEVNULL
        process = await asyncio.create_subprocess_exec(
            *shlex.split(command.replace("{port}", str(port))), env=env, stdout=quiet
        )
        processes.append(process)
        await listening(port, process)
        return port, process.pid

    try:
        upstream_port, _ = await spawn(f"{sys.executable} {ME} --serve-upstream {{port}}")
        targets = [Target("direct", upstream_port)]
        for name, command in commands(f"http://127.0.0.1:{upstream_port}", args.also).items():
            targets.append(Target(name, *await spawn(command)))
        for number in range(args.rounds + 1):
            for target in targets:
                await round_of(target, args.streams, args.seconds if number else 1.0)
                if not number:  # warm-up
                    target.ways_ns.clear()
                    target.firsts_ns.clear()
                    target.cpu_s = 0.0
    finally:
        for process in processes:
            if process.returncode is None:
                process.terminate()
        await asyncio.gather(*(process.wait() for process in processes))
    report(targets, args.streams)


def report(targets: list[Target], streams: int) -> None:
    base_way = np.percentile(targets[0].ways_ns, (50, 99)) / 1e6
    base_first = np.percentile(targets[0].firsts_ns, (50, 99)) / 1e6
    per_token = {t.name: t.cpu_s / len(t.ways_ns) * 1e6 for t in targets if t.pid is not None}
    cheapest = min((us for name, us in per_token.items() if name != "gateway"), default=0.0)
    print(f"{streams} streams, {os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f}; ms; added = percentile - direct's")
    print(f"{'target':22} {'tokens':>8} {'way P50':>8} {'P99':>7} {'added P50':>10} {'P99':>7} {'first +P50':>11} {'+P99':>7}"
          f" {'CPU us/token':>13} {'x cheapest':>11}")  # fmt: skip
    for target in targets:
        way = np.percentile(target.ways_ns, (50, 99)) / 1e6
        first = np.percentile(target.firsts_ns, (50, 99)) / 1e6
        added, added_first = way - base_way, first - base_first
        us = per_token.get(target.name)
        cost = "" if us is None else f"{us:13.1f} {us / cheapest if cheapest else 0:11.2f}"
        print(f"{target.name:22} {len(target.ways_ns):8} {way[0]:8.3f} {way[1]:7.3f} {added[0]:10.3f} {added[1]:7.3f}"
              f" {added_first[0]:11.3f} {added_first[1]:7.3f} {cost}")  # fmt: skip


async def serve_upstream(port: int) -> None:
    server = await asyncio.get_running_loop().create_server(Upstream, "127.0.0.1", port, backlog=1024)
    await server.serve_forever()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=6.0, help="of each round of each target")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--also", action="append", default=[], metavar="NAME=COMMAND")
    parser.add_argument("--serve-upstream", type=int, metavar="PORT", help=argparse.SUPPRESS)
    parser.add_argument("--serve-pass-through", nargs=2, metavar=("PORT", "UPSTREAM"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve_pass_through:
        port, upstream = args.serve_pass_through
        uvloop.install()
        web.run_app(pass_through(upstream), host="127.0.0.1", port=int(port), access_log=None, print=None)
        return
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(measure(args) if args.serve_upstream is None else serve_upstream(args.serve_upstream))


if __name__ == "__main__":
    main()
