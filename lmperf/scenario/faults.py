"""What is wrong in a scenario, where, and what would be right: the only error that reading a scenario raises."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tenants.nearest import nearest

Path = tuple[str | int, ...]
"""Keys and list indices from the top of a scenario: ``("tenants", "chat", "rate")``."""

COMMAND_LINE = "--set"
"""The "file" of a value that the command line gave."""


def render_path(path: Path) -> str:
    """The path as ``--set`` takes it: ``tenants.chat.slo.objectives.0.p``; a key that itself holds a dot is quoted."""
    return ".".join(f'"{part}"' if isinstance(part, str) and "." in part else str(part) for part in path)


def one_of(name: str, known: Iterable[str]) -> str:
    """A remedy for an unknown name: the nearest known one, then all of them."""
    names = sorted(known)
    meant = nearest(name, names)
    listed = f"known: {', '.join(names)}" if names else "none is known"
    return f"did you mean `{meant}`? {listed}" if meant else listed


@dataclass(frozen=True, slots=True, order=True)
class Place:
    """A position for people: lines and columns start at 1; ``line`` 0 where there are no lines (the command line)."""

    file: str
    line: int = 0
    column: int = 0

    def __str__(self) -> str:
        return f"{self.file}:{self.line}" if self.line else self.file


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that is wrong. ``problem`` and ``remedy`` never quote the value of a secret."""

    place: Place
    path: Path
    problem: str
    remedy: str = ""

    def __str__(self) -> str:
        where = f"{self.place}: {render_path(self.path)}" if self.path else str(self.place)
        return f"{where}: {self.problem}" + (f"; {self.remedy}" if self.remedy else "")


class ScenarioError(Exception):
    """A scenario cannot be used. ``faults`` holds every reason, in the order of the file."""

    def __init__(self, faults: Iterable[Fault]) -> None:
        unique = dict.fromkeys(faults)
        self.faults: tuple[Fault, ...] = tuple(sorted(unique, key=lambda f: f.place))
        super().__init__("\n".join(map(str, self.faults)))

    @classmethod
    def single(cls, file: str, problem: str, remedy: str = "", *, line: int = 0, path: Path = ()) -> ScenarioError:
        return cls([Fault(Place(file, line), path, problem, remedy)])
