"""What all requests of one gateway share: driver, upstreams, who may ask, estimates, counters; and how it changes.

A change (of weights, policy, slots, keys) is checked as a whole before any of it is applied, so a wrong file leaves the
gateway as it was. The policy is replaced only if its name or options differ: a new one starts without accounts.
"""

from __future__ import annotations

import asyncio
import itertools
import secrets
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from hashlib import blake2b

import msgspec

from backends.gateway.config import ConfigError, GatewayConfig, Resolve
from backends.gateway.estimate import PromptEstimate
from backends.gateway.identity import Identities, Secret
from backends.gateway.logs import event
from backends.gateway.metrics import GatewayMetrics, Gauges
from backends.gateway.slots import GatewaySlots
from backends.gateway.upstreams import Upstreams, upstream_headers
from scheduler.dispatcher import Dispatcher
from scheduler.dispatcher_config import DispatcherConfig
from scheduler.drivers.live import LiveDriver
from scheduler.events import PolicyChanged, TenantsChanged
from scheduler.policies.build import PolicyContext, build_policy
from scheduler.request import Outcome
from scheduler.slots import Slots
from tenants.slo import Slo
from tenants.tenant import Tenant

OnOutcome = Callable[[Outcome], object]
_FIXED = ("host", "port", "cost", "prefill_rate", "routing", "wire", "probe_interval_s")


