"""A scenario resolved: what a run, a simulation or a gateway works from. Frozen, in ns, without defaults left to guess.

Nothing in it is a secret: identities hold references.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from lmperf.scenario.faults import Fault
from lmperf.scenario.model import At, Growth
from lmperf.scenario.server_model import Endpoint
from scheduler.auto_rule import Follows
from scheduler.cost import CostModel
from scheduler.routing import Routing, routed_text
from scheduler.slots import Slots
from tenants.tenant import Tenant
from tenants.thresholds import Threshold
from tenants.traffic import Traffic


@dataclass(frozen=True, slots=True)
class Window:
    """Arrivals in [start_ns, end_ns) are judged."""

    start_ns: int
    end_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """Which part of a run is judged: without warm-up and cool-down, or a share of the duration."""

    warmup_ns: int = 0
    cooldown_ns: int = 0
    span: tuple[float, float] | None = None

    def window(self, duration_ns: int) -> Window:
        """The window of a run in which requests arrive in [0, duration_ns)."""
        if self.span is not None:
            start, end = self.span
            return Window(round(start * duration_ns), round(end * duration_ns))
        return Window(min(self.warmup_ns, duration_ns), max(duration_ns - self.cooldown_ns, 0))


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicySpec:
    """A policy by name, with its own options and ``late``. ``none``: no queue."""

    name: str
    options: Mapping[str, object] = field(default_factory=dict)

    @property
    def queues(self) -> bool:
        """False when requests go to the backend as they arrive."""
        return self.name != "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotsSpec:
    """Slots at the start (None: unlimited) and what moves ``sequences`` within [least, most], if anything. ``own``: by
    the name of each of several servers."""

    sequences: int | None = None
    prefill_tokens: int | None = None
    auto: Follows | None = None
    least: int = 40
    most: int = 128
    own: Mapping[str, Slots] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeouts:
    """In ns; None: none, but a connection must open within some time. ``first_token_ns`` and ``total_ns`` count from the
    intended arrival."""

    connect_ns: int = 10_000_000_000
    first_token_ns: int | None = None
    between_tokens_ns: int | None = None
    total_ns: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendSpec:
    """Where requests run. ``server_model``: a preset's name or an absolute path. ``limits``: only what the scenario
    states, under the server model's own names; None: unlimited. ``offset_ns``: None keeps the server model's.
    ``urls``: by name, where several servers stand behind the queue; then there is no ``url``.
    """

    kind: str
    url: str | None = None
    urls: Mapping[str, str] = field(default_factory=dict)
    routing: Routing = field(default_factory=Routing)
    model: str | None = None
    endpoint: Endpoint = Endpoint.AUTO
    server_model: str | None = None
    time_scale: float = 1.0
    limits: Mapping[str, int | float | bool | None] = field(default_factory=dict)
    offset_ns: int | None = None
    insecure: bool = False
    ca_file: str | None = None
    proxy: str | None = None
    timeouts: Timeouts = field(default_factory=Timeouts)
    ignore_eos: bool = True
    tokenizer: str | None = None
    options: Mapping[str, object] = field(default_factory=dict)

    @property
    def where(self) -> str:
        """The address, or addresses, as people read them; the kind where a server is started."""
        return ", ".join(self.urls.values()) or self.url or self.kind


class RuleKind(StrEnum):
    """How rows of a trace become a tenant's (see :class:`RowRule`)."""

    OWN = "own"
    INDEX = "index"
    COLUMN = "column"
    PROMPT_TOKENS = "prompt_tokens"


@dataclass(frozen=True, slots=True, kw_only=True)
class RowRule:
    """OWN: the trace's tenants. INDEX: row i is ``order[i mod n]``'s. COLUMN: ``map`` of the value (None: the value
    itself; a value not in it: the row is left out). PROMPT_TOKENS: ``order[k]``, with k = how many ``thresholds`` are
    <= the prompt.
    """

    kind: RuleKind
    order: tuple[str, ...] = ()
    column: str | None = None
    map: Mapping[str, str] | None = None
    thresholds: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceSpec:
    """A slice of a trace file: ``start_ns`` and ``length_ns`` in the trace's own time, before ``speed``."""

    path: Path
    format: str
    speed: float
    start_ns: int
    length_ns: int | None
    rows: int | None
    rule: RowRule


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedTenant:
    """``group``: the name in the scenario, shared by the tenants that one ``count`` made. ``traffic``: None where a
    scenario describes none (gateway). ``offered``: cost units/s, None when unknown (closed loop). ``growth``: what a
    trace's rows of this tenant are multiplied by; 1 for drawn traffic, which has it in its rate already.
    """

    tenant: Tenant
    group: str
    traffic: Traffic | None
    timeouts: Timeouts
    offered: float | None = None
    growth: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """``duration_ns`` None: the trace's length, or until ``num_prompts``. ``noisy``: the tenants whose load this
    experiment raises (also when this run is the baseline). ``saturation``: cost units/s, None when unknown.
    ``needs_traced_loads``: the trace is to be scaled and its loads were not given yet. ``workers``: processes that carry
    a live run. ``warnings``: what a run should say before it starts.
    """

    name: str
    description: str
    duration_ns: int | None
    num_prompts: int | None
    drain_ns: int
    judged: Judged
    seed: int
    backend: BackendSpec
    policy: PolicySpec
    cost: CostModel
    slots: SlotsSpec
    at: At
    growth: Growth
    noisy: tuple[str, ...]
    saturation: float | None
    trace: TraceSpec | None
    thresholds: tuple[Threshold, ...]
    tenants: tuple[PlannedTenant, ...]
    needs_traced_loads: bool = False
    workers: int = 1
    warnings: tuple[Fault, ...] = field(default=(), compare=False)

    @property
    def window(self) -> Window | None:
        """What is judged; None while the duration is not known."""
        return None if self.duration_ns is None else self.judged.window(self.duration_ns)

    @property
    def routed(self) -> str:
        """Several servers and what decides between them, in words; empty for one."""
        return routed_text(len(self.backend.urls), self.backend.routing)

    @property
    def in_contract(self) -> tuple[str, ...]:
        """Every tenant whose load the experiment does not raise; when all grow, every tenant."""
        names = tuple(planned.tenant.name for planned in self.tenants)
        return names if self.growth is Growth.ALL else tuple(name for name in names if name not in self.noisy)
