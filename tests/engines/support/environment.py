"""The virtual environment of a real engine: made once, kept in the user's cache, recognised when it is complete.

An engine's packages (3.5 GB for vLLM on the CPU) must not mix with lmperf's own, so each engine has an environment of its
own under ``${XDG_CACHE_HOME:-~/.cache}/lmperf/engines/<name>``. Three states are told apart:

* *complete*: the marker file says which recipe made it, and it is this one;
* *made by hand*: no marker, no sign of a set-up of ours, and the recipe's own check passes; it is adopted (marked);
* anything else (absent, half-finished, of another recipe) is made from scratch. Resuming is not tried: a package whose
  installation was cut off looks installed.

A lock file beside the folder lets one set-up work at a time; the others wait and then find the environment complete.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

MARKER = "lmperf-complete.json"
UNFINISHED = "lmperf-unfinished"

Say = Callable[[str], None]


class SetUpError(RuntimeError):
    """An environment could not be made; the message says which step failed and what would help."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """How to make an environment. ``remove``: packages that a requirement brings and that must go again. ``check``: Python
    code that succeeds in a complete environment only. ``pip_options``: what pip needs, tried in order until one works.
    """

    name: str
    requirements: tuple[str, ...]
    check: str
    constraints: Path | None = None
    remove: tuple[str, ...] = ()
    pip_options: tuple[tuple[str, ...], ...] = ((),)

    @property
    def fingerprint(self) -> str:
        """Changes when the packages would; how pip finds them does not matter."""
        pinned = self.constraints.read_text(encoding="utf-8") if self.constraints is not None else ""
        told = json.dumps([self.requirements, self.remove, pinned])
        return hashlib.sha256(told.encode()).hexdigest()[:16]


def engines_folder() -> Path:
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "lmperf" / "engines"


def ensure(recipe: Recipe, folder: Path | None = None, *, say: Say = print) -> Path:
    """The python of a complete environment. ``folder``: where environments live. Raises SetUpError."""
    root = (engines_folder() if folder is None else folder) / recipe.name
    python = root / "bin" / "python"
    root.parent.mkdir(parents=True, exist_ok=True)
    with _lock(root.with_name(f"{root.name}.lock"), say):
        if _complete(root, recipe):
            return python
        if _made_by_hand(root, recipe, say):
            say(f"{root} holds what is needed; keeping it")
        else:
            _make(root, recipe, say)
        _mark(root, recipe)
    return python


def _complete(root: Path, recipe: Recipe) -> bool:
    try:
        told = json.loads((root / MARKER).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    # The interpreter it stands on may have been removed since.
    return bool(told.get("fingerprint") == recipe.fingerprint) and (root / "bin" / "python").exists()


def _made_by_hand(root: Path, recipe: Recipe, say: Say) -> bool:
    if not (root / "bin" / "python").exists() or (root / UNFINISHED).exists() or (root / MARKER).exists():
        return False
    say(f"{root} has no mark of completeness; checking it")
    return _run([str(root / "bin" / "python"), "-c", recipe.check]).returncode == 0


def _make(root: Path, recipe: Recipe, say: Say) -> None:
    if root.exists():
        say(f"{root} is half-finished or of another recipe; making it again")
        shutil.rmtree(root)
    root.mkdir(parents=True)
    (root / UNFINISHED).touch()
    python = str(root / "bin" / "python")
    say(f"making {root} (Python {sys.version_info.major}.{sys.version_info.minor})")
    _step("making the environment", [sys.executable, "-m", "venv", str(root)])
    pip = [python, "-m", "pip", "--disable-pip-version-check", "--no-input"]
    _install(pip, recipe, say)
    if recipe.remove:
        say(f"removing {', '.join(recipe.remove)}")
        _step("removing packages", [*pip, "uninstall", "-y", *recipe.remove])
    say("checking the environment")
    _step("checking the environment", [python, "-c", recipe.check])


def _install(pip: list[str], recipe: Recipe, say: Say) -> None:
    constrained = ["-c", str(recipe.constraints)] if recipe.constraints is not None else []
    failures = []
    for options in recipe.pip_options:
        say(f"installing {', '.join(recipe.requirements)} {' '.join(options)}".rstrip() + " (minutes)")
        done = _run([*pip, "install", *options, *constrained, *recipe.requirements], say)
        if done.returncode == 0:
            return
        failures.append(done)
    raise SetUpError("\n".join(_failure("installing packages", failure) for failure in failures))


def _mark(root: Path, recipe: Recipe) -> None:
    """The marker appears whole or not at all."""
    told = {"fingerprint": recipe.fingerprint, "requirements": recipe.requirements, "removed": recipe.remove}
    draft = root / f"{MARKER}.draft"
    draft.write_text(json.dumps(told, indent=2) + "\n", encoding="utf-8")
    draft.rename(root / MARKER)
    (root / UNFINISHED).unlink(missing_ok=True)


@contextmanager
def _lock(path: Path, say: Say) -> Iterator[None]:
    """The operating system lets go of the lock when its holder dies, so no stale lock can be left."""
    with path.open("w", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"another set-up holds {path}; waiting for it")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _step(what: str, command: list[str]) -> None:
    done = _run(command)
    if done.returncode != 0:
        raise SetUpError(_failure(what, done))


def _run(command: list[str], say: Say | None = None) -> subprocess.CompletedProcess[str]:
    """Runs to the end; its output is kept, and told line by line as it comes where ``say`` is given."""
    lines = []
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=_clean_environment()
    ) as process:
        assert process.stdout is not None, "piped"
        for line in process.stdout:
            lines.append(line)
            if say is not None and line.startswith(
                ("Collecting", "Downloading", "Installing", "Successfully", "ERROR")
            ):
                say(f"  {line.rstrip()[:160]}")
    return subprocess.CompletedProcess(command, process.returncode, "".join(lines), "")


def _clean_environment() -> dict[str, str]:
    """Nothing of the environment that the tests run in may reach into the engine's."""
    return {k: v for k, v in os.environ.items() if k not in {"PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV"}}


def _failure(what: str, done: subprocess.CompletedProcess[str]) -> str:
    tail = "\n".join(done.stdout.splitlines()[-30:])
    return f"{what} failed (exit code {done.returncode}): {' '.join(done.args)}\n{tail}"
