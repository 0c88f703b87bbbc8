"""docs/server-model.md lists every key of a server-model file, with its default."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest

from scheduler.server_model.spec import ServerLimits, StepLaw

_PAGE = Path(__file__).parents[2] / "docs" / "server-model.md"


def _table(title: str) -> dict[str, str]:
    """key -> default, of the first table below a heading."""
    section = _PAGE.read_text(encoding="utf-8").partition(f"## `{title}`")[2].partition("\n## ")[0]
    return dict(re.findall(r"^\| `(\w+)` \| ([^|]+?) \|", section, flags=re.MULTILINE))


@pytest.mark.parametrize(("title", "kind"), [("law", StepLaw), ("limits", ServerLimits)])
def test_every_key_and_its_default_is_documented(title, kind):
    """In the order of the file; ``off`` where the default turns a term off."""
    documented = _table(title)
    assert list(documented) == list(kind.__struct_fields__)
    for field in msgspec.structs.fields(kind):
        told = documented[field.name]
        if field.default is msgspec.NODEFAULT:
            assert told == "(required)"
        elif field.default is None:
            assert told.startswith("null")
        elif isinstance(field.default, bool):
            assert told == f"{str(field.default).lower()}, off"
        else:
            assert float(told.partition(",")[0]) == field.default
            assert told.endswith(", off") is (field.default == 0)
