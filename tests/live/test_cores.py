"""CPU time that a process may have: never more than its mask, and no more than the tightest quota above it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from loadgen.cores import cores

MASK = float(len(os.sched_getaffinity(0))) if hasattr(os, "sched_getaffinity") else float(os.cpu_count() or 1)


def machine(folder: Path, groups: str, files: dict[str, str]) -> float:
    (folder / "cgroup").write_text(groups)
    for name, text in files.items():
        path = folder / "fs" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return cores(folder / "cgroup", folder / "fs")


@pytest.mark.parametrize(
    ("groups", "files", "share"),
    [
        ("0::/\n", {"cpu.max": "50000 100000\n"}, 0.5),
        ("0::/\n", {"cpu.max": "max 100000\n"}, None),
        ("0::/pod/app\n", {"pod/app/cpu.max": "max 100000\n", "pod/cpu.max": "25000 50000\n"}, 0.5),
        ("0::/pod/app\n", {"pod/app/cpu.max": "20000 100000\n", "pod/cpu.max": "90000 100000\n"}, 0.2),
        ("0::/of/the/host\n", {"cpu.max": "75000 100000\n"}, 0.75),
        ("0::/../other\n", {"cpu.max": "75000 100000\n"}, 0.75),
        (
            "5:memory:/x\n4:cpu,cpuacct:/x\n",
            {"cpu,cpuacct/x/cpu.cfs_quota_us": "40000\n", "cpu,cpuacct/x/cpu.cfs_period_us": "100000\n"},
            0.4,
        ),
        ("4:cpu:/x\n", {"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, None),
        (
            "4:cpuacct,cpu:/x\n0::/\n",
            {"cpu/cpu.cfs_quota_us": "30000\n", "cpu/cpu.cfs_period_us": "100000\n"},
            0.3,
        ),
        ("0::/\n", {}, None),
        ("", {}, None),
    ],
)
def test_the_tightest_quota_counts(tmp_path, groups, files, share):
    """cgroup v2 and v1, of the own group and of those above it; no quota, or no control groups: the mask alone."""
    assert machine(tmp_path, groups, files) == (MASK if share is None else min(MASK, share))


def test_a_quota_above_the_mask_gives_nothing(tmp_path):
    assert machine(tmp_path, "0::/\n", {"cpu.max": "99900000 100000\n"}) == min(MASK, 999.0)


def test_a_machine_that_is_not_linux_has_its_mask(tmp_path):
    assert cores(tmp_path / "none", tmp_path / "none") == MASK
