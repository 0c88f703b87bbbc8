"""Forward proxies, honoured only when asked: which one an origin goes through, and the CONNECT handshake.

``http`` origins are asked for in absolute form (RFC 9112, 3.2.2), ``https`` ones through a CONNECT tunnel.
"""

from __future__ import annotations

import asyncio
import urllib.request
from base64 import b64encode
from typing import NamedTuple
from urllib.parse import unquote

from backends.wire.faults import WireError, fault_of
from backends.wire.stream_socket import Delivers
from backends.wire.url import Origin, split_origin
from scheduler.request import ErrorClass

_MAX_REPLY = 64 << 10


class Proxy(NamedTuple):
    """``authorization`` is the ready value of Proxy-Authorization; a secret."""

    origin: Origin
    authorization: str | None = None


def parse_proxy(url: str) -> Proxy:
    """``http://[user:password@]host:port``. ValueError says what is wrong, without the credentials."""
    origin, parts = split_origin(url if "://" in url else f"http://{url}")
    if origin.scheme != "http":
        raise ValueError(f"proxy {origin}: only http:// proxies are supported")
    if parts.username is None:
        return Proxy(origin)
    pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
    return Proxy(origin, f"Basic {b64encode(pair.encode()).decode()}")


def proxy_for(origin: Origin, setting: str | None) -> Proxy | None:
    """The proxy for ``origin`` under the option ``proxy`` (None, ``"env"`` or a URL); None goes direct."""
    if setting is None:
        return None
    if setting != "env":
        return parse_proxy(setting)
    url = urllib.request.getproxies().get(origin.scheme)
    if not url or urllib.request.proxy_bypass(origin.authority):
        return None
    return parse_proxy(url)


def connect_head(origin: Origin, proxy: Proxy) -> bytes:
    """The request that opens a tunnel to ``origin``."""
    lines = [f"CONNECT {origin.authority} HTTP/1.1", f"host: {origin.authority}"]
    if proxy.authorization is not None:
        lines.append(f"proxy-authorization: {proxy.authorization}")
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


class TunnelReply:
    """Takes the proxy's answer to CONNECT; ``done`` resolves when the tunnel stands, else raises WireError."""

    def __init__(self, proxy: Proxy, loop: asyncio.AbstractEventLoop) -> None:
        self._where = f"proxy {proxy.origin}"
        self._reply = b""
        self.done: asyncio.Future[None] = loop.create_future()

    def sent(self, link: Delivers) -> None:
        """All that comes is taken by way of the connection."""

    def feed(self, data: bytes, now_ns: int) -> None:
        del now_ns
        self._reply += data
        end = self._reply.find(b"\r\n\r\n")
        if self.done.done():
            return
        if end < 0:
            if len(self._reply) > _MAX_REPLY:
                self._fail(f"{self._where} answered CONNECT with an endless head")
            return
        status_line = self._reply.split(b"\r\n", 1)[0].decode("latin-1")
        words = status_line.split(" ", 2)
        if len(words) < 2 or not words[0].startswith("HTTP/") or not words[1].startswith("2"):
            self._fail(f"{self._where} refused CONNECT: {status_line[:100]!r}")
        elif len(self._reply) > end + 4:
            self._fail(f"{self._where} sent data of its own into the tunnel")
        else:
            self.done.set_result(None)

    def eof(self, now_ns: int) -> None:
        del now_ns
        self.lost(None)

    def lost(self, exc: Exception | None) -> None:
        if self.done.done():
            return
        if isinstance(exc, OSError):
            self.done.set_exception(fault_of(exc, self._where))
        else:
            self._fail(f"{self._where} closed the connection instead of answering CONNECT")

    def _fail(self, detail: str) -> None:
        self.done.set_exception(WireError(ErrorClass.REFUSED, detail))
