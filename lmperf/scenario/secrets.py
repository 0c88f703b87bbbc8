"""Secrets are references, ``${env:NAME}`` or ``${file:PATH}``, everywhere but on the wire.

A secret that was written out (in a file, or with ``--set``) works, but only once: on reading it moves into
:class:`Secrets`, which prints nothing of it, and a reference takes its place. So nothing that is made of a scenario
afterwards (plan, resolved file, event log, message) can hold its value.

A relative file is taken from the scenario's folder (of the command line: the current one), a file is read once.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from backends.reference import REFERENCE, SecretError, value_of, with_absolute_files
from lmperf.scenario.document import Document, lookup
from lmperf.scenario.faults import Fault, Path, ScenarioError

REDACTED = "***"
_SECRET_HEADER = re.compile(
    r"auth|key|tok|secret|passw|cookie|credential|subscription|session|signature", re.IGNORECASE
)
_SECRET_KEY = re.compile(r"authorization|api[-_]?key|secret|password|credential|(access|auth)[-_]?token", re.IGNORECASE)
_SCHEME = re.compile(r"(bearer|basic|token)\s+", re.IGNORECASE)
_OWNER_DEPTH: dict[str | int, int] = {"backend": 1, "tenants": 2}
_IDENTITY_KEYS = ("api_key", "headers", "extra_body", "options", "url", "urls", "base_url")


def is_secret(path: Path) -> bool:
    """True when the value at ``path`` is a secret by its place: it is never quoted in a message."""
    key, *rest = path[_OWNER_DEPTH.get(path[0], len(path)) if path else 0 :] or ("",)
    if key == "headers":
        return bool(rest) and _SECRET_HEADER.search(str(rest[0])) is not None
    if key in {"extra_body", "options"}:
        return any(_SECRET_KEY.search(str(part)) for part in rest)
    return key == "api_key"


def _is_literal(text: str) -> bool:
    return bool(REFERENCE.sub("", _SCHEME.sub("", text, count=1)).strip())


class Secrets:
    """Resolves references: first to what was written out in the scenario, then to environment variables.

    ``written_out``: where secrets were, for who must refuse them (a gateway, which serves others for weeks).
    """

    def __init__(
        self,
        document: Document,
        literals: Mapping[str, str],
        environ: Mapping[str, str] | None = None,
        written_out: Sequence[Fault] = (),
    ) -> None:
        self._document = document
        self.written_out = tuple(written_out)
        self._literals = dict(literals)
        self._environ = os.environ if environ is None else environ
        self._files: dict[str, str] = {}

    def __repr__(self) -> str:
        return f"Secrets({len(self._literals)} written out)"

    def __reduce__(self) -> str:
        raise TypeError("secrets stay in the process that read them; send resolved headers over a local socket instead")

    def resolve(self, text: str) -> str:
        """``text`` with every reference replaced by its value. Raises ScenarioError, at the line of the reference, when
        a variable is not set or a file holds no value.
        """
        for referred in REFERENCE.findall(text):
            try:
                self._value(referred)
            except SecretError as error:
                used_at = [p for p, used in _texts(self._document.data) if referred in REFERENCE.findall(used)]
                raise ScenarioError(
                    self._document.fault(path, error.problem, error.remedy) for path in used_at or [()]
                ) from error
        return REFERENCE.sub(lambda match: self._value(match[1]), text)

    def missing(self) -> list[Fault]:
        """Every place of the scenario with a reference that stands for nothing."""
        faults = []
        for path, text in _texts(self._document.data):
            try:
                for referred in REFERENCE.findall(text):
                    self._value(referred)
            except SecretError as error:
                faults.append(self._document.fault(path, error.problem, error.remedy))
        return faults

    def variables(self) -> list[str]:
        """The names of all environment variables that the scenario refers to, those of written-out secrets included."""
        return sorted(referred.removeprefix("env:") for referred in self._referred() if referred.startswith("env:"))

    def redact(self, text: str) -> str:
        """``text`` without any value that a reference of the scenario stands for."""
        values = set()
        for referred in self._referred():
            with contextlib.suppress(SecretError):  # what cannot be read was sent nowhere
                values.add(self._value(referred))
        for value in sorted(filter(None, values), key=len, reverse=True):
            text = text.replace(value, REDACTED)
        return text

    def _referred(self) -> set[str]:
        return {referred for _, used in _texts(self._document.data) for referred in REFERENCE.findall(used)}

    def _value(self, referred: str) -> str:
        literal = self._literals.get(referred.removeprefix("env:"))
        if literal is not None:
            return literal
        if referred not in self._files:
            value = value_of(referred, self._environ)
            if not referred.startswith("file:"):
                return value
            self._files[referred] = value
        return self._files[referred]


def take_secrets(document: Document) -> tuple[Document, Secrets, list[Fault], list[Fault]]:
    """The document with every written-out secret replaced by a reference, the secrets, faults, and warnings."""
    data = _copy(document.data)
    literals: dict[str, str] = {}
    faults: list[Fault] = []
    warnings: list[Fault] = []
    for path, text in list(_texts(data)):
        rest = REFERENCE.sub("", text)
        if "${" in rest:
            remedy = "write `${env:NAME}` or `${file:PATH}`"
            faults.append(document.fault(path, "holds `${`, but not a reference", remedy))
        if rest != text:
            lookup(data, path[:-1])[path[-1]] = with_absolute_files(text, document.folder_of(path))
        if not is_secret(path) or not _is_literal(text):
            continue
        name = _variable(path, taken=literals)
        literals[name] = text
        lookup(data, path[:-1])[path[-1]] = f"${{env:{name}}}"
        remedy = f"use `${{env:NAME}}`; everything written holds `${{env:{name}}}` in its place"
        warnings.append(document.fault(path, "a secret is written out", remedy))
    replaced = document.with_data(data)
    return replaced, Secrets(replaced, literals, written_out=warnings), faults, warnings


def redact_argv(argv: Sequence[str]) -> list[str]:
    """A command line that may be printed and written: values of ``--api-key``, and of ``--header`` and ``--set``
    where they are secret, are gone; references stay.
    """
    shown: list[str] = []
    option = ""
    for word in argv:
        name, equals, value = word.partition("=")
        if option:
            shown.append(_redacted(option, word))
            option = ""
        elif name in _SECRET_OPTIONS:
            shown.append(name + equals + (_redacted(name, value) if equals else ""))
            option = "" if equals else name
        else:
            shown.append(word)
    return shown


_SECRET_OPTIONS = ("--api-key", "--header", "--set")


def _redacted(option: str, value: str) -> str:
    if option == "--api-key":
        return REDACTED if _is_literal(value) else value
    separator = ":" if option == "--header" and "=" not in value.partition(":")[0] else "="
    name, found, text = value.partition(separator)
    if option == "--header":
        secret = is_secret(("backend", "headers", name.strip()))
    else:
        # A mapping that is set at once may hold a secret anywhere.
        secret = is_secret(tuple(name.replace('"', "").split("."))) or "{" in REFERENCE.sub("", text)
    if found and secret and _is_literal(text):
        return f"{name}{found}{REDACTED}"
    return _without_credentials(value)


def _without_credentials(text: str) -> str:
    return re.sub(r"(//)[^/@\s]+@", rf"\g<1>{REDACTED}@", text)


def _variable(path: Path, *, taken: Mapping[str, str]) -> str:
    stem = "LMPERF_" + re.sub(r"[^A-Z0-9]+", "_", "_".join(map(str, path)).upper())
    name, number = stem, 1
    while name in taken:
        number += 1
        name = f"{stem}_{number}"
    return name


def _texts(data: Mapping[str, Any]) -> Iterator[tuple[Path, str]]:
    """Every text that may hold a reference: the identity of the backend and of each tenant."""
    tenants = data.get("tenants")
    owners: list[Path] = [("backend",)]
    owners.extend(("tenants", name) for name in (tenants if isinstance(tenants, dict) else ()))
    for owner in owners:
        for key in _IDENTITY_KEYS:
            yield from _strings((*owner, key), lookup(data, (*owner, key)))


def _strings(path: Path, value: object) -> Iterator[tuple[Path, str]]:
    if isinstance(value, str):
        yield path, value
    elif isinstance(value, dict):
        for key, child in value.items():
            yield from _strings((*path, key), child)
    elif isinstance(value, list):
        for index, child in enumerate(value):
            yield from _strings((*path, index), child)


def _copy(value: Any) -> Any:  # noqa: ANN401 (plain data of any shape)
    if isinstance(value, dict):
        return {key: _copy(child) for key, child in value.items()}
    return [_copy(child) for child in value] if isinstance(value, list) else value
