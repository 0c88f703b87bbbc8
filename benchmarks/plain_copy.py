"""A copy of this checkout's sources, for what must not change it: plain Python until something is compiled there."""

from __future__ import annotations

import shutil
from pathlib import Path

HOME = Path(__file__).resolve().parent.parent
PACKAGES = ("tenants", "scheduler", "backends", "loadgen", "lmperf", "benchmarks", "scenarios")


def copied(folder: Path) -> Path:
    """Into ``folder``, which is made if it is not there; binaries are left behind."""
    for name in PACKAGES:
        shutil.copytree(
            HOME / name,
            folder / name,
            dirs_exist_ok=True,
            ignore=shutil.ignore_patterns("*.so", "compiled.*.json", "__pycache__"),
        )
    return folder
