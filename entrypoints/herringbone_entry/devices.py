"""How many CPUs and GPUs this host lets us use; files only, no program is started to ask."""

from __future__ import annotations

import os
from collections.abc import Mapping
from math import ceil
from pathlib import Path


def num_cpus(root: Path = Path("/")) -> int:
    """Return the CPUs that this process may use: its affinity, within its control group's quota.

    `root` is where the host's file system begins.
    """
    affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = _quota(root / "sys/fs/cgroup")
    return affinity if quota is None else max(1, min(affinity, ceil(quota)))


def num_gpus(environ: Mapping[str, str], root: Path = Path("/")) -> int:
    """Return the GPUs that a rank will see: `CUDA_VISIBLE_DEVICES` (MIG slices too), else what the driver lists."""
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return _num_visible(visible)
    try:
        return sum(1 for _ in (root / "proc/driver/nvidia/gpus").iterdir())
    except OSError:
        return 0


def _num_visible(listed: str) -> int:
    """Count as CUDA does: everything from the first -1 on is hidden."""
    names = [name.strip() for name in listed.split(",")]
    hidden_from = names.index("-1") if "-1" in names else len(names)
    return sum(1 for name in names[:hidden_from] if name and name.lower() not in ("none", "void", "nodevfiles"))


def _quota(cgroup: Path) -> float | None:
    """Return the CPU quota in CPUs, from control groups version 2 or else 1; None without a limit."""
    try:
        quota, period = (cgroup / "cpu.max").read_text().split()
    except (OSError, ValueError):
        try:
            quota = (cgroup / "cpu/cpu.cfs_quota_us").read_text().strip()
            period = (cgroup / "cpu/cpu.cfs_period_us").read_text().strip()
        except OSError:
            return None
    if quota in ("max", "-1"):
        return None
    return int(quota) / int(period)
