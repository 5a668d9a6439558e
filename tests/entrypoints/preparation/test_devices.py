"""CPUs and GPUs, counted from files."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from herringbone_contract.resources import num_gpus
from herringbone_entry.health.memory import out_of_memory
from herringbone_entry.preparation.devices import num_cpus, oom_kills


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


V1, V2 = "sys/fs/cgroup/memory", "sys/fs/cgroup"


@pytest.mark.parametrize(
    ("groups", "files", "kills", "said"),
    [
        (
            "0::/job/rank",
            {
                f"{V2}/job/rank/memory.events": "low 0\noom 4\noom_kill 3\noom_group_kill 9",
                f"{V2}/job/rank/memory.peak": str(200 << 20),
                f"{V2}/job/rank/memory.max": "max",
                f"{V2}/job/memory.events": "oom_kill 7",
                f"{V2}/job/memory.max": str(256 << 20),
                "proc/vmstat": "oom_kill 11",
            },
            3,
            "this host used 200 MiB at its peak, of the 256 MiB that it may use;",
        ),
        # A container's own group, mounted in place of the root.
        (
            "0::/",
            {f"{V2}/memory.events": "oom_kill 1", f"{V2}/memory.max": str(64 << 20)},
            1,
            "killed the process, of the 64 MiB that it may use;",
        ),
        (
            "4:memory:/docker/abc\n0::/",
            {
                f"{V1}/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 2",
                f"{V1}/memory.max_usage_in_bytes": str(100 << 20),
                f"{V1}/memory.limit_in_bytes": str((1 << 63) - 4096),
                "proc/meminfo": "MemTotal:  1048576 kB\nMemFree: 1 kB",
            },
            2,
            "this host used 100 MiB at its peak, of the machine's 1024 MiB;",
        ),
        # The root group of version 2 tells nothing.
        ("0::/", {"proc/vmstat": "pgfault 8\noom_kill 11"}, 11, "killed the process; lower the batch size"),
        ("0::/", {}, None, "killed the process; lower the batch size"),
    ],
    ids=["version 2", "version 2, container", "version 1", "machine", "unknown"],
)
def test_kills_for_memory_are_counted(tmp_path: Path, groups: str, files: dict[str, str], kills, said: str) -> None:
    for name, text in {"proc/self/cgroup": groups, **files}.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    assert oom_kills(tmp_path) == kills
    assert said in out_of_memory(tmp_path)
