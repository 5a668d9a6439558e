"""Count the CPUs that this host lets us use, and its kills for memory, from files: no program is started."""

from __future__ import annotations

import os
from math import ceil
from pathlib import Path


def num_cpus(root: Path = Path("/")) -> int:
    """Return the number of CPUs that this process may use: its affinity, within its control groups' quota.

    `root` is the root of the host's file system.
    """
    affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = _quota(root)
    # Rounded up: with a quota of 1.5 CPUs, two threads are still faster than one.
    return affinity if quota is None else max(1, min(affinity, ceil(quota)))


def oom_kills(root: Path = Path("/")) -> int | None:
    """Return how many processes of this control group the kernel has killed for want of memory; None if unknown.

    A system without control groups tells the number of the whole machine.
    """
    for folder in memory_groups(root)[:1]:
        for name in ("memory.events", "memory.oom_control"):
            kills = _field(folder / name, "oom_kill")
            if kills is not None:
                return kills
    return _field(root / "proc/vmstat", "oom_kill")


def memory_groups(root: Path = Path("/")) -> list[Path]:
    """Return the folders of this process's memory control group and of its parents, the group itself first."""
    mount = root / "sys/fs/cgroup"
    groups = sorted(_groups(root, "memory"), key=len, reverse=True)
    # Version 1 has a tree of its own for memory. A container may have its group mounted in place of the root group.
    folders = [folder / group for folder in (mount, mount / "memory") for group in groups]
    return [folder for folder in folders if any((folder / name).exists() for name in _MEMORY_FILES)]


def _field(path: Path, name: str) -> int | None:
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) for line in lines if line.startswith(f"{name} ")), None)


# The first is of version 2, and not in its root group.
_MEMORY_FILES = ("memory.events", "memory.oom_control")


def _quota(root: Path) -> float | None:
    """Return the smallest quota, in CPUs, of this process's control group and its parents; None without a quota."""
    mount = root / "sys/fs/cgroup"
    quotas = []
    for group in _groups(root, "cpu"):
        # Version 2 has one tree for all controllers, version 1 a tree for each.
        for folder in (mount / group, mount / "cpu" / group):
            quota = _version_2(folder) or _version_1(folder)
            if quota is not None:
                quotas.append(quota)
    return min(quotas, default=None)


def cpu_files(pid: int, root: Path = Path("/")) -> list[Path]:
    """Return the files `cpu.stat` of a process's control group and of its parents."""
    mount = root / "sys/fs/cgroup"
    folders = {mount / tree / group for group in _groups(root, "cpu", str(pid)) for tree in ("", "cpu")}
    return sorted(file for folder in folders if (file := folder / "cpu.stat").exists())


def _groups(root: Path, controller: str, pid: str = "self") -> set[str]:
    """Return the paths of a process's groups with that controller, and of their parents; "" is the root group."""
    groups = {""}
    try:
        lines = (root / f"proc/{pid}/cgroup").read_text().splitlines()
    except OSError:
        return groups
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if not controllers or controller in controllers.split(","):
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
