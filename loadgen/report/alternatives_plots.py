"""The figures of alternatives: each alternative on the axis, a line for each policy in its colour."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from loadgen.offline.verdicts import Figure, PolicyVerdict
from loadgen.report.comparison import Comparison, tail_of
from loadgen.report.palette import Look
from loadgen.report.plots import Axis, Plot, Trace, axis, layout, log_axis, safe
from loadgen.report.text import share, target

_LABEL = 24
"""Characters of a name below the axis; the whole of it is in the tables and in what hovers."""
_SIDE_BY_SIDE, _LEANING_PX = 40, 5
"""Characters of all names that stand side by side on a narrow screen; room for each of a leaning one."""


def alternatives_plots(comparisons: Sequence[Comparison], looks: Mapping[str, Look]) -> list[Plot]:
    """Worst attainment, TTFT P99 and decay of those in contract, against the alternative. ``looks``: of the policies."""
    tails = [tail_of(verdict, each).value for each in comparisons for verdict in each.verdicts]
    plots = [
        _lines(
            "attainment",
            "The least attained tenant in contract",
            comparisons,
            looks,
            lambda verdict, _: verdict.worst_attainment,
            axis("attainment", tickformat="~%"),
            text=lambda value: share(value, 2),
            lines=_targets(comparisons),
        ),
        _lines(
            "ttft",
            "TTFT P99, mean over the tenants in contract",
            comparisons,
            looks,
            tail_of,
            log_axis("TTFT P99, ms", [value / 1e6 for value in tails if value is not None]),
            times=1e-6,
            text=lambda value: f"{value:,.4g} ms",
        ),
        _lines(
            "decay",
            "P99 decay of the tenants in contract",
            comparisons,
            looks,
            lambda verdict, _: verdict.decay_in_contract,
            log_axis("decay", [verdict.decay_in_contract.value for each in comparisons for verdict in each.verdicts]),
            text=lambda value: f"{value:,.2f}",
        ),
    ]
    return [plot for plot in plots if any(trace["meta"] and trace["x"] for trace in plot.traces)]


def _lines(
    key: str,
    title: str,
    comparisons: Sequence[Comparison],
    looks: Mapping[str, Look],
    figure: Callable[[PolicyVerdict, Comparison], Figure],
    y: Axis,
    *,
    text: Callable[[float], str],
    times: float = 1.0,
    lines: Sequence[Trace] = (),
) -> Plot:
    traces: list[Trace] = list(lines)
    for label, look in looks.items():
        found = [
            (place, each.name, figure(verdict, each))
            for place, each in enumerate(comparisons)
            for verdict in each.verdicts
            if verdict.label == label
        ]
        known = [
            (place, name, of.value * times, of.interval, of.bound) for place, name, of in found if of.value is not None
        ]
        # A line joins neighbours alone: between alternatives that it was not simulated in it would show what nobody knows.
        y_of = {place: value for place, _, value, _, _ in known}
        places = list(range(min(y_of), max(y_of) + 1)) if y_of else []
        traces.append(
            {
                "x": places,
                "y": [y_of.get(place) for place in places],
                "name": safe(label),
                "meta": look.key,
                "mode": "lines",
                "connectgaps": False,
                "line": {"color": look.colour, "dash": look.dash, "width": 2},
                "hoverinfo": "skip",
            }
        )
        traces.append(
            {
                "x": [place for place, *_ in known],
                "y": [value for _, _, value, _, _ in known],
                "name": safe(label),
                "meta": look.key,
                "mode": "markers",
                "cliponaxis": False,
                "marker": {
                    "size": 8,
                    "color": look.colour,
                    "symbol": ["triangle-up" if bound else "circle" for *_, bound in known],
                },
                "error_y": {
                    "type": "data",
                    "symmetric": False,
                    "array": [0.0 if i is None else max(i.high * times - v, 0.0) for _, _, v, i, _ in known],
                    "arrayminus": [0.0 if i is None else max(v - i.low * times, 0.0) for _, _, v, i, _ in known],
                    "color": look.colour,
                    "thickness": 1.5,
                },
                "text": [safe(f"{name}: {text(value)}") for _, name, value, _, _ in known],
                "hovertemplate": "%{text}",
            }
        )
    bound = any("triangle-up" in trace.get("marker", {}).get("symbol", ()) for trace in traces)
    notes = ["▲ a lower bound: the P99 was never reached"] if bound else []
    notes += ["dotted: the target"] if lines else []
    names = [each.name if len(each.name) <= _LABEL else f"{each.name[: _LABEL - 1]}…" for each in comparisons]
    # Many labels lean to the right, out of the figure at its end.
    right = 16 + (_LEANING_PX * len(names[-1]) if sum(map(len, names)) > _SIDE_BY_SIDE else 0)
    return Plot(f"alternatives-{key}", title, traces, layout(_names(names), y, right=right), "; ".join(notes))


def _names(names: Sequence[str]) -> Axis:
    return axis(
        "",
        tickmode="array",
        tickvals=list(range(len(names))),
        ticktext=[safe(name) for name in names],
        ticklabeloverflow="allow",
        range=[-0.4, len(names) - 0.6],
        showgrid=False,
    )


def _targets(comparisons: Sequence[Comparison]) -> list[Trace]:
    promised = {value for each in comparisons for name, value in each.targets.items() if name in each.in_contract}
    return [
        {
            "x": [-0.4, len(comparisons) - 0.6],
            "y": [value, value],
            "name": "target",
            "meta": "",
            "mode": "lines",
            "line": {"color": "rgba(128,128,128,0.9)", "width": 1, "dash": "dot"},
            "hovertemplate": f"target {target(value)}",
        }
        for value in sorted(promised)
    ]
