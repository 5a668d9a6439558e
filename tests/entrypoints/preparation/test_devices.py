"""CPUs and GPUs, counted from files."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from herringbone_entry.preparation.devices import num_cpus, num_gpus


@pytest.mark.parametrize(
    ("visible", "expected"),
    [("0,1,2", 3), ("", 0), ("-1", 0), ("0,-1,2", 1), ("MIG-a/1/0,MIG-b/1/0", 2), ("NoDevFiles", 0)],
)
def test_p18_visible_devices_count_as_cuda_counts_them(visible: str, expected: int, tmp_path: Path) -> None:
    assert num_gpus({"CUDA_VISIBLE_DEVICES": visible}, tmp_path) == expected


def lay(root: Path, *files: str) -> None:
    for name in files:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch()


TWO_LISTED = ("proc/driver/nvidia/gpus/0000:00:1e.0/information", "proc/driver/nvidia/gpus/0000:00:1f.0/information")


def test_p18_else_the_device_files_count(tmp_path: Path) -> None:
    assert num_gpus({}, tmp_path) == 0
    lay(tmp_path, "dev/nvidia0", "dev/nvidia3", "dev/nvidiactl", "dev/nvidia-uvm", *TWO_LISTED)
    assert num_gpus({}, tmp_path) == 2
    assert num_gpus({"NVIDIA_VISIBLE_DEVICES": "all"}, tmp_path) == 2
    assert num_gpus({"NVIDIA_VISIBLE_DEVICES": "void"}, tmp_path) == 2
    assert num_gpus({"NVIDIA_VISIBLE_DEVICES": "3"}, tmp_path) == 1
    assert num_gpus({"NVIDIA_VISIBLE_DEVICES": "0,3", "CUDA_VISIBLE_DEVICES": "1"}, tmp_path) == 1


def test_p18_a_container_without_gpus_sees_the_machines_in_proc_and_has_none(tmp_path: Path) -> None:
    lay(tmp_path, *TWO_LISTED)
    assert num_gpus({}, tmp_path) == 2
    lay(tmp_path, ".dockerenv")
    assert num_gpus({}, tmp_path) == 0
    # The image's variable is only a request.
    assert num_gpus({"NVIDIA_VISIBLE_DEVICES": "0,1"}, tmp_path) == 0


def test_p18_slices_of_a_gpu_count_each(tmp_path: Path) -> None:
    mig = "proc/driver/nvidia/capabilities/gpu0/mig"
    lay(tmp_path, "dev/nvidia0", "dev/nvidia1", f"{mig}/gi1/access", f"{mig}/gi1/ci0/access", f"{mig}/gi2/ci0/access")
    assert num_gpus({}, tmp_path) == 3
    assert num_gpus({"NVIDIA_VISIBLE_DEVICES": "MIG-5c6c,MIG-8f1b"}, tmp_path) == 2
    assert num_gpus({"NVIDIA_VISIBLE_DEVICES": "0:1"}, tmp_path) == 1


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"cpu.max": "50000 100000"}, 1),
        ({"cpu.max": "max 100000"}, None),
        ({"cpu/cpu.cfs_quota_us": "100000", "cpu/cpu.cfs_period_us": "100000"}, 1),
        ({"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, None),
        ({"job/rank/cpu.max": "max 100000", "job/cpu.max": "100000 100000", "other/cpu.max": "1 100000"}, 1),
        ({"cpu/job/cpu.cfs_quota_us": "100000", "cpu/job/cpu.cfs_period_us": "100000"}, 1),
        ({}, None),
    ],
)
def test_p18_cpus_within_the_control_groups_quota(files: dict[str, str], expected: int | None, tmp_path: Path) -> None:
    lay(tmp_path, "proc/self/cgroup")
    (tmp_path / "proc/self/cgroup").write_text("4:cpu,cpuacct:/job\n3:memory:/other\n0::/job/rank\n")
    for name, text in files.items():
        path = tmp_path / "sys/fs/cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    assert num_cpus(tmp_path) == (expected or len(os.sched_getaffinity(0)))
