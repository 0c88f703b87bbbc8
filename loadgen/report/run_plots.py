"""The figures of one run: percentile curves and time series, one line a tenant."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from loadgen.report.curves import Curve
from loadgen.report.palette import Look
from loadgen.report.plots import Axis, Plot, Trace, axis, layout, log_axis, safe
from loadgen.report.text import METRIC_NAMES
from loadgen.report.thin import Drawn
from tenants.slo import Metric

_TICKS = ((2, "50%"), (10, "90%"), (100, "99%"), (1000, "99.9%"), (10_000, "99.99%"))
_LINE = 2
_MARKER = 8
_BODY_LEVEL, _SQUEEZED = 1 / (1 - 0.05), 5.0
"""From P5 on a curve is what matters; below it, how many times less squeezes the rest."""


def percentile_plots(curves: Sequence[Curve], looks: Mapping[str, Look]) -> list[Plot]:
    """TTFT, ITL and E2E; inter-chunk latency only for tenants whose chunks could not be split into tokens."""
    drawn = [curve for curve in curves if curve.tenant in looks]
    with_itl = {curve.tenant for curve in drawn if curve.metric == Metric.ITL}
    plots = []
    for metric in (Metric.TTFT, Metric.ITL, Metric.INTER_CHUNK, Metric.E2E):
        mine = [
            curve
            for curve in drawn
            if curve.metric == metric and not (metric is Metric.INTER_CHUNK and curve.tenant in with_itl)
        ]
        if mine:
            plots.append(_percentiles(metric, mine, looks))
    return plots


def _percentiles(metric: Metric, curves: Sequence[Curve], looks: Mapping[str, Look]) -> Plot:
    name = METRIC_NAMES[metric.value]
    traces = [trace for curve in curves for trace in _curve_traces(curve, looks[curve.tenant])]
    of = "gaps" if metric in {Metric.ITL, Metric.INTER_CHUNK} else "requests"
    notes = []
    if any(curve.marks for curve in curves):
        notes.append("◇ a promise: its tenant's curve must pass below it")
    if any(curve.beyond_ms is not None for curve in curves):
        notes.append("▲ dotted: a lower bound, these requests never got there")
    values = [v for curve in curves for v in (*curve.values_ms, curve.beyond_ms, *(m.limit_ms for m in curve.marks))]
    ticks = {
        "tickmode": "array",
        "tickvals": [x for x, _ in _TICKS],
        "ticktext": [label for _, label in _TICKS],
        "tickangle": 0,
    }
    return Plot(
        key=f"curve-{metric.value}",
        title=f"{name} by percentile",
        traces=traces,
        layout=layout(axis(f"percentile of {of}", type="log", **ticks), _latencies(f"{name}, ms", values, curves)),
        note="; ".join(notes),
        tall=True,
    )


def _latencies(title: str, values: Sequence[float | None], curves: Sequence[Curve]) -> Axis:
    """The axis of ``values``, cut off below where one gap that two tokens read together made would squeeze all that matters."""
    body = [
        v for curve in curves for level, v in zip(curve.levels, curve.values_ms, strict=True) if level >= _BODY_LEVEL
    ]
    body += [mark.limit_ms for curve in curves for mark in curve.marks]
    least = min((v for v in body if v > 0), default=0.0)
    lowest = min((v for curve in curves for v in curve.values_ms if v > 0), default=0.0)
    if lowest * _SQUEEZED >= least:
        return log_axis(title, values)
    most = max(v for v in values if v is not None)
    # Labels for what is seen.
    return log_axis(title, [least, most]) | {"range": [math.log10(least / 1.3), math.log10(most * 1.3)]}


def _curve_traces(curve: Curve, look: Look) -> list[Trace]:
    name = safe(curve.tenant)
    line = {"color": look.colour, "width": _LINE, "dash": look.dash}
    percent = [round(100 * (1 - 1 / level), 4) for level in curve.levels]
    traces: list[Trace] = [
        {
            "x": curve.levels,
            "y": curve.values_ms,
            "customdata": percent,
            "name": name,
            "meta": look.key,
            "mode": "lines",
            "line": line,
            "hovertemplate": "P%{customdata}: %{y:,.4~g} ms",
        }
    ]
    if curve.beyond_ms is not None:
        start = curve.levels[-1] if curve.levels else 1.0
        traces.append(
            {
                "x": [start, max(curve.end_level, start)],
                "y": [curve.beyond_ms, curve.beyond_ms],
                "name": name,
                "meta": look.key,
                "mode": "lines+markers",
                "line": {**line, "dash": "dot"},
                "marker": {"symbol": "triangle-up", "size": _MARKER, "color": look.colour},
                "hovertemplate": "> %{y:,.4~g} ms (never reached)",
            }
        )
    if curve.marks:
        traces.append(
            {
                "x": [mark.level for mark in curve.marks],
                "y": [mark.limit_ms for mark in curve.marks],
                "customdata": [round(100 * (1 - 1 / mark.level), 4) for mark in curve.marks],
                "name": name,
                "meta": look.key,
                "mode": "markers",
                "marker": {"symbol": "diamond-open", "size": _MARKER + 3, "color": look.colour, "line": {"width": 2}},
                "hovertemplate": "promised: P%{customdata} at most %{y:,.4~g} ms",
            }
        )
    return traces


def series_plots(series: Sequence[Drawn], looks: Mapping[str, Look], window_s: tuple[float, float]) -> list[Plot]:
    """Six figures over the same time axis. ``series``: those of tenants in ``looks`` are drawn."""
    mine = [one for one in series if one.tenant in looks]
    if not mine:
        return []
    wide = max(one.joined for one in mine)
    per = f"{mine[0].interval_s:g} s"
    peak = f"largest value of each {per}" if wide > 1 else ""
    end_s = max(one.time_s[-1] + one.interval_s / 2 for one in mine)
    outside = _outside(window_s, end_s)
    x = axis("time since the start, s", range=[0, end_s])
    ttft, ttft_note = _ttft(mine, looks)

    def plot(key: str, title: str, y: Axis, traces: list[Trace], note: str = "") -> Plot:
        return Plot(key=f"series-{key}", title=title, traces=traces, layout=layout(x, y, shapes=outside), note=note)

    from_zero = {"rangemode": "tozero"}
    return [
        plot(
            "arrivals",
            "Arrivals",
            axis("requests/s", **from_zero),
            [_line(one, looks, one.arrivals, "%{y:,.1f} requests/s") for one in mine],
        ),
        plot(
            "completions",
            "Completions",
            axis("requests/s", **from_zero),
            [_line(one, looks, one.completions, "%{y:,.1f} requests/s") for one in mine],
        ),
        plot(
            "ttft",
            "TTFT P99 (solid) and P50 (thin)",
            log_axis("TTFT, ms", [v for one in mine for v in (*one.ttft_p50_ms, *one.ttft_p99_ms)]),
            ttft,
            "; ".join(filter(None, [f"by arrival, {peak or f'each {per}'}", ttft_note])),
        ),
        plot(
            "tokens",
            "Output tokens",
            axis("tokens/s", **from_zero),
            [_line(one, looks, one.output_tokens, "%{y:,.0f} tokens/s") for one in mine],
        ),
        plot(
            "queued",
            "Waiting in our queue",
            axis("requests", **from_zero),
            [_line(one, looks, one.queued, "%{y:,} queued") for one in mine],
            peak,
        ),
        plot(
            "inflight",
            "In flight at the server",
            axis("requests", **from_zero),
            [_line(one, looks, one.in_flight, "%{y:,} in flight") for one in mine],
            peak,
        ),
    ]


def _line(
    one: Drawn, looks: Mapping[str, Look], values: Sequence[float | None], hover: str, width: float = 1.5
) -> Trace:
    look = looks[one.tenant]
    return {
        "x": one.time_s,
        "y": values,
        "name": safe(one.tenant),
        "meta": look.key,
        "mode": "lines",
        "line": {"color": look.colour, "width": width, "dash": look.dash},
        "hovertemplate": f"{hover} at %{{x:,.0f}} s",
    }


def _ttft(series: Sequence[Drawn], looks: Mapping[str, Look]) -> tuple[list[Trace], str]:
    traces: list[Trace] = []
    known = [value for one in series for value in one.ttft_p99_ms if value is not None]
    # A bound has no height of its own: it is drawn above all that was measured.
    top = 1.5 * max(known, default=1000.0)
    unreached = False
    for one in series:
        look = looks[one.tenant]
        traces.append(_points(_line(one, looks, one.ttft_p99_ms, "P99 %{y:,.4~g} ms")))
        traces.append({**_line(one, looks, one.ttft_p50_ms, "P50 %{y:,.4~g} ms", 0.8), "opacity": 0.7})
        times = [time for time, never in zip(one.time_s, one.unreached, strict=True) if never]
        if times:
            unreached = True
            traces.append(
                {
                    "x": times,
                    "y": [top] * len(times),
                    "name": safe(one.tenant),
                    "meta": look.key,
                    "mode": "markers",
                    "marker": {"symbol": "triangle-up", "size": _MARKER, "color": look.colour},
                    "hovertemplate": "P99 never reached at %{x:,.0f} s",
                }
            )
    return traces, "▲ P99 never reached, it lies above all that is drawn" if unreached else ""


def _points(line: Trace) -> Trace:
    """A tenant that sends rarely has seconds without any arrival: without points its lone values would not be seen."""
    colour = line["line"]["color"]
    return {**line, "mode": "lines+markers", "marker": {"size": 3, "color": colour}}


def _outside(window_s: tuple[float, float], end_s: float) -> list[dict[str, object]]:
    """Grey where nothing is counted."""
    spans = ((0.0, window_s[0]), (window_s[1], end_s))
    return [
        {
            "type": "rect",
            "xref": "x",
            "yref": "paper",
            "x0": start,
            "x1": stop,
            "y0": 0,
            "y1": 1,
            "fillcolor": "rgba(128,128,128,0.14)",
            "line": {"width": 0},
            "layer": "below",
        }
        for start, stop in spans
        if stop > start
    ]
