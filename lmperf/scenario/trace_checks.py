"""Rules of a scenario's trace: its format, and which tenant gets which row."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from lmperf.scenario.faults import Fault, Path, one_of
from lmperf.scenario.model import TraceModel
from lmperf.scenario.view import View, tenant_groups


def trace_faults(view: View) -> Iterator[Fault]:
    """The rules, when there is a trace."""
    path: Path = ("trace",)
    trace = view.part(path, TraceModel)
    if trace is None:
        return
    if view.known.trace_formats is not None and trace.format not in {*view.known.trace_formats, "auto"}:
        yield view.fault(
            (*path, "format"),
            f"unknown format `{trace.format}`",
            one_of(trace.format, {*view.known.trace_formats, "auto"}),
        )
    if not view.traced:
        yield view.fault(path, "no tenant's requests come from it", "remove rate, share, users or arrivals of a tenant")
    rule = trace.tenants
    if rule is None:
        return
    path = (*path, "tenants")
    takes = {"index": {"order"}, "column": {"column", "map"}, "prompt_tokens": {"order", "thresholds"}}[rule.by]
    needs = takes - {"map"}
    given = view.given(path) - {"by"}
    for key in sorted(given - takes):
        yield view.fault((*path, key), f"means nothing with by: {rule.by}", f"it takes {', '.join(sorted(takes))}")
    for key in sorted(needs - given):
        yield view.fault((*path, key), "is missing", f"by: {rule.by} needs it")
    named = [((*path, "order", i), name) for i, name in enumerate(rule.order or ())]
    named.extend(((*path, "map", value), name) for value, name in (rule.map or {}).items())
    groups = tenant_groups(view)
    for where, name in named:
        if name not in groups:
            yield view.fault(where, f"there is no tenant `{name}`", one_of(name, view.groups))
        elif groups[name] not in view.traced:
            yield view.fault(where, f"`{name}` has arrivals of its own", "remove its rate, share, users or arrivals")
    yield from _rising(view, path, rule.thresholds, rule.order)


def _rising(view: View, path: Path, thresholds: list[int] | None, order: list[str] | None) -> Iterator[Fault]:
    if thresholds is None or order is None:
        return
    if any(b <= a for a, b in pairwise(thresholds)):
        yield view.fault((*path, "thresholds"), "do not rise", "write them from small to large, each once")
    if len(order) != len(thresholds) + 1:
        yield view.fault(
            (*path, "order"),
            f"{len(thresholds)} thresholds make {len(thresholds) + 1} classes, but {len(order)} tenants are named",
            "name one tenant a class",
        )
