"""The figures of a comparison: each policy on the axis, each tenant in its colour, intervals as bars."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from loadgen.offline.verdicts import Figure, PolicyVerdict, TenantVerdict
from loadgen.report.comparison import Comparison
from loadgen.report.palette import Look
from loadgen.report.plots import Axis, Plot, Trace, axis, layout, log_axis, safe
from loadgen.report.text import share, target

Hover = str | Callable[[float], str]
_SPREAD = 0.5
"""Share of a policy's room over which its tenants are spread."""

INK = "ink"
"""Stands for the colour of text, which only the page knows."""


def comparison_plots(comparison: Comparison, looks: Mapping[str, Look], *, suffix: str = "") -> list[Plot]:
    """Attainment and TTFT P99 by tenant; decay, rho and throughput by policy. None without verdicts. ``suffix``: ends the
    key of each, where a page has several comparisons."""
    return [replace(plot, key=plot.key + suffix) for plot in _plots(comparison, looks)]


def _plots(comparison: Comparison, looks: Mapping[str, Look]) -> list[Plot]:
    verdicts = comparison.verdicts
    if not verdicts:
        return []
    attained = [
        _by_tenant(
            "attainment",
            f"Attainment under {comparison.raised}",
            verdicts,
            looks,
            figure=lambda tenant: tenant.attainment,
            y=axis("attainment", tickformat="~%"),
            times=1.0,
            highest=1.0,
            hover=lambda value: share(value, 2),
            lines=_targets(comparison, looks),
        ),
    ]
    if all(tenant.attainment.value is None for verdict in verdicts for tenant in verdict.raised.values()):
        attained = []
    return [
        *attained,
        _by_tenant(
            "ttft",
            f"TTFT P99 under {comparison.raised}",
            verdicts,
            looks,
            figure=lambda tenant: tenant.ttft_p99,
            y=log_axis("TTFT P99, ms", _known_ms(verdicts)),
            times=1e-6,
            highest=math.inf,
            hover=",.4~g",
        ),
        _by_policy(
            "decay",
            "P99 decay of the tenants in contract",
            verdicts,
            lambda verdict: verdict.decay_in_contract,
            axis("decay", rangemode="tozero"),
            reference=1.0,
        ),
        _by_policy(
            "rho",
            "Interference rho of the tenants in contract",
            verdicts,
            lambda verdict: verdict.rho,
            axis("rho"),
            reference=0.0,
        ),
        _by_policy(
            "throughput",
            f"Throughput under {comparison.raised}",
            verdicts,
            lambda verdict: verdict.throughput,
            axis("output tokens/s", rangemode="tozero"),
        ),
    ]


def _known_ms(verdicts: Sequence[PolicyVerdict]) -> list[float]:
    found = [tenant.ttft_p99.value for verdict in verdicts for tenant in verdict.raised.values()]
    return [value / 1e6 for value in found if value is not None]


def _policies(verdicts: Sequence[PolicyVerdict]) -> Axis:
    """Policies at whole numbers, so that tenants can be set beside each other around each."""
    places = list(range(len(verdicts)))
    labels = [safe(verdict.label) for verdict in verdicts]
    return axis(
        "policy",
        tickmode="array",
        tickvals=places,
        ticktext=labels,
        range=[-0.5, len(verdicts) - 0.5],
        showgrid=False,
    )


def _by_tenant(
    key: str,
    title: str,
    verdicts: Sequence[PolicyVerdict],
    looks: Mapping[str, Look],
    *,
    figure: Callable[[TenantVerdict], Figure],
    y: Axis,
    times: float,
    highest: float,
    hover: Hover,
    lines: Sequence[Trace] = (),
) -> Plot:
    names = [name for name in verdicts[0].raised if name in looks]
    traces: list[Trace] = list(lines)
    for k, name in enumerate(names):
        offset = _SPREAD * ((k + 0.5) / len(names) - 0.5)
        found = [figure(verdict.raised[name]) for verdict in verdicts]
        traces.append(_points(found, looks[name], name, offset=offset, times=times, highest=highest, hover=hover))
    return Plot(f"policies-{key}", title, traces, layout(_policies(verdicts), y), _note(traces))


def _by_policy(
    key: str,
    title: str,
    verdicts: Sequence[PolicyVerdict],
    figure: Callable[[PolicyVerdict], Figure],
    y: Axis,
    *,
    reference: float | None = None,
) -> Plot:
    found = [figure(verdict) for verdict in verdicts]
    traces = [_points(found, Look("", INK, "solid"), "", offset=0.0, times=1.0, highest=math.inf, hover=",.3~f")]
    shapes = []
    if reference is not None:
        shapes.append({"type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": reference, "y1": reference})
    lines = [{**shape, "line": {"color": "rgba(128,128,128,0.8)", "width": 1}} for shape in shapes]
    return Plot(f"policies-{key}", title, traces, layout(_policies(verdicts), y, shapes=lines), _note(traces))


def _points(
    found: Sequence[Figure], look: Look, name: str, *, offset: float, times: float, highest: float, hover: Hover
) -> Trace:
    """``times``: from the figure's unit to the axis's; ``highest``: the largest value that is possible; ``hover``: how a value
    is written, as a format of the library's or by a function."""
    places = [i + offset for i, one in enumerate(found) if one.value is not None]
    known = [one for one in found if one.value is not None]
    values = [(one.value or 0.0) * times for one in known]
    above, below = [], []
    for one, value in zip(known, values, strict=True):
        interval = one.interval
        # An interval of a share may reach past 1, where nothing is possible: it is drawn up to there.
        above.append(0.0 if interval is None else max(min(interval.high * times, highest) - value, 0.0))
        below.append(0.0 if interval is None else max(value - interval.low * times, 0.0))
    return {
        "x": places,
        "y": values,
        "name": safe(name),
        "meta": look.key,
        "mode": "markers",
        "cliponaxis": False,
        "marker": {
            "size": 10,
            "color": look.colour,
            "symbol": ["triangle-up" if one.bound else "circle" for one in known],
        },
        "error_y": {
            "type": "data",
            "symmetric": False,
            "array": above,
            "arrayminus": below,
            "color": look.colour,
            "thickness": 1.5,
            "width": 4,
        },
        **({"hovertemplate": f"%{{y:{hover}}}"} if isinstance(hover, str) else _written(values, hover)),
    }


def _written(values: Sequence[float], text: Callable[[float], str]) -> Trace:
    return {"text": [text(value) for value in values], "hovertemplate": "%{text}"}


def _targets(comparison: Comparison, looks: Mapping[str, Look]) -> list[Trace]:
    end = len(comparison.verdicts) - 0.5
    return [
        {
            "x": [-0.5, end],
            "y": [promised, promised],
            "name": safe(name),
            "meta": looks[name].key,
            "mode": "lines",
            "line": {"color": looks[name].colour, "width": 1, "dash": "dot"},
            "hovertemplate": f"target {target(promised)}",
        }
        for name, promised in comparison.targets.items()
        if name in looks
    ]


def _note(traces: Sequence[Trace]) -> str:
    notes = []
    if any(any(trace.get("error_y", {}).get("array", ())) for trace in traces):
        notes.append("bars: 95% interval over seeds")
    if any("triangle-up" in trace.get("marker", {}).get("symbol", ()) for trace in traces if "error_y" in trace):
        notes.append("▲ a lower bound: in some seed the P99 was never reached")
    if any(trace.get("line", {}).get("dash") == "dot" for trace in traces):
        notes.append("dotted: the target")
    return "; ".join(notes)
