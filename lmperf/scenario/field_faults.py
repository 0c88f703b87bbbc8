"""What pydantic found wrong, said to people: at a line, with what would be right."""

from __future__ import annotations

from typing import Any

from pydantic import ValidationError

from lmperf.scenario.document import Document
from lmperf.scenario.faults import Fault, Path, one_of
from lmperf.scenario.secrets import is_secret
from lmperf.scenario.shape import choices_at, description_at, keys_at
from tenants.nearest import nearest

_KINDS = {
    "float_type": "a number",
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "string_type": "text",
    "bool_type": "true or false",
    "dict_type": "a mapping (`key: value`)",
    "model_type": "a mapping (`key: value`)",
    "list_type": "a list",
    "finite_number": "a finite number",
}
_BOUNDS = {
    "greater_than": (">", "gt"),
    "greater_than_equal": (">=", "ge"),
    "less_than": ("<", "lt"),
    "less_than_equal": ("<=", "le"),
}


def field_faults(error: ValidationError, document: Document) -> list[Fault]:
    """One fault for each of the errors, none of which quotes a secret."""
    return [_fault(dict(e), document) for e in error.errors(include_url=False)]


def _fault(error: dict[str, Any], document: Document) -> Fault:
    path: Path = tuple(error["loc"])
    kind, context = str(error["type"]), error.get("ctx", {})
    about = description_at(path)
    if kind == "missing":
        return document.fault(path, "is missing", f"it is needed: {about}" if about else "it is needed")
    shown = document.written(path)
    got = _got(error.get("input"), secret=is_secret(path))
    if kind == "extra_forbidden":
        return document.fault(path, "unknown key", _key_remedy(str(path[-1]), keys_at(path[:-1])))
    if kind in _KINDS:
        return document.fault(shown, f"must be {_KINDS[kind]}, got {got}", _hint(error, about))
    if kind in _BOUNDS:
        sign, key = _BOUNDS[kind]
        return document.fault(shown, f"must be {sign} {context[key]:,.12g}, got {got}", about)
    if kind in {"enum", "literal_error"}:
        return document.fault(shown, f"cannot be {got}", one_of(str(error["input"]), choices_at(path)))
    if kind == "too_short":
        return document.fault(shown, f"needs at least {_entries(context['min_length'])}, got {got}", about)
    if kind == "too_long":
        return document.fault(shown, f"takes at most {_entries(context['max_length'])}, got {got}", about)
    return document.fault(shown, str(error["msg"]), about)


def _key_remedy(key: str, known: list[str]) -> str:
    meant = nearest(key, known)
    return f"did you mean `{meant}`?" if meant else f"known: {', '.join(sorted(known))}"


def _hint(error: dict[str, Any], about: str) -> str:
    """A number with a unit is the commonest wrong number: the unit belongs in the name."""
    value = error.get("input")
    if isinstance(value, str) and value[:1].isdigit() and value[-1:].isalpha():
        return f"write the number alone, the unit is in the key: {about}"
    return about


def _entries(count: int) -> str:
    return "one entry" if count == 1 else f"{count} entries"


def _got(value: object, *, secret: bool) -> str:
    if value is None:
        return "nothing"
    if isinstance(value, dict):
        return "a mapping" if value else "an empty mapping"
    if isinstance(value, list):
        return f"a list of {len(value)}"
    if secret:
        return "another kind of value"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return f"the text '{value if len(value) <= 40 else value[:37] + '...'}'"
    return f"{value:g}" if isinstance(value, float) else str(value)
