"""Ordinary HTTP, not timed: what models, which version, is it ready. aiohttp, with errors for people."""

from __future__ import annotations

import socket
from collections.abc import Mapping

import aiohttp
import msgspec

from backends.protocol import BackendError
from backends.wire.dial import tls_context
from backends.wire.options import WireOptions
from backends.wire.proxy import proxy_for
from backends.wire.url import BaseUrl


class Reply(msgspec.Struct, frozen=True):
    """A whole response. ``json`` is None when the body is not JSON."""

    status: int
    content_type: str
    body: bytes

    @property
    def json(self) -> object:
        try:
            return msgspec.json.decode(self.body)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return None


class PlainHttp:
    """Requests to one base URL with the same TLS, proxy and headers as the calls that are timed."""

    def __init__(self, base: BaseUrl, headers: Mapping[str, str], options: WireOptions) -> None:
        self.base = base
        self._headers = dict(headers)
        self._options = options
        self._session: aiohttp.ClientSession | None = None

    async def request(self, method: str, path: str, *, body: object = None, timeout_s: float = 30.0) -> Reply:
        """One request; ``body`` goes as JSON. Any status is a reply; BackendError (dns, tls, refused, unreachable) only
        when there is none.
        """
        session = self._session_now()
        data = None if body is None else msgspec.json.encode(body)
        headers = {"content-type": "application/json"} if data is not None else {}
        try:
            async with session.request(
                method,
                f"{self.base}{path}",
                data=data,
                headers=headers,
                allow_redirects=False,  # the headers hold keys that were meant for this host alone
                timeout=aiohttp.ClientTimeout(total=timeout_s),
            ) as response:
                return Reply(response.status, response.content_type, await response.read())
        except TimeoutError as exc:
            raise BackendError(
                f"{self.base} gave no answer to {method} {path} within {timeout_s:g} s; is it the right server?"
            ) from exc
        except (aiohttp.ClientError, OSError) as exc:
            raise self._explained(exc, path) from exc

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    def _session_now(self) -> aiohttp.ClientSession:
        if self._session is None:
            proxy = proxy_for(self.base.origin, self._options.proxy)
            secure = self.base.origin.scheme == "https"
            tls = tls_context(insecure=self._options.insecure, ca_file=self._options.ca_file) if secure else True
            self._session = aiohttp.ClientSession(
                headers=self._headers,
                connector=aiohttp.TCPConnector(ssl=tls, limit=16),
                proxy=str(proxy.origin) if proxy is not None else None,
            )
            if proxy is not None and proxy.authorization is not None:
                self._session.headers["Proxy-Authorization"] = proxy.authorization
        return self._session

    def _explained(self, exc: Exception, path: str) -> BackendError:
        base = self.base
        if isinstance(exc, aiohttp.ClientConnectorDNSError | socket.gaierror):
            return BackendError(f"cannot resolve {base.origin.host}; check the name in the base URL {base}", kind="dns")
        if isinstance(exc, aiohttp.ClientSSLError):
            return BackendError(
                f"TLS with {base} failed: {exc}; for a self-signed certificate use --insecure, for plain HTTP http://",
                kind="tls",
            )
        os_error = exc.os_error if isinstance(exc, aiohttp.ClientConnectorError) else exc
        if isinstance(os_error, ConnectionRefusedError):
            return BackendError(
                f"connection to {base} refused: nothing listens there; start the server or correct the URL",
                kind="refused",
            )
        return BackendError(f"{base}{path}: {exc or type(exc).__name__}; check that an HTTP server listens there")
