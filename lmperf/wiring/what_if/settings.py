"""What may be different in a what-if, as it is asked for: ``--set`` settings over a captured trace.

``rate=1.3`` all arrivals; ``tenants.NAME.rate=2`` one tenant's; ``tenants.NAME.weight=2`` its share;
``tenants.NAME.remove=true``; ``tenants.NEW.add_like=NAME``; ``slots.sequences=32``, ``slots.prefill_tokens=4096``;
``server.max_num_seqs=128`` and the server model's other limits; ``replicas=2``; ``routing=prefix`` between them, with
``routing.slack=65536`` (:mod:`scheduler.routing`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from lmperf.scenario.document import parse_value
from lmperf.scenario.faults import COMMAND_LINE, Fault, Place, ScenarioError, one_of, render_path
from lmperf.scenario.faults import Path as KeyPath
from lmperf.scenario.overrides import parse_setting
from lmperf.wiring.captured import CapturedRun
from scheduler.routing import Routing, Rule
from scheduler.server_model.spec import ServerLimits
from scheduler.slots import Slots

MOST_REPLICAS = 1_000

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
                raise _fault(
                    path, problem, f"a difference has one value of each; to compare two: --vary {render_path(path)}=A,B"
                )
            given[same] = setting
            _take(found, path, parse_value(text))
        except ScenarioError as error:
            faults.extend(error.faults)
    known = [tenant.name for tenant in captured.tenants]
    faults.extend(_tenant_faults(found, known))
    faults.extend(_routing_faults(found, captured))
    faults.extend(_rate_faults(found, captured))
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
            found["top"]["replicas"] = _count(path, value, most=MOST_REPLICAS)
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


def _count(path: tuple[str, ...], value: object, most: int = 2**63 - 1) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise _fault(path, f"{value!r} is no whole number from 1", "write a number such as 2")
    if value > most:
        raise _fault(path, f"{value:,} is too many", f"at most {most:,}")
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


def _rate_faults(found: Mapping[str, Mapping[str, Any]], captured: CapturedRun) -> list[Fault]:
    """More or fewer requests come of gaps divided, of which one instant has none."""
    if np.ptp(captured.recipe.rows.arrival_ns):
        return []
    paths: list[KeyPath] = [("tenants", name, "rate") for name in found["rates"]]
    if "rate" in found["top"]:
        paths.append(("rate",))
    problem = "has no gaps to divide: all requests arrive at one instant"
    return [
        Fault(Place(COMMAND_LINE), path, problem, "add a tenant instead (add_like), or change the slots")
        for path in paths
    ]


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
    faults.extend(
        Fault(
            place, ("tenants", name, "remove"), f"contradicts {render_path(('tenants', name, key))}", "drop one of them"
        )
        for kind, key in (("added", "add_like"), ("rates", "rate"), ("weights", "weight"))
        for name in found[kind]
        if name in removed
    )
    if removed and not set(everybody) - removed:
        faults.append(Fault(place, ("tenants",), "every tenant is removed", "leave at least one"))
    return faults
