"""How many CPUs and GPUs this host lets us use; files only, no program is started to ask."""

from __future__ import annotations

import os
from collections.abc import Mapping
from math import ceil
from pathlib import Path


def num_cpus(root: Path = Path("/")) -> int:
    """Return the CPUs that this process may use: its affinity, within its control groups' quota.

    `root` is where the host's file system begins.
    """
    affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = _quota(root)
    return affinity if quota is None else max(1, min(affinity, ceil(quota)))


def num_gpus(environ: Mapping[str, str], root: Path = Path("/")) -> int:
    """Return the CUDA devices that ranks may use: whole GPUs, or MIG slices where a GPU is cut.

    `CUDA_VISIBLE_DEVICES` counts as CUDA counts it. Else `NVIDIA_VISIBLE_DEVICES`, by which a container gets some of
    the machine's GPUs; images set it too, so it counts only where a GPU is there. Else what this host has device files
    for: /proc lists the machine's GPUs also in a container that was given none.
    """
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return _num_visible(visible)
    gpus = _device_files(root)
    given = environ.get("NVIDIA_VISIBLE_DEVICES", "all").strip()
    if gpus and given not in _NOT_A_LIST:
        return _num_visible(given)
    return sum(_num_slices(root, gpu) or 1 for gpu in gpus)


# All of them; the driver's programs without a GPU; and given in another way (CDI), or not at all.
_NOT_A_LIST = ("all", "none", "void", "")


def _device_files(root: Path) -> list[int]:
    """Return the numbers of the GPUs that this host has."""
    found = [path.name.removeprefix("nvidia") for path in (root / "dev").glob("nvidia[0-9]*")]
    if found or any((root / mark).exists() for mark in (".dockerenv", "run/.containerenv", "dev/nvidiactl")):
        return sorted(int(number) for number in found if number.isdigit())
    try:
        # A machine that has just started makes the device files when somebody first asks for a GPU.
        return list(range(sum(1 for _ in (root / "proc/driver/nvidia/gpus").iterdir())))
    except OSError:
        return []


def _num_slices(root: Path, gpu: int) -> int:
    """Return a GPU's MIG compute instances; 0 when it is not cut.

    Source: NVIDIA's MIG User Guide, "Device Nodes and Capabilities".
    """
    return sum(1 for _ in (root / f"proc/driver/nvidia/capabilities/gpu{gpu}/mig").glob("gi*/ci*/access"))


def _num_visible(listed: str) -> int:
    """Count as CUDA does: everything from the first -1 on is hidden."""
    names = [name.strip() for name in listed.split(",")]
    hidden_from = names.index("-1") if "-1" in names else len(names)
    return sum(1 for name in names[:hidden_from] if name and name.lower() not in ("none", "void", "nodevfiles"))


def _quota(root: Path) -> float | None:
    """Return the smallest CPU quota, in CPUs, of this process's control group and those around it; None without one."""
    mount = root / "sys/fs/cgroup"
    found = []
    for group in _groups(root):
        for folder in (mount / group, mount / "cpu" / group):
            quota = _version_2(folder) or _version_1(folder)
            if quota is not None:
                found.append(quota)
    return min(found, default=None)


def _groups(root: Path) -> set[str]:
    """Return the paths of this process's control groups and of all around them; "" is the outermost."""
    groups = {""}
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return groups
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if not controllers or "cpu" in controllers.split(","):
            parts = path.strip("/").split("/")
            groups |= {"/".join(parts[:count]) for count in range(1, len(parts) + 1)}
    return groups


def _version_2(folder: Path) -> float | None:
    try:
        quota, period = (folder / "cpu.max").read_text().split()
    except (OSError, ValueError):
        return None
    return None if quota == "max" else int(quota) / int(period)


def _version_1(folder: Path) -> float | None:
    try:
        quota = int((folder / "cpu.cfs_quota_us").read_text())
        period = int((folder / "cpu.cfs_period_us").read_text())
    except (OSError, ValueError):
        return None
    return None if quota < 0 else quota / period
