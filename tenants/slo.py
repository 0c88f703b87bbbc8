"""Service level objectives of one tenant: what is promised, as data.

Two kinds of promise, which may stand together:

* *per-request limits* (``ttft``, ``tpot``, ``e2e``, ``max_itl``), all to be met by one request, and one ``attainment``
  target: the share of requests that must meet all of them;
* *objectives*: a percentile of one metric over the tenant's requests stays below a limit.

Judging is in :mod:`tenants.verdict`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Metric(StrEnum):
    """A latency of one request (definitions: docs/definitions.md). All are ints in ns from the intended arrival, except
    ``TPOT``, ``ITL`` and ``MAX_ITL``, which are ns between tokens, and ``BACKEND_TTFT``, from the last byte sent."""

    TTFT = "ttft"
    BACKEND_TTFT = "backend_ttft"
    TPOT = "tpot"
    ITL = "itl"
    INTER_CHUNK = "inter_chunk"
    MAX_ITL = "max_itl"
    E2E = "e2e"
    QUEUE = "queue_time"
    OWN_LATENESS = "own_lateness"


@dataclass(frozen=True, slots=True, kw_only=True)
class Objective:
    """``percentile`` (0 < p < 100) of ``metric`` over the tenant's requests is at most ``limit_ns``."""

    metric: Metric
    percentile: float
    limit_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Slo:
    """Per-request limits in ns (None: no limit), the attainment target (0 < target < 1; None only without limits) and
    the percentile objectives."""

    ttft_ns: int | None = None
    tpot_ns: int | None = None
    e2e_ns: int | None = None
    max_itl_ns: int | None = None
    attainment: float | None = None
    objectives: tuple[Objective, ...] = ()

    @property
    def has_limits(self) -> bool:
        """True when at least one per-request limit is set."""
        return any(v is not None for v in (self.ttft_ns, self.tpot_ns, self.e2e_ns, self.max_itl_ns))

    @property
    def ttft_objective(self) -> Objective | None:
        """The TTFT promise that a policy steers by: the explicit TTFT objective, else the TTFT limit at the percentile
        that the attainment target implies, else None."""
        for objective in self.objectives:
            if objective.metric is Metric.TTFT:
                return objective
        if self.ttft_ns is None or self.attainment is None:
            return None
        return Objective(metric=Metric.TTFT, percentile=100.0 * self.attainment, limit_ns=self.ttft_ns)
