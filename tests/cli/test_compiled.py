"""The compiled core: what is stale or broken is said, a failed compilation changes nothing, removing leaves nothing."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from cli_support import DEADLINE_S, ROOT

from lmperf import __main__ as front
from lmperf import compiled


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A tree of two modules of its own in place of lmperf's."""
    (tmp_path / "core").mkdir()
    (tmp_path / "lmperf").mkdir()
    (tmp_path / "core/__init__.py").write_text("")
    (tmp_path / "core/one.py").write_text("def twice(n: int) -> int:\n    return 2 * n\n")
    (tmp_path / "core/two.py").write_text("def thrice(n: int) -> int:\n    return 3 * n\n")
    monkeypatch.setattr(compiled, "HOME", tmp_path)
    monkeypatch.setattr(compiled, "MODULES", ("core.one", "core.two"))
    return tmp_path


def pretend_compiled(home):
    """As if they had been."""
    for binary in (*map(compiled.binary_of, compiled.MODULES), compiled._group()):
        binary.write_bytes(b"")
    record = {module: compiled._digest(compiled.source_of(module)) for module in compiled.MODULES}
    (home / compiled._RECORD).write_text(json.dumps(record))


def left(home):
    """All files but the sources."""
    return sorted(str(file.relative_to(home)) for file in home.rglob("*") if file.is_file() and file.suffix != ".py")


def test_every_module_that_is_named_is_there():
    """A module that was renamed would be left out in silence."""
    assert [module for module in compiled.MODULES if not compiled.source_of(module).is_file()] == []


def test_a_source_that_was_changed_is_said_at_every_start(home, capsys):
    """By name, with what to do, whatever its time of change says; what is compiled still runs."""
    assert compiled.state() == compiled.State(compiled=False)
    pretend_compiled(home)
    assert compiled.state() == compiled.State(compiled=True)
    source = home / "core/two.py"
    before = source.stat().st_mtime
    source.write_text("def thrice(n: int) -> int:\n    return 4 * n\n")
    os.utime(source, (before - 1e6, before - 1e6))
    assert compiled.state().stale == ("core.two",)
    assert front.main(["policies"]) == 0
    assert "core.two changed since it was compiled" in capsys.readouterr().err
    (home / "core/one.py").write_text("")
    assert "core.one and 1 more changed" in compiled.state().warning


@pytest.mark.parametrize("broken", ["a module", "the group", "the record", "a stranger", "half a copy"])
def test_binaries_that_do_not_belong_together_stop_every_command(home, capsys, broken):
    """They would be imported as they are, and fail in the middle of something; removing mends it."""
    pretend_compiled(home)
    if broken == "a module":
        compiled.binary_of("core.two").unlink()
    elif broken == "the group":
        compiled._group().unlink()
    elif broken == "the record":
        (home / compiled._RECORD).unlink()
    else:
        name = compiled.binary_of("core.gone" if broken == "a stranger" else "core.one")
        name.with_name(name.name + ("" if broken == "a stranger" else ".new")).write_bytes(b"")
    assert front.main(["policies"]) == 104
    assert "the compiled core cannot be used" in capsys.readouterr().err
    assert compiled.main(["--remove"]) == 0
    assert left(home) == []
    assert front.main(["policies"]) == 0


def test_removing_leaves_the_sources_alone(home):
    pretend_compiled(home)
    assert compiled.main(["--remove"]) == 0
    assert left(home) == []
    assert sorted(file.name for file in (home / "core").iterdir()) == ["__init__.py", "one.py", "two.py"]
    assert compiled.main(["--remove"]) == 0


def test_removing_finds_what_an_earlier_version_compiled(home):
    """Its binary would hide a module that is plain now, wherever in the package it lies."""
    (home / "core/deeper").mkdir()
    pretend_compiled(home)
    before = left(home)
    (home / f"core/deeper/three{compiled._SUFFIX}").write_bytes(b"")
    assert left(home) != before
    compiled.remove()
    assert left(home) == []


@pytest.mark.parametrize("raised", [OSError(28, "No space left on device"), KeyboardInterrupt()])
@pytest.mark.parametrize("step", ["copy", "replace"])
def test_what_is_stopped_while_binaries_are_placed_leaves_no_half_set(home, monkeypatch, raised, step):
    """Before any is moved what was there stays; from then on plain Python is what is left."""

    def made(_script, folder):
        for binary in (*map(compiled.binary_of, compiled.MODULES), compiled._group()):
            (folder / binary.relative_to(home)).write_bytes(b"new")

    calls = iter(range(100))

    def failing(real):
        def call(*args, **kwargs):
            if next(calls) == 1:
                raise raised
            return real(*args, **kwargs)

        return call

    pretend_compiled(home)
    monkeypatch.setattr(compiled, "_run", made)
    if step == "copy":
        monkeypatch.setattr("shutil.copy", failing(shutil.copy))
    else:
        monkeypatch.setattr(Path, "replace", failing(Path.replace))
    with pytest.raises(type(raised)):
        compiled.compile_all()
    assert compiled.state() == compiled.State(compiled=step == "copy")
    assert not [name for name in left(home) if name.endswith(".new")]


def test_what_cannot_be_compiled_leaves_what_was_there_and_says_why(home, capsys):
    """The compiler's own words, of the place in the source."""
    pretend_compiled(home)
    before = left(home)
    (home / "core/two.py").write_text("def thrice(n: int) -> int:\n    return 'three'\n")
    assert compiled.main([]) == 1
    said = capsys.readouterr().err
    assert "core/two.py:2" in said
    assert "what was there stays" in said
    assert left(home) == before


def test_a_folder_that_cannot_be_written_to_is_named_before_anything_is_compiled(home, capsys, monkeypatch):
    monkeypatch.setattr(compiled.os, "access", lambda folder, mode: folder.name != "core")
    monkeypatch.setattr(compiled, "_run", lambda *_: pytest.fail("compiled all the same"))
    assert compiled.main([]) == 1
    assert f"{home / 'core'} cannot be written to" in capsys.readouterr().err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stopped_compilation_leaves_nothing_and_nobody(tmp_path, number):
    """Of a copy of the sources: 105, no traceback, no process of its session, nothing where temporary things go."""
    temporary = tmp_path / "t"
    temporary.mkdir()
    process = subprocess.Popen(
        [sys.executable, "-m", "lmperf.compiled"],
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(temporary)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        deadline = time.monotonic() + DEADLINE_S
        while not list(temporary.glob("*/sources/scheduler")) and time.monotonic() < deadline:
            time.sleep(0.02)
        children = subprocess.run(["pgrep", "-P", str(process.pid)], capture_output=True, text=True, check=False).stdout
        process.send_signal(number)
        _, err = process.communicate(timeout=DEADLINE_S)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 105, err
    assert "Traceback" not in err
    assert list(temporary.iterdir()) == []
    assert [pid for pid in children.split() if Path(f"/proc/{pid}/cmdline").exists()] == []
