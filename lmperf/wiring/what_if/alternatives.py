"""Several differences of one trace, side by side: a grid of values (``--vary``), and named ones (``--alternative``).

``--vary rate=1,1.3,1.6`` is an alternative for each value; several make the product, the first slowest. ``--alternative
"two servers: replicas=2, rate=1.5"`` is one more, whose name may be left out. They stand side by side, and each ``--set`` holds
in all of them; the trace itself stands before them unchanged, without any ``--set``.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import product

from lmperf.scenario.faults import COMMAND_LINE, Fault, Place, ScenarioError
from lmperf.scenario.faults import Path as KeyPath
from lmperf.scenario.overrides import OPEN_QUOTE, parse_setting
from lmperf.wiring.captured import CapturedRun
from lmperf.wiring.what_if.settings import WhatIf, parse_what_if

UNCHANGED = "as captured"
"""The name of the trace itself among alternatives."""

VARY = "--vary"
ALTERNATIVE = "--alternative"

_AND = " + "
"""Between the settings of an alternative without a name: commas are between alternatives."""

MOST_ALTERNATIVES = 500
"""Of one command: a simulation of the trace each, under every policy."""

_NAME = re.compile(r'((?:[^":=]|"[^"]*")*):')

Origin = tuple[KeyPath, str]
"""The path of a setting (empty: it has none), and the flag that gave it."""


@dataclass(frozen=True, slots=True)
class Alternative:
    """``name``: its own settings in words, or what it was called; ``what_if`` has those that all have in common too;
    ``origins``: of each of its settings."""

    name: str
    what_if: WhatIf
    origins: tuple[Origin, ...] = ()

    def placed(self, faults: Iterable[Fault]) -> list[Fault]:
        """Each at the flag that gave it."""
        return _placed(faults, self.origins)


@dataclass(frozen=True, slots=True)
class _Asked:
    """An alternative before it is checked. ``flags``: which gave each setting, for errors."""

    name: str
    settings: tuple[str, ...]
    flags: tuple[str, ...]

    @property
    def place(self) -> Place:
        return Place(" ".join(dict.fromkeys(self.flags)))


def parse_alternatives(
    common: Sequence[str], varied: Sequence[str], named: Sequence[str], captured: CapturedRun
) -> list[Alternative]:
    """The alternatives of a command: with neither ``varied`` nor ``named`` the one difference that ``common`` is, or none
    at all. Raises ScenarioError with every fault."""
    if not varied and not named:
        return [Alternative(", ".join(common), parse_what_if(common, captured))] if common else []
    asked = [*_grid(varied), *map(_named, named)]
    if len(asked) > MOST_ALTERNATIVES:
        raise _too_many(f"{len(asked):,} alternatives")
    faults = _same_names(asked)
    found: list[tuple[_Asked, Alternative]] = []
    for one in asked:
        settings = [*common, *one.settings]
        flags = [*(COMMAND_LINE for _ in common), *one.flags]
        origins = tuple((_path_of(setting), flag) for setting, flag in zip(settings, flags, strict=True))
        try:
            found.append((one, Alternative(one.name, parse_what_if(settings, captured), origins)))
        except ScenarioError as error:
            faults.extend(_placed(error.faults, origins))
    faults.extend(_same_differences(found))
    if faults:
        raise ScenarioError(faults)
    return [alternative for _, alternative in found]


def _too_many(problem: str) -> ScenarioError:
    remedy = "vary less at once, or name those that matter with --alternative"
    return ScenarioError.single(VARY, f"{problem}, more than {MOST_ALTERNATIVES:,}", remedy)


def _grid(varied: Sequence[str]) -> list[_Asked]:
    if not varied:
        return []
    axes = [[(setting, _flag(VARY, flag)) for setting in _values(flag)] for flag in varied]
    keys = [axis[0][0].partition("=")[0].strip() for axis in axes]
    for number, key in enumerate(keys):
        if key in keys[:number]:
            first = _flag(VARY, varied[keys.index(key)])
            problem = f"varies {key} again, after {first}"
            raise ScenarioError.single(_flag(VARY, varied[number]), problem, "write all its values in one")
    points = math.prod(map(len, axes))
    if points > MOST_ALTERNATIVES:
        each = ", ".join(f"{key} {len(axis):,}" for key, axis in zip(keys, axes, strict=True))
        raise _too_many(f"{each} values are {points:,} alternatives" if len(axes) > 1 else f"{each} values")
    return [
        _Asked(_AND.join(setting for setting, _ in point), *map(tuple, zip(*point, strict=True)))
        for point in product(*axes)
    ]


_LONG_FLAG = 200


def _flag(name: str, text: str) -> str:
    """As the user wrote it; of a long one its beginning."""
    return f"{name} {text}" if len(text) <= _LONG_FLAG else f"{name} {text[:_LONG_FLAG]}..."


def _values(flag: str) -> list[str]:
    """``rate=1,1.3`` as ``rate=1`` and ``rate=1.3``."""
    first, *others = _between_commas(VARY, flag, flag)
    key, equals, value = first.partition("=")
    if not equals or not key.strip() or not all((value.strip(), *others)):
        raise ScenarioError.single(_flag(VARY, flag), "names no key with values", f"write {VARY} rate=1,1.3,1.6")
    for other in others:
        if "=" in other:
            remedy = f"one key each: {VARY} rate=1,2 {VARY} replicas=1,2; settings that go together: {ALTERNATIVE}"
            raise ScenarioError.single(_flag(VARY, flag), f"{other} is a second key", remedy)
    return [f"{key.strip()}={each}" for each in (value.strip(), *others)]


def _named(flag: str) -> _Asked:
    if flag.count('"') % 2:
        raise ScenarioError.single(_flag(ALTERNATIVE, flag), *OPEN_QUOTE)
    found = _NAME.match(flag)
    name = "" if found is None else found[1].strip().strip('"')
    rest = flag if found is None else flag[found.end() :]
    settings = tuple(part for part in _between_commas(ALTERNATIVE, flag, rest) if part)
    if not settings or (found is not None and not name):
        problem = "names nothing that is different" if not settings else "has no name before its colon"
        raise ScenarioError.single(
            _flag(ALTERNATIVE, flag), problem, f"write {ALTERNATIVE} 'two servers: replicas=2, rate=1.5'"
        )
    return _Asked(name or _AND.join(settings), settings, (_flag(ALTERNATIVE, flag),) * len(settings))


def _between_commas(name: str, flag: str, text: str) -> list[str]:
    """The parts of a flag's ``text``, stripped; a comma in quotes is none."""
    parts = [""]
    for number, stretch in enumerate(text.split('"')):
        quoted = number % 2 == 1
        before, *others = [stretch] if quoted else stretch.split(",")
        parts[-1] += f'"{before}"' if quoted else before
        parts.extend(others)
    if text.count('"') % 2:
        raise ScenarioError.single(_flag(name, flag), *OPEN_QUOTE)
    return [part.strip() for part in parts]


