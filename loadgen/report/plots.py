"""What every figure shares: it is plain data for plotly.js, with colours only where they mean a tenant.

Everything else (text, grid, paper) is coloured by the page, which knows whether it is light, dark or printed. Names go
into figures escaped, since plotly.js reads a subset of HTML in every text.
"""

from __future__ import annotations

import html
import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

Trace = dict[str, Any]
Axis = dict[str, Any]

_DECADES_WITH_1_2_5 = 2.0
_DECADES_WITH_1_3 = 4.0


@dataclass(frozen=True, slots=True)
class Plot:
    """``key`` is unique in a page; ``title`` and ``note`` stand above it, as text of the page."""

    key: str
    title: str
    traces: list[Trace]
    layout: dict[str, Any]
    note: str = ""
    tall: bool = False


def safe(name: str) -> str:
    """A name as text in a figure."""
    return html.escape(name, quote=True).replace("%{", "%&#123;")


def axis(title: str, **options: Any) -> Axis:  # noqa: ANN401 (plotly's own options, as they are)
    shared = {"automargin": True, "zeroline": False, "separatethousands": True}
    return {"title": {"text": title, "standoff": 8}, **shared, **options}


def log_axis(title: str, values: Iterable[float | None]) -> Axis:
    """A logarithmic axis for ``values``, with as many labels (1, 2, 5; 1, 3; or decades) as have room."""
    known = [value for value in values if value is not None and value > 0]
    low, high = min(known, default=1.0), max(known, default=1.0)
    decades = math.log10(high / low)
    steps = (1, 2, 5) if decades <= _DECADES_WITH_1_2_5 else (1, 3) if decades <= _DECADES_WITH_1_3 else (1,)
    ends = range(math.floor(math.log10(low)) - 1, math.ceil(math.log10(high)) + 2)
    ticks = [step * 10.0**k for k in ends for step in steps]
    labels = [f"{tick:,.12g}" for tick in ticks]
    return axis(f"{title} (log)", type="log", tickmode="array", tickvals=ticks, ticktext=labels)


def layout(x: Axis, y: Axis, *, right: int = 16, **options: Any) -> dict[str, Any]:  # noqa: ANN401 (see axis)
    """``right``: px beside the figure."""
    return {
        "xaxis": x,
        "yaxis": y,
        "showlegend": False,
        "hovermode": "closest",
        "margin": {"l": 64, "r": right, "t": 8, "b": 44},
        **options,
    }
