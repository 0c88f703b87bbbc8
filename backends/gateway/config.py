"""What a gateway is started with, and what it may be told anew while it runs.

Keys are references (:mod:`backends.reference`) here and everywhere but in :mod:`backends.gateway.identity` and on the wire; a
``Resolve`` callable turns one into its value.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from backends.reference import RIGHT, is_only_reference
from backends.wire.options import WireOptions
from backends.wire.url import parse_stated_url
from scheduler.auto_rule import AutoRule, Follows
from scheduler.cost import CostModel
from scheduler.policies.build import PolicyContext, build_policy
from scheduler.routing import Routing
from scheduler.slots import Slots
from tenants.tenant import Tenant

Resolve = Callable[[str], str]
"""A reference's value. Raises ConfigError (or another ValueError) that names the reference, never a value."""


class ConfigError(ValueError):
    """A configuration that cannot be used; the message says what, where and what would be right."""


_MOST = 1 << 40
"""More bytes, or seconds, than any machine has: what is larger is a slip, and would not fit into ns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Upstream:
    """One server behind the gateway. ``api_key``: a reference; sent in place of the client's. ``headers``: sent in place of
    the client's of the same names, to probes too; values may hold references. ``health_path``: any status below 500 there
    means that the server is up. ``takes_priority``: put the tenant's class into the body, for a server that orders by it
    (vLLM with ``--scheduling-policy priority``).
    """

    name: str
    url: str
    slots: Slots = field(default_factory=Slots)
    api_key: str | None = field(default=None, repr=False)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    health_path: str = "/health"
    takes_priority: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayLimits:
    """What one request may take. ``max_header_bytes``: names and values of all headers together. Of time-outs, None: none.
    ``queue_timeout_s`` holds for tenants without a time-to-live of their own. ``first_token_timeout_s`` and
    ``total_timeout_s`` count from the arrival, ``token_timeout_s`` from one token of a stream to the next. So that an upstream
    that falls silent does not keep a slot for ever: ``upstream_first_token_s`` from the dispatch to a stream's first token,
    where ``first_token_timeout_s`` is not stated; ``upstream_answer_s`` from the dispatch to the end of an answer whose tokens
    cannot be seen (of an API that is not known here: from one piece to the next), where ``total_timeout_s`` is not.
    ``client_stall_s``: how long a client may leave what it asked for unread, or its request half sent.
    ``retry_backoff_s``: before the second attempt when no other upstream is up. ``drain_s``: what requests that were
    accepted get to end when the gateway stops.
    """

    max_body_bytes: int = 32 << 20
    max_header_bytes: int = 32 << 10
    max_folded_bytes: int = 64 << 20
    queue_timeout_s: float | None = 600.0
    first_token_timeout_s: float | None = None
    total_timeout_s: float | None = None
    token_timeout_s: float | None = 60.0
    upstream_first_token_s: float | None = 600.0
    upstream_answer_s: float | None = 3600.0
    connect_timeout_s: float = 10.0
    client_stall_s: float = 60.0
    retry_backoff_s: float = 0.2
    retry_after_s: float = 1.0
    drain_s: float = 30.0

    def __post_init__(self) -> None:
        for name in self.__slots__:
            value = getattr(self, name)
            if value is not None and not 0 < value <= _MOST:
                raise ConfigError(f"gateway limits: {name} must be > 0 and at most {_MOST:,}, got {value:g}")


def stated_timeouts(given: Mapping[str, float | None]) -> dict[str, float | None]:
    """The limits that stated time-outs stand for, s. By a scenario's names, ``connect_s``, ``first_token_s``,
    ``between_tokens_s`` and ``total_s``, and ``queue_s``. None: none, in place of what holds where nothing is stated; but a
    connection must always open within some time.
    """
    found: dict[str, float | None] = {}
    for name, limits in _STATED.items():
        if name in given:
            found |= dict.fromkeys(limits, None) | {limits[0]: given[name]}
    if given.get("connect_s") is not None:
        found["connect_timeout_s"] = given["connect_s"]
    return found


_STATED = {
    "queue_s": ("queue_timeout_s",),
    "first_token_s": ("first_token_timeout_s", "upstream_first_token_s"),
    "between_tokens_s": ("token_timeout_s",),
    "total_s": ("total_timeout_s", "upstream_answer_s"),
}
_OF_A_TENANT = frozenset(
    {"connect_timeout_s", *(limit for name, limits in _STATED.items() if name != "queue_s" for limit in limits)}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayConfig:
    """``own_limits``: time-outs of tenants (as :func:`stated_timeouts` gives them) in place of those of ``limits``, by name.
    ``auto``: what moves the upstreams' slots, if anything; ``routing``: which upstream a request goes to. ``port`` 0: a
    free one. ``default_tenant``: who asks when neither a key nor a header tells. ``admin_key`` (a
    reference) None: there is no ``/admin``. ``count_tokens``: ask upstreams for ``usage`` that a client did not ask for
    (the chunk that brings it is taken out again); False for servers that refuse ``stream_options``. ``fold``: see
    :mod:`backends.gateway.fold`.
    """

    host: str = "127.0.0.1"
    port: int = 0
    tenants: tuple[Tenant, ...]
    upstreams: tuple[Upstream, ...]
    policy: str = "fifo"
    options: Mapping[str, object] = field(default_factory=dict)
    cost: CostModel = field(default_factory=CostModel)
    prefill_rate: float = 40_000.0
    default_tenant: str | None = None
    admin_key: str | None = field(default=None, repr=False)
    auto: AutoRule | None = None
    routing: Routing = field(default_factory=Routing)
    limits: GatewayLimits = field(default_factory=GatewayLimits)
    own_limits: Mapping[str, Mapping[str, float | None]] = field(default_factory=dict)
    wire: WireOptions = field(default_factory=WireOptions)
    probe_interval_s: float = 2.0
    count_tokens: bool = True
    fold: bool = True

    def __post_init__(self) -> None:
        names = [tenant.name for tenant in self.tenants]
        if not names:
            raise ConfigError("a gateway needs at least one tenant")
        if not self.upstreams:
            raise ConfigError("a gateway needs at least one upstream, such as http://localhost:8000")
        _unique("tenant", names)
        _unique("upstream", [upstream.name for upstream in self.upstreams])
        for name in names:
            if not name.isprintable() or not name.isascii() or name != name.strip() or not name:
                raise ConfigError(
                    f"tenant {name!r}: a name that a header can carry has printable ASCII characters only"
                )
        for upstream in self.upstreams:
            try:
                parse_stated_url(upstream.url)
            except ValueError as error:
                raise ConfigError(f"upstream {upstream.name!r}: {error}") from error
        self._check_keys()
        self._check_own_limits(names)
        if self.auto is not None:
            self._check_auto(self.auto)
        if not self.probe_interval_s > 0:
            raise ConfigError(f"probe_interval_s must be > 0, got {self.probe_interval_s}")
        if self.default_tenant is not None:
            self._check_default(self.default_tenant)
        build_policy(self.policy, self.options, PolicyContext(cost=self.cost, prefill_rate=self.prefill_rate))

    def limits_of(self, tenant: str) -> GatewayLimits:
        """What a request of ``tenant`` may take."""
        own: Mapping[str, Any] | None = self.own_limits.get(tenant)
        return self.limits if own is None else replace(self.limits, **own)

    def _check_own_limits(self, names: list[str]) -> None:
        for tenant, own in self.own_limits.items():
            unknown = sorted(own.keys() - _OF_A_TENANT)
            if tenant not in names or unknown:
                known = f"known: {', '.join(sorted(_OF_A_TENANT if tenant in names else names))}"
                what = f"{unknown[0]!r} is no time-out" if tenant in names else "no tenant of this name"
                raise ConfigError(f"own_limits of tenant {tenant!r}: {what}; {known}")
            self.limits_of(tenant)

    def _check_keys(self) -> None:
        keys = [("the admin key", self.admin_key)]
        keys += [(f"the key of upstream {upstream.name!r}", upstream.api_key) for upstream in self.upstreams]
        keys += [(f"the key of tenant {tenant.name!r}", tenant.identity.api_key) for tenant in self.tenants]
        for whose, key in keys:
            if key is not None and not is_only_reference(key):
                raise ConfigError(
                    f"{whose} is written out, where others can read it; put it into an environment variable or a file and "
                    f"give {RIGHT}"
                )

    def _check_auto(self, rule: AutoRule) -> None:
        if rule.follows is not Follows.TPOT:
            return
        if not any(tenant.slo.tpot_ns is not None for tenant in self.tenants):
            raise ConfigError(
                "slots that follow TPOT limits need a tenant with one (slo.tpot_ms of a scenario); or follow the upstreams' "
                "waiting counts"
            )
        if not self.count_tokens:
            raise ConfigError("slots that follow TPOT limits need token counts; leave count_tokens on")

    def _check_default(self, name: str) -> None:
        default = next((tenant for tenant in self.tenants if tenant.name == name), None)
        if default is None:
            known = ", ".join(tenant.name for tenant in self.tenants)
            raise ConfigError(f"default tenant {name!r} is not a tenant; known: {known}")
        if default.identity.api_key is not None:
            raise ConfigError(f"default tenant {name!r} has an API key, which clients without a key would get around")


def _unique(what: str, names: list[str]) -> None:
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ConfigError(f"{what} {twice[0]!r} is configured twice; names must differ")
