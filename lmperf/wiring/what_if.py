"""What if: a captured trace with one thing different, against the trace as it was, under every policy.

``rate=1.3`` all arrivals; ``tenants.NAME.rate=2`` one tenant's; ``tenants.NAME.weight=2`` its share;
``tenants.NAME.remove=true``; ``tenants.NEW.add_like=NAME``; ``slots.sequences=32``, ``slots.prefill_tokens=4096``;
``server.max_num_seqs=128`` and the server model's other limits; ``replicas=2``; ``routing=prefix`` between them, with
``routing.slack=65536`` (:mod:`scheduler.routing`).

More load: gaps are divided and rows cycled (:mod:`loadgen.workload.replay`). An added tenant has the rows of the one it is
like, begun elsewhere: its times are turned round the trace by the golden ratio of its length, so that two alike do not
burst together. Requests that came because another ended cannot be multiplied, so then recorded times are played, on
both sides.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from lmperf.scenario.document import parse_value
from lmperf.scenario.faults import COMMAND_LINE, Fault, Place, ScenarioError, one_of
from lmperf.scenario.faults import Path as KeyPath
from lmperf.scenario.overrides import parse_setting
from lmperf.wiring.captured import CapturedRun
from lmperf.wiring.offline import Comparison, as_captured
from loadgen.offline.cell import CellResult, ReplayRecipe, TenantFigures, tenant_figures
from loadgen.offline.experiment import BASELINE, RAISED, Cells, Experiment, Load, OnProgress, PolicyChoice
from loadgen.offline.replicas import ReplicatedJob, run_replicated
from loadgen.offline.rows import only_tenants, with_copy
from loadgen.offline.verdicts import judge_policies
from loadgen.offline.workers import Workers
from scheduler.routing import Routing, Rule, routed_text
from scheduler.server_model.spec import ServerLimits, ServerModelSpec
from scheduler.slots import Slots
from tenants.measures.columns import Columns
from tenants.tenant import Tenant

_GOLDEN = 0.6180339887498949
_TENANT_KEYS = ("rate", "weight", "remove", "add_like")
_TOP_KEYS = ("rate", "replicas", "routing", "slots", "server", "tenants")


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIf:
    """What is different, as asked for. ``rates``, ``weights``: by tenant; ``added``: new tenant to the one it is like."""

    settings: tuple[str, ...]
    rate: float = 1.0
    rates: Mapping[str, float] = field(default_factory=dict)
    weights: Mapping[str, float] = field(default_factory=dict)
    removed: frozenset[str] = frozenset()
    added: Mapping[str, str] = field(default_factory=dict)
    slots: Mapping[str, int | None] = field(default_factory=dict)
    server: Mapping[str, Any] = field(default_factory=dict)
    replicas: int = 1
    routing: Mapping[str, Any] = field(default_factory=dict)

    @property
    def text(self) -> str:
        return ", ".join(self.settings)

    def growth(self, names: Iterable[str]) -> dict[str, float]:
        """Factor on each tenant's load, where it is not 1."""
        factors = {name: self.rate * self.rates.get(name, 1.0) for name in names}
        return {name: factor for name, factor in factors.items() if factor != 1.0}

    def grown(self, names: Sequence[str]) -> tuple[str, ...]:
        """The tenants whose load this raises; an added one is a load that was not there."""
        return tuple(name for name in names if name in self.added or self.growth(names).get(name, 1.0) > 1.0)


