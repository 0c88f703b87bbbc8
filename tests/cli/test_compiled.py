"""The compiled core: what is stale is said, what cannot be compiled leaves plain Python, and removing leaves nothing."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from lmperf import __main__ as front
from lmperf import compiled


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A tree of two modules of its own in place of lmperf's."""
    (tmp_path / "core").mkdir()
    (tmp_path / "core/__init__.py").write_text("")
    (tmp_path / "core/one.py").write_text("def twice(n: int) -> int:\n    return 2 * n\n")
    (tmp_path / "core/two.py").write_text("def thrice(n: int) -> int:\n    return 3 * n\n")
    monkeypatch.setattr(compiled, "HOME", tmp_path)
    monkeypatch.setattr(compiled, "MODULES", ("core.one", "core.two"))
    return tmp_path


def pretend_compiled(*modules: str) -> None:
    for module in modules:
        compiled.binary_of(module).write_bytes(b"")


def touch(file: Path, ahead_s: float) -> None:
    at = file.stat().st_mtime + ahead_s
    os.utime(file, (at, at))


def test_every_module_that_is_named_is_there():
    """A module that was renamed would be left out in silence."""
    assert [module for module in compiled.MODULES if not compiled.source_of(module).is_file()] == []


def test_a_source_that_is_newer_than_its_binary_is_said_at_every_start(home, capsys):
    """By name, with what to do; a core of one that is missing is not compiled."""
    pretend_compiled("core.one", "core.two")
    assert compiled.is_compiled()
    assert compiled.warning() == ""
    touch(home / "core/two.py", 5)
    assert compiled.stale() == ["core.two"]
    assert front.main(["policies"]) == 0
    assert "core.two changed since it was compiled" in capsys.readouterr().err
    touch(home / "core/one.py", 5)
    assert "core.one and 1 more changed" in compiled.warning()
    compiled.binary_of("core.one").unlink()
    assert not compiled.is_compiled()


def test_removing_leaves_the_sources_alone(home):
    pretend_compiled("core.one", "core.two")
    assert compiled.main(["--remove"]) == 0
    assert sorted(file.name for file in (home / "core").iterdir()) == ["__init__.py", "one.py", "two.py"]
    assert compiled.main(["--remove"]) == 0


def test_what_cannot_be_compiled_leaves_plain_python_and_says_why(home, capsys):
    """The compiler's own words; binaries of before are gone too, since they would be of another source."""
    pretend_compiled("core.one")
    (home / "core/two.py").write_text("def thrice(n: int) -> int:\n    return 'three'\n")
    assert compiled.main([]) == 1
    said = capsys.readouterr().err
    assert "core/two.py:2" in said
    assert "not compiled: the plain modules stay" in said
    assert not list(home.rglob("*.so"))
