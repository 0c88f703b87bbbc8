"""The summary of a run as data: ``lmperf.summary/1.2``.

Latencies are in ms (``_ms``), durations in s, rates per s. A percentile that falls among requests which never reached
the event has ``value_ms`` null and ``beyond_ms``, the bound that it exceeds. ``percentiles`` are over all requests
whose intended arrival lies in the window; ``successes`` stands beside, over those that ended OK, and never in its
place. A minor version may add fields, which older readers ignore.
"""

from __future__ import annotations

from typing import Any

import msgspec

SUMMARY_FAMILY = "lmperf.summary"
SUMMARY_MAJOR = 1
SUMMARY_VERSION = f"{SUMMARY_FAMILY}/{SUMMARY_MAJOR}.2"

TOTAL = "total"
"""The name under which all tenants together are summarised."""


class Percentile(msgspec.Struct, frozen=True, kw_only=True):
    p: float
    value_ms: float | None
    beyond_ms: float | None = None

    def text(self, digits: int = 1) -> str:
        """``312.4``, ``> 30000.0``, or ``-`` when there was nothing to rank."""
        if self.beyond_ms is not None:
            return f"> {self.beyond_ms:.{digits}f}"
        return "-" if self.value_ms is None else f"{self.value_ms:.{digits}f}"


class Successes(msgspec.Struct, frozen=True, kw_only=True):
    count: int
    mean_ms: float | None
    min_ms: float | None
    max_ms: float | None
    percentiles: list[Percentile]


class MetricSummary(msgspec.Struct, frozen=True, kw_only=True):
    """``count``: all that was due, ``never`` of which did not reach the event, ``out_of_range`` of which took above 1
    h.
    """

    metric: str
    count: int
    never: int
    out_of_range: int
    percentiles: list[Percentile]
    successes: Successes

    def at(self, p: float) -> Percentile:
        """The percentile ``p``. Raises KeyError when it was not computed."""
        for found in self.percentiles:
            if found.p == p:
                return found
        raise KeyError(f"P{p:g} of {self.metric} was not computed; there are: {[q.p for q in self.percentiles]}")


class IntervalSummary(msgspec.Struct, frozen=True, kw_only=True):
    """``high`` null: no upper end was found."""

    low: float
    high: float | None
    level: float
    method: str
    replicates: int


class AttainmentSummary(msgspec.Struct, frozen=True, kw_only=True):
    met: int
    total: int
    share: float | None
    target: float | None
    interval: IntervalSummary | None
    budget_spent: float | None


class PromiseSummary(msgspec.Struct, frozen=True, kw_only=True):
    """``promise``: ``attainment`` or e.g. ``ttft_p99``. ``value`` and ``limit`` are shares for attainment, else ms;
    ``value`` is null when the event was never reached.
    """

    promise: str
    value: float | None
    limit: float
    interval: IntervalSummary | None
    verdict: str
    why: str
    sentence: str


class Rates(msgspec.Struct, frozen=True, kw_only=True):
    """Work done inside the window, whenever it arrived: requests that ended OK there, output tokens delivered there,
    and with the prompts whose first token came there the total.
    """

    requests_per_s: float
    output_tokens_per_s: float
    total_tokens_per_s: float


class Goodput(msgspec.Struct, frozen=True, kw_only=True):
    """Of the requests that arrived in the window and met every limit."""

    requests_per_s: float
    output_tokens_per_s: float


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """``offered_per_s``: as configured. ``planned``: arrivals that the schedule held in the window. ``arrived``: those
    that really entered. ``sent``: those sent on to a server. Null where unknown.
    """

    offered_per_s: float | None
    planned: int | None
    arrived: int
    arrived_per_s: float
    sent: int


class Waiting(msgspec.Struct, frozen=True, kw_only=True):
    """Where the time to the first token went, as shares of its sum over requests that ended OK: in our queue, at the
    server (sent to first token), and in the generator itself (lateness and connecting). Null where a stamp is unknown.
    """

    our_queue: float | None
    server: float | None
    generator: float | None


class PrefixCache(msgspec.Struct, frozen=True, kw_only=True):
    """What the server's prefix cache gave: of the ``requests`` that state their cached tokens, those of all their prompts;
    ``hit_share`` = ``cached_prompt_tokens`` / ``prompt_tokens``.
    """

    requests: int
    prompt_tokens: int
    cached_prompt_tokens: int
    hit_share: float


