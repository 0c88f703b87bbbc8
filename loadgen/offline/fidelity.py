"""How well a simulated run reproduces a captured one: signed errors, metric by metric, tenant by tenant.

Both runs were recorded by the same recorder and are read by the same measures. An error is ``simulated / captured - 1``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from loadgen.offline.cell import throughput
from loadgen.recorder import Recorder
from tenants.slo import Metric

TOTAL = "all"


@dataclass(frozen=True, slots=True)
class FidelityRow:
    """``captured`` and ``simulated`` in ms (throughput: tokens/s); None where one of them has no such figure."""

    tenant: str
    metric: str
    captured: float | None
    simulated: float | None

    @property
    def error(self) -> float | None:
        """Signed, as a fraction."""
        if self.captured is None or self.simulated is None or self.captured == 0:
            return None
        return self.simulated / self.captured - 1.0


_FIGURES: tuple[tuple[str, Metric, float | None], ...] = (
    ("TTFT P50", Metric.TTFT, 50.0),
    ("TTFT P90", Metric.TTFT, 90.0),
    ("TTFT P99", Metric.TTFT, 99.0),
    ("TPOT mean", Metric.TPOT, None),
    ("TPOT P99", Metric.TPOT, 99.0),
    ("ITL P99", Metric.INTER_CHUNK, 99.0),
    ("E2E mean", Metric.E2E, None),
    ("E2E P99", Metric.E2E, 99.0),
)


def fidelity(captured: Recorder, simulated: Recorder) -> list[FidelityRow]:
    """One row a figure for the total, then for each tenant; throughput for the total only."""
    rows = []
    names: list[str | None] = [None, *(tenant.name for tenant in captured.tenants)]
    if len(captured.tenants) == 1:
        names = [None]
    for name in names:
        for label, metric, percentile in _FIGURES:
            read = _reader(metric, percentile, name)
            rows.append(FidelityRow(name or TOTAL, label, read(captured), read(simulated)))
    speeds = [throughput(recorder.columns().judged()) or None for recorder in (captured, simulated)]
    rows.append(FidelityRow(TOTAL, "throughput", speeds[0], speeds[1]))
    return rows


def _reader(metric: Metric, percentile: float | None, tenant: str | None) -> Callable[[Recorder], float | None]:
    def read(recorder: Recorder) -> float | None:
        histogram = recorder.successes(metric, tenant)
        if not histogram.count:
            return None
        if percentile is None:
            mean = histogram.mean_successes_ns
            return None if mean is None else mean / 1e6
        value = histogram.percentile_successes(percentile).value_ns
        return None if value is None else value / 1e6

    return read
