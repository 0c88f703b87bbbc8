"""What the embedded server counts, and its Prometheus text under vLLM's names.

Counting happens on the engine's hot path, so it is plain integer arithmetic; prometheus_client only renders it, when
somebody asks. Latencies are the model's (planned step ends), the lateness beside them is what the host added.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from hdrh.histogram import HdrHistogram
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

_NS_PER_S = 1_000_000_000
_MAX_TENANTS = 1_000
_OTHER_TENANTS = "(other)"
_LATENESS_LIMIT_NS = 3_600 * _NS_PER_S

# Upper bounds in seconds, those of vLLM's metrics, so that dashboards made for it show the same shape.
_TTFT_S = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0,
    640.0, 2560.0,
)  # fmt: skip
_ITL_S = (
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
)  # fmt: skip
_E2E_S = (
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0,
    1920.0, 7680.0,
)  # fmt: skip
_LATENESS_S = (0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5, 1.0)


class BucketCounts:
    """A histogram with fixed bounds over ints in ns."""

    def __init__(self, bounds_s: tuple[float, ...]) -> None:
        self._bounds_s = bounds_s
        self._bounds_ns = [round(bound * _NS_PER_S) for bound in bounds_s]
        self._counts = [0] * (len(bounds_s) + 1)
        self._sum_ns = 0

    def observe(self, value_ns: int, count: int = 1) -> None:
        self._counts[bisect_left(self._bounds_ns, value_ns)] += count
        self._sum_ns += value_ns * count

    def family(self, name: str, documentation: str, labels: dict[str, str]) -> HistogramMetricFamily:
        metric = HistogramMetricFamily(name, documentation, labels=list(labels))
        buckets: list[tuple[str, float]] = []
        below = 0
        for bound, count in zip((*self._bounds_s, float("inf")), self._counts, strict=True):
            below += count
            buckets.append(("+Inf" if bound == float("inf") else str(bound), below))
        metric.add_metric(list(labels.values()), buckets, self._sum_ns / _NS_PER_S)
        return metric


@dataclass(slots=True)
class TenantCounts:
    requests: int = 0
    aborted: int = 0
    prompt_tokens: int = 0
    generation_tokens: int = 0


@dataclass(slots=True)
class EngineMetrics:
    """Counters since the server's start. Only the engine and the request handlers write them."""

    prompt_tokens: int = 0
    generation_tokens: int = 0
    preemptions: int = 0
    received: int = 0
    finished: int = 0
    aborted: int = 0
    steps: int = 0
    first_token: BucketCounts = field(default_factory=lambda: BucketCounts(_TTFT_S))
    inter_token: BucketCounts = field(default_factory=lambda: BucketCounts(_ITL_S))
    end_to_end: BucketCounts = field(default_factory=lambda: BucketCounts(_E2E_S))
    lateness: BucketCounts = field(default_factory=lambda: BucketCounts(_LATENESS_S))
    lateness_exact: HdrHistogram = field(default_factory=lambda: HdrHistogram(1, _LATENESS_LIMIT_NS, 3))
    lateness_max_ns: int = 0
    tenants: dict[str, TenantCounts] = field(default_factory=dict)

    def step_ended(self, late_ns: int) -> None:
        self.steps += 1
        self.lateness.observe(late_ns)
        self.lateness_max_ns = max(self.lateness_max_ns, late_ns)
        # The library drops values beyond its range without a word; the clamp keeps them counted as the longest.
        self.lateness_exact.record_value(min(max(late_ns, 1), _LATENESS_LIMIT_NS))

    def tenant(self, name: str) -> TenantCounts:
        """The counts of one tenant; beyond 1,000 names all new ones share one, since the name comes from the client."""
        counts = self.tenants.get(name)
        if counts is None:
            if len(self.tenants) >= _MAX_TENANTS:
                name = _OTHER_TENANTS
            counts = self.tenants.setdefault(name, TenantCounts())
        return counts


@dataclass(frozen=True, slots=True, kw_only=True)
class Gauges:
    """The server's state at this moment. ``kv_usage``: share of the KV cache in use, 0 when it has no limit."""

    running: int
    waiting: int
    kv_usage: float
    cpu_s: float


class _Collector:
    def __init__(self, metrics: EngineMetrics, model: str, gauges: Callable[[], Gauges]) -> None:
        self._metrics = metrics
        self._labels = {"model_name": model}
        self._gauges = gauges

    def collect(self) -> Iterable[Metric]:
        yield from self._vllm()
        yield from self._own()

    def _vllm(self) -> Iterator[Metric]:
        m, now, labels = self._metrics, self._gauges(), self._labels
        yield self._gauge("vllm:num_requests_running", "Requests in the running batch.", now.running)
        yield self._gauge("vllm:num_requests_waiting", "Requests in the engine's queue.", now.waiting)
        yield self._gauge("vllm:kv_cache_usage_perc", "Share of the KV cache in use; 1 is full.", now.kv_usage)
        yield self._counter("vllm:num_preemptions", "Sequences pushed out of the batch.", m.preemptions)
        yield self._counter("vllm:prompt_tokens", "Prompt tokens of requests received.", m.prompt_tokens)
        yield self._counter("vllm:generation_tokens", "Tokens generated.", m.generation_tokens)
        yield self._counter("vllm:request_success", "Requests that gave their last token.", m.finished)
        yield m.first_token.family("vllm:time_to_first_token_seconds", "From receipt to the first token.", labels)
        yield m.inter_token.family("vllm:inter_token_latency_seconds", "Between consecutive tokens.", labels)
        yield m.end_to_end.family("vllm:e2e_request_latency_seconds", "From receipt to the last token.", labels)

    def _own(self) -> Iterator[Metric]:
        m = self._metrics
        yield m.lateness.family(
            "lmperf_emulator_lateness_seconds", "From a step's planned end to its last write.", self._labels
        )
        yield self._counter("lmperf_emulator_steps", "Steps of the engine.", m.steps)
        yield self._counter("lmperf_emulator_cpu_seconds", "CPU time of the server's process.", self._gauges().cpu_s)
        families: list[tuple[str, str, Callable[[TenantCounts], int]]] = [
            ("lmperf_tenant_requests", "Requests received.", lambda t: t.requests),
            ("lmperf_tenant_aborted", "Requests whose client left.", lambda t: t.aborted),
            ("lmperf_tenant_prompt_tokens", "Prompt tokens of requests received.", lambda t: t.prompt_tokens),
            ("lmperf_tenant_generation_tokens", "Tokens generated, of ended requests.", lambda t: t.generation_tokens),
        ]
        for name, documentation, read in families:
            family = CounterMetricFamily(name, documentation, labels=[*self._labels, "tenant"])
            for tenant, counts in m.tenants.items():
                family.add_metric([*self._labels.values(), tenant], read(counts))
            yield family

    def _gauge(self, name: str, documentation: str, value: float) -> Metric:
        family = GaugeMetricFamily(name, documentation, labels=list(self._labels))
        family.add_metric(list(self._labels.values()), value)
        return family

    def _counter(self, name: str, documentation: str, value: float) -> Metric:
        family = CounterMetricFamily(name, documentation, labels=list(self._labels))
        family.add_metric(list(self._labels.values()), value)
        return family


def new_registry(metrics: EngineMetrics, model: str, gauges: Callable[[], Gauges]) -> CollectorRegistry:
    registry = CollectorRegistry()
    registry.register(_Collector(metrics, model, gauges))
    return registry


def render(registry: CollectorRegistry) -> bytes:
    """Prometheus text format 0.0.4."""
    return generate_latest(registry)
