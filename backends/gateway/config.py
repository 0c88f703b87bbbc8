"""What a gateway is started with, and what it may be told anew while it runs.

Keys are references (:mod:`backends.reference`) here and everywhere but in :mod:`backends.gateway.identity` and on the wire; a
``Resolve`` callable turns one into its value.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

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
    """What one request may take. ``max_header_bytes``: names and values of all headers together. The time-outs count from
    the arrival; None: none. ``queue_timeout_s`` holds for tenants without a time-to-live of their own.
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
    client_stall_s: float = 60.0
    retry_backoff_s: float = 0.2
    retry_after_s: float = 1.0
    drain_s: float = 30.0

    def __post_init__(self) -> None:
        for name in self.__slots__:
            value = getattr(self, name)
            if value is not None and not 0 < value <= _MOST:
                raise ConfigError(f"gateway limits: {name} must be > 0 and at most {_MOST:,}, got {value:g}")


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayConfig:
    """``auto``: what moves the upstreams' slots, if anything; ``routing``: which upstream a request goes to. ``port`` 0: a
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
        if self.auto is not None:
            self._check_auto(self.auto)
        if not self.probe_interval_s > 0:
            raise ConfigError(f"probe_interval_s must be > 0, got {self.probe_interval_s}")
        if self.default_tenant is not None:
            self._check_default(self.default_tenant)
        build_policy(self.policy, self.options, PolicyContext(cost=self.cost, prefill_rate=self.prefill_rate))

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
