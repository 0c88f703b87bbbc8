"""References that stand for secrets wherever one is configured: ``${env:NAME}`` and ``${file:PATH}``.

The value is read where it is put on the wire and nowhere else. A file holds one line; white space around it (the newline
that an editor leaves) is not part of the value. Messages name the variable or the file, never a value.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

REFERENCE = re.compile(r"\$\{(env:[A-Za-z_][A-Za-z0-9_]*|file:[^${}\r\n]+)\}")
"""Group 1: what is referred to, ``env:NAME`` or ``file:PATH``."""

RIGHT = "${env:NAME} or ${file:PATH}"
"""What a message says would be right."""

_MOST_BYTES = 64 << 10


class SecretError(ValueError):
    """A reference that stands for nothing. ``problem`` and ``remedy`` are the halves of the message."""

    def __init__(self, problem: str, remedy: str) -> None:
        super().__init__(f"{problem}; {remedy}")
        self.problem = problem
        self.remedy = remedy


def is_only_reference(text: str) -> bool:
    """Whether ``text`` is one reference or several, and nothing written out beside them."""
    return REFERENCE.search(text) is not None and not REFERENCE.sub("", text).strip()


def value_of(referred: str, environ: Mapping[str, str] | None = None) -> str:
    """What ``env:NAME`` (which may be empty) or ``file:PATH`` (which may not) stands for. Raises SecretError."""
    kind, _, name = referred.partition(":")
    if kind == "file":
        return _in_file(Path(name).expanduser())
    value = (os.environ if environ is None else environ).get(name)
    if value is None:
        raise SecretError(f"the environment variable {name} is not set", f"export {name}=... first")
    return value


def resolve_references(text: str) -> str:
    """``text`` with every reference replaced by its value. Raises SecretError, also for a variable that is empty."""

    def value(match: re.Match[str]) -> str:
        found = value_of(match[1])
        if not found:
            name = match[1].removeprefix("env:")
            raise SecretError(f"the environment variable {name} is not set", f"export {name}=... first")
        return found

    return REFERENCE.sub(value, text)


def with_absolute_files(text: str, folder: Path) -> str:
    """``text`` with the relative files of its references taken from ``folder``."""

    def absolute(match: re.Match[str]) -> str:
        kind, _, name = match[1].partition(":")
        return match[0] if kind != "file" else f"${{file:{folder.resolve() / Path(name).expanduser()}}}"

    return REFERENCE.sub(absolute, text)


def _in_file(file: Path) -> str:
    remedy = "it should hold the value in one line"
    try:
        if not file.is_file():  # also what would never end, such as a pipe that nobody writes to
            problem = "is no regular file" if file.exists() else "does not exist"
            raise SecretError(f"the file {file} {problem}", remedy)
        with file.open("rb") as opened:
            data = opened.read(_MOST_BYTES + 1)
    except OSError as error:
        raise SecretError(f"the file {file} cannot be read: {error.strerror}", remedy) from error
    try:
        value = data.decode("utf-8-sig").strip()
    except UnicodeDecodeError:
        value = "\0"
    if not value:
        raise SecretError(f"the file {file} is empty", remedy)
    if len(data) > _MOST_BYTES or not value.isprintable():
        raise SecretError(f"the file {file} holds more than one line of text", remedy)
    return value