def _same_names(asked: Sequence[_Asked]) -> list[Fault]:
    names = [UNCHANGED, *(one.name for one in asked)]
    return [
        Fault(
            one.place,
            (),
            f"there is an alternative {one.name!r} already",
            "give it a name of its own, or drop it",
        )
        for number, one in enumerate(asked, 1)
        if one.name in names[:number]
    ]


def _same_differences(found: Sequence[tuple[_Asked, Alternative]]) -> list[Fault]:
    """One difference in two spellings, or under two names, would be simulated twice."""
    faults = []
    unlike: list[tuple[str, WhatIf]] = []
    for asked, alternative in found:
        what_if = replace(alternative.what_if, settings=())
        same = next((name for name, other in unlike if other == what_if), None)
        if same is None:
            unlike.append((alternative.name, what_if))
        elif same != alternative.name:
            problem = f"{alternative.name!r} is the same difference as {same!r}"
            faults.append(Fault(asked.place, (), problem, "drop one of them"))
    return faults


def _path_of(setting: str) -> KeyPath:
    try:
        return tuple(map(str, parse_setting(setting)[0]))
    except ScenarioError:
        return ()


def _placed(faults: Iterable[Fault], origins: Sequence[Origin]) -> list[Fault]:
    """Each at the flag that gave it: a fault of a common setting once, whatever it stands beside."""
    return [replace(fault, place=Place(_flag_of(fault.path, origins))) for fault in faults]


def _flag_of(path: KeyPath, origins: Sequence[Origin]) -> str:
    """The flag that gave what is at ``path``, above it or below it; one of an alternative's own, if there is one."""
    flags = [flag for at, flag in origins if at == path or (at and path and (at[: len(path)] == path[: len(at)]))]
    own = [flag for flag in flags if flag != COMMAND_LINE]
    return " ".join(dict.fromkeys(own)) or COMMAND_LINE
