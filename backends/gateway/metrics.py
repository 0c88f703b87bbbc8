"""What the gateway counts, per tenant, and its Prometheus text.

Counting is plain integer arithmetic at a request's end; prometheus_client only renders, when somebody asks. Tenant labels are
configured names only, so a client cannot make new series; requests of nobody known have the label ``""``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from backends.emulator.metrics import BucketCounts
from scheduler.request import Outcome, Status
from tenants.slo import Slo

_BOUNDS_S = (
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0,
    640.0,
)  # fmt: skip


def meets(outcome: Outcome, slo: Slo) -> bool:
    """Whether one request meets the limits of ``slo``: it ended OK, and no limit is broken. A figure without a meaning (TPOT
    of one token) or that is not known (the longest gap, where chunks held an unknown number of tokens) breaks none.
    """
    if outcome.status is not Status.OK or outcome.finished_ns is None:
        return False
    arrival_ns = outcome.request.arrival_ns
    first_ns, last_ns, tokens = outcome.first_token_ns, outcome.last_token_ns, outcome.output_tokens
    tpot_ns = None
    if first_ns is not None and last_ns is not None and tokens is not None and tokens > 1:
        tpot_ns = (last_ns - first_ns) / (tokens - 1)
    pairs = (
        (None if first_ns is None else first_ns - arrival_ns, slo.ttft_ns),
        (tpot_ns, slo.tpot_ns),
        (outcome.finished_ns - arrival_ns, slo.e2e_ns),
        (outcome.max_itl_ns, slo.max_itl_ns),
    )
    return all(limit is None or value is None or value <= limit for value, limit in pairs)


@dataclass(slots=True)
class TenantCounts:
    """``limited``: requests that the tenant's SLO limits judge; ``met``: those of them that meet all."""

    requests: Counter[Status] = field(default_factory=Counter)
    prompt_tokens: int = 0
    output_tokens: int = 0
    limited: int = 0
    met: int = 0
    first_token: BucketCounts = field(default_factory=lambda: BucketCounts(_BOUNDS_S))
    queue: BucketCounts = field(default_factory=lambda: BucketCounts(_BOUNDS_S))
    end_to_end: BucketCounts = field(default_factory=lambda: BucketCounts(_BOUNDS_S))


@dataclass(frozen=True, slots=True, kw_only=True)
class Gauges:
    """The state at this moment; ``queued`` by tenant, the others by upstream. ``slots`` None: unlimited.
    ``controlled``: whether the controller of slots runs, None without one."""

    queued: Mapping[str, int]
    outstanding: Mapping[str, int]
    slots: Mapping[str, int | None]
    up: Mapping[str, bool]
    draining: bool
    controlled: bool | None


@dataclass(slots=True)
class GatewayMetrics:
    """Counters since the start. ``failures`` are those of the gateway's own words, by (tenant, reason)."""

    tenants: dict[str, TenantCounts] = field(default_factory=dict)
    reasons: Counter[tuple[str, ...]] = field(default_factory=Counter)
    retries: Counter[str] = field(default_factory=Counter)
    modes: Counter[str] = field(default_factory=Counter)
    plain: int = 0
    reloads: Counter[str] = field(default_factory=Counter)

    def refused(self, tenant: str, reason: str) -> None:
        self.reasons[tenant, reason] += 1

    def ended(self, outcome: Outcome, slo: Slo) -> None:
        """One request of a known tenant ended, however it did."""
        counts = self.tenants.setdefault(outcome.request.tenant, TenantCounts())
        counts.requests[outcome.status] += 1
        if slo.has_limits:
            counts.limited += 1
            counts.met += meets(outcome, slo)
        arrival_ns = outcome.request.arrival_ns
        if outcome.dispatched_ns is not None:
            counts.prompt_tokens += outcome.prompt_tokens or 0
            counts.output_tokens += outcome.output_tokens or 0
            counts.queue.observe(outcome.dispatched_ns - (outcome.enqueued_ns or arrival_ns))
        if outcome.first_token_ns is not None:
            counts.first_token.observe(outcome.first_token_ns - arrival_ns)
        if outcome.finished_ns is not None:
            counts.end_to_end.observe(outcome.finished_ns - arrival_ns)


