"""How well a replay predicts each tenant of a capture, and how many of its requests keep their promises."""

from __future__ import annotations

import numpy as np

from scheduler.calibration.figures import errors, figures
from scheduler.calibration.observations import Observations
from tenants.slo import Slo

SHOWN = ("ttft_p50", "ttft_p99", "tpot_mean", "tpot_p99", "e2e_mean")
ATTAINED = "attained"


def tenant_errors(captured: Observations, simulated: Observations) -> dict[str, dict[str, float]]:
    """By tenant, in the capture's order: simulated / captured - 1 of the figures in SHOWN, and under ATTAINED the difference
    of the shares (0 to 1) of requests that keep all limits. Both have the same requests, row by row. Empty where there is
    nothing to tell apart: one tenant without limits."""
    if captured.tenant is None or (len(captured.tenants) < 2 and not any(t.slo.has_limits for t in captured.tenants)):
        return {}
    found = {}
    for number, tenant in enumerate(captured.tenants):
        rows = np.flatnonzero(captured.tenant == number)
        if not len(rows):
            continue
        seen, told = captured.take(rows), simulated.take(rows)
        relative = errors(figures(seen), figures(told))
        found[tenant.name] = {name: relative[name] for name in SHOWN if name in relative}
        share, predicted = attained(seen, tenant.slo), attained(told, tenant.slo)
        if share is not None and predicted is not None:
            found[tenant.name][ATTAINED] = predicted - share
    return found


def attained(seen: Observations, slo: Slo) -> float | None:
    """The share of these requests that keep every limit; None without limits, and with one of the longest gap, which a replay
    does not know by request. What a request waited before it was sent counts as it was captured."""
    if not len(seen) or not slo.has_limits or slo.max_itl_ns is not None:
        return None
    waited = 0 if seen.waited_ns is None else seen.waited_ns
    tpot = (seen.last_ns - seen.first_ns) / np.maximum(seen.output_tokens - 1, 1)
    kept = np.ones(len(seen), dtype=np.bool_)
    for values, limit in (
        (seen.first_ns - seen.sent_ns + waited, slo.ttft_ns),
        (tpot, slo.tpot_ns),
        (seen.last_ns - seen.sent_ns + waited, slo.e2e_ns),
    ):
        if limit is not None:
            kept &= values <= limit
    return float(kept.mean())
