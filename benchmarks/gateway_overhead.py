"""What the gateway adds: latency of every token and CPU of every token, beside going direct and beside other proxies.

    python -m benchmarks.gateway_overhead [--streams 64] [--seconds 6] [--rounds 3] [--without NAME]

One upstream process streams answers of 100 tokens (50 ms to the first, then one every 10 ms) and writes into each chunk when
it was sent (the monotonic clock, which all processes of a host share). The client notes when it arrived, so each token's way
is known exactly. The targets take turns in short rounds, so that a noisy machine is noisy for all of them: *added* is a
percentile through a proxy minus the same percentile direct in the same round, the median over the rounds. CPU is user +
system time of the proxy's processes, over all rounds.

Targets: direct; the gateway (two tenants, wfq, 64 slots); and the proxies of :mod:`benchmarks.gateway_peers` that are here.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
import numpy as np
import uvloop

from benchmarks.client_peers import NotHere
from benchmarks.gateway_peers import GATEWAY, PROXIES, Proxy, free_port

ROOT = Path(__file__).resolve().parents[1]
UP_TIMEOUT_S = 90.0
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


class Client(asyncio.Protocol):
    """One user: asks, reads to the end, asks again, until told to stop. A stamp may be split over two segments."""

    def __init__(self, round_, request, until_s):
        self.round, self.request, self.until_s = round_, request, until_s
        self.done, self.loop = asyncio.get_running_loop().create_future(), asyncio.get_running_loop()

    def connection_made(self, transport):
        self.transport = transport
        self.ask()

    def ask(self):
        if self.loop.time() > self.until_s:
            self.done.set_result(None)
            self.transport.close()
            return
        self.asked_ns, self.first, self.held = time.monotonic_ns(), True, b""
        self.transport.write(self.request)

    def data_received(self, data):
        now_ns = time.monotonic_ns()
        data, end = self.held + data, 0
        for stamp in STAMP.finditer(data):
            if self.first:
                self.round.firsts_ns.append(now_ns - self.asked_ns)
                self.first = False
            self.round.ways_ns.append(now_ns - int(stamp[1]))
            end = stamp.end()
        if data.endswith(b"\r\n0\r\n\r\n"):
            self.round.answers += 1
            self.ask()
        else:
            self.held = data[end:]

    def connection_lost(self, exc):
        if not self.done.done():
            self.done.set_exception(ConnectionError(f"it closed the connection ({exc})"))


@dataclass
class Round:
    """What the users of one round saw of one target, in ns."""

    ways_ns: list[int] = field(default_factory=list)
    firsts_ns: list[int] = field(default_factory=list)
    answers: int = 0
    cpu_s: float = 0.0


@dataclass
class Target:
    """``proxy`` None: the upstream itself. ``fault``: why it is not in the table."""

    name: str
    proxy: Proxy | None
    port: int = 0
    pid: int | None = None
    rounds: list[Round] = field(default_factory=list)
    fault: str = ""

    def per_token_us(self) -> float:
        return sum(r.cpu_s for r in self.rounds) / sum(len(r.ways_ns) for r in self.rounds) * 1e6


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
            for task in Path(f"/proc/{one}/task").iterdir():
                pids += map(int, (task / "children").read_text().split())
        except FileNotFoundError:
            continue
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


async def round_of(target: Target, streams: int, seconds: float) -> Round:
    """Raises ConnectionError when the target does not answer all of the streams."""
    request = (
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: bench\r\nx-lmperf-tenant: chat\r\ncontent-type: application/json\r\n"
        b"content-length: %d\r\n\r\n%b" % (len(BODY), BODY)
    )
    loop = asyncio.get_running_loop()
    until_s, before_s, found = loop.time() + seconds, cpu_s(target.pid), Round()
    clients = []
    for _ in range(streams):
        _, client = await loop.create_connection(lambda: Client(found, request, until_s), "127.0.0.1", target.port)
        clients.append(client)
        await asyncio.sleep((FIRST_S + TOKENS * GAP_S) / streams)  # users spread over an answer's length, not in step
    try:
        async with asyncio.timeout(seconds + 20):
            await asyncio.gather(*(client.done for client in clients))
    except TimeoutError as error:
        raise ConnectionError("it hung") from error
    finally:
        for client in clients:
            client.done.cancel()
            client.transport.abort()
    found.cpu_s = cpu_s(target.pid) - before_s
    if len(found.ways_ns) != found.answers * TOKENS:
        raise ConnectionError(f"{found.answers} answers of {TOKENS} tokens held {len(found.ways_ns)} tokens")
    return found


async def answers(port: int, process: asyncio.subprocess.Process) -> None:
    """Until a whole answer comes through it: a router may listen before it knows of its server. Raises ConnectionError."""
    headers = {"content-type": "application/json", "x-lmperf-tenant": "chat"}
    timeout = aiohttp.ClientTimeout(total=10)
    last = "nothing listened"
    async with aiohttp.ClientSession(f"http://127.0.0.1:{port}", timeout=timeout) as session:
        until_s = time.monotonic() + UP_TIMEOUT_S
        while time.monotonic() < until_s:
            if process.returncode is not None:
                raise ConnectionError(f"it ended with code {process.returncode} before it answered")
            with suppress(aiohttp.ClientError, TimeoutError):
                async with session.post("/v1/chat/completions", data=BODY, headers=headers) as answer:
                    body = await answer.read()
                    last = f"it answered HTTP {answer.status}"
                    if answer.status == 200 and len(STAMP.findall(body)) == TOKENS:
                        return
            await asyncio.sleep(0.1)
    raise ConnectionError(f"{last} within {UP_TIMEOUT_S:g} s")


async def measure(args) -> list[Target]:
    processes: list[asyncio.subprocess.Process] = []
    quiet = asyncio.subprocess.DEVNULL

    async def spawn(argv: Sequence[str], port: int, folder: Path, env: dict[str, str]) -> int:
        process = await asyncio.create_subprocess_exec(
            *argv, env={**os.environ, "PYTHONPATH": str(ROOT), **env}, stdout=quiet, stderr=quiet, cwd=folder
        )
        processes.append(process)
        await answers(port, process)
        return process.pid

    targets = [Target("direct", None)]
    targets += [Target(proxy.name, proxy) for proxy in PROXIES if proxy.name not in args.without]
    with tempfile.TemporaryDirectory() as scratch:
        try:
            upstream = targets[0].port = free_port()
            argv = [sys.executable, "-m", "benchmarks.gateway_overhead", "--serve-upstream", str(upstream)]
            await spawn(argv, upstream, Path(scratch), {})
            for target in targets[1:]:
                assert target.proxy is not None, "all but the first are proxies"
                folder = Path(scratch) / target.name.replace(" ", "-")
                folder.mkdir()
                target.port = free_port()
                try:
                    argv = target.proxy.argv(target.port, f"http://127.0.0.1:{upstream}", folder)
                    target.pid = await spawn(argv, target.port, folder, dict(target.proxy.env))
                except (NotHere, ConnectionError) as reason:
                    target.fault = str(reason)
            for number in range(args.rounds + 1):
                for target in (t for t in targets if not t.fault):
                    try:
                        found = await round_of(target, args.streams, args.seconds if number else 1.0)
                    except (ConnectionError, OSError) as error:
                        target.fault = f"it did not answer all of {args.streams} streams: {error}"
                        continue
                    if number:  # the first is a warm-up
                        target.rounds.append(found)
        finally:
            for process in processes:
                if process.returncode is None:
                    process.terminate()
            await asyncio.gather(*(process.wait() for process in processes))
    return targets


def percentiles(values: list[int]) -> np.ndarray:
    return np.percentile(values, (50, 99)) / 1e6


def report(targets: list[Target], streams: int) -> None:
    direct, *proxies = targets
    measured = [target for target in proxies if not target.fault]
    per_token = {target.name: target.per_token_us() for target in measured}
    python = [
        us for us, t in zip(per_token.values(), measured, strict=True) if t.proxy.python and t.proxy is not GATEWAY
    ]
    cheapest = min(python, default=0.0)
    print(f"{streams} streams, {os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f}; ms; added = percentile - direct's")
    print(f"{'target':22} {'tokens':>8} {'way P50':>8} {'P99':>7} {'added P50':>10} {'P99':>7} {'first +P50':>11} {'+P99':>7}"
          f" {'CPU us/token':>13} {'x cheapest Python':>18}")  # fmt: skip
    for target in [direct, *measured]:
        way = np.median([percentiles(r.ways_ns) for r in target.rounds], axis=0)
        pairs = list(zip(target.rounds, direct.rounds, strict=False))
        added = np.median([percentiles(r.ways_ns) - percentiles(d.ways_ns) for r, d in pairs], axis=0)
        first = np.median([percentiles(r.firsts_ns) - percentiles(d.firsts_ns) for r, d in pairs], axis=0)
        tokens = sum(len(r.ways_ns) for r in target.rounds)
        us = per_token.get(target.name)
        cost = "" if us is None else f"{us:13.1f} {us / cheapest if cheapest else 0:18.2f}"
        print(f"{target.name:22} {tokens:8} {way[0]:8.3f} {way[1]:7.3f} {added[0]:10.3f} {added[1]:7.3f}"
              f" {first[0]:11.3f} {first[1]:7.3f} {cost}")  # fmt: skip
    for target in targets:
        if target.fault:
            print(f"{target.name}: {target.fault}")


async def serve_upstream(port: int) -> None:
    server = await asyncio.get_running_loop().create_server(Upstream, "127.0.0.1", port, backlog=1024)
    await server.serve_forever()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=6.0, help="of each round of each target")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--without", action="append", default=[], metavar="NAME", help="leave a peer out; repeatable")
    parser.add_argument("--serve-upstream", type=int, metavar="PORT", help=argparse.SUPPRESS)
    args = parser.parse_args()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        if args.serve_upstream is not None:
            runner.run(serve_upstream(args.serve_upstream))
            return 0
        targets = runner.run(measure(args))
    report(targets, args.streams)
    return 1 if any(t.fault and (t.proxy is None or t.proxy is GATEWAY) for t in targets) else 0


if __name__ == "__main__":
    sys.exit(main())
