"""What a base URL names: an origin to connect to and a prefix before every path.

People type ``localhost:8000``, ``http://localhost:8000/v1`` or ``https://host/team/v1/``; all mean a server whose paths
begin with ``/v1``, so a trailing ``/v1`` is dropped here and every path of a call brings its own.
"""

from __future__ import annotations

from typing import NamedTuple
from urllib.parse import SplitResult, urlsplit

DEFAULT_PORTS = {"http": 80, "https": 443}


class Origin(NamedTuple):
    """What sockets are kept for. ``host`` has no brackets; ``port`` is always explicit."""

    scheme: str
    host: str
    port: int

    @property
    def authority(self) -> str:
        """``host:port`` as the Host header and CONNECT write it: brackets for IPv6."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    @property
    def host_header(self) -> str:
        """The authority, without a port that the scheme implies."""
        if self.port == DEFAULT_PORTS[self.scheme]:
            return self.authority.rsplit(":", 1)[0]
        return self.authority

    def __str__(self) -> str:
        return f"{self.scheme}://{self.host_header}"


class BaseUrl(NamedTuple):
    """``prefix`` is empty or begins with a slash and does not end with one."""

    origin: Origin
    prefix: str = ""

    def target(self, path: str) -> str:
        """The request target of ``path`` (which begins with a slash)."""
        return self.prefix + path

    def __str__(self) -> str:
        return f"{self.origin}{self.prefix}"


def split_origin(url: str) -> tuple[Origin, SplitResult]:
    """An absolute http(s) URL, taken apart. ValueError says what is wrong with it; it never repeats a password."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as exc:
        raise ValueError(f"not a URL: {exc}; right would be http://HOST:PORT") from exc
    if parts.scheme not in DEFAULT_PORTS:
        raise ValueError(f"scheme {parts.scheme!r} is not http or https; right would be http://HOST:PORT")
    if not parts.hostname:
        raise ValueError(f"no host in {parts.scheme}://; right would be {parts.scheme}://HOST:PORT")
    return Origin(parts.scheme, parts.hostname, port or DEFAULT_PORTS[parts.scheme]), parts


def parse_base_url(text: str) -> BaseUrl:
    """``localhost:8000``, with or without scheme, path and ``/v1``. ValueError says what is wrong and what is right."""
    text = text.strip()
    if not text:
        raise ValueError("the base URL is empty; right would be localhost:8000")
    origin, parts = split_origin(text if "://" in text else f"http://{text}")
    if parts.username is not None or parts.password is not None:
        raise ValueError(f"the base URL of {parts.hostname} holds credentials; give them as an API key or a header")
    if parts.query or parts.fragment:
        raise ValueError(f"the base URL of {parts.hostname} has a query or fragment; right would be {origin}")
    prefix = parts.path.rstrip("/")
    return BaseUrl(origin, prefix.removesuffix("/v1").rstrip("/"))


def parse_stated_url(text: str) -> BaseUrl:
    """A server as a scenario or a flag names it: a URL, or HOST:PORT. A bare word is more likely a slip (a model's name, say)
    than a host on port 80, and would be waited for. ValueError as :func:`parse_base_url`.
    """
    found = parse_base_url(text)
    host, _, _ = text.strip().partition("/")
    if "://" not in text and not host.rpartition(":")[2].isdigit():
        raise ValueError(f"{text!r} is neither a URL nor HOST:PORT; right would be {host}:8000 or http://{text}")
    return found
