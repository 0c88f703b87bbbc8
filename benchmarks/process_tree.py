"""CPU time of a process and all that descend from it, while they run (Linux: read from /proc)."""

from __future__ import annotations

import os
from pathlib import Path

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_PROC = Path("/proc")


def tree_cpu_s(root: int) -> float:
    """User and system time of ``root``, its living descendants, and their children that ended and were waited for, s;
    in steps of a clock tick (10 ms as a rule). 0 when the process is gone.
    """
    parents: dict[int, int] = {}
    used: dict[int, float] = {}
    for folder in _PROC.iterdir():
        if not folder.name.isdigit():
            continue
        try:
            # The command's name stands in parentheses and may hold anything: the fields follow the last one.
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        pid = int(folder.name)
        parents[pid] = int(fields[1])
        used[pid] = sum(int(field) for field in fields[11:15]) / _TICKS_PER_S
    total = 0.0
    for pid, cpu_s in used.items():
        ancestor: int | None = pid
        while ancestor is not None and ancestor != root:
            ancestor = parents.get(ancestor)
        if ancestor == root:
            total += cpu_s
    return total
