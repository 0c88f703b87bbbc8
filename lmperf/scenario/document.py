"""A YAML file as plain data, with the line and column of everything in it.

The file is read as a node graph, not constructed at once: so that two equal keys are a fault with both lines (a
constructor stops at the first or silently keeps the last), and so that every later fault can name its line. Scalars
follow YAML 1.2: ``yes``, ``no`` and ``on`` are text, ``012`` is twelve, and a date stays text.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path as FilePath
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from lmperf.scenario.faults import COMMAND_LINE, Fault, Path, Place, ScenarioError

MAX_NODES = 200_000
"""Aliases can make a small file expand without end; a scenario is never this large."""

Data = Any
"""Plain YAML data that nothing has checked yet: any shape of dicts, lists and scalars."""

_TAG = "tag:yaml.org,2002:"
_PLAIN = {_TAG + kind for kind in ("int", "float", "bool", "null")}
_TEXT = {_TAG + kind for kind in ("str", "timestamp", "value")}

_PARQUET = b"PAR1"


@dataclass(frozen=True, slots=True)
class Document:
    """``data``: dicts, lists and scalars. ``places``: where each path stands. ``faults``: what is already known to be
    wrong. ``folder``: what relative paths in the file are relative to.
    """

    file: str
    data: dict[str, Any]
    places: Mapping[Path, Place] = field(default_factory=dict)
    faults: tuple[Fault, ...] = ()
    folder: FilePath | None = None

    def place(self, path: Path) -> Place:
        """Where ``path`` is, or would be: the place of its longest prefix that is written."""
        for end in range(len(path), 0, -1):
            if (found := self.places.get(path[:end])) is not None:
                return found
        return self.places.get((), Place(self.file))

    def written(self, path: Path) -> Path:
        """The longest prefix of ``path`` that stands in the file."""
        for end in range(len(path), 0, -1):
            if path[:end] in self.places:
                return path[:end]
        return ()

    def fault(self, path: Path, problem: str, remedy: str = "") -> Fault:
        return Fault(self.place(path), path, problem, remedy)

    def folder_of(self, path: Path) -> FilePath:
        """What a relative file name at ``path`` is relative to: the scenario's folder, or for a value of the command
        line the current one.
        """
        if self.folder is None or self.place(path).file == COMMAND_LINE:
            return FilePath.cwd()
        return self.folder

    def with_data(self, data: dict[str, Any]) -> Document:
        return replace(self, data=data)


def read_document(file: FilePath) -> Document:
    """Read a scenario file. Raises ScenarioError when there is no readable mapping in it; smaller faults are kept in
    ``Document.faults`` so that they are reported with all others.
    """
    shown = str(file)
    try:
        data = file.read_bytes()
        if data.startswith(_PARQUET):
            remedy = "name it in a scenario (trace: {path: FILE}), or lmperf simulate FILE"
            raise ScenarioError.single(shown, "is a trace (parquet), and a scenario is asked for", remedy)
        text = data.decode("utf-8-sig")
    except FileNotFoundError:
        raise ScenarioError.single(shown, "there is no such file", "check the path") from None
    except IsADirectoryError:
        raise ScenarioError.single(shown, "is a folder", "name a scenario file (.yaml) in it") from None
    except OSError as error:
        raise ScenarioError.single(shown, f"cannot be read: {error.strerror or error}") from None
    except UnicodeDecodeError as error:
        raise ScenarioError.single(shown, f"is not UTF-8 text (byte {error.start})", "save it as UTF-8") from None
    return parse_document(text, file=shown, folder=file.resolve().parent)


def parse_document(text: str, *, file: str = "<text>", folder: FilePath | None = None) -> Document:
    """As :func:`read_document`, from text."""
    root = _compose(text, file)
    if root is None:
        raise ScenarioError.single(file, "is empty", "a scenario needs at least `tenants:`")
    if not isinstance(root, MappingNode):
        raise ScenarioError.single(
            file, f"holds {_kind(root)} at its top", "write `key: value` lines", line=root.start_mark.line + 1
        )
    reader = _Reader(file)
    data = reader.value(root, ())
    return Document(file, data, reader.places, tuple(reader.faults), folder)


def document_from_data(
    data: dict[str, Any], *, file: str = "<command line>", flags: Mapping[Path, str] | None = None
) -> Document:
    """A document that was never a file: everything in it stands at ``file``, without lines, or at the flag that gave it."""
    places: dict[Path, Place] = {}
    mark_places(places, (), data, Place(file))
    places.update({path: Place(flag) for path, flag in (flags or {}).items() if path in places})
    return Document(file, data, places)


def mark_places(places: dict[Path, Place], path: Path, value: object, place: Place) -> None:
    """Say that ``value`` and everything in it came from ``place``."""
    places[path] = place
    if isinstance(value, dict):
        for key, child in value.items():
            mark_places(places, (*path, key), child, place)
    elif isinstance(value, list):
        for index, child in enumerate(value):
            mark_places(places, (*path, index), child, place)


def parse_value(text: str) -> Data:
    """One YAML value (a scalar, or a flow list or mapping), as the command line gives it. Raises ScenarioError, which
    never quotes the text: it may be a secret.
    """
    root = _compose(text, COMMAND_LINE)
    if root is None:
        return None
    reader = _Reader(COMMAND_LINE)
    value = reader.value(root, ())
    if reader.faults:
        raise ScenarioError(reader.faults)
    return value


def _compose(text: str, file: str) -> Node | None:
    try:
        node: Node | None = YAML(typ="safe", pure=True).compose(text)
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        problem = " ".join(str(part) for part in (error.context, error.problem) if part)
        raise ScenarioError.single(
            file, f"is not YAML: {problem}", "check indentation, colons and quotes", line=mark.line + 1 if mark else 0
        ) from None
    except RecursionError:
        raise ScenarioError.single(file, "is nested too deeply to be read", "a scenario needs six levels") from None
    except YAMLError as error:
        first_line = str(error).splitlines()[0]
        raise ScenarioError.single(file, f"is not YAML: {first_line}", "check for control characters") from None
    return node


def _kind(node: Node) -> str:
    return "a list" if isinstance(node, SequenceNode) else "a single value"


class _Reader:
    """Turns nodes into data; remembers places and faults on the way."""

    def __init__(self, file: str) -> None:
        self.file = file
        self.places: dict[Path, Place] = {}
        self.faults: list[Fault] = []
        self._constructor = YAML(typ="safe", pure=True).constructor
        self._open: set[int] = set()
        self._nodes = 0

    def value(self, node: Node, path: Path) -> Data:
        self.places.setdefault(path, self._place(node))
        self._nodes += 1
        if self._nodes > MAX_NODES:
            raise ScenarioError.single(self.file, f"expands to more than {MAX_NODES} values", "use fewer aliases")
        if isinstance(node, ScalarNode):
            return self._scalar(node, path)
        if id(node) in self._open:
            self._fault(node, path, "contains itself through an alias", "write the value out")
            return None
        self._open.add(id(node))
        try:
            if isinstance(node, SequenceNode):
                return [self.value(item, (*path, index)) for index, item in enumerate(node.value)]
            return self._mapping(node, path)
        finally:
            self._open.discard(id(node))

    def _mapping(self, node: Node, path: Path) -> dict[str, Any]:
        data: dict[str, Any] = {}
        lines: dict[str, int] = {}
        for key_node, value_node in node.value:
            key = key_node.value if isinstance(key_node, ScalarNode) else None
            if not isinstance(key, str):
                self._fault(key_node, path, "has a key that is a list or a mapping", "use plain text as the key")
                continue
            if key == "<<" and key_node.tag == _TAG + "merge":
                self._fault(
                    key_node, (*path, key), "merge keys are not part of YAML 1.2", "repeat the values, or use an alias"
                )
                continue
            child = (*path, key)
            line = key_node.start_mark.line + 1
            if key in lines:
                self._fault(
                    key_node, child, f"is given twice, on lines {lines[key]} and {line}", "keep one, or rename one"
                )
                continue
            lines[key] = line
            self.places[child] = self._place(key_node)
            data[key] = self.value(value_node, child)
        return data

    def _scalar(self, node: ScalarNode, path: Path) -> Data:
        tag = str(node.tag)
        if tag in _TEXT:
            return node.value
        if tag in _PLAIN:
            try:
                return self._constructor.construct_object(node)
            except (ValueError, YAMLError):
                self._fault(node, path, f"is marked as {tag.removeprefix(_TAG)} but is not one", "remove the `!!` tag")
                return None
        self._fault(
            node, path, f"has the tag `{tag.replace(_TAG, '!!')}`", "remove it: scenarios use plain values only"
        )
        return None

    def _place(self, node: Node) -> Place:
        return Place(self.file, node.start_mark.line + 1, node.start_mark.column + 1)

    def _fault(self, node: Node, path: Path, problem: str, remedy: str) -> None:
        self.faults.append(Fault(self._place(node), path, problem, remedy))


def lookup(data: object, path: Path) -> Data:
    """The value at ``path``, or None where the data is not shaped that way."""
    for part in path:
        if isinstance(data, dict) and isinstance(part, str):
            data = data.get(part)
        elif isinstance(data, list) and isinstance(part, int) and part < len(data):
            data = data[part]
        else:
            return None
    return data
