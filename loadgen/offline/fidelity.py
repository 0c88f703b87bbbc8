"""How well a simulated run reproduces a captured one: signed errors, metric by metric, tenant by tenant.

Both runs were recorded by the same recorder and are read by the same measures: from rows, so that a figure is the one that
stands in whatever is compared with it; gaps between tokens, of which rows keep no list, from histograms. An error is
``simulated / captured - 1``.
"""

from __future__ import annotations

from dataclasses import dataclass

from loadgen.offline.cell import throughput
from loadgen.recorder import Recorder
from tenants.measures.columns import Columns, Int64s, StatusCode
from tenants.measures.histogram import Histogram
from tenants.measures.percentile import has_column, mean_successes_ns, metric_values, percentile_successes
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


HOW_READ = "latencies: of the requests that succeeded; ITL from a histogram (within 0.1%), all else from rows"
"""What a table of them says below it."""


def fidelity(captured: Recorder, simulated: Recorder) -> list[FidelityRow]:
    """One row a figure for the total, then for each tenant; throughput for the total only, the share of prompt tokens that the
    prefix cache held where either run states it.
    """
    rows = []
    recorders = (captured, simulated)
    seen = [recorder.columns().judged() for recorder in recorders]
    names: list[str | None] = [None, *(tenant.name for tenant in captured.tenants)]
    if len(captured.tenants) == 1:
        names = [None]
    for name in names:
        own = [columns if name is None else columns.of(name) for columns in seen]
        ok = [columns.select(columns.status == StatusCode.OK) for columns in own]
        for label, metric, percentile in _FIGURES:
            figures = [
                _of_rows(metric_values(columns, metric), percentile)
                if has_column(metric)
                else _of_histogram(recorder.successes(metric, name), percentile)
                for recorder, columns in zip(recorders, ok, strict=True)
            ]
            rows.append(FidelityRow(name or TOTAL, label, *figures))
        hits = [_hit_percent(columns) for columns in own]
        if hits != [None, None]:
            rows.append(FidelityRow(name or TOTAL, _HIT_SHARE, *hits))
    speeds = [throughput(columns) or None for columns in seen]
    rows.append(FidelityRow(TOTAL, _THROUGHPUT, *speeds))
    return rows


def _hit_percent(columns: Columns) -> float | None:
    share = cache_hits(columns).share
    return None if share is None else 100.0 * share


def _of_rows(values_ns: Int64s, p: float | None) -> float | None:
    """ms of what was measured: a percentile, or (None) the mean."""
    return _ms(mean_successes_ns(values_ns) if p is None else percentile_successes(values_ns, p).value_ns)


def _of_histogram(found: Histogram, p: float | None) -> float | None:
    if not found.count:
        return None
    return _ms(found.mean_successes_ns if p is None else found.percentile_successes(p).value_ns)


def _ms(value_ns: float | None) -> float | None:
    return None if value_ns is None else value_ns / 1e6
