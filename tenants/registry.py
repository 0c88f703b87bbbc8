"""Things found by name: built-in ones and those that other packages add through an entry point group.

A built-in table ``{name: "module:attribute"}`` names what this project ships, so that a source checkout without
installed metadata knows it too. Nothing is imported before it is asked for.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Generic, TypeVar, cast

from tenants.nearest import nearest

T = TypeVar("T")


class RegistryError(LookupError):
    """A name is unknown, claimed twice, or cannot be loaded; the message says which and what would be right."""


class Registry(Generic[T]):
    """``group`` is the entry point group, ``what`` one word for people ("policy", "backend"), ``builtins`` as in the
    module docstring. T is what a name stands for: a class or a factory.
    """

    def __init__(self, *, group: str, what: str, builtins: Mapping[str, str] | None = None) -> None:
        self._group = group
        self._what = what
        self._builtins = dict(builtins or {})
        self._found: dict[str, str] | None = None
        self._loaded: dict[str, T] = {}

    def names(self) -> list[str]:
        """All known names, sorted."""
        return sorted(self._targets())

    def __contains__(self, name: object) -> bool:
        return name in self._targets()

    def target(self, name: str) -> str:
        """``module:attribute`` of a name, without importing it. Raises RegistryError for an unknown one."""
        targets = self._targets()
        if name not in targets:
            meant = nearest(name, targets)
            hint = f"; did you mean {meant!r}?" if meant else ""
            known = ", ".join(self.names()) or "none"
            raise RegistryError(f"unknown {self._what} {name!r}; known: {known}{hint}")
        return targets[name]

    def load(self, name: str) -> T:
        """What ``name`` stands for, imported at the first call. Raises RegistryError."""
        if name not in self._loaded:
            target = self.target(name)
            module, _, attribute = target.partition(":")
            try:
                value: object = import_module(module)
                for part in attribute.split("."):
                    value = getattr(value, part)
            except (ImportError, AttributeError) as exc:
                raise RegistryError(
                    f"{self._what} {name!r} ({target}) cannot be loaded: {exc}; if it is an optional part, install "
                    f"`lmperf[{name}]`"
                ) from exc
            self._loaded[name] = cast("T", value)
        return self._loaded[name]

    def _targets(self) -> dict[str, str]:
        if self._found is None:
            found = dict(self._builtins)
            for entry in entry_points(group=self._group):
                self._add(found, entry)
            self._found = found
        return self._found

    def _add(self, found: dict[str, str], entry: EntryPoint) -> None:
        """A name has one meaning: two packages that claim it are an error rather than a race."""
        value = entry.value.replace(" ", "")
        known = found.setdefault(entry.name, value)
        if known != value:
            raise RegistryError(
                f"{self._what} {entry.name!r} is claimed twice in the entry points {self._group!r}: by {known} and by "
                f"{value}; uninstall one of the two packages"
            )
