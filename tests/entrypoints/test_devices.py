"""CPUs and GPUs, counted from files."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from herringbone_entry.devices import num_cpus, num_gpus


@pytest.mark.parametrize(
    ("visible", "expected"),
    [("0,1,2", 3), ("", 0), ("-1", 0), ("0,-1,2", 1), ("MIG-a/1/0,MIG-b/1/0", 2), ("NoDevFiles", 0)],
)
def test_p18_visible_devices_count_as_cuda_counts_them(visible: str, expected: int, tmp_path: Path) -> None:
    assert num_gpus({"CUDA_VISIBLE_DEVICES": visible}, tmp_path) == expected


def test_p18_else_the_drivers_list_counts(tmp_path: Path) -> None:
    assert num_gpus({}, tmp_path) == 0
    for name in ("0000:00:1e.0", "0000:00:1f.0"):
        (tmp_path / "proc/driver/nvidia/gpus" / name).mkdir(parents=True)
    assert num_gpus({}, tmp_path) == 2


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"cpu.max": "50000 100000"}, 1),
        ({"cpu.max": "max 100000"}, None),
        ({"cpu/cpu.cfs_quota_us": "100000", "cpu/cpu.cfs_period_us": "100000"}, 1),
        ({"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, None),
        ({}, None),
    ],
)
def test_p18_cpus_within_the_control_groups_quota(files: dict[str, str], expected: int | None, tmp_path: Path) -> None:
    for name, text in files.items():
        path = tmp_path / "sys/fs/cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    assert num_cpus(tmp_path) == (expected or len(os.sched_getaffinity(0)))
