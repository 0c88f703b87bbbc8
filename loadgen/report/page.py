"""One self-contained HTML file: templates, figures as data, and plotly.js, which the page unpacks itself.

plotly.js travels compressed: the file is less than half as large, and holds no address of a foreign host in clear. A
content security policy in the page forbids every network access, so that a report opened anywhere stays offline. All
tables are plain HTML: they are there before, and without, the figures.
"""

from __future__ import annotations

import base64
import gzip
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import msgspec
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from loadgen.report import sentences, text
from loadgen.report.plots import Plot

_COMPRESSION = 6
_BREAKS_OUT = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"}


def page(template: str, plots: Sequence[Plot], **context: Any) -> str:  # noqa: ANN401 (what the template names)
    """The text of a report from a template of this package."""
    return (
        _environment()
        .get_template(template)
        .render(
            plots={plot.key: plot for plot in plots},
            figure_data=figures_json(plots),
            library=plotly_packed() if plots else "",
            **context,
        )
    )


def figures_json(plots: Sequence[Plot]) -> Markup:
    """The figures as JSON that may stand inside a script element, whatever names it holds."""
    encoded = msgspec.json.encode({plot.key: {"data": plot.traces, "layout": plot.layout} for plot in plots}).decode()
    for character, escape in _BREAKS_OUT.items():
        encoded = encoded.replace(character, escape)
    return Markup(encoded)  # noqa: S704 (nothing in it can end the script element: see above)


@lru_cache(maxsize=1)
def plotly_packed() -> str:
    """plotly.js, compressed, in base64; the same bytes every time, so that equal runs give equal reports."""
    from plotly.offline import get_plotlyjs  # noqa: PLC0415 (heavy, and only a report needs it)

    packed = gzip.compress(get_plotlyjs().encode(), _COMPRESSION, mtime=0)
    return base64.b64encode(packed).decode("ascii")


@lru_cache(maxsize=1)
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("loadgen.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals.update(text=text, sentences=sentences)
    return environment
