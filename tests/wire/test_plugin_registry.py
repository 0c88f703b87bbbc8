from __future__ import annotations

import sys

import pytest

from backends.openai import OpenAIBackend
from backends.registry import BACKENDS
from tenants.registry import Registry, RegistryError


@pytest.fixture
def plugin(tmp_path, monkeypatch):
    """Installs a distribution with the given entry points, as files on the path."""

    def install(name, group, entries, source=""):
        (tmp_path / f"{name}.py").write_text(source)
        info = tmp_path / f"{name}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        lines = "\n".join(f"{key} = {value}" for key, value in entries.items())
        (info / "entry_points.txt").write_text(f"[{group}]\n{lines}\n")

    monkeypatch.syspath_prepend(str(tmp_path))
    return install


def registry(**builtins):
    return Registry(group="lmperf.tests", what="thing", builtins=builtins)


def test_builtin_backends_load_by_name():
    """A source checkout knows its backends without installed metadata."""
    assert "openai" in BACKENDS.names()
    assert BACKENDS.load("openai") is OpenAIBackend


def test_entry_points_of_other_packages_are_found(plugin):
    """Another package adds a name; it and the built-in ones are listed together, and imported only on load."""
    plugin("lmperf_test_plugin", "lmperf.tests", {"theirs": "lmperf_test_plugin:Thing.inner"}, "class Thing: inner = 5")
    found = registry(ours="json:dumps")
    assert found.names() == ["ours", "theirs"]
    assert "lmperf_test_plugin" not in sys.modules
    assert found.load("theirs") == 5
    assert found.load("ours") is __import__("json").dumps


def test_an_unknown_name_lists_the_known_ones():
    """And suggests the one that was probably meant."""
    with pytest.raises(RegistryError, match=r"unknown thing 'yourz'; known: ours, yours; did you mean 'yours'\?"):
        registry(ours="json:dumps", yours="json:loads").load("yourz")
    assert "yourz" not in registry(ours="json:dumps")


def test_the_same_entry_twice_is_one(plugin):
    """Installed metadata repeats the built-in table: no conflict."""
    plugin("lmperf_test_twin", "lmperf.tests", {"ours": "json:dumps"})
    assert registry(ours="json:dumps").names() == ["ours"]


def test_a_name_with_two_meanings_is_refused(plugin):
    """Which of two packages wins must not depend on the path."""
    plugin("lmperf_test_rival", "lmperf.tests", {"ours": "elsewhere:thing"})
    with pytest.raises(RegistryError, match=r"'ours' is claimed twice.*json:dumps.*elsewhere:thing"):
        registry(ours="json:dumps").names()


@pytest.mark.parametrize("target", ["no_such_module_at_all:x", "json:no_such_attribute"])
def test_what_cannot_be_loaded_says_what_to_install(target):
    """An optional part that is not installed names its extra."""
    with pytest.raises(RegistryError, match=r"thing 'hf' .*cannot be loaded.*lmperf\[hf\]"):
        registry(hf=target).load("hf")
