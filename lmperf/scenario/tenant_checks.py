"""Rules inside one tenant's entry: how much it sends, how its lengths are drawn, what it was promised."""

from __future__ import annotations

from collections.abc import Iterator

from lmperf.scenario.faults import Fault, Path
from lmperf.scenario.tenant_model import SloModel
from lmperf.scenario.traffic_model import ArrivalsModel, LengthParameters, LengthsModel, MixturePart
from lmperf.scenario.traffic_specs import arrivals_of, distribution_of
from lmperf.scenario.view import View
from loadgen.workload.arrivals import faults_of as arrivals_faults
from tenants.traffic import Distribution, Process

AMOUNTS = ("rate", "load", "share", "users")

_SHAPES: dict[Process, set[str]] = {
    Process.CONSTANT: set(),
    Process.POISSON: set(),
    Process.GAMMA: {"burstiness"},
    Process.BURST: {"burst_size", "burst_rate", "fixed_epochs"},
    Process.RAMP: {"ramp_from", "burstiness"},
    Process.STEPS: {"steps", "burstiness"},
    Process.TRACE: set(),
    Process.CLOSED: set(),
}
_NEEDED: dict[Process, set[str]] = {
    Process.GAMMA: {"burstiness"},
    Process.BURST: {"burst_size"},
    Process.STEPS: {"steps"},
}
_PHASES = {"on_s", "period_s", "active"}
_MOST_PERIODS = 100_000
_NOT_DRAWN = {Process.TRACE, Process.CLOSED}

# Per distribution: parameters that it needs, and parameters that it may have.
_PARAMETERS: dict[Distribution, tuple[set[str], set[str]]] = {
    Distribution.FIXED: ({"mean"}, {"min", "max"}),
    Distribution.NORMAL: ({"mean", "cv"}, {"min", "max"}),
    Distribution.LOGNORMAL: ({"mean", "cv"}, {"min", "max"}),
    Distribution.UNIFORM: ({"max"}, {"min"}),
    Distribution.ZIPF: ({"alpha", "max"}, {"min"}),
    Distribution.MIXTURE: ({"parts"}, {"min", "max"}),
    Distribution.EMPIRICAL: ({"values"}, {"min", "max"}),
}


def tenant_faults(view: View) -> Iterator[Fault]:
    """The rules, for every tenant that is a mapping."""
    for group in view.groups:
        path: Path = ("tenants", group)
        if not isinstance(view.value(path), dict):
            continue
        yield from _slo(view, path)
        yield from _lengths_given(view, path, traced=group in view.traced)
        yield from _amount(view, path, traced=group in view.traced)
        yield from _arrivals(view, path, traced=group in view.traced)
        for key in ("prompt", "output"):
            yield from _lengths(view, (*path, key))
        yield from _lengths(view, (*path, "sessions", "turns"))


def _amount(view: View, path: Path, *, traced: bool) -> Iterator[Fault]:
    amounts = [key for key in AMOUNTS if key in view.given(path)]
    process = view.value((*path, "arrivals", "process"))
    if len(amounts) > 1:
        yield view.fault((*path, amounts[1]), f"is given beside {amounts[0]}", f"give one of {', '.join(AMOUNTS)}")
    if process == Process.STEPS and set(amounts) - {"users"}:
        yield view.fault((*path, amounts[0]), "the steps state the rates themselves", f"remove {amounts[0]}, or steps")
    if "users" in amounts and process not in {None, Process.CLOSED}:
        yield view.fault((*path, "users"), f"a closed loop has no {process} arrivals", "remove users, or arrivals")
    if process == Process.CLOSED and "users" not in amounts:
        yield view.fault((*path, "users"), "is missing", "a closed loop needs it: users: 8")
    if "think_s" in view.given(path) and "users" not in amounts:
        yield view.fault((*path, "think_s"), "is for a closed loop", "add users; between turns it is sessions.think_s")
    if process == Process.TRACE and view.value(("trace",)) is None:
        yield view.fault((*path, "arrivals"), "there is no trace", "add `trace: {path: FILE}`, or another process")
    elif view.traffic and not amounts and not traced and process not in {Process.STEPS, Process.CLOSED}:
        yield view.fault(
            path, "how much it sends is missing", "give rate (requests/s), load or share (of saturation), or users"
        )


def _arrivals(view: View, path: Path, *, traced: bool) -> Iterator[Fault]:
    where = (*path, "arrivals")
    arrivals = view.part(where, ArrivalsModel)
    if arrivals is None:
        return
    process = arrivals.process if "process" in view.given(where) or not traced else Process.TRACE
    given = view.given(where)
    allowed = _SHAPES[process] | (set() if process in _NOT_DRAWN else _PHASES)
    for key in sorted(given - allowed - {"process", "failure_pause_s"}):
        yield view.fault((*where, key), f"means nothing for {process} arrivals", _takes(process))
    for key in sorted(_NEEDED.get(process, set()) - given):
        yield view.fault((*where, key), "is missing", f"{process} arrivals need it")
    duration_s, period_s = view.number(("duration_s",)), arrivals.period_s
    if duration_s is not None and period_s is not None and duration_s / period_s > _MOST_PERIODS:
        yield view.fault(
            (*where, "period_s"),
            f"is {period_s:g}, so {duration_s:g} s hold {duration_s / period_s:,.0f} on/off periods",
            f"at most {_MOST_PERIODS:,}: a longer period_s, or a shorter duration_s",
        )
    if process not in _NOT_DRAWN and not _NEEDED.get(process, set()) - given:
        # The amount is checked elsewhere; any stands in for it here.
        for text in arrivals_faults(arrivals_of(arrivals, process, rate=1.0)):
            problem, _, remedy = text.partition("; ")
            yield view.fault(where, problem, remedy)


