"""Where a run was made: versions, host, and the commit of the checkout it was started in."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from loadgen.summary.schema import Git, Host

_PACKAGES = (
    "lmperf",
    "aiohttp",
    "hdrhistogram",
    "httptools",
    "msgspec",
    "numpy",
    "pyarrow",
    "scipy",
    "simpy",
    "uvloop",
)
_GIT_TIMEOUT_S = 5


def versions() -> dict[str, str]:
    """Python's version and those of the packages that shape a measurement, as far as installed."""
    found = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "not installed"
    return found


def host() -> Host:
    return Host(
        name=platform.node(),
        system=f"{platform.system()} {platform.release()}",
        machine=platform.machine(),
        cpus=os.cpu_count(),
    )


def git_of(folder: Path) -> Git | None:
    """The commit that ``folder`` is checked out at; None outside a checkout, before its first commit, or without
    git.
    """
    git = shutil.which("git")
    if git is None:
        return None

    def ask(*arguments: str) -> str | None:
        try:
            answer = subprocess.run(  # noqa: S603 (fixed arguments, no shell)
                [git, "-C", str(folder), *arguments],
                capture_output=True,
                text=True,
                timeout=_GIT_TIMEOUT_S,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired):
            return None
        return answer.stdout.strip() if answer.returncode == 0 else None

    commit = ask("rev-parse", "HEAD")
    if not commit:
        return None
    return Git(commit=commit, dirty=bool(ask("status", "--porcelain", "--untracked-files=no")))
