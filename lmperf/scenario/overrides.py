"""``--set tenants.chat.rate=20``: values of the command line, put into the data before anything is checked.

So that a wrong one is reported like a wrong line of the file, with ``--set`` as its place. Values are typed as YAML
(``20`` is a number, ``[1, 2]`` a list, ``null`` removes nothing but sets null); a secret is always text.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import replace
from typing import Any, get_origin

from lmperf.scenario.base import Part
from lmperf.scenario.document import Data, Document, mark_places, parse_value
from lmperf.scenario.faults import COMMAND_LINE, Fault, Path, Place, ScenarioError, one_of, render_path
from lmperf.scenario.model import ScenarioModel
from lmperf.scenario.secrets import is_secret
from lmperf.scenario.server_model import BackendModel
from lmperf.scenario.shape import FREE, bare, part_of, step
from lmperf.scenario.tenant_model import TenantModel

# Alternatives: to set one is to take back the others, or no override could switch from one to another.
ALTERNATIVES: dict[type[Part], tuple[tuple[frozenset[str], frozenset[str]], ...]] = {
    TenantModel: tuple(
        (frozenset({one}), frozenset({"rate", "load", "share", "users"}) - {one})
        for one in ("rate", "load", "share", "users")
    ),
    BackendModel: (
        (frozenset({"url"}), frozenset({"urls", "routing"})),
        (frozenset({"urls"}), frozenset({"url"})),
    ),
    ScenarioModel: (
        (frozenset({"judge"}), frozenset({"warmup_s", "cooldown_s"})),
        (frozenset({"warmup_s", "cooldown_s"}), frozenset({"judge"})),
    ),
}

_SEGMENT = re.compile(r'"([^"]*)"|([^."]+)')
_PLACE = Place(COMMAND_LINE)

OPEN_QUOTE = 'has an open quote: a " that no other closes', "close it, or leave it out"
"""Problem and remedy."""


class _WrongPathError(Exception):
    def __init__(self, path: Path, problem: str, remedy: str) -> None:
        super().__init__(problem)
        self.fault = Fault(_PLACE, path, problem, remedy)


def apply_overrides(document: Document, settings: Sequence[str]) -> Document:
    """The document with every ``path=value`` put in, in order; those that are wrong are added to its faults."""
    data = deepcopy(document.data)
    places = dict(document.places)
    faults = list(document.faults)
    for setting in settings:
        try:
            path, text = parse_setting(setting)
            value = _typed(path, text)
            _put(data, places, path, value)
        except ScenarioError as error:
            faults.extend(error.faults)
        except _WrongPathError as error:
            faults.append(error.fault)
    return replace(document, data=data, places=places, faults=tuple(faults))


def parse_setting(setting: str) -> tuple[Path, str]:
    """``a.b.0="c"`` as a path and the text of a value. Raises ScenarioError that does not quote the value."""
    name, equals, text = _split(setting)
    segments = [quoted or plain for quoted, plain in _SEGMENT.findall(name)]
    if not equals or not segments or ".".join(f'"{s}"' if f'"{s}"' in name else s for s in segments) != name:
        if not equals and name.count('"') % 2:
            raise ScenarioError.single(COMMAND_LINE, *OPEN_QUOTE)
        problem = f"`{name}` is not a path" if equals else "a setting needs `=`"
        raise ScenarioError.single(COMMAND_LINE, problem, "write --set tenants.chat.rate=20")
    return tuple(int(s) if s.isdigit() else s for s in segments), text


def _split(setting: str) -> tuple[str, str, str]:
    quoted = False
    for index, char in enumerate(setting):
        if char == '"':
            quoted = not quoted
        elif char == "=" and not quoted:
            return setting[:index].strip(), "=", setting[index + 1 :]
    return setting, "", ""


def _typed(path: Path, text: str) -> Data:
    if is_secret(path):
        return text
    try:
        return parse_value(text)
    except ScenarioError as error:
        raise ScenarioError(Fault(_PLACE, path, fault.problem, fault.remedy) for fault in error.faults) from None


def _put(data: dict[str, Any], places: dict[Path, Place], path: Path, value: Data) -> None:
    annotation: Any = ScenarioModel
    node: Any = data
    for depth, key in enumerate(path):
        here, last = path[: depth + 1], depth == len(path) - 1
        key = _checked_key(annotation, node, here, last=last)  # noqa: PLW2901 (the key as this container spells it)
        owner, annotation = part_of(annotation), step(annotation, key)
        if last:
            _assign(node, key, value)
            _forget(places, here)
            mark_places(places, here, value, _PLACE)
            for given, dropped in ALTERNATIVES.get(owner, ()) if owner is not None else ():
                if key in given:
                    for name in dropped & set(node):
                        del node[name]
                        _forget(places, (*path[:-1], name))
            return
        node = _descend(node, key, annotation, here)


def _checked_key(annotation: Any, node: Any, path: Path, *, last: bool) -> str | int:  # noqa: ANN401 (see shape.bare)
    """The last key of ``path``, as the container at ``annotation`` spells it; raises when it has none such."""
    key, kind = path[-1], bare(annotation)
    if isinstance(node, list):
        if not isinstance(key, int) or key > len(node) - (0 if last else 1):
            raise _WrongPathError(path, "there is no such entry", f"the list has {len(node)}, counted from 0")
        return key
    part = part_of(kind)
    if part is None and kind is not FREE and get_origin(kind) is not dict:
        raise _WrongPathError(path, f"`{render_path(path[:-1])}` has no keys", f"set `{render_path(path[:-1])}` itself")
    name = str(key)
    if part is not None and step(kind, name) is None:
        raise _WrongPathError(path, "unknown key", one_of(name, part.model_fields))
    if get_origin(kind) is dict and part_of(step(kind, name)) is not None and name not in node:
        raise _WrongPathError(path, f"there is no `{name}`", one_of(name, node))
    return name


def _descend(node: Any, key: Any, annotation: Any, path: Path) -> Any:  # noqa: ANN401 (see shape.bare)
    child = node[key] if isinstance(node, list) else node.get(key)
    part = part_of(annotation)
    if part is not None:
        child = part.expand(child)
    if child is None:
        child = [] if get_origin(bare(annotation)) is list else {}
    if not isinstance(child, dict | list):
        raise _WrongPathError(path, "is a single value and has no keys", f"set `{render_path(path)}` itself")
    _assign(node, key, child)
    return child


def _assign(node: Any, key: Any, value: Data) -> None:  # noqa: ANN401 (see shape.bare)
    if isinstance(node, list) and key == len(node):
        node.append(value)
    else:
        node[key] = value


def _forget(places: dict[Path, Place], path: Path) -> None:
    for other in [p for p in places if p[: len(path)] == path]:
        del places[other]
