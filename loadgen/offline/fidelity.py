"""How well a simulated run reproduces a captured one: signed errors, metric by metric, tenant by tenant.

Both runs were recorded by the same recorder and are read by the same measures. An error is ``simulated / captured - 1``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from loadgen.offline.cell import throughput
from loadgen.recorder import Recorder
from tenants.measures.columns import Columns
from tenants.measures.prefix_cache import cache_hits
from tenants.slo import Metric

TOTAL = "all"

_THROUGHPUT, _HIT_SHARE = "throughput", "hit share"
_UNITS = {_THROUGHPUT: "tokens/s", _HIT_SHARE: "%"}


@dataclass(frozen=True, slots=True)
class FidelityRow:
    """``captured`` and ``simulated`` in ``unit``; None where one of them has no such figure."""

    tenant: str
    metric: str
    captured: float | None
    simulated: float | None

    @property
    def unit(self) -> str:
        """``ms``, ``tokens/s`` or ``%``."""
        return _UNITS.get(self.metric, "ms")

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
    """One row a figure for the total, then for each tenant; throughput for the total only, the share of prompt tokens that the
    prefix cache held where either run states it.
    """
    rows = []
    seen = [recorder.columns().judged() for recorder in (captured, simulated)]
    names: list[str | None] = [None, *(tenant.name for tenant in captured.tenants)]
    if len(captured.tenants) == 1:
        names = [None]
    for name in names:
        for label, metric, percentile in _FIGURES:
            read = _reader(metric, percentile, name)
            rows.append(FidelityRow(name or TOTAL, label, read(captured), read(simulated)))
        hits = [_hit_percent(columns if name is None else columns.of(name)) for columns in seen]
        if hits != [None, None]:
            rows.append(FidelityRow(name or TOTAL, _HIT_SHARE, *hits))
    speeds = [throughput(columns) or None for columns in seen]
    rows.append(FidelityRow(TOTAL, _THROUGHPUT, *speeds))
    return rows


def _hit_percent(columns: Columns) -> float | None:
    share = cache_hits(columns).share
    return None if share is None else 100.0 * share


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
