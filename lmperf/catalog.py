"""The built-in scenarios by name: where they lie in a wheel and in a checkout."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from lmperf.scenario.document import read_document
from lmperf.scenario.faults import ScenarioError, one_of

SUFFIXES = (".yaml", ".yml")


@dataclass(frozen=True, slots=True)
class Entry:
    """A built-in scenario."""

    name: str
    path: Path

    @property
    def summary(self) -> str:
        """The first sentence of its description."""
        text = " ".join(str(read_document(self.path).data.get("description", "")).split())
        end = re.search(r"[.?!](\s|$)", text)
        return text if end is None else text[: end.start() + 1]


def scenario_folders() -> list[Path]:
    """The folders that hold built-in scenarios: inside the installed package, or beside it in a checkout."""
    package = Path(__file__).resolve().parent
    folders = [package / "scenarios"]
    # Beside an installed package, a folder of that name would be somebody else's.
    if (package.parent / "pyproject.toml").is_file():
        folders.append(package.parent / "scenarios")
    return [folder for folder in folders if folder.is_dir()]


def list_scenarios() -> list[Entry]:
    """The built-in scenarios, by name."""
    found: dict[str, Entry] = {}
    for folder in scenario_folders():
        for path in _files(folder):
            found.setdefault(path.stem, Entry(path.stem, path))
    return [found[name] for name in sorted(found)]


def find_scenario(name: str) -> Path:
    """The file that ``name`` means: a path, or a built-in scenario. Raises ScenarioError, which lists those."""
    path = Path(name).expanduser()
    if path.suffix in SUFFIXES or len(path.parts) > 1 or path.is_file():
        return path
    entries = {entry.name: entry.path for entry in list_scenarios()}
    if name in entries:
        return entries[name]
    raise ScenarioError.single(name, "is neither a file nor a built-in scenario", one_of(name, entries))


def _files(folder: Path) -> Iterator[Path]:
    return (path for path in sorted(folder.iterdir()) if path.suffix in SUFFIXES)
