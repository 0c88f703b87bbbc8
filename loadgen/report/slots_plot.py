"""How the slots moved, drawn over the run's time."""

from __future__ import annotations

from collections.abc import Sequence

from loadgen.report.plots import Plot, axis, layout, safe
from loadgen.summary.schema import SlotsOverTime

_DASHES = ("solid", "dash", "dot", "dashdot", "longdash")


def slots_plots(moved: Sequence[SlotsOverTime], end_s: float) -> list[Plot]:
    """One figure with a step line for each backend; none where nothing moved them. A line has no tenant's colour."""
    if not moved:
        return []
    traces = [
        {
            "x": [*one.time_s, end_s],
            "y": [*one.sequences, one.final_sequences],
            "name": safe(one.backend),
            "mode": "lines",
            "line": {"color": "ink", "width": 1.5, "shape": "hv", "dash": _DASHES[number % len(_DASHES)]},
            "hovertemplate": f"{safe(one.backend)}: %{{y:,}} slots from %{{x:,.1f}} s",
        }
        for number, one in enumerate(moved)
    ]
    x = axis("time since the start, s", range=[0, end_s])
    y = axis("requests at once", rangemode="tozero")
    return [Plot(key="series-slots", title="Slots, as they were moved", traces=traces, layout=layout(x, y))]
