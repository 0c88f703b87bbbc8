"""How much CPU time this process may have: its affinity mask, and the quotas of the control groups that it is in.

A container with ``--cpus 2`` on a machine of 64 cores sees 64 in its mask and is given two. Linux says so in ``cpu.max``
(cgroup v2) or ``cpu.cfs_quota_us`` (v1) of any group between the process's own and the root that the process can see.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

_GROUPS = Path("/proc/self/cgroup")
_MOUNT = Path("/sys/fs/cgroup")


def cores(groups: Path = _GROUPS, mount: Path = _MOUNT) -> float:
    """Seconds of CPU time in a second, above 0. ``groups``, ``mount``: where Linux says what control groups there are."""
    return min([float(_in_mask()), *_quotas(groups, mount)])


def whole_cores() -> int:
    """The same, rounded down; at least 1: how many processes can be busy at once."""
    return max(1, int(cores()))


def _in_mask() -> int:
    if hasattr(os, "process_cpu_count"):
        return os.process_cpu_count() or 1
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _quotas(groups: Path, mount: Path) -> Iterator[float]:
    for line in _read(groups).splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers:
            for folder in _up(mount, path):
                yield from _share(*(_read(folder / "cpu.max").split() or ("max",)))
        elif "cpu" in controllers.split(","):
            for name in dict.fromkeys((controllers, "cpu")):
                for folder in _up(mount / name, path):
                    yield from _share(_read(folder / "cpu.cfs_quota_us"), _read(folder / "cpu.cfs_period_us"))


def _up(mount: Path, path: str) -> Iterator[Path]:
    """The group's folder and those above it. In a container ``path`` may be the host's, which is not there: then the mount
    itself is the group."""
    folder = Path(os.path.normpath(mount / path.lstrip("/")))
    while folder != mount and mount in folder.parents:
        yield folder
        folder = folder.parent
    yield mount


def _share(quota: str, period: str = "100000") -> Iterator[float]:
    """Nothing for a group without a quota (``max``, -1, or no file)."""
    try:
        allowed, of = int(quota), int(period)
    except ValueError:
        return
    if allowed > 0 and of > 0:
        yield allowed / of


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii").strip()
    except OSError:
        return ""
