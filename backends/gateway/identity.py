"""Who asks: a tenant from an API key (``Authorization: Bearer``, else ``x-api-key``), else from ``x-lmperf-tenant``.

* A key that is given must be known, as soon as any tenant has a key; a tenant with a key is reached by it alone.
* A header that names another tenant than the key's is refused rather than ignored.
* Without a key, the header names a tenant that has none; else the default tenant, if there is one.

Keys are kept and compared as SHA-256 digests, each with ``hmac.compare_digest`` and all of them every time: neither the time
of a comparison nor which key matches tells anything about a key.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable, Mapping

from backends.gateway.config import ConfigError, Resolve
from backends.gateway.refusal import Reason, Refusal
from tenants.tenant import Tenant

TENANT_HEADER = "x-lmperf-tenant"
API_KEY_HEADER = "x-api-key"
"""Where clients of the Messages API put their key."""

KEY_HEADERS = frozenset({"authorization", API_KEY_HEADER})


def bearer(authorization: str | None) -> str | None:
    """The token of an ``Authorization: Bearer`` header; None without one."""
    scheme, _, token = (authorization or "").strip().partition(" ")
    return token.strip() or None if scheme.lower() == "bearer" else None


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()


class Secret:
    """One key that can be compared, not read."""

    __slots__ = ("_digest",)

    def __init__(self, key: str) -> None:
        self._digest = _digest(key)

    def matches(self, key: str | None) -> bool:
        return hmac.compare_digest(_digest(key or ""), self._digest) and key is not None


class Identities:
    """Made anew when the tenants change. Raises ConfigError for a key that is empty or shared by two tenants."""

    def __init__(self, tenants: Iterable[Tenant], default: str | None, resolve: Resolve) -> None:
        self._tenants: Mapping[str, Tenant] = {tenant.name: tenant for tenant in tenants}
        self._default = default
        self._keys: list[tuple[bytes, Tenant]] = []
        seen: dict[bytes, str] = {}
        for tenant in self._tenants.values():
            if tenant.identity.api_key is None:
                continue
            key = resolve(tenant.identity.api_key)
            if not key.strip() or key != key.strip():
                raise ConfigError(f"tenant {tenant.name!r}: its API key is empty or has spaces around it")
            digest = _digest(key)
            if digest in seen:
                raise ConfigError(
                    f"tenants {seen[digest]!r} and {tenant.name!r} have the same API key; give each its own"
                )
            seen[digest] = tenant.name
            self._keys.append((digest, tenant))

    @property
    def has_keys(self) -> bool:
        return bool(self._keys)

    def check_key(self, given: str | None) -> Tenant | None:
        """The tenant of the key, None when keys are not asked for or none is given. Raises Refusal for an unknown one."""
        if given is None or not self._keys:
            return None
        digest = _digest(given)
        found: Tenant | None = None
        for expected, tenant in self._keys:
            if hmac.compare_digest(digest, expected):
                found = tenant
        if found is None:
            raise Refusal(
                401, Reason.UNKNOWN_KEY, "the API key is not known; send a valid one as 'Authorization: Bearer KEY'"
            )
        return found

    def tenant(self, authorization: str | None, header: str | None, api_key: str | None = None) -> Tenant:
        """Whose request this is, by three of its headers; ``api_key`` counts where there is no bearer. Raises Refusal (400,
        401).
        """
        keyed = self.check_key(bearer(authorization) or (api_key or "").strip() or None)
        if keyed is not None:
            if header is not None and header != keyed.name:
                raise Refusal(
                    400,
                    Reason.TENANT_MISMATCH,
                    f"the API key is another tenant's than the one that {TENANT_HEADER} names",
                )
            return keyed
        named = self._tenants.get(header) if header is not None else None
        if named is not None and named.identity.api_key is None:
            return named
        if named is not None:
            raise Refusal(401, Reason.MISSING_KEY, "this tenant has an API key; send it as 'Authorization: Bearer KEY'")
        if self._default is not None:
            return self._tenants[self._default]
        if header is not None:
            raise Refusal(
                400, Reason.UNKNOWN_TENANT, f"{TENANT_HEADER} names no tenant of this gateway; names are case-sensitive"
            )
        if self._keys:
            raise Refusal(401, Reason.MISSING_KEY, "no API key; send one as 'Authorization: Bearer KEY'")
        raise Refusal(400, Reason.MISSING_TENANT, f"no tenant named; send its name in the header {TENANT_HEADER}")
