"""What the model allows at a path, read from its annotations: for overrides, suggestions and short forms."""

from __future__ import annotations

import types
from collections.abc import Iterable
from enum import Enum
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from lmperf.scenario.base import Part
from lmperf.scenario.faults import Path
from lmperf.scenario.model import ScenarioModel

FREE = object
"""The annotation of what may hold anything: request bodies, options of policies and backends."""


def bare(annotation: Any) -> Any:  # noqa: ANN401 (an annotation is whatever was written)
    """The annotation without ``Annotated`` and without ``| None``."""
    while True:
        origin = get_origin(annotation)
        if origin is Annotated:
            annotation = get_args(annotation)[0]
        elif origin in (Union, types.UnionType):
            (annotation,) = (arg for arg in get_args(annotation) if arg is not type(None))
        else:
            return annotation


def part_of(annotation: Any) -> type[Part] | None:  # noqa: ANN401 (see bare)
    """The model that ``annotation`` is, if it is one."""
    kind = bare(annotation)
    return kind if isinstance(kind, type) and issubclass(kind, Part) else None


def step(annotation: Any, key: str | int) -> Any:  # noqa: ANN401 (see bare)
    """The annotation one step further; None where the model has no such key; FREE inside what may hold anything."""
    kind = bare(annotation)
    if kind is FREE:
        return FREE
    if (part := part_of(kind)) is not None:
        if isinstance(key, str) and key in part.model_fields:
            field = part.model_fields[key]
            return field.annotation
        return FREE if part.model_config.get("extra") == "allow" else None
    if get_origin(kind) is dict:
        return get_args(kind)[1]
    if get_origin(kind) is list and isinstance(key, int):
        return get_args(kind)[0]
    return None


def annotation_at(path: Path) -> Any:  # noqa: ANN401 (see bare)
    """The annotation at ``path`` from the top of a scenario; None where the model has no such path."""
    annotation: Any = ScenarioModel
    for key in path:
        annotation = step(annotation, key)
        if annotation is None:
            return None
    return annotation


def keys_at(path: Path) -> list[str]:
    """The keys that the model knows at ``path``, if it is one of its parts."""
    part = part_of(annotation_at(path))
    return [] if part is None else list(part.model_fields)


def description_at(path: Path) -> str:
    """What the model says about the key at ``path``; empty where it says nothing."""
    part = part_of(annotation_at(path[:-1])) if path else None
    field = part.model_fields.get(str(path[-1])) if part is not None else None
    return (field.description or "") if field is not None else ""


def choices_at(path: Path) -> list[str]:
    """The values that an enumeration at ``path`` allows."""
    kind = bare(annotation_at(path))
    if get_origin(kind) is Literal:
        return [str(choice) for choice in get_args(kind)]
    members: Iterable[Any] = kind if isinstance(kind, type) and issubclass(kind, Enum) else ()
    return [str(member.value) for member in members]


def expand_all(value: Any, annotation: Any = ScenarioModel) -> Any:  # noqa: ANN401 (any data, see bare)
    """A copy of ``value`` with every short form written out."""
    kind = bare(annotation)
    part = part_of(kind)
    if part is not None:
        value = part.expand(value)
        if not isinstance(value, dict):
            return value
        fields = part.model_fields
        return {k: expand_all(v, fields[k].annotation) if k in fields else v for k, v in value.items()}
    if get_origin(kind) is dict and isinstance(value, dict):
        return {k: expand_all(v, get_args(kind)[1]) for k, v in value.items()}
    if get_origin(kind) is list and isinstance(value, list):
        return [expand_all(v, get_args(kind)[0]) for v in value]
    return value