def parse_what_if(settings: Sequence[str], captured: CapturedRun) -> WhatIf:
    """``--set`` settings over a trace. Raises ScenarioError with every fault."""
    faults: list[Fault] = []
    found: dict[str, Any] = {
        name: {} for name in ("top", "rates", "weights", "removed", "added", "slots", "server", "routing")
    }  # fmt: skip
    given: dict[tuple[str, ...], str] = {}
    for setting in settings:
        try:
            key, text = parse_setting(setting)
            path = tuple(str(part) for part in key)
            same = ("routing", "rule") if path == ("routing",) else path
            if same in given:
                problem = f"is given twice, {given[same]} and {setting}"
                raise _fault(path, problem, "a what-if has one value of each: run one for each")
            given[same] = setting
            _take(found, path, parse_value(text))
        except ScenarioError as error:
            faults.extend(error.faults)
    known = [tenant.name for tenant in captured.tenants]
    faults.extend(_tenant_faults(found, known))
    faults.extend(_routing_faults(found, captured))
    if faults:
        raise ScenarioError(faults)
    return WhatIf(
        settings=tuple(settings),
        rate=found["top"].get("rate", 1.0),
        rates=found["rates"],
        weights=found["weights"],
        removed=frozenset(name for name, remove in found["removed"].items() if remove),
        added=found["added"],
        slots=found["slots"],
        server=found["server"],
        replicas=found["top"].get("replicas", 1),
        routing=found["routing"],
    )


def _fault(path: KeyPath, problem: str, remedy: str) -> ScenarioError:
    return ScenarioError([Fault(Place(COMMAND_LINE), path, problem, remedy)])


def _take(found: dict[str, Any], path: tuple[str, ...], value: object) -> None:
    match path:
        case ("rate",):
            found["top"]["rate"] = _positive(path, value)
        case ("replicas",):
            found["top"]["replicas"] = _count(path, value)
        case ("routing",) | ("routing", "rule"):
            if not isinstance(value, str) or value not in set(Rule):
                raise _fault(path, f"there is no rule {value!r}", one_of(str(value), Rule))
            found["routing"]["rule"] = Rule(value)
        case ("routing", "slack"):
            found["routing"]["slack"] = None if value is None else _not_negative(path, value)
        case ("routing", key):
            _known(path, key, Routing.__struct_fields__)
        case ("slots", key):
            _known(path, key, Slots.__struct_fields__)
            found["slots"][key] = None if value is None else _count(path, value)
        case ("server", key):
            _known(path, key, ServerLimits.__struct_fields__)
            found["server"][key] = value
        case ("tenants", name, key):
            _take_tenant(found, path, name, key, value)
        case (first, *_) if first in _TOP_KEYS:
            raise _fault(path, "names no figure of a trace", _HELP)
        case (first, *_):
            raise _fault(path, "unknown key: a trace has no scenario to change", f"{one_of(first, _TOP_KEYS)}; {_HELP}")


def _take_tenant(found: dict[str, Any], path: tuple[str, ...], name: str, key: str, value: object) -> None:
    match key:
        case "rate":
            found["rates"][name] = _positive(path, value)
        case "weight":
            found["weights"][name] = _positive(path, value)
        case "remove":
            if not isinstance(value, bool):
                raise _fault(path, f"{value!r} is neither true nor false", "write remove=true")
            found["removed"][name] = value
        case "add_like":
            found["added"][name] = str(value)
        case _:
            raise _fault(path, "unknown key", one_of(key, _TENANT_KEYS))


_HELP = (
    "write rate=1.3, tenants.NAME.rate=2, tenants.NAME.weight=2, tenants.NAME.remove=true, tenants.NEW.add_like=NAME, "
    "slots.sequences=32, server.max_num_seqs=128, replicas=2 or routing=prefix"
)


def _known(path: tuple[str, ...], key: str, names: Iterable[str]) -> None:
    if key not in set(names):
        raise _fault(path, "unknown key", one_of(key, names))