class Change(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What ``POST /admin/reload`` may ask for in its body; what is not named stays. ``slots`` by upstream. The
    next reload from the configuration's source replaces it.
    """

    policy: str | None = None
    options: dict[str, object] | None = None
    weights: dict[str, float] = {}
    slots: dict[str, Slots] = {}

    def of(self, config: GatewayConfig) -> GatewayConfig:
        """``config`` with this change. Raises ConfigError, ValueError."""
        known = {tenant.name for tenant in config.tenants}
        servers = {upstream.name for upstream in config.upstreams}
        for what, names, right in (("tenant", self.weights, known), ("upstream", self.slots, servers)):
            unknown = sorted(set(names) - right)
            if unknown:
                raise ConfigError(f"unknown {what} {unknown[0]!r}; known: {', '.join(sorted(right))}")
        options = self.options if self.options is not None else config.options if self.policy is None else {}
        return replace(
            config,
            policy=self.policy or config.policy,
            options=options,
            tenants=tuple(replace(t, weight=self.weights.get(t.name, t.weight)) for t in config.tenants),
            upstreams=tuple(replace(u, slots=self.slots.get(u.name, u.slots)) for u in config.upstreams),
        )


class Gate:
    """Made on the running loop. ``clock``: ns since the start. ``stopping``: requests cut now are unfinished, not cancelled."""

    def __init__(self, config: GatewayConfig, resolve: Resolve, on_outcome: OnOutcome | None) -> None:
        started_ns = time.monotonic_ns()
        self.started_ns = started_ns
        self.clock: Callable[[], int] = lambda: time.monotonic_ns() - started_ns
        self.config = config
        self.metrics = GatewayMetrics()
        self.draining = False
        self.stopping = False
        self.on_outcome = on_outcome
        self.ids = itertools.count(1)
        self.working = 0
        self.idle = asyncio.Event()
        self.idle.set()
        self._resolve = resolve
        self._prefix_key = secrets.token_bytes(16)
        self._estimates: dict[tuple[str, str], PromptEstimate] = {}
        self.identities = Identities(config.tenants, config.default_tenant, resolve)
        self.admin = _admin(config, resolve)
        self.tenants: Mapping[str, Tenant] = {tenant.name: tenant for tenant in config.tenants}
        self.slots = GatewaySlots(config)
        self.driver = LiveDriver(
            Dispatcher(
                DispatcherConfig(
                    tenants=config.tenants,
                    policy=config.policy,
                    options=dict(config.options),
                    cost=config.cost,
                    prefill_rate=config.prefill_rate,
                    backends=self.slots.starting,
                    routing=config.routing,
                )
            ),
            self.clock,
        )
        self.upstreams = Upstreams(config, resolve, self.clock, self._upstream_state)

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """Around a generation request, from its acceptance to its last byte: ``idle`` is set while there is none."""
        self.working += 1
        self.idle.clear()
        try:
            yield
        finally:
            self.working -= 1
            if not self.working:
                self.idle.set()

    def prefix_blocks(self, prefix: bytes) -> tuple[int, ...]:
        """What routing by prefix compares, in place of a prompt's first kilobyte: a hash that nobody else can compute."""
        if not self.config.routing.reads_prefixes or not prefix:
            return ()
        return (int.from_bytes(blake2b(prefix, digest_size=8, key=self._prefix_key).digest()) >> 1,)

    def estimate(self, tenant: str, dialect: str) -> PromptEstimate:
        """APIs differ in how many bytes they put around a prompt's text."""
        return self._estimates.setdefault((tenant, dialect), PromptEstimate())

    def ended(self, outcome: Outcome) -> None:
        """Count and hand on what became of a request."""
        if outcome.request.prefix_blocks:  # a means to route by, and nothing that a trace could be replayed with
            request = msgspec.structs.replace(outcome.request, prefix_blocks=())
            outcome = msgspec.structs.replace(outcome, request=request)
        tenant = self.tenants.get(outcome.request.tenant)
        self.metrics.ended(outcome, Slo() if tenant is None else tenant.slo)
        self.slots.observe(outcome)
        if self.on_outcome is not None:
            self.on_outcome(outcome)

    def change(self, config: GatewayConfig) -> list[str]:
        """Apply another configuration; returns what changed, in words. Raises ConfigError (also PolicyError, ValueError) and
        changes nothing when it cannot be used, or differs in what only a restart can change.
        """
        old = self.config
        for name in _FIXED:
            if getattr(config, name) != getattr(old, name):
                raise ConfigError(f"{name} cannot change while the gateway runs; restart it")
        fixed = [[replace(u, slots=Slots(), api_key=None, headers={}) for u in c.upstreams] for c in (old, config)]
        if fixed[0] != fixed[1]:
            raise ConfigError(
                "upstreams cannot change while the gateway runs, except their slots, keys and headers; restart it"
            )
        build_policy(config.policy, config.options, PolicyContext(cost=config.cost, prefill_rate=config.prefill_rate))
        identities = Identities(config.tenants, config.default_tenant, self._resolve)
        admin = _admin(config, self._resolve)
        own = upstream_headers(config, self._resolve)

        changed: list[str] = []
        self.config, self.identities, self.admin = config, identities, admin
        self.upstreams.set_headers(own)
        self.tenants = {tenant.name: tenant for tenant in config.tenants}
        if config.tenants != old.tenants:
            self.driver.reconfigure(TenantsChanged(self.driver.at(), config.tenants))
            changed.append("tenants")
        if (config.policy, dict(config.options)) != (old.policy, dict(old.options)):
            self.driver.reconfigure(PolicyChanged(self.driver.at(), config.policy, dict(config.options)))
            changed.append("policy")
        return changed + self.slots.change(config)

    def gauges(self) -> Gauges:
        queued = Counter(dict.fromkeys(self.tenants, 0))
        queued.update(request.tenant for request in self.driver.dispatcher.policy)
        return Gauges(
            queued=queued,
            outstanding=self.outstanding(),
            slots={name: slots.sequences for name, slots in self.driver.dispatcher.slots().items()},
            up=self.upstreams.states(),
            draining=self.draining,
            controlled=self.slots.controlled,
        )

    def outstanding(self) -> dict[str, int]:
        """Requests dispatched and not ended, by upstream."""
        dispatcher = self.driver.dispatcher
        return {upstream.name: dispatcher.outstanding_at(upstream.name) for upstream in self.config.upstreams}

    async def start(self) -> None:
        """Look at the upstreams. Raises ConfigError when the slots cannot follow them."""
        await self.upstreams.start()
        await self.slots.start(self.driver, self.upstreams, self.clock)

    async def close(self) -> None:
        await self.slots.close()
        self.driver.close()
        await self.upstreams.close()

    def _upstream_state(self, name: str, up: bool) -> None:
        event("upstream_up" if up else "upstream_down", upstream=name)
        self.driver.set_backend_state(name, up=up)


def _admin(config: GatewayConfig, resolve: Resolve) -> Secret | None:
    if config.admin_key is None:
        return None
    key = resolve(config.admin_key)
    if not key.strip():
        raise ConfigError("the admin key is empty; unset it to have no /admin")
    return Secret(key)
