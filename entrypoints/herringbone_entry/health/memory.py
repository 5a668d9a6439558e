"""The kernel's account of a process that it killed for want of memory. It is loaded with all that a failure needs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from herringbone_entry.preparation.devices import memory_groups

_MIB = 1 << 20
# Version 1 writes a number near 2^63 where there is no limit.
_NO_LIMIT = 1 << 60
LIMIT_FILES = ("memory.max", "memory.limit_in_bytes")
_REMEDY = "lower the batch size or the number of data loader workers, or give the host more memory"


def out_of_memory(root: Path = Path("/")) -> str:
    """Return the message of a process that the kernel killed for memory: the peak, the limit, and what to lower.

    `root` is the root of the host's file system.
    """
    groups = memory_groups(root)
    peak = smallest(groups[:1], ("memory.peak", "memory.max_usage_in_bytes"))
    return message(peak, smallest(groups, LIMIT_FILES), meminfo_bytes(root, "MemTotal"))


def message(peak: int | None, limit: int | None, machine: int | None) -> str:
    """Return the message from numbers of bytes; None for a number that the system does not tell.

    >>> message(250 << 20, 256 << 20, None).partition(";")[0]
    'out of memory: the kernel killed the process; this host used 250 MiB at its peak, of the 256 MiB that it may use'
    """
    used = "" if peak is None else f"; this host used {peak / _MIB:.0f} MiB at its peak"
    room = "" if machine is None else f", of the machine's {machine / _MIB:.0f} MiB"
    if limit is not None:
        room = f", of the {limit / _MIB:.0f} MiB that it may use"
    return f"out of memory: the kernel killed the process{used}{room}; {_REMEDY}"


def smallest(folders: Sequence[Path], names: Sequence[str]) -> int | None:
    """Return the smallest number in files of these names in control groups; None without a number."""
    numbers = []
    for folder in folders:
        for name in names:
            try:
                number = int((folder / name).read_text())
            except (OSError, ValueError):
                continue  # the other version's name, or the word "max"
            if number < _NO_LIMIT:
                numbers.append(number)
    return min(numbers, default=None)


def meminfo_bytes(root: Path, field: str) -> int | None:
    """Return a number of the machine's memory, such as "MemTotal"; None where the system does not tell."""
    try:
        lines = (root / "proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{field}:")), None)
