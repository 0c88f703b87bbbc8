"""Several differences of one trace, side by side: a grid of values (``--vary``), and named ones (``--alternative``).

``--vary rate=1,1.3,1.6`` is an alternative for each value; several make the product, the first slowest. ``--alternative
"two servers: replicas=2, rate=1.5"`` is one more, whose name may be left out. They stand side by side, and each ``--set`` holds
in all of them; the trace itself stands before them unchanged, without any ``--set``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import product

from lmperf.scenario.faults import Fault, Place, ScenarioError
from lmperf.scenario.overrides import parse_setting
from lmperf.wiring.captured import CapturedRun
from lmperf.wiring.what_if.settings import WhatIf, parse_what_if

UNCHANGED = "as captured"
"""The name of the trace itself among alternatives."""

VARY = "--vary"
ALTERNATIVE = "--alternative"

_AND = " + "
"""Between the settings of an alternative without a name: commas are between alternatives."""

_COMMA = re.compile(r',(?=(?:[^"]*"[^"]*")*[^"]*$)')
_NAME = re.compile(r'((?:[^":=]|"[^"]*")*):')


@dataclass(frozen=True, slots=True)
class Alternative:
    """``name``: its own settings in words, or what it was called; ``what_if`` has those that all have in common too."""

    name: str
    what_if: WhatIf


@dataclass(frozen=True, slots=True)
class _Asked:
    """An alternative before it is checked. ``place``: the flag that gave it, for errors."""

    name: str
    settings: tuple[str, ...]
    place: str


def parse_alternatives(
    common: Sequence[str], varied: Sequence[str], named: Sequence[str], captured: CapturedRun
) -> list[Alternative]:
    """The alternatives of a command: with neither ``varied`` nor ``named`` the one difference that ``common`` is, or none
    at all. Raises ScenarioError with every fault."""
    if not varied and not named:
        return [Alternative(", ".join(common), parse_what_if(common, captured))] if common else []
    asked = [*_grid(varied), *map(_named, named)]
    faults = _same_names(asked)
    found = []
    for one in asked:
        try:
            found.append(Alternative(one.name, parse_what_if([*common, *one.settings], captured)))
        except ScenarioError as error:
            faults.extend(_placed(error.faults, common, one.place))
    if faults:
        raise ScenarioError(faults)
    return found


def _grid(varied: Sequence[str]) -> list[_Asked]:
    if not varied:
        return []
    axes = [[(setting, flag) for setting in _values(flag)] for flag in varied]
    keys = [axis[0][0].partition("=")[0].strip() for axis in axes]
    for number, key in enumerate(keys):
        if key in keys[:number]:
            first = varied[keys.index(key)]
            problem = f"varies {key} again, after {VARY} {first}"
            raise ScenarioError.single(f"{VARY} {varied[number]}", problem, "write all its values in one")
    return [
        _Asked(_AND.join(setting for setting, _ in point), tuple(setting for setting, _ in point), _flags(point))
        for point in product(*axes)
    ]


def _flags(point: Iterable[tuple[str, str]]) -> str:
    return " ".join(f"{VARY} {flag}" for _, flag in point)


def _values(flag: str) -> list[str]:
    """``rate=1,1.3`` as ``rate=1`` and ``rate=1.3``."""
    first, *others = (part.strip() for part in _COMMA.split(flag))
    key, equals, value = first.partition("=")
    if not equals or not key.strip() or not all((value.strip(), *others)):
        raise ScenarioError.single(f"{VARY} {flag}", "names no key with values", f"write {VARY} rate=1,1.3,1.6")
    for other in others:
        if "=" in other:
            remedy = f"one key each: {VARY} rate=1,2 {VARY} replicas=1,2; settings that go together: {ALTERNATIVE}"
            raise ScenarioError.single(f"{VARY} {flag}", f"{other} is a second key", remedy)
    return [f"{key.strip()}={each}" for each in (value.strip(), *others)]


def _named(flag: str) -> _Asked:
    found = _NAME.match(flag)
    name = "" if found is None else found[1].strip().strip('"')
    rest = flag if found is None else flag[found.end() :]
    settings = tuple(part.strip() for part in _COMMA.split(rest) if part.strip())
    if not settings or (found is not None and not name):
        problem = "names nothing that is different" if not settings else "has no name before its colon"
        raise ScenarioError.single(
            f"{ALTERNATIVE} {flag}", problem, f"write {ALTERNATIVE} 'two servers: replicas=2, rate=1.5'"
        )
    return _Asked(name or _AND.join(settings), settings, f"{ALTERNATIVE} {flag}")


def _same_names(asked: Sequence[_Asked]) -> list[Fault]:
    names = [UNCHANGED, *(one.name for one in asked)]
    return [
        Fault(
            Place(one.place),
            (),
            f"there is an alternative {one.name!r} already",
            "give it a name of its own, or drop it",
        )
        for number, one in enumerate(asked, 1)
        if one.name in names[:number]
    ]


def _placed(faults: Iterable[Fault], common: Sequence[str], place: str) -> list[Fault]:
    """Each at the flag that gave it: a fault of a common setting once, whatever it stands beside."""
    paths = set()
    for setting in common:
        try:
            paths.add(tuple(map(str, parse_setting(setting)[0])))
        except ScenarioError:
            paths.add(())
    return [
        fault if fault.path in paths and "given twice" not in fault.problem else replace(fault, place=Place(place))
        for fault in faults
    ]