class TenantSummary(msgspec.Struct, frozen=True, kw_only=True):
    """``prefix_cache``: null when no request states its cached tokens."""

    tenant: str
    weight: float | None
    requests: int
    statuses: dict[str, int]
    error_classes: dict[str, int]
    planned_cancels: int
    outside_window: int
    prompt_tokens: int
    output_tokens: int
    load: Load
    throughput: Rates
    goodput: Goodput
    attainment: AttainmentSummary | None
    verdict: str
    promises: list[PromiseSummary]
    waiting: Waiting
    metrics: list[MetricSummary]
    prefix_cache: PrefixCache | None = None

    @property
    def hit_share(self) -> float | None:
        """The cache hit share; None when no request states its cached tokens."""
        return None if self.prefix_cache is None else self.prefix_cache.hit_share

    def metric(self, name: str) -> MetricSummary:
        """Raises KeyError for a metric that is not there."""
        for found in self.metrics:
            if found.metric == name:
                return found
        raise KeyError(f"no metric {name!r}; there are: {[m.metric for m in self.metrics]}")


class Fairness(msgspec.Struct, frozen=True, kw_only=True):
    """Jain's index over service / max-min entitlement, of consecutive windows: mean and least; null with fewer than two
    tenants or without service.
    """

    jain_mean: float | None
    jain_min: float | None
    window_s: float


class LatenessSummary(msgspec.Struct, frozen=True, kw_only=True):
    """The generator's own lateness; P99 above ``bound_ms`` makes the run invalid."""

    p50_ms: float | None
    p99_ms: float | None
    max_ms: float | None
    bound_ms: float


class Validity(msgspec.Struct, frozen=True, kw_only=True):
    valid: bool
    reasons: list[str]


class Host(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    system: str
    machine: str
    cpus: int | None


class Git(msgspec.Struct, frozen=True, kw_only=True):
    commit: str
    dirty: bool


class SeriesSummary(msgspec.Struct, frozen=True, kw_only=True):
    """One entry an interval from the run's start; TTFT in ms, null where no request arrived or got a first token."""

    tenant: str
    interval_s: float
    arrivals: list[int]
    completions: list[int]
    failures: list[int]
    output_tokens: list[float]
    ttft_p50_ms: list[float | None]
    ttft_p99_ms: list[float | None]
    in_flight: list[int]
    queued: list[int]


class SlotsOverTime(msgspec.Struct, frozen=True, kw_only=True):
    """How a controller moved D of one backend: ``sequences[k]`` from ``time_s[k]`` on (long series are thinned; the
    figures are of all moves). ``mean_sequences`` is over time.
    """

    backend: str
    time_s: list[float]
    sequences: list[int]
    final_sequences: int
    least_sequences: int
    most_sequences: int
    mean_sequences: float


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """``plan``: the resolved plan as plain data, references in place of secrets. ``kind``: live, simulated, gateway or
    imported. ``queueing``: who queues, ``policy`` or ``target``. ``warnings``: what a reader should know and that does
    not make the run invalid. ``slots_over_time``: empty where nothing moved the slots.
    """

    schema: str
    kind: str
    created_utc: str
    versions: dict[str, str]
    host: Host
    git: Git | None
    seed: int | None
    plan: dict[str, Any] | None
    load_mode: str
    queueing: str
    policy: str | None
    policy_options: dict[str, Any] | None
    slots: dict[str, Any] | None
    server: dict[str, Any] | None
    start_utc: str | None
    duration_s: float
    window_s: tuple[float, float]
    percentiles: list[float]
    verdict: str
    validity: Validity
    warnings: list[str]
    lateness: LatenessSummary
    fairness: Fairness
    tenants: list[TenantSummary]
    total: TenantSummary
    series: list[SeriesSummary]
    slots_over_time: list[SlotsOverTime] = []

    def tenant(self, name: str) -> TenantSummary:
        """Raises KeyError for a tenant that is not there."""
        for found in self.tenants:
            if found.tenant == name:
                return found
        raise KeyError(f"no tenant {name!r}; there are: {[t.tenant for t in self.tenants]}")