def _takes(process: Process) -> str:
    users = [other for other, keys in _SHAPES.items() if keys]
    takes = ", ".join(sorted(_SHAPES[process])) or "nothing of the kind"
    return f"{process} takes {takes}; others with settings: {', '.join(users)}"


def _lengths_given(view: View, path: Path, *, traced: bool) -> Iterator[Fault]:
    given = view.given(path)
    columns = view.given((*path, "lengths_file")) & {"prompt", "output"}
    sources: dict[str, list[str]] = {
        key: [
            source
            for source, used in (
                (key, key in given),
                ("pairs", "pairs" in given),
                (f"lengths_file.{key}", key in columns),
            )
            if used
        ]
        for key in ("prompt", "output")
    }
    if "lengths_file" in given and not columns:
        yield view.fault((*path, "lengths_file"), "names no column", "give prompt, output, or both")
    for key, found in sources.items():
        if len(found) > 1:
            yield view.fault((*path, *found[1].split(".")), f"is given beside {found[0]}", f"state {key} lengths once")
        elif not found and view.traffic and not traced:
            yield view.fault((*path, key), "is missing", f"say how many {key} tokens a request has: {key}: 300")


def _lengths(view: View, path: Path) -> Iterator[Fault]:
    if isinstance(view.value(path), dict):
        model = view.part(path, LengthsModel)
        yield from [] if model is None else _parameters(view, path, model)
        parts = view.value((*path, "parts"))
        for index in range(len(parts) if isinstance(parts, list) else 0):
            part = view.part((*path, "parts", index), MixturePart)
            yield from [] if part is None else _parameters(view, (*path, "parts", index), part)


def _parameters(view: View, path: Path, model: LengthParameters) -> Iterator[Fault]:
    given = view.given(path) - {"distribution", "weight"}
    kind = distribution_of(model)
    if not given:
        yield view.fault(path, "says nothing about the lengths", "write a number, or {mean: 300, cv: 0.8}")
        return
    needed, optional = _PARAMETERS[kind]
    for key in sorted(given - needed - optional):
        takes = ", ".join(sorted(needed | optional))
        yield view.fault((*path, key), f"means nothing for a {kind} distribution", f"it takes {takes}")
    for key in sorted(needed - given):
        yield view.fault((*path, key), "is missing", f"a {kind} distribution needs it")
    low, high = model.min or 1, model.max
    if high is not None and high < low:
        yield view.fault((*path, "max"), f"is {high}, below min ({low})", "max must be at least min")
    if model.mean is not None and kind is not Distribution.FIXED:
        outside = model.mean < low or (high is not None and model.mean > high)
        if outside:
            yield view.fault(
                (*path, "mean"), f"is {model.mean:g}, outside [min, max]", "nearly all draws would be clipped"
            )


def _slo(view: View, path: Path) -> Iterator[Fault]:
    where = (*path, "slo")
    given = view.given(where)
    limits = given & {"ttft_ms", "tpot_ms", "e2e_ms", "max_itl_ms"}
    raw = view.value(where)
    # `attainment: null`, written out, promises nothing: the limits only count goodput (--goodput).
    counted_only = isinstance(raw, dict) and "attainment" in raw and raw["attainment"] is None
    if limits and "attainment" not in given and not counted_only:
        yield view.fault(
            (*where, "attainment"),
            "is missing",
            "limits need a target: the share of requests that must meet them all, attainment: 0.99",
        )
    if "attainment" in given and not limits:
        yield view.fault(
            (*where, "attainment"), "there is no limit to attain", "add ttft_ms, tpot_ms, e2e_ms or max_itl_ms"
        )
    slo = view.part(where, SloModel)
    if slo is None:
        return
    if slo.ttft_ms is not None and slo.e2e_ms is not None and slo.e2e_ms < slo.ttft_ms:
        yield view.fault(
            (*where, "e2e_ms"), f"is {slo.e2e_ms:g}, below ttft_ms ({slo.ttft_ms:g})", "a whole request takes longer"
        )
    seen: set[tuple[str, float]] = set()
    for index, objective in enumerate(slo.objectives):
        if (objective.metric, objective.p) in seen:
            yield view.fault(
                (*where, "objectives", index), f"p{objective.p:g} of {objective.metric} is promised twice", "keep one"
            )
        seen.add((objective.metric, objective.p))
