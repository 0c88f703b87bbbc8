"""The figures by which a replayed capture is compared with the captured one, and their signed relative errors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from scheduler.calibration.observations import Floats, Int64s, Observations

PERCENTILES = (50, 90, 99)


def figures(seen: Observations) -> dict[str, float]:
    """TTFT, TPOT and E2E (from sending, ns; mean, P50, P90, P99), the gaps between chunks (P50, P90, P99; only where the
    capture has them) and output tokens/s from the first sending to the last token."""
    many = seen.output_tokens > 1
    found: dict[str, float] = {}
    for name, values in (
        ("ttft", seen.first_ns - seen.sent_ns),
        ("tpot", (seen.last_ns - seen.first_ns)[many] / (seen.output_tokens[many] - 1)),
        ("e2e", seen.last_ns - seen.sent_ns),
    ):
        if len(values):
            found[f"{name}_mean"] = float(np.mean(values))
            found.update({f"{name}_p{p}": float(np.percentile(values, p)) for p in PERCENTILES})
    if seen.gaps_ns is not None and len(seen.gaps_ns):
        order = np.argsort(seen.gaps_ns, kind="stable")
        weights = np.ones(len(order), dtype=np.int64) if seen.gap_counts is None else seen.gap_counts[order]
        found.update({f"itl_p{p}": _weighted(seen.gaps_ns[order], weights, p) for p in PERCENTILES})
    span_ns = float(seen.last_ns.max() - seen.sent_ns.min())
    if span_ns > 0:
        found["throughput"] = float(seen.output_tokens.sum()) / span_ns * 1e9
    return found


def _weighted(values: Int64s, counts: Int64s, percentile: int) -> float:
    reached: Floats = np.cumsum(counts) / counts.sum()
    return float(values[np.searchsorted(reached, percentile / 100)])


def errors(measured: dict[str, float], simulated: dict[str, float]) -> dict[str, float]:
    """simulated / measured - 1, for the figures that both have and that are not 0 when measured."""
    return {name: simulated[name] / value - 1 for name, value in measured.items() if value > 0 and name in simulated}


def mean_errors(found: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The mean of the absolute errors, by figure, over those of ``found`` that have it."""
    names = dict.fromkeys(name for one in found for name in one)
    return {name: float(np.mean([abs(one[name]) for one in found if name in one])) for name in names}