def _positive(path: tuple[str, ...], value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < float("inf"):
        raise _fault(path, f"{value!r} is no number above 0", "2 doubles it, 0.5 halves it")
    return float(value)


def _not_negative(path: tuple[str, ...], value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < float("inf"):
        raise _fault(
            path, f"{value!r} is no number of cost units from 0", "8192 is a prompt of so many tokens; null: no bound"
        )
    return float(value)


def _count(path: tuple[str, ...], value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise _fault(path, f"{value!r} is no whole number from 1", "write a number such as 2")
    return value


def _routing_faults(found: Mapping[str, Mapping[str, Any]], captured: CapturedRun) -> list[Fault]:
    asked, place = found["routing"], Place(COMMAND_LINE)
    faults = []
    if asked and found["top"].get("replicas", 1) * len(captured.all_slots) == 1:
        faults.append(Fault(place, ("routing",), "chooses between servers, and there is one", "add replicas=2"))
    rule = asked.get("rule", captured.routing.rule)
    if "slack" in asked and rule is not Rule.PREFIX:
        problem = f"is a bound of the rule `prefix`, and the rule is `{rule}`"
        faults.append(Fault(place, ("routing", "slack"), problem, "add routing=prefix"))
    return faults


def _tenant_faults(found: Mapping[str, Mapping[str, Any]], known: Sequence[str]) -> list[Fault]:
    place = Place(COMMAND_LINE)
    faults = []
    for name, like in found["added"].items():
        if name in known:
            remedy = "give the new tenant a name of its own"
            faults.append(Fault(place, ("tenants", name, "add_like"), "the trace has this tenant already", remedy))
        if like not in known:
            faults.append(Fault(place, ("tenants", name, "add_like"), f"there is no {like!r}", one_of(like, known)))
    everybody = [*known, *found["added"]]
    for kind, key in (("rates", "rate"), ("weights", "weight"), ("removed", "remove")):
        faults.extend(
            Fault(place, ("tenants", name, key), "the trace has no such tenant", one_of(name, everybody))
            for name in found[kind]
            if name not in everybody
        )
    removed = {name for name, remove in found["removed"].items() if remove}
    if removed and not set(everybody) - removed:
        faults.append(Fault(place, ("tenants",), "every tenant is removed", "leave at least one"))
    return faults


# -- applied ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Changed:
    """A captured run with the difference made. ``growth``: what the recipe's rows are multiplied by."""

    captured: CapturedRun
    server: ServerModelSpec
    growth: Mapping[str, float]
    replicas: int

    @property
    def routed(self) -> str:
        """As that of the captured run."""
        return routed_text(self.replicas * len(self.captured.all_slots), self.captured.routing)


def apply(what_if: WhatIf, captured: CapturedRun, server: ServerModelSpec) -> Changed:
    """Raises ScenarioError for limits that no server can have."""
    recipe = captured.recipe
    rows, tenants = recipe.rows, list(captured.tenants)
    by_name = {tenant.name: number for number, tenant in enumerate(tenants)}
    for turn, (name, like) in enumerate(what_if.added.items(), start=1):
        tenants.append(replace(tenants[by_name[like]], name=name))
        rows = with_copy(rows, by_name[like], len(tenants) - 1, turn * _GOLDEN % 1.0)
    kept = [number for number, tenant in enumerate(tenants) if tenant.name not in what_if.removed]
    if len(kept) < len(tenants):
        rows = only_tenants(rows, kept)
        tenants = [tenants[number] for number in kept]
    tenants = [replace(t, weight=t.weight * what_if.weights.get(t.name, 1.0)) for t in tenants]
    growth = what_if.growth(tenant.name for tenant in tenants)
    changed = replace(
        recipe, rows=rows, tenants=tuple(tenants), recorded=recipe.recorded or _multiplied(what_if, captured)
    )
    names = {tenant.name for tenant in tenants}
    try:
        limits = msgspec.convert(msgspec.to_builtins(server.limits) | dict(what_if.server), ServerLimits)
    except (msgspec.ValidationError, ValueError) as error:
        raise _fault(("server",), str(error), "see the limits in the server-model file") from error
    return Changed(
        captured=replace(
            captured,
            tenants=tuple(tenants),
            recipe=changed,
            slots=msgspec.structs.replace(captured.slots, **what_if.slots),
            backends={n: msgspec.structs.replace(each, **what_if.slots) for n, each in captured.backends.items()},
            auto=None if "sequences" in what_if.slots else captured.auto,
            routing=msgspec.structs.replace(captured.routing, **what_if.routing),
            noisy=tuple(name for name in captured.noisy if name in names),
        ),
        server=msgspec.structs.replace(server, limits=limits),
        growth=growth,
        replicas=what_if.replicas,
    )


def _multiplied(what_if: WhatIf, captured: CapturedRun) -> bool:
    names = (tenant.name for tenant in captured.tenants)
    return captured.recipe.rows.after_row is not None and bool(what_if.growth([*names, *what_if.added]))


# -- compared --------------------------------------------------------------------------------------------------------


def compare(
    what_if: WhatIf,
    captured: CapturedRun,
    server: ServerModelSpec,
    choices: Sequence[PolicyChoice],
    *,
    processes: int | None = None,
    scratch: Path | None = None,
    on_progress: OnProgress | None = None,
) -> Comparison:
    """The trace as captured (in the place of a baseline) against the trace with the difference, under every policy.
    ``scratch``: as in a job."""
    changed = apply(what_if, captured, server)
    before = captured
    if changed.captured.recipe.recorded:
        before = replace(captured, recipe=replace(captured.recipe, recorded=True))
    jobs = []
    for choice in choices:
        plain = replace(as_captured(before, server, choice), scratch=scratch)
        jobs.append(ReplicatedJob(cell=replace(plain, load=BASELINE)))
        altered = replace(as_captured(changed.captured, changed.server, choice), scratch=scratch)
        slots = altered.slots if choice.slots is None else msgspec.structs.replace(choice.slots, **what_if.slots)
        jobs.append(
            ReplicatedJob(
                cell=replace(altered, load=RAISED, growth=changed.growth, slots=slots), replicas=changed.replicas
            )
        )
    tenants = {t.name: t for t in (*captured.tenants, *changed.captured.tenants)}
    with Workers(processes) as workers:
        results = workers.map(run_replicated, jobs, on_progress or _silent)
    window_s = (captured.window_ns[1] - captured.window_ns[0]) / 1e9
    cells = {
        (result.policy_label, result.load, result.seed): _with_absent(result, tenants, window_s) for result in results
    }
    noisy = what_if.grown(tuple(tenants))
    after = tuple(tenant.name for tenant in changed.captured.tenants)
    experiment = Experiment(
        recipe=_named(captured.recipe, tuple(tenants.values())),
        policies=choices,
        loads=[Load(label=BASELINE), Load(label=RAISED, growth=changed.growth, noisy=noisy)],
        seeds=(0,),
        server=changed.server,
        slots=changed.captured.slots,
        cost=captured.cost,
        window_ns=captured.window_ns,
        in_contract=tuple(name for name in after if name not in noisy) or after,
    )
    return Comparison(
        noisy,
        judge_policies(experiment, Cells(cells), BASELINE, RAISED),
        experiment.in_contract,
        removed=tuple(name for name in tenants if name not in after),
    )


_silent: Callable[[int, int], None] = lambda _done, _total: None  # noqa: E731 (a default callback, not a function)


def _named(recipe: ReplayRecipe, tenants: tuple[Tenant, ...]) -> ReplayRecipe:
    """The recipe with the tenants of both sides; only their names are read."""
    return replace(recipe, tenants=tenants)


def _with_absent(result: CellResult, tenants: Mapping[str, Tenant], window_s: float) -> CellResult:
    """A tenant that one side does not have, as one without requests, so that both sides have the same rows."""
    return replace(
        result,
        tenants={name: result.tenants.get(name) or _absent(tenant, window_s) for name, tenant in tenants.items()},
    )


def _absent(tenant: Tenant, window_s: float) -> TenantFigures:
    none = np.zeros(0, dtype=np.int64)
    columns = Columns(
        tenants=(tenant.name,),
        tenant=np.zeros(0, dtype=np.int32),
        status=np.zeros(0, dtype=np.int8),
        in_window=np.zeros(0, dtype=np.bool_),
        **{
            each.name: none for each in fields(Columns) if each.name not in ("tenants", "tenant", "status", "in_window")
        },
    )
    return tenant_figures(columns, tenant, window_s)
