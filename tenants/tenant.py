"""One tenant: who it is, what it may use, what it was promised, and how it looks on the wire."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from tenants.slo import Slo


@dataclass(frozen=True, slots=True, kw_only=True)
class Contract:
    """A token bucket in cost units: ``rate`` (cost units/s) and ``burst`` (cost units). A tenant is in contract while its
    bucket, charged at arrival and corrected at the finish, is not negative."""

    rate: float
    burst: float


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueLimits:
    """What admission allows one tenant; None means no limit.

    ``max_queued`` requests waiting; ``requests_per_s`` and ``tokens_per_s`` token buckets (each with one second of burst
    unless ``burst_s`` says otherwise); ``ttl_ns`` the longest wait in the queue; ``shed_out_of_contract`` sheds arrivals
    while the contract's bucket is negative; ``reject_late`` refuses an arrival that cannot meet its TTFT limit.
    """

    max_queued: int | None = None
    requests_per_s: float | None = None
    tokens_per_s: float | None = None
    burst_s: float = 1.0
    ttl_ns: int | None = None
    shed_out_of_contract: bool = False
    reject_late: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """How a tenant presents itself to a server. ``api_key`` and header values may be references such as ``${env:NAME}``;
    they are kept as references here and resolved only where a request is put on the wire, never in anything written."""

    api_key: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    model: str | None = None
    base_url: str | None = None
    extra_body: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tenant:
    """``weight`` is the share phi (> 0); ``priority`` the strict class (lower first); ``expected_output_tokens`` where the
    output-length estimate starts."""

    name: str
    weight: float = 1.0
    priority: int = 0
    slo: Slo = field(default_factory=Slo)
    contract: Contract | None = None
    limits: QueueLimits = field(default_factory=QueueLimits)
    expected_output_tokens: float | None = None
    identity: Identity = field(default_factory=Identity)

    def __post_init__(self) -> None:
        if not 0 < self.weight < math.inf:
            raise ValueError(f"tenant {self.name!r}: weight must be > 0 and finite, got {self.weight}")
