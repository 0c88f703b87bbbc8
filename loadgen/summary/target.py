"""Whether the server of a run was there at all: what a summary says of it, in one sentence."""

from __future__ import annotations

from loadgen.live.failures import REFUSALS
from loadgen.live.outage import UNREACHABLE
from loadgen.summary.schema import Summary

STOPPED_S = "stopped_answering_s"
LOST = "requests_after_it_stopped"
"""Keys of ``Summary.server``."""


def target_failed(summary: Summary) -> str | None:
    """What became of the server when the run cannot be a verdict on its latencies; None for one that served."""
    total, server = summary.total, summary.server or {}
    stopped_s = server.get(STOPPED_S)
    if stopped_s is not None:
        lost = server.get(LOST, 0)
        when = f"{stopped_s:,.1f} s into the run" if stopped_s else "before it ever answered"
        return f"the server stopped answering {when}: all of the {lost:,} requests that came to it later were lost"
    unreached = sum(total.error_classes.get(str(kind), 0) for kind in UNREACHABLE)
    if 2 * unreached > total.requests:
        return f"{unreached:,} of {total.requests:,} requests found no server: refused, reset or not connected"
    classes = set(total.error_classes)
    if not total.statuses.get("ok") and classes and classes <= {str(kind) for kind in REFUSALS}:
        return "the server refused every request"
    return None