class _Collector:
    def __init__(self, metrics: GatewayMetrics, gauges: Callable[[], Gauges]) -> None:
        self._metrics = metrics
        self._gauges = gauges

    def collect(self) -> Iterable[Metric]:
        m = self._metrics
        yield from self._tenants()
        yield _counter(
            "reasons", "Requests refused or failed, by reason.", ("tenant", "reason"),
            m.reasons,
        )  # fmt: skip
        yield _counter("retries", "Second attempts, by the upstream that failed.", ("upstream",), _keyed(m.retries))
        yield _counter("modes", "How answers were carried: pass, fold or whole.", ("mode",), _keyed(m.modes))
        yield _counter("plain_requests", "Requests proxied outside the queue.", (), {(): m.plain})
        yield _counter("reloads", "Changes of configuration, by result.", ("result",), _keyed(m.reloads))
        now = self._gauges()
        yield _gauge("queued", "Requests waiting in the queue.", ("tenant",), _keyed(now.queued))
        yield _gauge("outstanding", "Requests dispatched and not ended.", ("upstream",), _keyed(now.outstanding))
        limited = _keyed({name: slots for name, slots in now.slots.items() if slots is not None})
        yield _gauge("slots", "Requests that may be outstanding; no series where unlimited.", ("upstream",), limited)
        yield _gauge("upstream_up", "1 when the upstream answers.", ("upstream",), _keyed(now.up))
        if now.controlled is not None:
            yield _gauge("slot_control_up", "0 when what moves the slots failed.", (), {(): now.controlled})
        yield _gauge("draining", "1 while the gateway ends what it accepted.", (), {(): now.draining})

    def _tenants(self) -> Iterator[Metric]:
        tenants = self._metrics.tenants
        by_status: dict[tuple[str, ...], float] = {
            (name, str(s)): n for name, counts in tenants.items() for s, n in counts.requests.items()
        }
        yield _counter("requests", "Requests by how they ended.", ("tenant", "status"), by_status)
        families: list[tuple[str, str, Callable[[TenantCounts], int]]] = [
            ("prompt_tokens", "Prompt tokens of dispatched requests.", lambda t: t.prompt_tokens),
            ("output_tokens", "Output tokens.", lambda t: t.output_tokens),
            ("slo_judged", "Requests that limits of an SLO hold for.", lambda t: t.limited),
            ("slo_met", "Requests that met every limit of their SLO.", lambda t: t.met),
        ]
        for name, documentation, read in families:
            yield _counter(name, documentation, ("tenant",), {(tenant,): read(c) for tenant, c in tenants.items()})
        yield self._histogram("ttft", "From arrival to the first token.", lambda t: t.first_token)
        yield self._histogram("queue", "Time in the queue.", lambda t: t.queue)
        yield self._histogram("e2e", "From arrival to the last byte.", lambda t: t.end_to_end)

    def _histogram(self, name: str, documentation: str, read: Callable[[TenantCounts], BucketCounts]) -> Metric:
        """One family for all tenants: a name may be declared only once."""
        name = f"lmperf_gateway_{name}_seconds"
        whole = HistogramMetricFamily(name, documentation, labels=["tenant"])
        for tenant, counts in self._metrics.tenants.items():
            whole.samples.extend(read(counts).family(name, documentation, {"tenant": tenant}).samples)
        return whole


def _keyed(counts: Mapping[str, float]) -> dict[tuple[str, ...], float]:
    return {(name,): count for name, count in counts.items()}


def _counter(
    name: str, documentation: str, labels: tuple[str, ...], counts: Mapping[tuple[str, ...], float]
) -> CounterMetricFamily:
    family = CounterMetricFamily(f"lmperf_gateway_{name}", documentation, labels=labels)
    for key, count in counts.items():
        family.add_metric(key, count)
    return family


def _gauge(
    name: str, documentation: str, labels: tuple[str, ...], values: Mapping[tuple[str, ...], float]
) -> GaugeMetricFamily:
    family = GaugeMetricFamily(f"lmperf_gateway_{name}", documentation, labels=labels)
    for key, value in values.items():
        family.add_metric(key, value)
    return family


def new_registry(metrics: GatewayMetrics, gauges: Callable[[], Gauges]) -> CollectorRegistry:
    registry = CollectorRegistry()
    registry.register(_Collector(metrics, gauges))
    return registry


def render(registry: CollectorRegistry) -> bytes:
    """Prometheus text format 0.0.4."""
    return generate_latest(registry)
