"""An engine's environment is made once, recognised when complete, and made again when it is not.

With a package of our own in place of an engine's: the same steps, in seconds and without a network.
"""

import subprocess
import threading
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from tests.engines.support.environment import MARKER, UNFINISHED, Recipe, SetUpError, engines_folder, ensure
from tests.engines.support.vllm_cpu import RECIPE, why_not_here

CHECK = (
    "import fake_engine, importlib.util as u\n"
    "assert fake_engine.VERSION == '1.0'\n"
    "assert u.find_spec('fake_extra') is None"
)


def write_wheel(folder: Path, name: str, version: str, *, requires: str | None = None) -> None:
    """A package of one module, ready to install."""
    info = f"{name}-{version}.dist-info"
    needs = f"Requires-Dist: {requires}\n" if requires else ""
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as wheel:
        wheel.writestr(f"{name}.py", f"VERSION = {version!r}\n")
        wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{needs}")
        wheel.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr(f"{info}/RECORD", f"{name}.py,,\n{info}/METADATA,,\n{info}/WHEEL,,\n{info}/RECORD,,\n")


@pytest.fixture(scope="module")
def wheels(tmp_path_factory):
    """Two versions of an engine; each brings an extra package that must go again."""
    folder = tmp_path_factory.mktemp("wheels")
    write_wheel(folder, "fake_engine", "1.0", requires="fake_extra")
    write_wheel(folder, "fake_engine", "2.0", requires="fake_extra")
    write_wheel(folder, "fake_extra", "1.0")
    return folder


@pytest.fixture(scope="module")
def recipe(wheels):
    constraints = wheels / "constraints.txt"
    constraints.write_text("fake_engine==1.0\n", encoding="utf-8")
    return Recipe(
        name="fake-engine",
        requirements=("fake_engine",),
        constraints=constraints,
        remove=("fake_extra",),
        check=CHECK,
        pip_options=(("--no-index",), ("--no-index", "--find-links", str(wheels))),
    )


@pytest.fixture(scope="module")
def made(recipe, tmp_path_factory):
    """An environment made from nothing, by two set-ups at once: (folder of all, its python, what was said)."""
    folder = tmp_path_factory.mktemp("cache") / "engines"
    said: list[str] = []
    pythons: list[Path] = []
    threads = [
        threading.Thread(target=lambda: pythons.append(ensure(recipe, folder, say=said.append))) for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert pythons == [folder / "fake-engine" / "bin" / "python"] * 2
    return folder, pythons[0], said


def runs(python: Path, code: str) -> bool:
    return subprocess.run([str(python), "-c", code], capture_output=True, check=False).returncode == 0


def test_an_absent_environment_is_made_pinned_and_with_progress(made, recipe):
    """The constrained version, without the packages that had to go; the second way of finding packages is tried when the
    first fails."""
    folder, python, said = made
    assert runs(python, CHECK)
    assert sum(line.startswith("installing fake_engine") for line in said) == 2
    assert (folder / "fake-engine" / MARKER).is_file()
    assert not (folder / "fake-engine" / UNFINISHED).exists()


def test_a_complete_environment_is_left_alone(made, recipe):
    """No word, no check, no installation: the marker is enough (its check would fail here if it were made)."""
    folder, python, _ = made
    said = []
    assert ensure(replace(recipe, check="raise SystemExit(1)"), folder, say=said.append) == python
    assert said == []


def test_one_made_by_hand_is_checked_and_kept(made, recipe):
    """Without a marker it is kept when the recipe's check passes, and marked."""
    folder, python, _ = made
    marker = folder / "fake-engine" / MARKER
    marker.unlink()
    inode = python.lstat().st_ino
    said = []
    ensure(recipe, folder, say=said.append)
    assert marker.is_file()
    assert python.lstat().st_ino == inode, "the same environment, not a new one"
    assert not any(line.startswith("making") for line in said)


def test_two_set_ups_at_once_make_one_environment(made):
    """The second waits for the lock, and then finds what it needs."""
    _, _, said = made
    assert sum(line.startswith("making") for line in said) == 1
    assert sum(line.startswith("another set-up holds") for line in said) == 1


def test_another_recipes_environment_is_made_again(made, recipe, tmp_path):
    """A marker of other pins does not count. A set-up that fails says why, with pip's own words, and leaves no marker;
    what it left is never taken for complete, not even when the recipe's check passes on it."""
    folder, python, _ = made
    root = folder / "fake-engine"
    constraints = tmp_path / "newer.txt"
    constraints.write_text("fake_engine==2.0\n", encoding="utf-8")
    newer = replace(recipe, constraints=constraints, check=CHECK.replace("1.0", "2.0"))

    with pytest.raises(SetUpError, match=r"(?s)installing packages failed.*No matching distribution.*fake_missing"):
        ensure(replace(newer, requirements=("fake_missing",)), folder, say=lambda _: None)
    assert not (root / MARKER).exists()
    assert not runs(python, "import fake_engine"), "the older one is gone"

    python.unlink()
    python.write_text("#!/bin/sh\nexit 0\n", encoding="utf-8")
    python.chmod(0o755)
    assert ensure(newer, folder, say=lambda _: None) == python
    assert (root / MARKER).is_file()
    assert not (root / UNFINISHED).exists()
    assert runs(python, newer.check)
    assert not runs(python, CHECK)


def test_environments_live_in_the_users_cache(monkeypatch, tmp_path):
    """XDG_CACHE_HOME where it is set, ~/.cache where not."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert engines_folder() == tmp_path / "lmperf" / "engines"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert engines_folder() == Path.home() / ".cache" / "lmperf" / "engines"


def test_every_package_of_the_real_engine_is_pinned():
    """The engine itself, and everything that came with it but what is removed again."""
    pins = [line for line in RECIPE.constraints.read_text(encoding="utf-8").splitlines() if not line.startswith("#")]
    assert all(pin.count("==") == 1 for pin in pins)
    names = {pin.split("==")[0].lower() for pin in pins}
    assert RECIPE.requirements[0] in pins
    assert {"torch", "transformers", "tokenizers"} <= names
    assert not names & set(RECIPE.remove)


@pytest.mark.parametrize(("flags", "can"), [("fpu sse4_2 avx avx2", True), ("fpu sse4_2 avx", False)])
def test_only_a_machine_without_avx2_is_excused(tmp_path, monkeypatch, flags, can):
    """And the reason names what is missing."""
    monkeypatch.setattr("platform.system", lambda: "Linux")
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text(f"processor : 0\nflags\t\t: {flags}\n", encoding="utf-8")
    reason = why_not_here(cpuinfo)
    assert (reason is None) == can
    assert can or "AVX2" in reason
